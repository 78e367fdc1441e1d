"""Write the section of the next release in CHANGELOG.md, from changelogs/fragments, and remove them.

Usage: changelog.py. The version is that of galaxy.yml. Whoever releases runs it (`make changelog`). The kinds of
changes and their titles are those of changelogs/config.yaml, by which antsibull-changelog checks the fragments; its
own Markdown has a backslash before every full stop.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import yaml

TOP = Path(__file__).resolve().parents[1]
WIDTH = 120


def main(top: Path = TOP) -> None:
    """Write it."""
    page, fragments = top / "CHANGELOG.md", sorted((top / "changelogs/fragments").glob("*.yml"))
    version = yaml.safe_load((top / "galaxy.yml").read_text())["version"]
    text = page.read_text()
    if f"\n## {version}\n" in text:
        sys.exit(f"CHANGELOG.md has {version} already: write the new version into galaxy.yml")
    if not fragments:
        sys.exit("changelogs/fragments has no fragment: nothing changed for users")
    kinds = yaml.safe_load((top / "changelogs/config.yaml").read_text())["sections"]
    before, mark, released = text.partition("\n## ")
    page.write_text(f"{before}\n## {version}\n{section([read(path) for path in fragments], kinds)}{mark}{released}")
    for path in fragments:
        path.unlink()


def read(path: Path) -> dict[str, list[str]]:
    """Return the changes of a fragment, by kind."""
    changes: dict[str, Any] = yaml.safe_load(path.read_text())
    return {kind: [str(change) for change in changes[kind]] for kind in changes}


def section(fragments: list[dict[str, list[str]]], kinds: list[list[str]]) -> str:
    """Return the changes of some fragments, kind by kind."""
    text = ""
    for kind, title in kinds:
        changes = [change for fragment in fragments for change in fragment.get(kind, [])]
        text += f"\n### {title}\n\n" + "".join(map(item, changes)) if changes else ""
    return text


def item(change: str) -> str:
    """Return a change as an item of a Markdown list: fragments have reStructuredText's links and literals."""
    linked = re.sub(r"`([^`<]+) <([^>`]+)>`__", r"[\1](\2)", change.replace("``", "`"))
    wrapper = textwrap.TextWrapper(WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
    return wrapper.fill(linked) + "\n"


if __name__ == "__main__":
    main()

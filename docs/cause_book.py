"""Write docs/causes.md, the book of causes by symptom, from the entries in plugins/plugin_utils/_causes/entries.

Usage: cause_book.py. Whoever changes an entry runs it; tests/unit/test_causes.py says where that was forgotten.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

REPO = Path(__file__).resolve().parents[1]
BOOK = REPO / "plugins/plugin_utils/_causes/entries"
PAGE = REPO / "docs/causes.md"
# In the order in which a reader looks, not in that of the search.
SYMPTOMS = ("ended", "packages", "program", "machine", "network", "nccl", "gpu", "launcher", "slurm")
HEAD = """# My job failed: what does its last line mean?

<!-- Written by docs/cause_book.py from plugins/plugin_utils/_causes/entries -->

The last line of a failed job ends with `cause ID: what it is. Fix: what to do`, if this book knows it. `cause` of
[result.json](read-a-run.md) has the same, with the line that says so. Find your ID, or the text that you see, below.

How it is found: the output of the rank that failed first is looked through, then that of others that failed by
themselves, then the launcher's. Only what ended the program counts: its last traceback if it stops there, without the
code that it shows, else its last 10 lines. What only says that a peer hung up, or was late, is taken if nothing else is
there. Nothing is guessed: without a text, a code or a signal of this page there is no cause.
"""


def main() -> None:
    """Write it."""
    PAGE.write_text(page())


def page() -> str:
    """Return the page."""
    return HEAD + "".join(section(yaml.safe_load((BOOK / f"{name}.yml").read_text())) for name in SYMPTOMS)


def section(chapter: dict[str, Any]) -> str:
    """Return the part of one symptom."""
    rows = "".join(row(entry) for entry in chapter["causes"])
    return f"\n## {chapter['symptom']}\n\n| you see | cause | fix | id, source |\n|---|---|---|---|\n{rows}"


def row(entry: dict[str, Any]) -> str:
    """Return the row of one entry."""
    shown = "; ".join([*signs(entry), *codes(entry)])
    cells = (shown, entry["cause"], entry["mend"], f"**{entry['id']}**<br>{entry['source']}")
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def signs(entry: dict[str, Any]) -> list[str]:
    """Return the texts of an entry as a reader sees them."""
    texts = [sign if isinstance(sign, str) else " ... ".join(sign) for sign in entry.get("signs", ())]
    return [f"`` {text.strip()} ``" for text in texts]


def codes(entry: dict[str, Any]) -> list[str]:
    """Return by what else an entry is recognised."""
    words = [f"state `{state}`" for state in entry.get("states", ())]
    words += [f"`{code}` in record.json" for code in entry.get("codes", ())]
    return words + [f"killed by {name}" for name in entry.get("signals", ())]


if __name__ == "__main__":
    main()

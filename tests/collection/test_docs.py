"""The pages: what they link to is there, and the README shows what is promised."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
PAGES = [
    REPO / "README.md",
    REPO / "SECURITY.md",
    *sorted((REPO / "docs").glob("*.md")),
    *sorted((REPO / "roles").glob("*/README.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text())
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_the_first_screen_shows_both_commands_and_what_they_print() -> None:
    first_screen = (REPO / "README.md").read_text().splitlines()[:40]
    text = "\n".join(first_screen)
    for words in ("make train", "make test", "succeeded in", " passed"):
        assert words in text


def test_every_page_is_linked_from_the_readme() -> None:
    text = (REPO / "README.md").read_text()
    assert [page.name for page in (REPO / "docs").glob("*.md") if f"docs/{page.name}" not in text] == []

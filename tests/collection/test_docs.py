"""The pages: what they link to is there, and the README shows what is promised."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
PAGES = [
    REPO / "README.md",
    REPO / "SECURITY.md",
    REPO / "CONTRIBUTING.md",
    REPO / "CODE_OF_CONDUCT.md",
    *sorted((REPO / "docs").rglob("*.md")),
    *sorted((REPO / "roles").glob("*/README.md")),
]


def test_links_lead_somewhere() -> None:
    links = [(page, link) for page in PAGES for link in re.findall(r"\]\(([^)#]+)\)", page.read_text())]
    assert [(page, link) for page, link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_the_first_screen_shows_both_commands_and_what_they_print() -> None:
    first_screen = (REPO / "README.md").read_text().splitlines()[:40]
    text = "\n".join(first_screen)
    for words in ("make train", "make test", "succeeded in", " passed"):
        assert words in text


def proofs() -> list[list[str]]:
    """Return the rows of the page: what, its state, and by what. Its links start in docs/."""
    table = (
        (REPO / "docs/proven.md").read_text().partition("\n| | state | by |\n|---|---|---|\n")[2].partition("\n\n")[0]
    )
    return [row.replace("](../", "](").strip("| ").split(" | ") for row in table.splitlines()]


def test_what_is_proven_names_tests_that_exist() -> None:
    """And a row that is run somewhere names at least one: a test, or a scenario of a role."""
    for what, _state, by in proofs():
        links = re.findall(r"\[[\w./]+(?:::(\w+))?\]\(([^)]+)\)", by)
        assert links or list(REPO.glob(by.strip("`"))), what
        for name, path in links:
            assert re.fullmatch(r"((torch_backends/)?tests/[\w/]+\.py|roles/\w+/molecule)", path), (what, path)
            assert not name or f"\ndef {name}(" in (REPO / path).read_text(), (what, name)


def test_a_command_that_is_proven_stands_in_its_test() -> None:
    """What the page types, the test types: the words of the command after the name of the playbook."""
    for what, _state, by in proofs():
        commands = re.findall(r"`((?:setup|train)\.yml[^`]*)`", what)
        texts = "".join((REPO / path).read_text() for path in re.findall(r"\(([^)]+\.py)\)", by) if commands)
        assert [command for command in commands if command not in texts] == [], what


def test_how_ansible_is_found_stands_before_its_first_command() -> None:
    text = (REPO / "README.md").read_text()
    assert 0 < text.index(". .venv/bin/activate") < text.index("ansible-playbook -i")


def test_every_page_is_linked_from_the_readme() -> None:
    text = (REPO / "README.md").read_text()
    assert [page.name for page in (REPO / "docs").glob("*.md") if f"docs/{page.name}" not in text] == []


def examples() -> list[str]:
    """Return the diffs of CONTRIBUTING.md."""
    return re.findall(r"^```diff\n(.*?)^```", (REPO / "CONTRIBUTING.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(len(examples())))
def test_an_example_of_contributing_fits_the_tree(number: int) -> None:
    """Else the example has to be made anew from the tables as they are."""
    argv = ["git", "apply", "--check", "-"]
    done = subprocess.run(argv, cwd=REPO, input=examples()[number], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_file_is_tracked_that_a_program_left() -> None:
    """Nothing empty in the first directory, and no number of a process. Archives of the tree have no git."""
    argv = ["git", "ls-files"]
    names = subprocess.run(argv, cwd=REPO, capture_output=True, text=True, check=False).stdout.split()
    first = [REPO / name for name in names if "/" not in name]
    empty = [path.name for path in first if path.exists() and not path.stat().st_size]
    assert [name for name in names if name.endswith(".pid")] + empty == []


def test_contributing_has_the_five_examples() -> None:
    assert len(examples()) == 5

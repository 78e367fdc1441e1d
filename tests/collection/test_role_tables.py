"""The tables of options in the READMEs of the roles are what docs/role_tables.py makes of their argument specs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.programs import load

REPO = Path(__file__).parents[2]
ROLES = sorted(path.name for path in (REPO / "roles").iterdir())


tables = load(REPO / "docs/role_tables.py")


@pytest.mark.parametrize("role", ROLES)
def test_a_readme_has_the_options_of_its_specs(role: str) -> None:
    """Else type `.venv/bin/python docs/role_tables.py`. Roles for other roles may name `ansible-doc` instead."""
    text = (REPO / "roles" / role / "README.md").read_text()
    options = tables.options_of(REPO / "roles" / role)
    if tables.BEGIN in text:
        assert text == tables.with_table(text, options)
    else:
        assert not options or f"ansible-doc -t role torchfleet.cluster.{role}" in text


@pytest.mark.parametrize(
    ("default", "shown"),
    [
        ("", "none"),
        ({}, "none"),
        ("auto", "`auto`"),
        (False, "`false`"),
        (2.0, "`2.0`"),
        ("3.11", "`'3.11'`"),
        (["debian 12", "debian 13"], "`debian 12`, `debian 13`"),
        (["--an-option-of-configure"] * 9, tables.DEFAULTS),
        ("{{ lookup('torchfleet.cluster.locked', 'mpich.version') }}", "that of `versions.yml`"),
        ("{{ torchfleet_home | default('~/.torchfleet') }}", "`torchfleet_home`, else `~/.torchfleet`"),
        ("{{ torchfleet_wheelhouse_fill | default(false) }}", "`torchfleet_wheelhouse_fill`, else `false`"),
        ("{{ backends | default(['mpi']) }}", "`backends`, else `mpi`"),
        ("{{ 10000 if cuda_toolkit else 3000 }}", "`{{ 10000 if cuda_toolkit else 3000 }}`"),
        ("{{ some | list }}", r"`{{ some \| list }}`"),
    ],
)
def test_a_default_is_shown_as_a_reader_would_type_it(default: Any, shown: str) -> None:
    assert tables.default_of({"default": default}) == shown


def test_what_is_required_has_no_default() -> None:
    assert tables.default_of({"required": True}) == "required"


def test_prose_outside_the_marks_stays() -> None:
    option = {"default": "a", "description": ["V(a) or C(b|c).", "See O(other)."], "choices": ["a", "d"]}
    text = f"before\n{tables.BEGIN}old\n{tables.END}after\n"
    row = "| `x` | `a` | `a` or `b\\|c`. See `other`. One of `a`, `d`. |\n"
    made = tables.with_table(text, {"x": option})
    head = "| variable | default | meaning |\n| --- | --- | --- |\n"
    assert made == f"before\n{tables.BEGIN}{head}{row}{tables.END}after\n"
    assert tables.with_table(made, {"x": option}) == made

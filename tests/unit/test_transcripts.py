"""Command lines and files of every launcher are those that the real programs were seen to take."""

from __future__ import annotations

import pytest

from tests.transcripts import PROGRAMS, command_of, ranks_of, read, text_of


@pytest.mark.parametrize("name", PROGRAMS)
def test_golden_command_lines(name: str) -> None:
    rendered = {case: text_of(command_of(PROGRAMS[name], case)) for case in PROGRAMS[name].cases}
    assert rendered == {case: transcript.rendered for case, transcript in read(name).items()}


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_rank_was_seen_in_its_place(name: str) -> None:
    """What came of a line, as recorded, is what the plan says: nobody records a mistake unnoticed."""
    for case, transcript in read(name).items():
        assert transcript.came == ranks_of(PROGRAMS[name], case), case

"""Values as people type them: what a message shows of them, and which names are the plan's own."""

from __future__ import annotations

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.ranks.rank import rank_environment
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.values import parse_bytes, parse_environment

ORDER = {
    **{"host": "n1", "placement": [{"rank": 0, "local_rank": 0, "host": "n1"}], "job_id": "unit", "environment": {}},
    **{"launcher": {"name": "openmpi"}, "tmpdir": "", "path_first": "", "master_addr": "127.0.0.1", "master_port": 1},
    **{"restarts": 0},
}
PLACE = rank_environment(ORDER, (0, 1, 0, 1), {}).keys() - {"PATH"}


@pytest.mark.parametrize("name", sorted(PLACE))
def test_whatever_tells_a_rank_its_place_cannot_be_set_by_the_user(name: str) -> None:
    with pytest.raises(InputError, match=f'got "{name}"; the plan sets this variable'):
        parse_environment({name: "7"})


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("512", 512), ("1K", 2**10), ("500m", 500 * 2**20), (" 2G ", 2 * 2**30), ("1T", 2**40), (7, 7)],
)
def test_letters_of_a_size_are_powers_of_1024(text: object, size: int) -> None:
    assert parse_bytes("fetch_limit", text) == size


def test_a_message_is_one_line_that_changes_no_terminal() -> None:
    """It quotes what others wrote: names in an archive, the error of a build."""
    error = InputError("container_archive", "a\x9b2J.tar", "it holds \x1b]0;title\x07\x1b[2Jx:1\nfatal: all is lost")
    assert str(error) == 'container_archive: got "a2J.tar"; it holds ]0;title[2Jx:1 fatal: all is lost'


def test_a_message_shows_the_beginning_of_what_was_given() -> None:
    given = "x" * 100_000
    for error in (InputError("np", given, "give a number"), InputError("np", [given], "give a number")):
        assert len(str(error)) < 200 and "xxx..." in str(error) and str(error).endswith("; give a number")

import re

import pytest
from _basics import Every, Mistake, Parser, Place, line, place, positive, positive_number, prepare, replacing, share

TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_LOCAL_RANK": "2", "OMPI_COMM_WORLD_SIZE": "8"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Place(0, 0, 1)),
        ({"WORLD_SIZE": "9"}, Place(0, 0, 1)),
        (TORCHRUN, Place(3, 1, 4)),
        (OPEN_MPI, Place(5, 2, 8)),
        (OPEN_MPI | TORCHRUN, Place(3, 1, 4)),
    ],
)
def test_place_is_what_the_launcher_said(environment, expected):
    assert place(environment) == expected


@pytest.mark.parametrize("name", ["LOCAL_RANK", "WORLD_SIZE"])
def test_a_place_told_in_part_is_a_mistake_that_names_the_rest(name):
    environment = {key: value for key, value in TORCHRUN.items() if key != name}
    with pytest.raises(Mistake, match=f"^{name} must be a number"):
        place(environment)


@pytest.mark.parametrize("text", ["", "one", "-1", "1.5"])
def test_a_rank_that_is_no_number_is_a_mistake(text):
    with pytest.raises(Mistake, match="^RANK must be a number.*" + re.escape(repr(text))):
        place(TORCHRUN | {"RANK": text})


@pytest.mark.parametrize("total", [0, 1, 7, 360, 10_000])
@pytest.mark.parametrize("parts", [1, 2, 3, 7, 64])
def test_shares_hold_every_item_once_and_differ_by_one_at_most(total, parts):
    shares = [share(total, parts, index) for index in range(parts)]
    assert [item for part in shares for item in part] == list(range(total))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_line_writes_numbers_progress_and_words():
    values = {"epoch": "3/12", "loss": 0.1234567, "samples_per_s": 5120, "big": 1e9, "pi": "3.141592653589793"}
    expected = "torchfleet: epoch=3/12 loss=0.123457 samples_per_s=5120 big=1e+09 pi=3.141592653589793"
    assert line(**values) == expected


@pytest.mark.parametrize("values", [{"Loss": 1}, {"1st": 1}, {"a-b": 1}, {"a\n": 1}, {"a": "two words"}, {"a": ""}])
def test_line_refuses_what_could_not_be_read_back(values):
    with pytest.raises(ValueError, match="cannot report"):
        line(**values)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--many", "0"], "argument --many: 0 is not above 0"),
        (["--many", "two"], "argument --many: invalid positive value: 'two'"),
        (["--rate", "-1"], "argument --rate: -1 is not above 0"),
        (["--rate", "nan"], "argument --rate: nan is not above 0"),
        (["--man", "1"], "unrecognized arguments: --man 1"),
    ],
)
def test_a_wrong_argument_gives_one_line_and_exit_code_2(arguments, message, capsys):
    parser = Parser("Does something.")
    parser.add_argument("--many", type=positive)
    parser.add_argument("--rate", type=positive_number)
    with pytest.raises(SystemExit) as exit_:
        parser.parse_args(arguments)
    assert exit_.value.code == 2
    assert capsys.readouterr().err == f"{parser.prog}: {message}\n"


def test_a_gate_opens_once_in_its_time(monkeypatch):
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    gate = Every(seconds=0.5)
    assert not gate()
    now = 100.5
    assert gate()
    assert not gate()
    now = 103.0
    assert gate()


def test_prepare_makes_the_directory(tmp_path):
    prepare(tmp_path / "a" / "b" / "file")
    assert (tmp_path / "a" / "b").is_dir()


def test_prepare_refuses_a_directory_and_a_file_as_parent(tmp_path):
    with pytest.raises(Mistake, match="it is a directory"):
        prepare(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(Mistake, match=r"cannot write .*/file/x: "):
        prepare(tmp_path / "file" / "x")


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with replacing(path) as stream:
        stream.write(b"new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_survives_a_writer_that_fails(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(RuntimeError), replacing(path) as stream:
        stream.write(b"ne")
        raise RuntimeError
    assert path.read_text() == "old"

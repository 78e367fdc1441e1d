"""The book of causes: each entry takes what it is for, takes nothing else, and what ranks print costs no time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import pytest
import yaml

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.head import first_failure
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types import reasons
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._causes import explanation as causes
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._causes import match as match_module
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._causes.book import PLACE, SYMPTOMS, Entry, book
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._causes.match import Ended, by_launcher, by_text
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.view import verdict
from tests.programs import load

REPO = Path(__file__).parents[2]
RECORDED = Path(__file__).parent / "recorded/causes"
SCHEMA = json.loads((REPO / "docs/result.schema.json").read_text())
ENTRIES = {entry.id: entry for entry in book()}
reproduce = load(REPO / "tests/causes/reproduce.py")


class Said(NamedTuple):
    """What a program that failed, or a launcher, said."""

    id: str  # of the entry that it is for
    text: str
    rc: int
    signal: int | None
    launcher: bool


def made() -> Iterator[Said]:
    for entry in book():
        for name in entry.made:
            header, _newline, text = (RECORDED / f"made/{name}.txt").read_text().partition("\n")
            yield Said(entry.id, text, **json.loads(header))


def quoted() -> Iterator[Said]:
    for block in (RECORDED / "quoted.txt").read_text().split("\n=== ")[1:]:
        header, _newline, text = block.partition("\n")
        row = json.loads(header)
        number = row.get("signal")
        assert row["source"], "somebody says so"
        rc = 128 + number if number else row.get("rc", 1)
        yield Said(row["id"], text, rc, number, row.get("launcher", False))


ALL = [*made(), *quoted()]


def taken(said: Said) -> str:
    """Return the id of the entry that takes what was said."""
    ended = Ended(said.text, said.rc, said.signal)
    found = by_launcher(book(), said.text) if said.launcher else by_text(book(), ended)
    found = found or (None if said.launcher else match_module.by_signal(book(), ended))
    return found.entry.id if found else ""


def test_a_text_is_taken_by_its_entry() -> None:
    assert [(said.id, taken(said)) for said in ALL if taken(said) != said.id] == []


def test_every_entry_has_a_text_or_a_code() -> None:
    shown = {said.id for said in ALL}
    for entry in book():
        assert entry.id in shown or ((entry.codes or entry.states) and not entry.signs), entry.id
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", entry.id), entry.id
        assert entry.cause.endswith(".") and entry.source and not entry.mend.endswith("."), entry.id
        assert entry.signs or entry.codes or entry.states or entry.signals, entry.id
        assert all(part for sign in entry.signs for part in sign), f"{entry.id}: an empty sign would take everything"
        assert set(entry.states) <= {*reasons.STATES.values(), causes.HUNG}, entry.id


def test_the_book_is_as_large_as_it_says() -> None:
    assert len(ENTRIES) == len(book()), "an id stands twice"
    assert {path.stem for path in PLACE.glob("*.yml")} == set(SYMPTOMS)
    assert len(ENTRIES) >= 130
    assert len({said.id for said in made()}) >= 65, "entries that were made to happen"


@pytest.mark.parametrize("name", SYMPTOMS)
def test_a_file_has_no_field_that_nobody_reads(name: str) -> None:
    read = yaml.safe_load((PLACE / f"{name}.yml").read_text())
    assert set(read) <= {"symptom", "launcher", "causes"}
    assert {field for row in read["causes"] for field in row} <= {*Entry._fields} - {"symptom"}


def test_what_can_be_made_is_recorded_and_nothing_else() -> None:
    """Else run `make causes`."""
    recorded = {path.stem for path in (RECORDED / "made").glob("*.txt")}
    assert recorded == set(reproduce.made()) == {name for entry in book() for name in entry.made}


def test_the_page_is_what_the_entries_say() -> None:
    """Else type `.venv/bin/python docs/cause_book.py`."""
    page = load(REPO / "docs/cause_book.py")
    assert (REPO / "docs/causes.md").read_text() == page.page()
    assert set(page.SYMPTOMS) == set(SYMPTOMS)


def test_the_head_knows_the_same_consequences() -> None:
    """It blames another rank than the one that only lost a peer."""
    follows = {part for entry in book() if entry.follows for sign in entry.signs for part in sign}
    assert [text for text in first_failure.CONSEQUENCES if not any(text in part for part in follows)] == []


def test_options_that_a_mend_names_exist() -> None:
    documented = "".join(path.read_text() for path in [*(REPO / "docs").glob("*.md"), *(REPO / "roles").glob("*/*.md")])
    documented = documented.replace((REPO / "docs/causes.md").read_text(), "")
    for entry in book():
        for name in re.findall(r"-e ([a-z_]+)=", entry.mend):
            assert name in documented, (entry.id, name)
        for code in re.findall(r"TF-[A-Z-]+", entry.mend):
            assert f"`{code}`" in (REPO / "docs/preflight.md").read_text(), (entry.id, code)
        for page in re.findall(r"docs/[a-z-]+\.md", entry.mend + entry.source):
            assert (REPO / page).exists(), (entry.id, page)
        for playbook in re.findall(r"[a-z_]+\.yml", entry.cause + entry.mend):
            assert (REPO / playbook).exists() or (REPO / "playbooks" / playbook).exists(), (entry.id, playbook)
        for tag in re.findall(r"setup\.yml --tags ([a-z_]+)", entry.mend):
            assert re.search(rf"tags: \[.*\b{tag}\b", (REPO / "playbooks/setup.yml").read_text()), (entry.id, tag)


# --- nothing is taken that is none -----------------------------------------------------------------------------------

# Of jobs that were well, and of programs of the system: nothing that any of them says is in the book.
OF_CAUSES = (RECORDED, RECORDED.parent / "slurm")  # Slurm's refusals are in the book
OTHERS = [
    *sorted((REPO / "tests/transcripts").glob("*.txt")),
    *sorted(
        path for path in RECORDED.parent.rglob("*") if path.is_file() and not set(OF_CAUSES).intersection(path.parents)
    ),
]


def test_what_was_recorded_for_other_tests_has_no_cause() -> None:
    for path in OTHERS:
        text = path.read_text(errors="replace")
        assert by_launcher(book(), text) is None, path
        assert by_text(book(), Ended(text, rc=1)) is None, path


@pytest.mark.parametrize(
    "text",
    [
        'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\nValueError: the loss is nan\n',
        "AssertionError\n",
        "epoch 3/12 loss 0.123\n",
        "",
        'Traceback (most recent call last):\n  File "t.py", line 3\n    except MemoryError: raise X\nValueError: bad\n',
        "Traceback (most recent call last):\nValueError: bad\n[W1126 9:0 socket.cpp:464] [c10d] Connection reset\n",
        "Traceback (most recent call last):\nValueError: Timed out waiting for the label server\n",
        "AssertionError: no GPUs found\n",
        "df: No space left on device\n" + "epoch\n" * 20 + "the accuracy is too low\n",
        "W1120 socket.cpp:755] [c10d] The client socket cannot be initialized to connect to [n1]:1\nKeyError: 'lr'\n",
    ],
)
def test_what_no_entry_is_for_has_no_cause(text: str) -> None:
    assert by_text(book(), Ended(text, rc=1)) is None


GOT_OVER = """Traceback (most recent call last):
  File "t.py", line 3, in <module>
ModuleNotFoundError: No module named 'apex'
"""
LAST = """Traceback (most recent call last):
  File "t.py", line 9, in <module>
ValueError: the loss is not a number
"""


def test_an_error_that_a_program_got_over_is_no_cause() -> None:
    epochs = "".join(f"epoch {number}\n" for number in range(100))
    assert by_text(book(), Ended(GOT_OVER + LAST, rc=1)) is None
    assert by_text(book(), Ended(GOT_OVER + epochs, rc=1)) is None
    assert by_text(book(), Ended(GOT_OVER, rc=139, signal=11)) is None, "a traceback is not what SIGSEGV is of"
    assert by_text(book(), Ended(GOT_OVER, rc=139)) is None, "the same below a shell script"
    cpp = "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  CUDA out of memory\n"
    assert by_text(book(), Ended(cpp, signal=6)), "an abort is"
    assert by_text(book(), Ended(cpp, signal=9)) is None
    found = by_text(book(), Ended(GOT_OVER, rc=1))
    assert found and (found.entry.id, found.line) == ("module-missing", "ModuleNotFoundError: No module named 'apex'")


def test_an_error_by_which_another_came_is_one() -> None:
    chained = GOT_OVER + "\nThe above exception was the direct cause of the following exception:\n\n" + LAST
    ranked = "".join(f"[rank0]: {line}\n" for line in chained.splitlines())
    for text in (chained, ranked):
        found = by_text(book(), Ended(text, rc=1))
        assert found and found.entry.id == "module-missing"


@pytest.mark.parametrize(
    ("text", "id"),
    [
        (
            "torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)",
            "cuda-out-of-memory",
        ),
        ("git@github.com: Permission denied (publickey).", "ssh-denied"),
        ("ImportError: cannot import name 'b' from partially initialized module 'a'", "name-missing"),
        ("BrokenPipeError: [Errno 32] Broken pipe", "peer-gone"),
    ],
)
def test_a_plain_error_has_the_cause_that_is_true_of_it(text: str, id: str) -> None:
    found = by_text(book(), Ended(LAST.replace("ValueError: the loss is not a number", text), rc=1))
    assert found and found.entry.id == id


def test_what_a_library_says_counts_before_the_traceback() -> None:
    warning = "n1:5:9 [1] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device\n"
    found = by_text(book(), Ended(warning + LAST, rc=1))
    assert found and found.entry.id == "nccl-shm-full"


def test_what_only_follows_another_failure_is_taken_last() -> None:
    """Though it stands before in the book, and before in the output."""
    late = "[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)\n"
    found = by_text(book(), Ended(late + GOT_OVER, rc=1))
    assert found and found.entry.id == "module-missing"
    found = by_text(book(), Ended(late + LAST, rc=1))
    assert found and found.entry.id == "nccl-timeout"


@pytest.mark.parametrize(
    "text",
    [
        "Traceback (most recent call last):\n" * 10**5,
        "Traceback (most recent call last):\n" + "During handling of the above exception\n\n" * 10**5,
        "NCCL WARN" * 10**6,
        "\n" * 10**6,
        "[rank" + "0" * 10**6,
        "Caught " + "\u2028\x85\x0b\x0c\r" * 10**5,
    ],
    ids=["tracebacks", "chains", "one line", "empty lines", "prefix", "line ends"],
)
def test_hostile_output_is_cut_before_it_is_searched(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured by size: what is searched, once per part of a sign, is bounded whatever a rank prints."""
    seen: list[int] = []
    search = match_module.search

    def counted(entry: Entry, lines: Any) -> Any:
        seen.append(sum(map(len, lines)))
        return search(entry, lines)

    monkeypatch.setattr(match_module, "search", counted)
    by_text(book(), Ended(text, rc=1))
    by_launcher(book(), text)
    assert max(seen) <= match_module.LOOKED_AT
    assert len(seen) <= 2 * len(book())


# --- of a whole run -------------------------------------------------------------------------------------------------


def result(*rows: tuple[str, int, int | None], state: str = "failed", blamed: int | None = 0) -> dict[str, Any]:
    """Return a result of ranks with these states, exit statuses and signals."""
    ranks = [
        {
            "rank": rank,
            "host": f"n{rank}",
            "state": how,
            "rc": rc,
            "signal": number,
            "seconds": 9.0 - rank,
            "last_line": "",
        }
        for rank, (how, rc, number) in enumerate(rows)
    ]
    failure = {"rank": blamed, "host": f"n{blamed or 0}", "cause": "exit status 1", "message": "x", "log": "/r/log"}
    told = {"job_id": "j", "state": state, "launcher": {"name": "openmpi"}, "placement": ranks, "ranks": ranks}
    return {**told, "metrics": {}, "notes": [], "first_failure": failure}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    for rank in range(3):
        (tmp_path / f"ranks/{rank}").mkdir(parents=True)
    return tmp_path


FAILED = ("failed", 1, None)
PEER = "RuntimeError: [/gloo/transport/tcp/pair.cc:538] Connection closed by peer [10.0.0.2]:5\n"


def test_a_lost_peer_does_not_hide_the_failure_of_another_rank(run_dir: Path) -> None:
    (run_dir / "ranks/0/stderr").write_text(PEER)
    (run_dir / "ranks/1/stderr").write_text(GOT_OVER)
    cause = causes.cause_of(result(FAILED, FAILED), run_dir)
    assert cause and (cause["id"], cause["rank"], cause["host"]) == ("module-missing", 1, "n1")
    alone = causes.cause_of(result(FAILED, ("ended", 1, None)), run_dir)
    assert alone and (alone["id"], alone["rank"]) == ("peer-gone", 0), "what an ended rank says is of its end"


def test_the_launcher_may_know_more_than_a_signal(run_dir: Path) -> None:
    killed = result(("failed", 137, 9), ("ended", 143, 15))
    assert causes.cause_of(killed, run_dir)["id"] == "killed"  # type: ignore[index]
    (run_dir / "launcher.n0.out").write_text("slurmstepd: error: Detected 1 oom_kill event in StepId=1.0.\n")
    cause = causes.cause_of(killed, run_dir)
    assert cause and (cause["id"], cause["rank"]) == ("slurm-memory", None)


def test_the_batch_file_of_slurm_says_why_on_whichever_node_it_ran(run_dir: Path) -> None:
    ended = result(("ended", 137, 9), ("ended", 137, 9))
    line = "slurmstepd-n1: error: *** JOB 5 ON n1 CANCELLED AT 2026-11-27T12:23:36 DUE TO TIME LIMIT ***\n"
    (run_dir / "launcher.n1.out").write_text(line)
    for name, cause in (("sbatch", "slurm-time"), ("srun", None)):
        found = causes.cause_of({**ended, "launcher": {"name": name}}, run_dir)
        assert (found and found["id"]) == cause


@pytest.mark.parametrize("code", [code for code in reasons.RankError if code])
def test_an_error_in_a_record_counts_first(run_dir: Path, code: str) -> None:
    (run_dir / "ranks/0/stderr").write_text(GOT_OVER)
    (run_dir / "ranks/0/record.json").write_text(json.dumps({"error_code": code}))
    cause = causes.cause_of(result(FAILED), run_dir)
    assert cause and code in ENTRIES[cause["id"]].codes


@pytest.mark.parametrize(("state", "id"), [("timed_out", "time-over"), ("lost", "watcher-gone")])
def test_a_state_is_a_cause(run_dir: Path, state: str, id: str) -> None:
    (run_dir / "ranks/0/stderr").write_text(GOT_OVER)
    assert causes.cause_of(result(FAILED, state=state), run_dir)["id"] == id  # type: ignore[index]


@pytest.mark.parametrize("state", ["succeeded", "saved", "cancelled"])
def test_what_did_not_fail_has_no_cause(run_dir: Path, state: str) -> None:
    (run_dir / "ranks/0/stderr").write_text(GOT_OVER)
    assert causes.cause_of(result(FAILED, state=state), run_dir) is None


def test_stdout_counts_if_stderr_says_nothing(run_dir: Path) -> None:
    (run_dir / "ranks/0/stdout").write_text(GOT_OVER)
    assert causes.cause_of(result(FAILED), run_dir)["id"] == "module-missing"  # type: ignore[index]
    (run_dir / "ranks/0/stderr").write_text(PEER)
    assert causes.cause_of(result(FAILED), run_dir)["id"] == "module-missing"  # type: ignore[index]


def test_hostile_files_of_a_run_are_no_error(run_dir: Path) -> None:
    (run_dir / "ranks/0/stderr").symlink_to("/etc/passwd")
    (run_dir / "ranks/0/stdout").mkdir()
    (run_dir / "ranks/0/record.json").write_bytes(b"\xff[" * 10**5)
    (run_dir / "ranks/1/record.json").write_text('{"error_code": ["disk_full"]}')
    (run_dir / "ranks/1/stderr").write_bytes(b"\x1b]0;TITLE\x07No module named \xff\x1b[31m\n")
    cause = causes.cause_of(result(FAILED, FAILED), run_dir)
    assert cause and cause["line"].isprintable() and cause["id"] == "module-missing"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 10**5,
        b'{"rank": NaN}',
        b"[" + b"[]," * 5_000_000 + b"1]",
        b'{}, "kind": "looked"',
        b"\xff",
    ],
    ids=["empty", "list", "object", "deep", "NaN", "bomb", "two fields", "no text"],
)
def test_what_is_no_result_has_no_cause(run_dir: Path, text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bomb is told by its size: reading it as JSON would take a gigabyte."""
    loads, most = json.loads, 10**6

    def small(data: Any, **options: Any) -> Any:
        assert len(data) < most
        return loads(data, **options)

    monkeypatch.setattr(json, "loads", small)
    (run_dir / "result.json").write_bytes(text)
    assert causes.explained_file(run_dir) is None


def test_a_cause_needs_the_exit_status_that_its_entry_names() -> None:
    """A program that prints of a missing command, and ends with something else, has another cause."""
    text = "train.sh: 3: nvcc: not found\n"
    match = by_text(book(), Ended(text, rc=127))
    assert match and match.entry.id == "command-missing"
    assert by_text(book(), Ended(text, rc=3)) is None


def test_the_last_line_ends_with_the_id_and_the_mend(run_dir: Path) -> None:
    (run_dir / "ranks/0/stderr").write_text(GOT_OVER)
    (run_dir / "result.json").write_text("{}")
    shown = causes.explained(result(FAILED), run_dir)  # type: ignore[arg-type]
    entry = ENTRIES["module-missing"]
    line = verdict(shown, "/r", shown["cause"])
    assert line.endswith(f"; log: /r/log; cause module-missing: {entry.cause} Fix: {entry.mend}")
    kept = json.loads((run_dir / "result.json").read_text())
    jsonschema.validate(kept["cause"], SCHEMA["properties"]["cause"])
    assert kept["cause"] == shown["cause"]
    assert (run_dir / "result.json").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in run_dir.iterdir()) == ["ranks", "result.json"]


def test_another_rank_is_named_with_what_it_says() -> None:
    cause: Any = {"id": "a", "rank": 1, "host": "n1", "line": "x: y", "cause": "It is.", "mend": "do"}
    assert causes.said(cause, 0) == "; cause a: rank 1 on n1 says 'x: y': It is. Fix: do"
    assert causes.said(None, 0) == ""

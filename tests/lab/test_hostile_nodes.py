"""A node of three in wrong hands: whatever its runtime, its modules or its programs do, the others are as before.

n1 is the head, n2 lies (or the head itself does), n3 stands by. The lies are those of hostile_node.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.connection import HeadLost
from tests.lab.cluster import Cluster, Job
from tests.lab.hostile_bed import MOST_BYTES, Bed, Files, Lies, Played, unprintable
from tests.lab.lab import Lab

# What would run on a controller that took a node's word for a template, and what a terminal would obey or hide.
TEMPLATE = "{{ lookup('ansible.builtin.pipe', 'touch ~/EVIL') }}{% set x = 1 %}${IFS}$(touch ~/EVIL)`touch ~/EVIL`"
ESCAPES = "\x1b[2J\x1b]0;EVIL\x07\x1b]8;;http://evil\x1b\\\x9b2J\x85\r\n\u2028\u202e\u2066\ufeff\nfatal: [n3]: FAILED!"
EVIL = TEMPLATE + ESCAPES


def survey(**fields: Any) -> Lies:
    """Return a lie about one node's facts; `_` in a name for `.`, as there is none in the names that are lied about."""
    return [{"on": "survey", "set": {f"facts.{name.replace('__', '.')}": value for name, value in fields.items()}}]


def said(text: str, kind: str = "survey") -> Lies:
    """Return a lie that says a text in place of a frame."""
    return [{"on": kind, "say": text + "\n"}]


def file(name: str, data: str = "EVIL", first: Any = True) -> dict[str, Any]:
    return {"kind": "file", "name": name, "data": data, "first": first}


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """Three nodes that were set up honestly, and a home of the controller's with what others would want."""
    root = tmp_path_factory.mktemp("bed")
    # The packages of the cluster's image (conftest.py), so that it is made once.
    options = {"nodes": 3, "nics": 1, "install": True, "image": "bare", "packages": ["openmpi-bin", "slurm-wlm"]}
    lab = Lab(f"h{os.getpid()}", root / "inventory", **options)
    home = root / "home"
    (home / ".ssh").mkdir(parents=True)
    for name in (".ssh/id_ed25519", ".ssh/config", ".bashrc", ".torchfleet/fabric.env"):
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text(f"{name} of the one who types\n")
    try:
        lab.up()
        made = Bed(Cluster(lab, root), home)
        for words in (("setup.yml", "--tags", "preflight,ssh_mesh,fabric,hostfile"), ("clean.yml",)):
            done = made.cluster.play(*words, job_id="")  # the second makes the controller's identity
            assert done.process.returncode == 0, done.log.read_text()
        yield made
    finally:
        lab.down()


@pytest.fixture(scope="module")
def slow(bed: Bed) -> Iterator[dict[str, Job]]:
    """Attacks that are over only when somebody's patience is: they begin first and end beside the others."""
    given = {"workload": hello(bed), "lease": 10}
    running = {name: bed.start("train.yml", lies, **given) for name, (lies, _told) in SLOW.items()}
    yield running
    for job in running.values():
        if job.process.returncode is None:
            job.process.kill()
            job.process.wait()


@pytest.fixture(scope="module")
def last_seen(bed: Bed, slow: dict[str, Job]) -> list[Files]:
    return [bed.watched()]


@pytest.fixture(autouse=True)
def unharmed(bed: Bed, last_seen: list[Files]) -> Iterator[None]:
    """After each attack no file of the controller or of another node is another one than before."""
    yield
    now = bed.watched()
    changed = {name for name in now.keys() | last_seen[0].keys() if now.get(name) != last_seen[0].get(name)}
    last_seen[0] = now
    assert not changed


def hello(bed: Bed) -> str:
    """Return a program of a line."""
    script = bed.cluster.root / "hello" / "hello.sh"
    script.parent.mkdir(exist_ok=True)
    script.write_text("#!/bin/sh\necho hello from $RANK\n")
    script.chmod(0o755)
    return str(script)


def harmless(bed: Bed, played: Played) -> None:
    """What a playbook said is text, it took bounded memory, and nothing of it runs any more."""
    assert not unprintable(played.raw)
    assert "Traceback" not in played.raw
    assert played.bytes < MOST_BYTES
    bed.nothing_left(played.job)


# --- what a node says of itself before a job -----------------------------------------------------------------------

SURVEYS: dict[str, tuple[Lies, str]] = {
    "a negative number": (survey(cores=-1), "whole number from 1 to 8192"),
    "a number with a fraction": (survey(cores=2.0), "whole number from 1 to 8192"),
    "a truth for a number": (survey(free_bytes=True), "whole number"),
    "more bytes than there are": (survey(free_bytes=2**70), "whole number"),
    "a thousand million GPUs": (survey(accelerators__nvidia=10**9), "whole number from 0 to 64"),
    "a port that is a text": (survey(port="22"), "whole number from 1 to 65535"),
    "the address of everybody": (survey(fabric__address="*"), "IPv4 or IPv6 address"),
    "the wildcard address": (survey(fabric__address="0.0.0.0"), "address of one machine"),
    "an address outside its network": (survey(fabric__address="127.0.0.1"), "an address in its network"),
    "a line end in an address": (survey(fabric__address="10.0.0.2\nn3"), "address"),
    "an option for a NIC": (survey(fabric__nic="-oProxyCommand=sh -c id"), "name of a NIC"),
    "a device that leads elsewhere": (
        survey(fabric__rdma=[{"device": "../../etc", "port": 1, "gid_index": None, "netdev": ""}]),
        "name of a device",
    ),
    "a relative home": (survey(home="../../home/fleet"), "absolute path"),
    "a line end in a path": (survey(interpreter="/usr/bin/python3\n-c"), "absolute path"),
    "a launcher of the search path": (survey(launcher__path="mpirun; id"), "absolute path"),
    "a job id that leads elsewhere": (survey(jobs=["../../x"]), "job id"),
    "a host name of shell words": (survey(hostname="n2,n3[1-9];$(id)"), "name of a host"),
    "a hundred thousand brackets": (said("[" * 100_000), "it sent an invalid message"),
    "no number": (said('{"kind": "survey", "facts": {"cores": NaN}}'), "it sent an invalid message"),
    "a number of 5,000 digits": (
        said('{"kind": "survey", "facts": {"cores": ' + "9" * 5000 + "}}"),
        "it sent an invalid message",
    ),
    "no UTF-8": (said('{"kind": "survey", "facts": "\udcff\udcfe"}'), "it sent an invalid message"),
    "two kinds in one frame": (said('{"kind": "survey", "kind": "file", "name": "x", "first": true}'), "with file"),
    "a negative size": (said('{"kind": "survey", "size": -5}'), "more than a block"),
    "a size with a fraction": (said('{"kind": "survey", "size": 1.5}'), "more than a block"),
    "a size of 100 GB": (said('{"kind": "survey", "size": 99999999999}'), "more than a block"),
    "a frame that only a head sends": (said('{"kind": "result", "result": {}}'), "unexpected frame of kind"),
    "the answer to another question": (said('{"kind": "clock", "time": 1}'), "answered survey with clock"),
    "beats without an end": (
        [{"on": "survey", "flood": '{"kind": "beat"}\n'}],
        "more than 300 heartbeats, but no answer",
    ),
    "a line without an end": ([{"on": "survey", "flood": "x" * 1000}], "without an end"),
    "as much as a frame may have": (
        [{"on": "survey", "many": {"facts.more": ["\U0001f600" * 2500, 3000]}}],
        "larger than 1 MiB",
    ),
    "a million values": (
        [{"on": "survey", "many": {"facts.more": [[], 199_000], "facts.most": [{}, 199_000]}}],
        "larger than 1 MiB",
    ),
    "a clock of words": ([{"on": "clock", "set": {"time": "now"}}], "a number"),
    "a clock beyond numbers": (said('{"kind": "clock", "time": 1e999}', "clock"), "a number"),
}


@pytest.mark.parametrize("attack", SURVEYS)
def test_a_node_that_lies_of_itself_is_left_out(bed: Bed, attack: str) -> None:
    """It is known as not reached, with the reason, whatever the launcher; the others' answers are whole."""
    lies, told = SURVEYS[attack]
    facts = bed.survey(lies)
    assert told in facts["n2"]["unreachable"] and not unprintable(facts["n2"]["unreachable"])
    assert facts["n1"]["cores"] and facts["n3"]["cores"]


def test_a_node_says_nothing_of_others_and_its_words_are_text(bed: Bed) -> None:
    lies: Lies = [{"on": "survey", "set": {"nodes": {"n3": {"unreachable": "dead"}}, "facts.torch": {"version": EVIL}}}]
    lies[0]["set"] |= {"facts.leftovers": [{"pid": 1, "job_id": EVIL, "command": "\ud800" + EVIL}], "facts.more": EVIL}
    facts = bed.survey(lies)
    assert facts["n3"]["cores"] and not unprintable(json.dumps(facts, ensure_ascii=False))


REFUSED: dict[str, tuple[Lies, str]] = {
    "not reached, it says, because of others": (
        said(json.dumps({"kind": "survey", "facts": {"unreachable": "n3 is to blame" + EVIL}})),
        "not reached from n1 (n2: n3 is to blame",
    ),
    "a version with a command in it": (survey(launcher__version="4.1.4; touch EVIL"), "n2 4.1.4; touch EVIL"),
    "the address of the head": (survey(fabric__address="N1"), "n1 and n2"),
    "the address of another node": (survey(fabric__address="N3"), "n2 and n3"),
    "a processor of another kind": (survey(machine="aarch64"), "n2 aarch64, n3 x86_64"),
    "another network": (survey(fabric__address="127.0.0.1", fabric__network="127.0.0.0/8"), "n2 127.0.0.0/8"),
    "it asks for files of the controller's": (
        [{"on": "wanted", "set": {"wanted": ["../../../../etc/passwd"]}}],
        "n2: it asks for files that were not offered",
    ),
    "it cannot stage, in words for a terminal": ([{"on": "staged", "set": {"reason": EVIL}}], "stage the job: n2: {{"),
}


@pytest.mark.parametrize("attack", REFUSED)
def test_a_job_is_refused_before_it_starts(bed: Bed, attack: str) -> None:
    lies, told = REFUSED[attack]
    for lie in lies:
        for name, value in lie.get("set", {}).items():
            if value in ("N1", "N3"):
                lie["set"][name] = bed.lab.address(value.lower())
    played = bed.play("train.yml", lies, workload=hello(bed))
    assert played.rc == 2 and told in played.said
    assert not played.job.run_dir.exists()
    harmless(bed, played)


# --- what it says while a job runs -----------------------------------------------------------------------------------

FORGED = {"local_rank": 0, "wrapper_pid": 1, "cpus": [0], "started": 1.0, "ended": 2.0, "rc": 1, "error": "says n2"}
# All in one job: none of it is believed, and none of it ends the job.
HARMLESS: Lies = [
    {
        "on": "survey",
        "set": {
            **{"facts.python_wanted": EVIL, "facts.free_bytes": 1 << 62, "facts.accelerators.nvidia": 64},
            **{"facts.cores": 8192, "facts.port": 22, "facts.uid": 0, "facts.fabric.why": EVIL},
        },
    },
    {"on": "clock", "set": {"time": 1e11}, "again": True},
    {
        "on": "placed",
        "more": [
            *[{"kind": "beat"}] * 20_000,
            {"kind": "placed"},
            {"kind": "launcher_exited", "rc": 0, "text": EVIL},
            {"kind": "line", "rank": 0, "stream": "stdout", "text": "n2 speaks as rank 0", "skipped": 0},
            {"kind": "line", "rank": 1, "stream": "stdout", "text": EVIL, "skipped": 1 << 61},
            {"kind": "report", "rank": 2, "values": {"n2 reports as": "rank 2"}},
            {"kind": "report", "rank": 1, "values": {"step": 1e308, "steps": 1e-300, EVIL: EVIL, "big": 10**4000}},
            {"kind": "done"},
        ],
    },
    {
        "on": "over",
        "set": {
            "report.records.0": {**FORGED, "rank": 0, "host": "n1"},
            "report.records.2": {**FORGED, "rank": 2, "host": "n2"},
            "report.lines.0": ["stderr", "n2 says what n1 said last"],
            "report.lines.1": ["stdout", EVIL],
            "report.leftovers": [{"pid": 1, "command": EVIL}],
            "report.metrics": [["loss", 0, -1.0], [EVIL, 1, EVIL], ["whole", 1, 10**300], ["large", 1, 1e308]],
        },
    },
    {
        "on": "fetched",
        "more": [file("metrics.jsonl", '{"rank": 0, "loss": "of n2"}\n{"rank": 1, "loss": 1}\nEVIL\n', False)],
    },
]


def test_what_is_not_believed_changes_nothing(bed: Bed) -> None:
    """Ranks, lines, reports and metrics of others; beats, ends and starts that are none; clocks and figures."""
    played = bed.play("train.yml", HARMLESS, workload=hello(bed))
    assert played.rc == 0, played.raw
    assert [row["state"] for row in played.job.result["ranks"]] == ["succeeded"] * 3
    assert [row["host"] for row in played.job.result["ranks"]] == ["n1", "n2", "n3"]
    assert played.job.result["ranks"][0]["last_line"] == "hello from 0"
    for claim in ("n2 speaks as", "n2 reports as", "says n2", "of n2", "what n1 said last"):
        assert claim not in played.said and claim not in (played.job.run_dir / "metrics.jsonl").read_text()
    assert "loss" not in played.job.result["metrics"]
    harmless(bed, played)


BLAMED: dict[str, tuple[Lies, str]] = {
    "a rank twice": (
        said('{"kind": "over", "report": {"records": {"1": {}, "1": {}}, "lines": {}, "leftovers": []}}', "over"),
        "n2 is lost: its frame 'over' is not what it must be",
    ),
    "a record of no rank": ([{"on": "over", "set": {"report.records": {"../1": {}}}}], "n2 is lost: its frame 'over'"),
    "a second end, with nothing": (
        [
            {
                "on": "over",
                "more": [
                    {
                        "kind": "over",
                        "report": {"records": {}, "lines": {}, "leftovers": [], "launcher": {}, "metrics": []},
                    }
                ],
            }
        ],
        "rank 1 on n2: it left no record",
    ),
    "the failure of a rank elsewhere": (
        [
            {
                "on": "placed",
                "more": [{"kind": "ending", "reason": "rank_failed", "detail": "rank 0 on n1 failed" + EVIL}],
            }
        ],
        "failed: n2: rank 0 on n1 failed",
    ),
    "a kind of the head's": (
        said('{"kind": "started"}', "placed"),
        "n2 is lost: it sent an unexpected frame of kind 'started'",
    ),
}


@pytest.mark.parametrize("attack", BLAMED)
def test_a_job_that_it_ends_is_blamed_on_it(bed: Bed, attack: str) -> None:
    lies, told = BLAMED[attack]
    played = bed.play("train.yml", lies, workload=hello(bed))
    assert played.rc == 2 and told in played.said
    harmless(bed, played)


# --- what it sends home ----------------------------------------------------------------------------------------------

PLACES = [(0, "n1"), (1, "n2"), (2, "n3")]
ENDLESS = '{"kind": "file", "name": "NAME", "first": false, "size": 60000}\n' + "x" * 60_000
FILES: dict[str, tuple[Lies, str]] = {
    "a file above": ([{"on": "fetched", "more": [file("../../../EVIL")]}], "n2: it sent a file '../../../EVIL'"),
    "an absolute name": ([{"on": "fetched", "more": [file("/tmp/EVIL")]}], "n2: it sent a file '/tmp/EVIL'"),
    "a way through a file of its own": (
        [{"on": "fetched", "more": [file("ranks/1/stdout/../../../../EVIL")]}],
        "n2: it sent a file 'ranks/1/",
    ),
    "the output of a rank elsewhere": ([{"on": "fetched", "more": [file("ranks/0/stdout")]}], "n2: it sent a file"),
    "the result": ([{"on": "fetched", "more": [file("result.json", "{}")]}], "n2: it sent a file 'result.json'"),
    "the plan": ([{"on": "fetched", "more": [file("plan.json", "{}")]}], "n2: it sent a file 'plan.json'"),
    "a name for a terminal": ([{"on": "fetched", "more": [file("\x1b[2J\u202eEVIL")]}], "n2: it sent a file '[2JEVIL'"),
    "a file without an end": (
        [{"on": "fetched", "more": [file("ranks/1/stdout")], "flood": ENDLESS.replace("NAME", "ranks/1/stdout")}],
        "n2: it sent more",
    ),
    "the same file for ever": (
        [{"on": "file", "flood": '{"kind": "file", "name": "ranks/1/stdout", "first": true}\n'}],
        "n2: ",
    ),
}
LIMIT = 20 << 20


@pytest.fixture(scope="module")
def finished(bed: Bed) -> tuple[str, str]:
    """A job that is over, and the Python of n2 that its files are fetched by."""
    played = bed.play("train.yml", [], workload=hello(bed))
    assert played.rc == 0, played.raw
    return played.job.job_id, f"/opt/hostile/{bed.laid}/python3"


@pytest.mark.parametrize("attack", FILES)
def test_only_its_own_files_come_home(bed: Bed, finished: tuple[str, str], tmp_path: Path, attack: str) -> None:
    (job_id, python), (lies, told) = finished, FILES[attack]
    bed.tell("n2", python, lies)
    run_dir = tmp_path / "runs" / "one"
    run_dir.mkdir(parents=True)
    with bed.session("n2", []) as (session, _nodes):
        (missing,) = session.fetch(job_id, run_dir, PLACES, LIMIT)
    assert missing.startswith(told) and not unprintable(missing)
    at_home = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in at_home) < LIMIT
    assert all(run_dir in path.parents for path in at_home)
    assert "EVIL" not in (run_dir / "result.json").read_text()


# --- the head itself --------------------------------------------------------------------------------------------------

HEADS: dict[str, tuple[Lies, str]] = {
    "nodes that nobody asked about": (
        [{"on": "survey", "set": {"nodes.n9": {"unreachable": "x"}}}],
        "invalid answer from head n1",
    ),
    "nothing of the other nodes": ([{"on": "survey", "set": {"nodes": {}}}], "invalid answer from head n1"),
    "a line without an end": ([{"on": "survey", "flood": "x" * 1000}], "without an end"),
    "four million values": (said('{"kind": "survey", "facts": [' + "[]," * 4_000_001 + "[]]}"), "values at once"),
    "a shell for an answer": (said("$ whoami"), "it sent an invalid message"),
    "a path that is none": (survey(home="~/x"), "absolute path"),
}


@pytest.mark.parametrize("attack", HEADS)
def test_a_head_that_lies_is_named(bed: Bed, attack: str) -> None:
    lies, told = HEADS[attack]
    with pytest.raises((HeadLost, InputError), match="n1") as refused:
        bed.survey(lies, node="n1")
    assert told in str(refused.value) and not unprintable(str(refused.value))


HEAD_FILES: dict[str, tuple[Lies, str]] = {
    "a file above": (
        [{"on": "fetched", "more": [file("../../../EVIL")]}],
        "'../../../EVIL', which does not belong to the job",
    ),
    "an absolute name": (
        [{"on": "fetched", "more": [file("/tmp/EVIL")]}],
        "'/tmp/EVIL', which does not belong to the job",
    ),
    "the plan": ([{"on": "fetched", "more": [file("plan.json")]}], "'plan.json', which does not belong to the job"),
    "a rank of no job": ([{"on": "fetched", "more": [file("ranks/7/stdout")]}], "which does not belong to the job"),
    "a truth of words": ([{"on": "fetched", "more": [file("ranks/0/stdout", first="yes")]}], "true or false"),
    "a file without an end": (
        [{"on": "fetched", "flood": ENDLESS.replace("NAME", "launcher.out")}],
        "and does not end",
    ),
    "a result in between": (
        [{"on": "fetched", "more": [{"kind": "files_checked", "reason": ""}]}],
        "'files_checked', which does not belong",
    ),
}


@pytest.mark.parametrize("attack", HEAD_FILES)
def test_a_head_writes_nothing_but_the_files_of_the_job(
    bed: Bed, finished: tuple[str, str], tmp_path: Path, attack: str
) -> None:
    lies, told = HEAD_FILES[attack]
    bed.tell("n2", finished[1], [])
    run_dir = tmp_path / "runs" / "one"
    run_dir.mkdir(parents=True)
    try:
        with bed.session("n1", lies) as (session, _nodes):
            said = "; ".join(session.fetch(finished[0], run_dir, PLACES, LIMIT))
    except HeadLost as lost:
        said = str(lost)
    assert "n1" in said and told in said
    assert all(run_dir in path.parents for path in tmp_path.rglob("*") if path.is_file())


STORY = {
    **{
        "state": "failed",
        "backend": EVIL,
        "launcher.version": EVIL,
        "seconds": 1e11,
        "metrics": {EVIL: EVIL, "a": 10**300},
    },
    **{"ranks.0.last_line": EVIL, "leftovers": {"n1": [{"pid": 1, "command": EVIL}]}, "run_dir": "/root"},
    "first_failure": {"rank": 1, "host": "n2", "cause": EVIL, "message": EVIL, "log": "/etc/passwd"},
}
RESULTS: dict[str, tuple[Lies, str]] = {
    "the result of another job": (
        [{"on": "result", "set": {"result.job_id": "job-1"}}],
        "its result belongs to another job",
    ),
    "a job id that leads elsewhere": ([{"on": "result", "set": {"result.job_id": "../../x"}}], "a job id was expected"),
    "a story for a terminal": (
        [{"on": "result", "set": {f"result.{name}": value for name, value in STORY.items()}}],
        "rank 1 on n2: {{ lookup(",
    ),
}


@pytest.mark.parametrize("attack", RESULTS)
def test_a_head_tells_a_story_of_its_own_job_at_most(bed: Bed, attack: str) -> None:
    lies, told = RESULTS[attack]
    played = bed.play("train.yml", lies, node="n1", workload=hello(bed))
    assert played.rc == 2 and told in played.said
    assert "n1" in played.said
    harmless(bed, played)


# --- a program of a rank, which has the account on its node ---------------------------------------------------------

PROGRAM = r"""#!/bin/sh
echo hello from $RANK
[ $RANK = 1 ] || exit 0
cd "$TORCHFLEET_JOB_DIR"
for file in "$HOME"/.torchfleet/lib/*/_runtime/wire/channel.py; do echo 'raise SystemExit("EVIL")' > "$file"; done
rm -f metrics.jsonl launcher.json leftovers.json
ln -s /dev/zero metrics.jsonl
ln -s "$HOME/.ssh/authorized_keys" launcher.out.new && mv launcher.out.new launcher.out
mkfifo launcher.json
echo '[[[[{"pid": "\033[2J"' > leftovers.json
mkdir -p ranks/2 && echo EVIL > ranks/2/record.json
truncate -s 1T ranks/1/stderr
"""


def test_a_program_that_plants_links_pipes_and_a_file_of_a_terabyte_harms_its_own_node(bed: Bed) -> None:
    """Its own ranks may fail and its own files be cut off; the next job has our code as it was."""
    script = bed.cluster.root / "program" / "program.sh"
    script.parent.mkdir()
    script.write_text(PROGRAM)
    script.chmod(0o755)
    played = bed.play("train.yml", [], workload=str(script), fetch_limit="20M")
    result = played.job.result
    assert [row["state"] for row in result["ranks"] if row["host"] != "n2"] == ["succeeded"] * 2
    brought = [path for path in played.job.run_dir.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in brought) < 21 << 20
    assert not any(path.is_symlink() for path in brought)
    assert (played.job.run_dir / "ranks/0/stdout").read_text() == "hello from 0\n"
    assert "EVIL" not in (played.job.run_dir / "metrics.jsonl").read_text()
    assert "warning: the files of n2: it sent more than 20," in played.said
    harmless(bed, played)
    after = bed.play("train.yml", [], workload=hello(bed))
    assert after.rc == 0, after.raw


# --- modules, while a cluster is set up and cleaned ----------------------------------------------------------------

CLAIMED = "EVIL-home"
# What would be variables of the host, and for tasks that run once of every host: where controller and nodes write.
VARIABLES = {
    **dict.fromkeys(("torchfleet_home", "fabric_home", "ssh_mesh_home"), f"/tmp/{CLAIMED}"),
    **dict.fromkeys(("ssh_mesh_directory", "preflight_report", "hostfile_home"), f"{{HOME}}/{CLAIMED}"),
    **{"ansible_connection": "local", "ansible_host": "127.0.0.1", "ansible_become_exe": "/tmp/EVIL"},
}
OBEYED: dict[str, Any] = {
    **{"warnings": [EVIL], "deprecations": [{"msg": EVIL}], "exception": EVIL, "msg": EVIL},
    **{"add_host": {"host_name": "n3", "host_vars": {"ansible_connection": "local"}}, "add_group": "head"},
}


def modules(home: Path, *names: str, obeyed: bool = True) -> Lies:
    """Return lies of modules that stay what they are, with all that Ansible would take by itself."""
    facts = {f"ansible_facts.{name}": str(value).format(HOME=home) for name, value in VARIABLES.items()}
    more = {name: value for name, value in OBEYED.items() if obeyed}
    return [{"on": name, "set": {**more, **({"ansible_facts": {}} if obeyed else {}), **facts}} for name in names]


def taken_for_variables(bed: Bed) -> list[str]:
    """Return what lies where a module's answer said."""
    places = [bed.home / CLAIMED, *(bed.files(node) / "tmp" / CLAIMED for node in ("n1", "n2", "n3"))]
    return [str(place) for place in places if place.exists()]


def test_a_head_that_is_set_up_chooses_no_variable(bed: Bed) -> None:
    """Ansible's own module of facts and ours: nothing of it is a variable, a host, a template or a warning."""
    ours = [
        f"plugins.modules.{name}" for name in ("ssh_mesh_keys", "fabric_probe", "stage", "publish", "ssh_mesh_prove")
    ]
    lies = [*modules(bed.home, "ansible.modules.setup", obeyed=False), *modules(bed.home, *ours)]
    played = bed.play("setup.yml", lies, "--tags", "ssh_mesh,fabric,hostfile", node="n1")
    assert played.rc == 0, played.raw
    assert not taken_for_variables(bed)
    harmless(bed, played)


def test_a_node_that_is_cleaned_says_text(bed: Bed) -> None:
    played = bed.play("clean.yml", modules(bed.home, "plugins.modules.reap"), job_id="", fetch_limit="1M")
    assert "PLAY [Fetch runs]" in played.said and not taken_for_variables(bed)
    harmless(bed, played)


ANSWERS: dict[str, tuple[str, Lies, str]] = {
    "a processor of another kind": (  # of all of setup.yml: nothing is done on any node
        "all",
        [{"on": "plugins.modules.node_facts", "set": {"facts.system.arch": "aarch64"}}],
        "ERROR TF-DRIFT-ARCH: processor architecture differs",
    ),
    "a home that leads elsewhere": (
        "preflight",
        [{"on": "plugins.modules.node_facts", "set": {"facts.home.path": "/home/fleet/../../root\n"}}],
        "n2: answer of n2: got",
    ),
    "words for an answer": (
        "preflight",
        [{"on": "plugins.modules.node_facts", "say": EVIL}],
        "ERROR TF-NO-ANSWER",
    ),
    "a host key of two lines": (
        "ssh_mesh",
        [
            {
                "on": "plugins.modules.ssh_mesh_keys",
                "set": {"member.host_keys": ["ssh-ed25519 AAAA\n@cert-authority * EVIL"]},
            }
        ],
        "ssh_mesh: host_keys of n2",
    ),
    "every address": (
        "ssh_mesh",
        [{"on": "plugins.modules.ssh_mesh_keys", "set": {"member.addresses": ["*", "!n3"]}}],
        "ssh_mesh: addresses of n2",
    ),
    "a user of shell words": (
        "ssh_mesh",
        [{"on": "plugins.modules.ssh_mesh_keys", "set": {"member.user": "root\n    ProxyCommand sh -c id"}}],
        "ssh_mesh: user of n2",
    ),
}


@pytest.mark.parametrize("attack", ANSWERS)
def test_an_answer_that_would_be_a_line_elsewhere_is_refused(bed: Bed, attack: str) -> None:
    tag, lies, told = ANSWERS[attack]
    played = bed.play("setup.yml", lies, "--tags", tag)
    assert played.rc == 2 and told in played.said
    harmless(bed, played)


# --- what takes somebody's patience ---------------------------------------------------------------------------------

SLOW: dict[str, tuple[Lies, str]] = {
    "a supervisor that never answers": ([{"on": "survey", "silent": True}], "n2: no answer within 60 s"),
    "a supervisor that falls silent": ([{"on": "placed", "silent": True}], "n2 is lost: silent for 10 s"),
    "an end that never comes": ([{"on": "over", "silent": True}], "rank 1 on n2"),
}


@pytest.mark.parametrize("attack", SLOW)
def test_a_node_that_keeps_everybody_waiting_is_given_up(bed: Bed, slow: dict[str, Job], attack: str) -> None:
    played = bed.end(slow[attack])
    assert played.rc == 2 and SLOW[attack][1] in played.said
    harmless(bed, played)

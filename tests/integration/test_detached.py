"""Jobs that go on without their controller: listed, followed, waited for, looked into and ended from another shell."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.identity import owner
from tests.driver import REPO, SCRIPTS, wait_until
from tests.integration.fleet import Fleet, Played, Started

TICKS = """
import os, sys, time
count = int(sys.argv[1])
print("up", flush=True)
for step in range(1, count + 1):
    while step == count and not os.path.exists(sys.argv[2]):
        time.sleep(0.05)
    print(f"torchfleet: step={step} steps={count} loss={1 / step:.3f}", flush=True)
    print("tick", step, flush=True)
    time.sleep(0.1)
"""


@pytest.fixture
def script(fleet: Fleet) -> str:
    path = fleet.root / "ticks.py"
    path.write_text(TICKS)
    return str(path)


def detached(fleet: Fleet, script: str, job_id: str = "away", **given: object) -> Path:
    """Start a job that goes on by itself until a file is made; return that file."""
    go = fleet.root / f"{job_id}.go"
    played = fleet.play(workload=script, workload_args=["5", str(go)], detach=True, job_id=job_id, **given)
    assert played.rc == 0, played.stdout
    assert f"job {job_id} runs on localhost without this terminal; follow it: " in played.stdout
    assert fleet.alive(job_id)  # though its playbook is over
    return go


def jobs(fleet: Fleet, **given: object) -> Played:
    return fleet.play("playbooks/jobs.yml", **given)


def listed(fleet: Fleet) -> dict[str, dict[str, object]]:
    played = jobs(fleet)
    assert played.rc == 0, played.stdout
    (rows,) = [found["jobs"] for event in played.events if "jobs" in (found := event["event_data"].get("res", {}))]
    return {row["job_id"]: row for row in rows}


def attach(fleet: Fleet, **given: object) -> Started:
    """Start playbooks/jobs.yml in a shell of its own."""
    return fleet.start(playbook="playbooks/jobs.yml", **given)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Go on as another controller: what tells controllers apart lies in their homes."""
    return lambda: monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize(("launcher", "another"), [("openmpi", False), ("torchrun", True)])
def test_a_detached_job_is_followed_from_another_shell_and_comes_home(
    fleet: Fleet, script: str, launcher: str, another: bool, elsewhere: Callable[[], None]
) -> None:
    go = detached(fleet, script, launcher=launcher)
    if another:
        elsewhere()
    wait_until(lambda: listed(fleet)["away"]["values"].get("step") == 4, 60, lambda: "no progress is told")
    row = listed(fleet)["away"]
    assert (row["state"], row["own"], row["ranks"], row["hosts"]) == ("running", not another, 2, ["localhost"])
    assert (row["owner"], row["progress"]) == (owner(), 0.8) and row["seconds_left"] > 0
    followed = attach(fleet, do="attach", job_id="away", log_name="attach")
    followed.wait_until(lambda: "step 4/5" in followed.log.read_text())  # the last that was reported before
    go.touch()
    assert followed.process.wait(60) == 0, followed.log.read_text()
    text = followed.log.read_text()
    assert "[0@localhost] tick 5" in text and "job away succeeded in" in text
    assert json.loads((fleet.runs / "away" / "result.json").read_text())["state"] == "succeeded"
    assert (fleet.runs / "away" / "ranks" / "1" / "stdout").read_text().splitlines()[-1] == "tick 5"
    assert "Both ranks succeeded" in (fleet.runs / "away" / "report.html").read_text()
    assert not fleet.alive("away")
    assert listed(fleet)["away"]["fetched"] is True


def test_who_follows_may_leave_and_the_job_goes_on(fleet: Fleet, script: str) -> None:
    go = detached(fleet, script)
    for number in (signal.SIGINT, signal.SIGKILL):
        followed = attach(fleet, do="attach", job_id="away", log_name=f"attach-{number}")
        text = followed.log
        followed.wait_until(lambda text=text: "step 4/5" in text.read_text())
        os.killpg(followed.process.pid, number) if number == signal.SIGKILL else followed.process.send_signal(number)
        followed.process.wait(60)
        assert fleet.alive("away")
    go.touch()
    played = jobs(fleet, do="wait", job_id="away")
    assert played.rc == 0 and "[0@localhost] tick 5" not in played.stdout and "job away succeeded in" in played.stdout
    again = jobs(fleet, do="attach", job_id="away")  # it is over and was fetched
    assert again.rc == 0 and "job away succeeded in" in again.stdout


def test_what_ranks_have_written_until_now(fleet: Fleet, script: str) -> None:
    """Another controller, which has no run of the job, is shown it too, and keeps nothing."""
    go = detached(fleet, script)
    wait_until(lambda: listed(fleet)["away"]["values"].get("step") == 4, 60, lambda: "no progress is told")
    played = jobs(fleet, do="logs", job_id="away", show_ranks=[1])
    assert "[1@localhost] tick 4" in played.stdout and "[0@localhost]" not in played.stdout
    other = fleet.root / "other"
    shown = jobs(fleet, do="logs", job_id="away", show_ranks=[1], runs_dir=str(other))
    assert shown.rc == 0 and "[1@localhost] tick 4" in shown.stdout, shown.stdout
    assert "run: " not in shown.stdout and not other.exists() and fleet.alive("away")
    never = jobs(fleet, do="logs", job_id="never", runs_dir=str(other))
    assert never.rc != 0 and 'job_id: got "never"; no job of this name runs here' in never.msg
    go.touch()
    waited = jobs(fleet, do="wait", job_id="away", runs_dir=str(other))
    assert waited.rc == 0 and "clean.yml -e job_id=away fetches it" in " ".join(waited.stdout.split()), waited.stdout
    assert not other.exists() and jobs(fleet, do="wait", job_id="away").rc == 0
    assert "tick 5" in (fleet.runs / "away" / "ranks" / "1" / "stdout").read_text()  # the rest came too


SAVES = """
import os, pathlib, sys, time
saved = pathlib.Path("model-" + os.environ["RANK"])
for step in range(1000):
    pathlib.Path(f"{saved}.new").write_text(f"{step} " * 100_000)
    os.replace(f"{saved}.new", saved)
    for _moment in range(100):  # both have to be saved, and the next ones not yet, while they are read
        if os.path.exists(sys.argv[2]):
            break
        time.sleep(0.05)
    else:
        continue
    break
saved.write_text("last")
"""


def text_of(path: Path) -> str:
    """Return the text of a file; nothing while another takes its place."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


@pytest.fixture
def models_are_removed() -> Iterator[None]:
    """Ranks of a job on this machine work where its command was typed."""
    yield
    for rank in range(2):
        (REPO / f"model-{rank}").unlink(missing_ok=True)


def test_models_come_home_while_the_job_runs(fleet: Fleet, models_are_removed: None) -> None:
    """Each whole, over the one before; the last ones when it is over."""
    script = fleet.root / "saves.py"
    script.write_text(SAVES)
    go = detached(fleet, str(script), collect=["model-?"])
    models = [fleet.runs / "away" / "artifacts" / "localhost" / f"model-{rank}" for rank in range(2)]
    wait_until(lambda: "collected: 2 files" in jobs(fleet, do="collect", job_id="away").stdout, 60)
    texts = [path.read_text() for path in models]
    for text in texts:
        assert len(set(text.split())) == 1 and len(text.split()) == 100_000
    wait_until(lambda: jobs(fleet, do="collect", job_id="away").rc == 0 and models[0].read_text() != texts[0], 60)
    assert not (fleet.runs / "away" / ".collecting").exists()
    listing = json.loads((fleet.runs / "away" / "artifacts.json").read_text())
    assert {row["path"]: row["bytes"] for row in listing["files"]} == {p.name: p.stat().st_size for p in models}
    go.touch()
    assert jobs(fleet, do="wait", job_id="away").rc == 0
    assert [path.read_text() for path in models] == ["last", "last"]
    followed = fleet.start(
        workload=str(script), workload_args=["x", str(fleet.root / "followed.go")], job_id="followed",
        collect=["model-?"], collect_every=1,
    )  # fmt: skip
    model = fleet.runs / "followed" / "artifacts" / "localhost" / "model-0"
    followed.wait_until(model.exists)
    first = model.read_text()
    followed.wait_until(lambda: text_of(model) not in ("", first))
    assert len(set(first.split())) == 1 and len(first.split()) == 100_000
    (fleet.root / "followed.go").touch()
    assert followed.process.wait(60) == 0, followed.log.read_text()
    assert model.read_text() == "last" and not (fleet.runs / "followed" / ".collecting").exists()
    detached(fleet, str(script), job_id="none").touch()
    refused = jobs(fleet, do="collect", job_id="none")
    assert refused.rc != 0 and "it collects nothing: give train.yml -e collect=GLOB" in refused.msg
    vain = jobs(fleet, do="attach", job_id="none", collect_every=5)
    assert vain.rc != 0 and "collect_every: got 5.0; it collects nothing: give train.yml" in vain.msg
    assert jobs(fleet, do="wait", job_id="none").rc == 0


def test_who_follows_a_detached_job_brings_its_models_home(fleet: Fleet, models_are_removed: None) -> None:
    """At the seconds that were given when it was started. What was written before anybody followed comes at once."""
    script = fleet.root / "saves.py"
    script.write_text(SAVES)
    go = detached(fleet, str(script), collect=["model-?"], collect_every=1)
    model = fleet.runs / "away" / "artifacts" / "localhost" / "model-0"
    assert not model.exists()  # nobody follows it
    followed = attach(fleet, do="wait", job_id="away", log_name="waits")
    followed.wait_until(model.exists)
    first = model.read_text()
    followed.wait_until(lambda: text_of(model) not in ("", first))
    followed.process.send_signal(signal.SIGINT)
    followed.process.wait(60)
    assert fleet.alive("away") and len(set(model.read_text().split())) == 1
    go.touch()
    assert jobs(fleet, do="wait", job_id="away").rc == 0
    assert model.read_text() == "last" and not (fleet.runs / "away" / ".collecting").exists()


def test_a_detached_job_sends_no_more_than_it_was_started_with(fleet: Fleet, models_are_removed: None) -> None:
    """Neither while it runs nor at its end, whoever fetches: as train.yml does that follows its job."""
    script = fleet.root / "saves.py"
    script.write_text(SAVES)
    go = detached(fleet, str(script), collect=["model-?"], collect_files=1)
    why = "more files than collect_files=1 match"
    collected = wait_until(lambda: (told := jobs(fleet, do="collect", job_id="away")).rc and told, 60)
    assert f"collect: nothing came from localhost: {why}; the files stay there" in collected.msg
    go.touch()
    waited = jobs(fleet, do="wait", job_id="away")
    assert waited.rc == 0
    assert f"warning: collect: nothing came from localhost: {why}; the files stay there" in waited.stdout
    run_dir = fleet.runs / "away"
    assert json.loads((run_dir / "artifacts.json").read_text())["refused"] == {"localhost": "too_many"}
    assert not (run_dir / "artifacts").exists()


def test_a_detached_job_is_ended_by_its_name_from_another_controller(
    fleet: Fleet, script: str, elsewhere: Callable[[], None]
) -> None:
    detached(fleet, script)
    elsewhere()
    ended = jobs(fleet, do="cancel", job_id="away")
    assert ended.rc == 0, ended.stdout
    assert "job away cancelled in" in ended.stdout and not fleet.alive("away")
    assert json.loads((fleet.runs / "away" / "result.json").read_text())["state"] == "cancelled"


def test_a_detached_job_that_fails_says_so_and_is_brought_home_by_clean(fleet: Fleet) -> None:
    script = str(SCRIPTS / "fail.py")
    assert fleet.play(workload=script, workload_args=["1", "3"], detach=True, job_id="bad").rc == 0
    played = jobs(fleet, do="wait", job_id="bad")
    assert played.rc != 0 and "job bad failed: rank 1 on localhost: exit status 3" in played.msg
    assert fleet.play(workload=script, workload_args=["1", "3"], detach=True, job_id="worse").rc == 0
    wait_until(lambda: listed(fleet)["worse"]["state"] == "failed", 60, lambda: "it does not end")
    assert fleet.play("clean.yml", job_id="").rc == 0
    assert json.loads((fleet.runs / "worse" / "result.json").read_text())["state"] == "failed"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"do": "attach"}, "job_id: got null; name a job; ansible-playbook playbooks/jobs.yml lists them"),
        ({"do": "stop"}, 'do of jobs: got "stop"; choose one of list, attach, wait, logs, collect, cancel'),
        (
            {"do": "attach", "job_id": "never"},
            'job_id: got "never"; no job of this name runs here: it was fetched and removed, or never started',
        ),
    ],
)
def test_what_cannot_be_is_refused(fleet: Fleet, given: dict[str, object], message: str) -> None:
    played = jobs(fleet, **given)
    assert played.rc != 0 and message in played.msg

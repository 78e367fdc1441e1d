"""A job that Run:ai's own program submits and ends: its words, their order, and what is told of its refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.action.pods_clean import refuse_other_projects, refuse_project
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.plan import Job
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.program import program_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import parse_request
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.runtime_archive import entry
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.workdir import folder_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled import runai_cluster
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.jobs_there import jobs_there
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.kubectl import Kubectl, KubeError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.pod_job import (
    PodJob,
    in_pods,
    kubectl_of,
    lease_for,
    refuse_unfollowed,
    run,
    submit,
    take_away,
    with_runai,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.runai_cluster import RunaiCluster
from tests.unit.test_pod_kinds import config
from tests.unit.test_pod_manifest import IMAGE, pods_of

HERE = {"target": "runai", "pods": 2, "pod_project": "mlo"}


class Programs:
    """A `runai` and a `kubectl` that note their words in one file."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.kubectl('{"items": [], "metadata": {"uid": "u-1"}}')

    def put(self, name: str, script: str) -> None:
        (self.place / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{self.place}/words\n{script}\n')
        (self.place / name).chmod(0o700)

    def kubectl(self, answer: str) -> None:
        self.put("kubectl", f"case \"$*\" in *--output=name*) exit 0 ;; esac\ncat <<'END'\n{answer}\nEND")

    def runai(self, refused: Sequence[str] = ()) -> None:
        """Put a `runai` there that ends with status 1 where its words match a pattern."""
        cases = "".join(f'case "$*" in {word}) echo "no {word[1:-1]}" >&2; exit 1 ;; esac\n' for word in refused)
        self.put("runai", cases)

    @property
    def words(self) -> list[str]:
        path = self.place / "words"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return Programs(tmp_path / "bin")


def made(place: Path, **given: Any) -> PodJob:
    script = place / "script" / "train.py"
    script.parent.mkdir()
    script.write_text("print('hello')\n")
    asked = {**IMAGE, **HERE, "workload": str(script), **given}
    request = parse_request(asked)
    job = Job("demo", "/runs/demo", program_of(request, str(script), shipped=True, local=False), entry(), "abc")
    return in_pods(asked, request, "me", needed=True)(job, folder_of(str(script)))


@pytest.mark.parametrize(
    ("refused", "given", "why"),
    [
        (None, HERE, "runai is not on your PATH"),
        (["*training*"], HERE, "runai on your PATH has no `training pytorch submit`, so it is of version 1"),
        (
            [],
            {**HERE, "pod_project": None},
            "the project is not named, and the pods run in its namespace: -e pod_project=NAME",
        ),
    ],
)
def test_what_keeps_a_job_from_being_submitted_is_told_in_one_line(
    programs: Programs, refused: list[str] | None, given: dict[str, Any], why: str
) -> None:
    if refused is not None:
        programs.runai(refused)
    pods = with_runai(pods_of(**given))
    assert not pods.submits and pods.kind_reason.startswith(f"nothing is submitted, for {why}")
    with pytest.raises(InputError, match=r"nothing is submitted, .*-e pod_manifest=job.json writes it") as error:
        refuse_unfollowed(pods)
    assert "\n" not in str(error.value)
    assert not with_runai(replace(pods, manifest="job.json")).submits


@pytest.mark.parametrize(
    ("does", "why"),
    [
        ("exec sleep 600", "runai training pytorch submit did not end in 1 s"),
        ("exec yes", "runai training pytorch submit printed more than 1 MiB, and was ended"),
        ("", "runai on your PATH cannot be started: Exec format error"),
    ],
)
def test_a_program_that_does_not_say_its_version_is_not_taken_for_an_old_one(
    programs: Programs, monkeypatch: pytest.MonkeyPatch, does: str, why: str
) -> None:
    monkeypatch.setattr(runai_cluster, "HELP_SECONDS", 1.0 if "sleep" in does else 60.0)
    programs.put("runai", does)
    if not does:
        (programs.place / "runai").write_bytes(b"\x7fELF of another machine")
    assert with_runai(pods_of(**HERE)).kind_reason == f"nothing is submitted, for {why}"


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ("echo 'Invalid project mlo' >&2; echo 'Usage: runai training' >&2", "Invalid project mlo"),
        ("echo >&2; echo not logged in", "not logged in"),
        ("echo", "it failed"),
    ],
)
def test_a_refusal_carries_the_first_line_that_says_something(programs: Programs, says: str, why: str) -> None:
    programs.put("runai", f"{says}; exit 1")
    with pytest.raises(KubeError, match=rf"runai training pytorch list: {why}\Z"):
        runai_cluster.RunaiProgram("mlo").run("runai", "training", "pytorch", "list")


def test_what_is_submitted_is_the_line_that_check_prints(programs: Programs, tmp_path: Path) -> None:
    """Once what it mounts is there. Its pods tell frames, and keep the lease."""
    programs.runai()
    job = made(tmp_path, job_env={"WANDB_API_KEY": "hunter22"})
    kubectl = kubectl_of(job)
    submit(kubectl, job.things, "x=y")
    (line,) = job.submitted_by
    created = [words for words in programs.words if " create " in words]
    assert all(words.startswith("kubectl --namespace=runai-mlo create ") for words in created)
    assert [thing.name for thing in job.things] == ["tf-demo", "tf-demo-lease", "tf-demo"] and len(created) == 3
    assert programs.words[-1] == " ".join(line.argv) and "\n".join(job.lines).count("runai training") == 2
    text = programs.words[-1]
    assert " --configmap-map-volume name=tf-demo-lease,path=/etc/torchfleet-lease " in text
    assert "--label torchfleet.dev/job=tf-demo" in text and not text.endswith("plain") and "hunter22" not in text
    assert job.again.endswith("clean.yml -e target=runai -e pod_project=mlo -e job_id=demo")


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({}, "target=runai -e pod_project=mlo"),
        ({"pod_namespace": "other"}, "target=runai -e pod_project=mlo -e pod_namespace=other"),
        (
            {"target": "mpijob", "pod_project": None, "pod_namespace": "a", "pod_context": "my lab"},
            """target=kubernetes -e pod_namespace=a -e '{"pod_context": "my lab"}'""",
        ),
    ],
)
def test_what_ends_a_job_says_where_it_is(
    programs: Programs, tmp_path: Path, given: dict[str, Any], where: str
) -> None:
    """As it is told with Ctrl-C, and to who starts another one of that name."""
    programs.runai()
    job = made(tmp_path, **given)
    assert job.again == f"ansible-playbook clean.yml -e {where} -e job_id=demo"
    programs.put("kubectl", "echo configmap/tf-demo")
    with pytest.raises(InputError, match=rf"end that job: {re.escape(job.again)}\Z"):
        job.start()


def test_who_loses_the_cluster_is_told_what_is_left_there(programs: Programs, tmp_path: Path) -> None:
    """Reproduced before: it was the last error of kubectl alone, and nobody knew that pods may run on."""
    programs.runai()
    job = made(tmp_path)
    job.order["job"]["lease"] = 0.0
    programs.put(
        "kubectl", 'case "$*" in *--output=name*) echo pod/tf-demo-master-0; exit 0 ;; esac; echo no >&2; exit 1'
    )
    closed: list[str] = []
    view: Any = SimpleNamespace(show=print, say=print, close=lambda: closed.append("view"))
    stop: Any = SimpleNamespace(reason=lambda: None, insisted=lambda: False)
    with pytest.raises(KubeError) as error:
        run(job, lease_for(job), view, stop)
    assert "kubectl get: no; " in str(error.value) and "\n" not in str(error.value)
    assert " is left in the cluster: " in str(error.value) and str(error.value).endswith(f": {job.again}")
    assert closed == ["view"]


@pytest.mark.parametrize(
    ("refused", "more"),
    [
        (["*describe*"], ""),
        ([], "; a workload of that name is there, and was left alone: runai training pytorch delete tf-demo -p mlo"),
    ],
)
def test_a_refusal_of_its_program_leaves_nothing(
    programs: Programs, tmp_path: Path, refused: list[str], more: str
) -> None:
    """A workload that is there all the same may be another user's, or have been made before the error: it is named."""
    programs.runai(["*submit\\ tf-demo*", *refused])
    job = made(tmp_path)
    told = r"target: got .runai.; runai training pytorch submit: no submit\\ tf-demo"
    with pytest.raises(KubeError, match=rf"{told}{more}\Z") as error:
        submit(kubectl_of(job), job.things, "x=y")
    assert "\n" not in str(error.value)
    assert any(words.startswith("kubectl --namespace=runai-mlo delete ") for words in programs.words)
    assert not any("pytorch delete" in words for words in programs.words)


def submitted(programs: Programs, place: Path) -> Kubectl:
    kubectl = kubectl_of(made(place))
    kubectl.begin()
    (programs.place / "words").unlink()
    return kubectl


def test_the_workload_goes_before_its_objects_and_once(programs: Programs, tmp_path: Path) -> None:
    """Whoever deletes a pod of a workload that is there gets another one."""
    programs.runai()
    kubectl = submitted(programs, tmp_path)
    kubectl.delete("x=y", wait=False)
    assert programs.words == ["runai training pytorch delete tf-demo -p mlo"]
    assert take_away(kubectl, "x=y") == []
    assert [words.split()[0] for words in programs.words].count("runai") == 1
    assert any(" delete jobs.batch,pods,services,configmaps,secrets " in words for words in programs.words)


def test_a_workload_that_cannot_be_deleted_is_named_and_can_be_found_again(programs: Programs, tmp_path: Path) -> None:
    programs.runai(["*pytorch\\ delete*"])
    kubectl = submitted(programs, tmp_path)
    (line,) = take_away(kubectl, "x=y")
    assert line.startswith("workload tf-demo of Run:ai is left in the cluster: runai training pytorch delete: no ")
    assert not any(words.startswith("kubectl") and " delete " in words for words in programs.words)


def test_a_workload_that_is_gone_is_no_error(programs: Programs, tmp_path: Path) -> None:
    """Somebody deleted it; `list` shows that the program could say so."""
    programs.runai(["*pytorch\\ delete*", "*describe*"])
    kubectl = submitted(programs, tmp_path)
    assert take_away(kubectl, "x=y") == []
    programs.runai(["*"])  # not logged in
    assert take_away(RunaiCluster(("", ""), "mlo", "tf-demo"), "x=y")[0].startswith(
        "workload tf-demo of Run:ai is left"
    )


@pytest.mark.parametrize(("project", "found"), [("mlo", {"one": "mlo"}), ("--all", {}), ("a b", {}), ("", {})])
def test_clean_finds_the_project(programs: Programs, project: str, found: dict[str, str]) -> None:
    """It becomes a word of a command, and whoever may create a ConfigMap there chooses it."""
    programs.kubectl(json.dumps({"items": [of_project("one", project)]}))
    assert jobs_there(Kubectl(), "one").projects == found


def of_project(job_id: str, project: str) -> dict[str, Any]:
    row = config(job_id, "runai")
    row["metadata"]["annotations"]["torchfleet.dev/runai-project"] = project
    return row


def test_clean_deletes_no_workload_that_only_another_object_names(programs: Programs) -> None:
    """Two ConfigMaps with one id: by the one the job is over, by the other it is in a project of others."""
    rows = [of_project("one", "others"), config("one", "jobs")]
    programs.kubectl(json.dumps({"items": rows}))
    there = jobs_there(Kubectl(), "")
    assert (there.taken, there.going) == ({}, ["one"])


@pytest.mark.parametrize("given", [None, "mlo"])
def test_clean_deletes_workloads_of_the_project_that_was_named_only(programs: Programs, given: str | None) -> None:
    programs.kubectl(json.dumps({"items": [of_project("one", "others")]}))
    there = jobs_there(Kubectl(), "one")
    with pytest.raises(InputError, match=r"pod_project: got .*: -e target=runai -e pod_project=others\Z"):
        refuse_other_projects(there, given)
    refuse_other_projects(there, "others")


@pytest.mark.parametrize(
    ("target", "project", "namespace", "told"),
    [
        (
            "runai",
            None,
            None,
            "pod_project: got null; name the project, whose namespace has the job: -e pod_project=NAME",
        ),
        ("mpijob", "mlo", None, 'pod_project: got "mlo"; it is for Run:ai: add -e target=runai'),
    ],
)
def test_the_project_to_clean_is_named_for_run_ai_alone(
    target: str, project: str | None, namespace: str | None, told: str
) -> None:
    with pytest.raises(InputError) as refused:
        refuse_project(target, {"pod_project": project, "pod_namespace": namespace})
    assert str(refused.value) == told


def test_the_namespace_of_a_project_is_enough_to_clean() -> None:
    refuse_project("runai", {"pod_project": None, "pod_namespace": "team"})

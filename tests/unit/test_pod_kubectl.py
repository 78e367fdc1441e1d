"""What kubectl says, as it was recorded of a real cluster: pods and errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled import kubectl as kubectl_module
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.kubectl import (
    Kubectl,
    KubeError,
    Pod,
    first_line,
    pod_of,
)

RECORDED = Path(__file__).parent / "recorded" / "kubectl"
HOSTS = ["tf-demo-0", "tf-demo-1"]


@pytest.mark.parametrize("version", ["1.20", "1.32"])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("unknown-field", 'unknown field "completionMode"'),
        ("no-context", "context was not found for specified context: zz"),
        ("no-namespace", 'namespaces "nowhere" not found'),
        ("no-rights", "You must be logged in to the server"),
        ("no-server", "The connection to the server localhost:8080 was refused"),
    ],
)
def test_the_line_that_says_what_is_wrong_is_shown(version: str, name: str, said: str) -> None:
    line = first_line((RECORDED / f"{version}-{name}.txt").read_bytes())
    assert said in line and "\n" not in line and len(line) <= 500


def test_no_kubectl_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(KubeError, match="not on your PATH: install kubectl"):
        Kubectl(program=str(tmp_path / "kubectl")).run("get", "pods")


def test_an_error_has_the_word_that_the_user_typed(tmp_path: Path) -> None:
    with pytest.raises(KubeError, match='target: got "mpijob"; '):
        Kubectl(program=str(tmp_path / "kubectl"), target="mpijob").run("get", "pods")


def stand_in(tmp_path: Path, text: str, status: int = 0) -> Kubectl:
    """Return a kubectl that writes its words into a file, and prints a text."""
    (tmp_path / "said").write_text(text)
    program = tmp_path / "kubectl"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{tmp_path}/words\ncat {tmp_path}/said\nexit {status}\n')
    program.chmod(0o700)
    return Kubectl("lab", "training", str(program))


def test_context_and_namespace_are_words_of_every_call(tmp_path: Path) -> None:
    stand_in(tmp_path, '{"items": []}').pods("tf-demo", HOSTS)
    words = (tmp_path / "words").read_text().split("\n")
    assert words[:4] == ["--context=lab", "--namespace=training", "get", "pods"]
    assert "--selector=torchfleet.dev/job=tf-demo" in words


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 100_000, "[]", '{"items": 7}', '{"items": [7, null, {"metadata": 3}]}']
)
def test_a_cluster_that_answers_nonsense(tmp_path: Path, text: str) -> None:
    try:
        assert stand_in(tmp_path, text).pods("tf-demo", HOSTS) == []
    except KubeError as error:
        assert "printed no JSON" in str(error)


@pytest.mark.parametrize(
    ("does", "code", "told"),
    [
        ("exec yes", "kubectl_too_long", "kubectl get printed more than 1 MiB, and was ended: give another namespace"),
        ("exec yes >&2", "kubectl_no_answer", "kubectl get gave no answer in 1 s"),
        ("exec sleep 600", "kubectl_no_answer", "kubectl get gave no answer in 1 s"),
        ("sleep 600 & echo no >&2; exit 1", "kubectl_failed", "kubectl get: no; kubectl get pods shows whether"),
        ("exit 0", "", ""),
    ],
)
def test_an_answer_without_end_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str, code: str, told: str
) -> None:
    """Neither memory nor time has no end, whatever the cluster sends; also if kubectl leaves a process behind."""
    monkeypatch.setattr(kubectl_module, "ANSWER_BYTES", 1 << 20)
    kubectl = stand_in(tmp_path, "")
    program = tmp_path / "kubectl"
    program.write_text(f"#!/bin/sh\necho $$ >{tmp_path}/pid\n{does}\n")
    seconds = 1.0 if code == "kubectl_no_answer" else 60.0
    if not code:
        assert kubectl.run("get", "pods", seconds=seconds) == ""
        return
    with pytest.raises(KubeError, match=told) as caught:
        kubectl.run("get", "pods", seconds=seconds)
    assert caught.value.code == code
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


def test_what_kubectl_reads_and_prints_comes_whole(tmp_path: Path) -> None:
    kubectl = stand_in(tmp_path, "")
    (tmp_path / "kubectl").write_text("#!/bin/sh\nexec cat\n")
    given = {"items": ["x" * 1000] * 3000}  # more than a pipe holds
    assert json.loads(kubectl.run("create", given=given)) == given


def test_text_of_a_cluster_cannot_act_on_the_terminal_and_has_an_end() -> None:
    evil = {"type": "PodScheduled", "status": "False", "message": "\x1b[2J" + "x\n" * 5000}
    pod = pod_of({"metadata": {"name": "tf-demo-0-abcde"}, "status": {"conditions": [evil]}}, HOSTS)
    assert pod and "\x1b" not in pod.unschedulable and "\n" not in pod.unschedulable and len(pod.unschedulable) <= 500


def recorded(name: str) -> list[Pod]:
    items = json.loads((RECORDED / f"pods-{name}.json").read_text())["items"]
    return [pod for item in items if (pod := pod_of(item, HOSTS))]


def test_pods_that_run() -> None:
    pods = recorded("running")
    assert sorted(pod.host for pod in pods) == HOSTS
    assert all(pod.began and pod.ready and not pod.deleted and pod.phase == "Running" for pod in pods)


def test_a_pod_whose_claim_is_not_there() -> None:
    assert 'persistentvolumeclaim "nothing" not found' in recorded("no-claim")[0].unschedulable


def test_a_pod_whose_image_is_not_there() -> None:
    assert recorded("no-image")[0].container.waiting in ("ErrImagePull", "ImagePullBackOff")


def test_a_pod_without_python() -> None:
    container = recorded("no-python")[0].container
    assert "executable file not found" in container.message
    assert container.ended or container.waiting


def test_a_pod_that_is_deleted() -> None:
    assert [pod.host for pod in recorded("deleted") if pod.deleted] == ["tf-demo-1"]


def test_a_machine_whose_kubelet_is_silent() -> None:
    assert all(pod.ready is False and pod.container.running for pod in recorded("no-kubelet"))

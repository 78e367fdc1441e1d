"""Preflight of nodes that gave no facts."""

from __future__ import annotations

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.preflight_input import answer_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.preflight_types import Answer
from tests.unit.recorded_nodes import judged, only, two_nodes

VIA = "Failed to connect to the host via ssh: "
# As OpenSSH 9.2 and ansible-core 2.19 said it to nodes of the lab.
SAID = [
    (VIA + "ssh: connect to host 192.0.2.12 port 22: Connection timed out", "", "TF-UNREACHABLE"),
    (VIA + "ssh: connect to host 192.0.2.12 port 22: No route to host", "", "TF-UNREACHABLE"),
    (VIA + "Connection timed out during banner exchange", "", "TF-UNREACHABLE"),
    ("something new", "", "TF-UNREACHABLE"),
    (VIA + "ssh: Could not resolve hostname n9: Name or service not known", "", "TF-NAME-UNKNOWN"),
    (VIA + "ssh: connect to host 192.0.2.12 port 2222: Connection refused", "", "TF-SSH-PORT"),
    (VIA + "kex_exchange_identification: Connection closed by remote host", "", "TF-SSH-CLOSED"),
    (VIA + "fleet@192.0.2.12: Permission denied (publickey,password).", "", "TF-SSH-KEY"),
    (VIA + "No ED25519 host key is known for 192.0.2.12\nHost key verification failed.", "", "TF-HOST-KEY-UNKNOWN"),
    (
        VIA + "@@@@\n@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\n@@@@\nHost key verification failed.",
        "",
        "TF-HOST-KEY-CHANGED",
    ),
    ("", "The module interpreter '/usr/bin/python3' was not found.", "TF-NO-PYTHON"),
    ("", "failed\n/bin/sh: 1: /usr/bin/python3: not found\nShared connection to 192.0.2.12 closed.", "TF-NO-PYTHON"),
    (
        "",
        "Module result deserialization failed: No start of json char found\npyenv: python3.13: command not found\n\n"
        "The `python3.13' command exists in these Python versions:\n  3.13.0\n\n"
        "Note: See 'pyenv help global' for tips on allowing multiple\n"
        "      Python versions to be found at the same time.",
        "TF-NO-PYTHON",
    ),
    ("", "ansible-core requires a minimum of Python version 3.8. Current version: 3.7.3", "TF-PYTHON-OLD"),
    ("", "SyntaxError: future feature annotations is not defined", "TF-PYTHON-OLD"),
    ("", "OSError: [Errno 28] No space left on device", "TF-DISK-TMP"),
    ("", "dd: No space left on device\n0 bytes copied, 0.0001 s, 0.0 kB/s", "TF-DISK-TMP"),
    ("Failed to create temporary directory. In some cases, " + "you may " * 40, "", "TF-ANSIBLE-TMP"),
    ("", "Traceback (most recent call last):\nValueError: x", "TF-NO-ANSWER"),
    ("", "", "TF-NO-ANSWER"),
]


def test_a_node_that_is_too_slow_is_told_apart_from_one_that_is_gone() -> None:
    timed_out = answer_of(
        {"failed": True, "msg": "Task failed: Timed out after 7 second(s).", "timedout": {"period": 7}}
    )
    finding = only(judged({**two_nodes(), "n2": timed_out}))
    assert (finding.id, finding.nodes, finding.seen) == ("TF-SLOW", ("n2",), "no answer within 7 s")
    assert "-e preflight_timeout=" in str(finding)


@pytest.mark.parametrize(("problem", "failure", "name"), SAID)
def test_a_silent_node_is_told_by_what_ssh_or_ansible_said(problem: str, failure: str, name: str) -> None:
    answers = {**two_nodes(), "n2": Answer(problem=problem, failure=failure)}
    finding = only(judged(answers))
    assert (finding.id, finding.nodes) == (name, ("n2",))
    assert "\n" not in finding.seen
    assert not finding.seen.startswith(VIA)
    assert "closed." not in finding.seen
    assert "copied" not in finding.seen
    assert len(finding.seen) < 170

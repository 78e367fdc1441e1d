"""ib_write_bw of perftest: how it is called, and what is read of what it prints.

The transcripts of measurements are those of its users (linux-rdma/perftest, issues 132 and 240; zrlio/softiwarp, issue
27): no machine here has RDMA. The one without a device is of perftest 4.5 as Debian 12 has it, recorded here.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._fabric import perftest
from ansible_collections.torchfleet.cluster.plugins.module_utils._fabric.perftest import Figures, Port

RECORDED = Path(__file__).parent / "recorded/perftest"
GOOD, LOST, NO_DEVICE = ((RECORDED / f"4.5-{name}.txt").read_text() for name in ("infiniband", "lost", "no-device"))


def test_a_rate_and_the_mtu_are_read() -> None:
    assert perftest.figures(GOOD) == Figures(394250.0, 4096)


@pytest.mark.parametrize("text", ["", LOST, GOOD + LOST, NO_DEVICE, "1 2 3 4 5", GOOD.replace("394.25", "1.2.3")])
def test_what_measured_nothing_is_no_rate(text: str) -> None:
    assert perftest.figures(text) is None


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (LOST, "rdma-lost", "no acknowledgement by RDMA (status 12 of ib_write_bw)"),
        ("Completion with error\n", "rdma-lost", "no acknowledgement by RDMA (ib_write_bw)"),
        (f"{GOOD[:900]}\ntimed out", "rdma-lost", "no answer by RDMA within 20 s (ib_write_bw)"),
        (NO_DEVICE, "no-tool", "ib_write_bw: Unable to find the Infiniband/RoCE device"),
        ("Couldn't connect to 10.0.0.2:20000\n", "no-tool", "ib_write_bw: Couldn't connect to 10.0.0.2:20000"),
        ("Couldn't allocate MR\n", "no-tool", "ib_write_bw: Couldn't allocate MR"),
        ("", "no-tool", "ib_write_bw: it printed nothing"),
    ],
)
def test_a_lost_packet_is_told_from_a_program_that_could_not_try(text: str, code: str, words: str) -> None:
    fault = perftest.fault(text)
    assert (fault.code, str(fault)) == (code, words)


def test_the_command_line_names_port_and_gid_and_ends_by_itself() -> None:
    words = perftest.argv("/usr/bin/ib_write_bw", Port("mlx5_3", 1, 3), 20001, perftest.LARGE, "10.0.0.2")
    assert words[:4] == ["timeout", "--kill-after", "2", "25.0"]
    assert " ".join(words[4:]) == (
        "/usr/bin/ib_write_bw --ib-dev mlx5_3 --ib-port 1 --gid-index 3 --port 20001 --report_gbits --CPU-freq "
        "--size 1048576 --iters 1000 10.0.0.2"
    )
    assert "--gid-index" not in perftest.argv("x", Port("mlx5_3", 1, None), 20001, perftest.SMALL)


@pytest.mark.parametrize("device", ["", "-d", "mlx5 0", "$(id)", "../x", "a" * 65, "mlx5_0\n"])
def test_a_device_of_a_message_is_a_name(device: str) -> None:
    with pytest.raises(ValueError, match="no device"):
        perftest.port_of({"device": device, "port": 1})

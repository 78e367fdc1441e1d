"""What a sampler reads of a node: recorded /proc and /sys, counters that wrap, processes that go, GPUs that answer."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JobDir
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.processes import noted_processes, processes
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.usage import BUCKETS_MOST, USAGE
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.usage import sampler, usage_gpus, usage_node
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.usage.usage_series import (
    Folded,
    Rates,
    growth,
    narrowed,
)
from tests.unit.file_tree import tree

NET_DEV = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 58930907107 1922712    0    0    0     0          0         0 58930907107 1922712    0    0    0     0       0          0
  eth0:{received} 732392    0    0    0     0          0         0 {sent}  501292    0    0    0     0       0          0
veth13a2e724: 2368179903   84919    0    0    0     0          0         0 179830103   75618    0    0    0     0       0          0
"""  # noqa: E501
MEMINFO = (
    "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:    4000000 kB\nHugePages_Total:       0\n"
)
VMSTAT = "nr_free_pages 5\npgpgin 4000\npgpgout 90\npswpin {swapped}\npswpout 3\n"
STAT = "cpu  {user} 10 200 5000 70 3 4 {steal} 6 0\ncpu0 1 2 3 4 5 6 7 8 9 0\ncpu1 1 2 3 4 5 6 7 8 9 0\nintr 5\n"
PORT = "sys/class/infiniband/mlx5_0/ports/1"


def machine(root: Path, received: int = 100, user: int = 1000, words: int = 50, **more: str) -> str:
    """Write the files of a node with a NIC of 10 Gbit/s and an RDMA port."""
    (root / "dev" / "shm").mkdir(parents=True, exist_ok=True)
    (root / "sys/class/net/eth0/device").mkdir(parents=True, exist_ok=True)
    (root / "sys/class/net/veth13a2e724").mkdir(parents=True, exist_ok=True)
    files = {
        "proc__stat": STAT.format(user=user, steal=20),
        "proc__meminfo": MEMINFO,
        "proc__vmstat": VMSTAT.format(swapped=7),
        "proc__net__dev": NET_DEV.format(received=received, sent=200),
        "sys__class__net__eth0__speed": "10000\n",
        f"{PORT.replace('/', '__')}__rate": "100 Gb/sec (4X EDR)\n",
        f"{PORT.replace('/', '__')}__counters__port_rcv_data": f"{words}\n",
        f"{PORT.replace('/', '__')}__counters__port_xmit_data": "60\n",
    }
    return tree(root, **{**files, **more})


def test_a_node_is_read_without_its_own_kernel(tmp_path: Path) -> None:
    root = machine(tmp_path)
    known = usage_node.devices("eth0", root)
    assert known.nics == ("eth0",) and [name for name, _path in known.ports] == ["mlx5_0:1"] and known.cores == 2
    assert known.limits["tx.eth0"] == 1.25e9 and known.limits["rdma_rx.mlx5_0:1"] == 12.5e9
    assert known.limits["memory"] == 16_000_000 << 10
    rates = Rates()
    assert rates.add(usage_node.counters(known, root), 10.0) == {}  # of one reading there is no rate
    machine(tmp_path, received=2_500_000_100, user=1000 + 3 * usage_node.TICKS, words=1_000_050)
    found = rates.add(usage_node.counters(known, root), 12.0)
    assert found["rx.eth0"] == 1.25e9 and found["tx.eth0"] == 0.0
    assert found["cpu_node"] == 1.5 and found["steal"] == 0.0 and found["swap"] == 0.0
    assert found["rdma_rx.mlx5_0:1"] == 2_000_000.0 and "rx.lo" not in found and "rx.veth13a2e724" not in found
    assert usage_node.gauges(known, root)["available"] == 4_000_000 << 10


def test_a_limit_of_the_cgroup_counts(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        proc__self__cgroup="4:memory:/old\n0::/slurm/job_7/step\n",
        **{"sys__fs__cgroup__slurm__memory.max": "max\n", "sys__fs__cgroup__slurm__job_7__memory.max": f"{8 << 30}\n"},
        **{"sys__fs__cgroup__slurm__job_7__memory.current": f"{7 << 30}\n"},
        **{"sys__fs__cgroup__slurm__job_7__memory.stat": f"anon 1\ninactive_file {2 << 30}\n"},
    )
    known = usage_node.devices("eth0", root)
    assert known.limits["memory"] == known.limits["available"] == 8 << 30
    assert usage_node.gauges(known, root)["available"] == 3 << 30


def test_what_cannot_be_read_is_not_there(tmp_path: Path) -> None:
    root = tree(tmp_path, proc__stat="nonsense", proc__vmstat="pswpin x\n", proc__net__dev="\n\neth0: 1 2\n")
    known = usage_node.devices("eth0", root)
    assert known.nics == () and known.cores == 1 and "memory" not in known.limits
    assert usage_node.counters(known, root) == {} and usage_node.taken(1, root) is None
    assert usage_node.gauges(known, root) == {} and usage_node.waited(1, root) == -1


@pytest.mark.parametrize(
    ("before", "after", "grown"),
    [
        (5, 9, 4),
        (9, 9, 0),
        ((1 << 32) - 10, 20, 30),
        (1 << 40, 20, None),
        (100, 20, None),
        ((1 << 32) - 1, 1 << 31, None),
    ],
)
def test_a_counter_wraps_or_is_set_back(before: int, after: int, grown: int | None) -> None:
    assert growth(before, after) == grown


def test_a_device_that_went_and_came_back_has_no_rate_at_once() -> None:
    rates = Rates()
    rates.add({"rx.eth0": (10, 1)}, 1.0)
    assert rates.add({}, 2.0) == {}
    assert rates.add({"rx.eth0": (10_000, 1)}, 3.0) == {}
    assert rates.add({"rx.eth0": (10_100, 1)}, 4.0) == {"rx.eth0": 100.0}


def test_series_stay_small_and_keep_peaks_whatever_the_length_of_a_job() -> None:
    folded = Folded()
    for second in range(100_000):
        folded.add(second + 0.2, {"cpu": 8.0 if second == 51_234 else 1.0, "available": 5.0 if second else 2.0})
    found = folded.series()
    assert len(found["cpu"]["mean"]) <= BUCKETS_MOST and folded.seconds * BUCKETS_MOST >= 100_000
    assert max(found["cpu"]["most"]) == 8.0 and min(found["available"]["least"]) == 2.0
    assert len(found["cpu"]["mean"]) > BUCKETS_MOST / 2 - 2 and folded.samples == 100_000
    usage = narrowed({"series": found, "bucket": folded.seconds}, 50)  # type: ignore[typeddict-item]
    assert len(usage["series"]["cpu"]["most"]) <= 50 and max(usage["series"]["cpu"]["most"]) == 8.0
    assert usage["bucket"] * 50 >= 100_000


def test_a_node_that_was_frozen_has_a_gap() -> None:
    folded = Folded()
    for second in (0.1, 1.1, 5.1):
        folded.add(second, {"cpu": 1.0})
    assert folded.series()["cpu"]["mean"] == [1.0, 1.0, None, None, None, 1.0]


class Nvml:
    """As libnvidia-ml.so.1 answers: what is asked of GPU 1 fails."""

    def __init__(self, _name: str) -> None:
        self.nvmlInit_v2 = lambda: 0
        self.nvmlDeviceGetCount_v2 = lambda count: self.put(count, 2)
        self.nvmlDeviceGetHandleByIndex_v2 = lambda number, handle: self.put(handle, number.value + 1)
        self.nvmlDeviceGetMemoryInfo = lambda handle, memory: self.fill(handle, memory, total=80 << 30, used=5 << 30)
        self.nvmlDeviceGetUtilizationRates = lambda handle, busy: self.fill(handle, busy, gpu=45)
        self.nvmlDeviceGetPowerUsage = lambda handle, number: self.fill(handle, number, value=350_500)
        self.nvmlDeviceGetClockInfo = lambda handle, _kind, number: self.fill(handle, number, value=1980)
        self.nvmlDeviceGetCurrentClocksThrottleReasons = lambda handle, bits: self.fill(handle, bits, value=0x44)

    @staticmethod
    def put(place: Any, value: int) -> int:
        place._obj.value = value
        return 0

    @staticmethod
    def fill(handle: ctypes.c_void_p, place: Any, **values: int) -> int:
        for name, value in values.items():
            setattr(place._obj, name, value)
        return 0 if handle.value == 1 else 999


def test_gpus_of_nvidia_are_asked_by_their_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert usage_gpus.gpus_here(str(tmp_path)) == []
    tree(tmp_path, dev__nvidia0="")
    assert usage_gpus.gpus_here(str(tmp_path), "libnone.so") == []
    monkeypatch.setattr(ctypes, "CDLL", Nvml)
    (gpus,) = usage_gpus.gpus_here(str(tmp_path))
    values = usage_gpus.numbered([gpus.values()])
    assert values == {
        **{"gpu.0": 0.45, "gpu_memory.0": 5 << 30, "gpu_power.0": 350.5, "gpu_clock.0": 1.98e9, "gpu_throttled.0": 1.0}
    }
    assert usage_gpus.numbered([gpus.limits()]) == {"gpu.0": 1.0, "gpu_memory.0": 80 << 30, "gpu.1": 1.0}


def test_gpus_of_amd_are_read_from_their_files(tmp_path: Path) -> None:
    device = "sys__class__drm__card1__device__"
    files = {"gpu_busy_percent": "30\n", "mem_info_vram_used": "1000\n", "mem_info_vram_total": "4000\n"}
    files |= {"hwmon__hwmon3__power1_average": "150000000\n", "hwmon__hwmon3__freq1_input": "1500000000\n"}
    root = tree(tmp_path, **{device + name: text for name, text in files.items()})
    (gpus,) = usage_gpus.gpus_here(root)
    assert usage_gpus.numbered([gpus.values()]) == {
        **{"gpu.0": 0.3, "gpu_memory.0": 1000.0, "gpu_power.0": 150.0, "gpu_clock.0": 1.5e9}
    }
    assert usage_gpus.numbered([gpus.limits()]) == {"gpu.0": 1.0, "gpu_memory.0": 4000.0}


def job_of(tmp_path: Path, **order: Any) -> tuple[JobDir, Any]:
    job = JobDir(str(tmp_path / "job"))
    job.create([0])
    return job, {"ranks": [0], "nic": "", "sample": True, "launcher": {"name": "openmpi"}, **order}


def record(job: JobDir, wrapper: int, program: int) -> None:
    start = {"rank": 0, "local_rank": 0, "host": "n1", "wrapper_pid": wrapper, "cpus": [0, 1], "started": time.time()}
    job.write("ranks/0/record.json", {**start, "pid": program})


def test_the_processes_of_ranks_are_counted_until_they_are_gone(tmp_path: Path) -> None:
    """A child is in its parent's time when that has waited for it, and never twice."""
    job, order = job_of(tmp_path)
    child = "import time\nwhile time.process_time() < 0.35: pass"  # the kernel rounds user and system time down, each
    code = f"import subprocess, sys; input(); subprocess.run([sys.executable, '-c', '''{child}''']); print(flush=True)"
    code += "; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdin is not None and program.stdout is not None
        record(job, os.getpid(), program.pid)
        reads = sampler.Sampler(job, order)
        reads.sample(reads.start)
        assert [process.pid for process in reads.trees[0]][:1] == [program.pid]
        assert [pid for pid, _started in job.read(noted_processes.FILE)["processes"]] == [program.pid]
        program.stdin.write(b"\n")
        program.stdin.flush()
        program.stdout.readline()
        reads.sample(reads.start + 1.0)
        assert 0.3 <= reads.ticks / usage_node.TICKS < 3.0
        program.stdin.close()
    had = reads.ticks
    reads.sample(reads.start + 2.0)  # all are gone: no sample, and nothing is counted back
    assert reads.ticks == had and reads.folded.samples == 2
    usage = reads.usage()
    assert USAGE(usage) == usage and usage["limits"]["cpu"] == 2.0
    assert usage["series"]["cpu"]["most"][1] >= 0.3 or usage["cores"] == 1


def test_a_child_that_was_seen_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parent has its ticks when it has waited for it."""
    job, order = job_of(tmp_path)
    reads = sampler.Sampler(job, order)
    parent, child = processes.Process(10, 1, "R", 5), processes.Process(11, 10, "R", 6)
    reads.trees = {0: [parent, child]}
    had: dict[int, Any] = {10: usage_node.Taken(5, 100, 0), 11: usage_node.Taken(6, 30, 0)}
    monkeypatch.setattr(usage_node, "taken", lambda pid, _root: had.get(pid))
    assert reads.take() == (0, 0)
    had.update({10: usage_node.Taken(5, 110, 0), 11: usage_node.Taken(6, 70, 0)})
    assert reads.take() == (0, 50)
    had = {10: usage_node.Taken(5, 195, 0)}  # 10 of its own, and all 75 of the child
    assert reads.take() == (0, 65)
    had = {}
    assert reads.take() == (0, 65)


def test_a_process_with_a_pid_of_before_is_another_one(tmp_path: Path) -> None:
    job, order = job_of(tmp_path)
    reads = sampler.Sampler(job, order)
    here = processes.read(os.getpid())
    assert here is not None
    reads.trees = {0: [here._replace(started=here.started - 1)]}
    assert reads.take() == (0, 0) and reads.cpu == {}
    reads.trees = {0: [here]}
    assert reads.take()[0] > 0 and len(reads.cpu) == 1


def sampling_of(job: JobDir, order: Any, monkeypatch: pytest.MonkeyPatch) -> sampler.Sampling:
    monkeypatch.setattr(sampler, "DELAY_SECONDS", 0.0)
    sampling = sampler.Sampling(job, order)
    assert sampling.look(placed=False) == []
    return sampling


def test_a_sampler_is_a_process_that_ends_when_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, order = job_of(tmp_path)
    sampling = sampling_of(job, order, monkeypatch)
    (pid,) = sampling.look(placed=True)
    assert sampling.look(placed=True) == [pid]
    sampling.stop()  # also if it comes before the process listens
    sampling.wait()
    assert processes.read(pid) is None
    usage = sampler.noted_usage(job)
    assert usage is not None and usage["samples"] >= 1 and usage["cores"] >= 1
    job.write(sampler.USAGE_FILE, {**usage, "samples": -1})  # by a program of the job
    assert sampler.noted_usage(job) is None


def test_a_sampler_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, order = job_of(tmp_path)
    monkeypatch.setattr(sampler, "END_SECONDS", 0.1)
    monkeypatch.setattr(sampler.Sampler, "sample", lambda _self, _now: time.sleep(600))
    sampling = sampling_of(job, order, monkeypatch)
    (pid,) = sampling.look(placed=True)
    sampling.stop()
    sampling.wait()
    left = processes.wait_gone(lambda: [found for found in [processes.read(pid)] if found], 20.0)
    for process in left:
        processes.send(process, signal.SIGKILL)
    assert left == [] and sampler.noted_usage(job) is None


def test_nobody_samples_if_it_is_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = sampling_of(*job_of(tmp_path, sample=False), monkeypatch)
    assert sampling.look(placed=True) == []
    sampling.stop()
    sampling.wait()

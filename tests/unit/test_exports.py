"""Runs for programs of others: event files as TensorBoard reads them, and text as Prometheus reads it."""

from __future__ import annotations

import json
import math
import re
import struct
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.ranks.output_lines import parse_report
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.values import parse_exports
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.prometheus import number, text_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.reading import read_run
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.run import Run
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.tensorboard import event_files, masked, varint
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.writer import write_exports
from tests.unit.report_pages import RECORDED


def records(data: bytes) -> list[bytes]:
    """Return the bodies of a file of records whose checksums are right."""
    found = []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        assert struct.unpack("<I", data[8:12]) == (masked(data[:8]),)
        body, data = data[12 : 12 + length], data[12 + length :]
        assert struct.unpack("<I", data[:4]) == (masked(body),)
        found, data = [*found, body], data[4:]
    return found


def test_checksums_are_those_of_the_field() -> None:
    """RFC 3720, B.4: CRC-32C of 32 bytes of zeros is 0x8a9136aa."""
    crc = 0x8A9136AA
    assert masked(bytes(32)) == (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    assert varint(300) == b"\xac\x02" and varint(0) == b"\0"


def test_event_files_have_what_ranks_reported(tmp_path: Path) -> None:
    run = Run("j", "/runs/j", series={"loss": {0: ((1e9, 0.5), (1e9 + 1, math.nan)), 3: ((1e9, 1e300),)}})
    files = event_files(run)
    assert list(files) == [f"rank{rank}/events.out.tfevents.1000000000.torchfleet" for rank in (0, 3)]
    first, *events = records(next(iter(files.values())))
    assert first.endswith(b"\x1a\x0dbrain.Event:2")
    inside = b"\x0a\x04loss\x15" + struct.pack("<f", 0.5)
    summary = b"\x0a" + bytes([len(inside)]) + inside
    assert events[0] == b"\x09" + struct.pack("<d", 1e9) + b"\x10\x01" + b"\x2a" + bytes([len(summary)]) + summary
    assert len(events) == 2
    where = tmp_path / "run"
    where.mkdir()
    assert write_exports(where, run, ["tensorboard"]) == [where / "tensorboard"]
    assert {path.stat().st_mode & 0o077 for path in where.rglob("events.*")} == {0}


LINE = re.compile(r'[a-z_]+(\{[a-z_]+="(?:[^"\\\n]|\\\\|\\"|\\n)*"(,[a-z_]+="(?:[^"\\\n]|\\\\|\\"|\\n)*")*\})? \S+')


def test_prometheus_has_words_for_what_is_no_finite_number() -> None:
    """Text format of Prometheus: values are as Go's ParseFloat reads them."""
    assert [number(float(word)) for word in ("inf", "-inf", "nan", "1e300")] == ["+Inf", "-Inf", "NaN", "1e+300"]


def test_prometheus_reads_the_text(tmp_path: Path) -> None:
    recorded = json.loads((RECORDED / "two-nodes" / "result.json").read_text())
    figures = {"cpu_efficiency": 0.5, "nic_mean": 1e9, "gpu_share": None, "nic": "eth0"}
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    metrics = {'lo"ss\\': 0.25, "loss": 1, "word": "text"}
    ranks = [{**row, "cpu_seconds": 2.5, "peak_bytes": 1000} for row in recorded["ranks"]]
    result = {**recorded, "metrics": metrics, "ranks": ranks, "usage": {"nodes": {"n1": figures}, "findings": []}}
    (run_dir / "result.json").write_text(json.dumps(result))
    text = text_of(read_run(run_dir))
    assert text.endswith("\n")
    seen: list[str] = []
    for line in text.splitlines():
        name = line.split()[2] if line.startswith("# ") else re.split(r"[{ ]", line)[0]
        if line.startswith("# HELP "):
            assert name not in seen  # each metric stands together
            seen.append(name)
        elif not line.startswith("# TYPE "):
            assert LINE.fullmatch(line) and math.isfinite(float(line.rsplit(" ", 1)[1])), line
        assert name == seen[-1] and not name.endswith("_total")
    assert 'torchfleet_reported{name="lo\\"ss\\\\"} 0.25' in text and 'torchfleet_node_cpu_ratio{node="n1"} 0.5' in text
    assert 'torchfleet_rank_cpu_seconds{rank="0",node="n1"} 2.5' in text and "gpu_ratio" not in text


def test_an_export_that_there_is_not_is_refused() -> None:
    assert parse_exports("tensorboard, prometheus") == ("tensorboard", "prometheus")
    assert parse_exports(["prometheus"]) == ("prometheus",) and parse_exports([]) == parse_exports("") == ()
    for wrong in ("mlflow", ["tensorboard", 5], {"a": 1}, True):
        with pytest.raises(InputError, match="-e export=tensorboard,prometheus"):
            parse_exports(wrong)


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ('{"key": "eval_accuracy", "value": 0.91, "metadata": {"epoch_num": 3}}', {"eval_accuracy": 0.91, "epoch": 3}),
        ('{"key": "SEED", "value": 7, "metadata": null}', {"seed": 7}),
        ('{"key": "epoch", "value": 2, "metadata": {"epoch_num": 1}}', {"epoch": 2}),
        ('{"key": "run_stop", "value": null}', None),
        ('{"key": "submission_org", "value": "us"}', None),
        ('{"key": "ok", "value": true}', None),
        ('{"key": "loss", "value": NaN}', None),
        ('{"key": "a b", "value": 1}', None),
        ('{"value": [1]}', None),
        ("[1]", None),
        ("nonsense", None),
    ],
)
def test_lines_of_mlperf_are_reports(line: str, values: dict[str, object] | None) -> None:
    assert parse_report(":::MLLOG " + line) == values
    assert parse_report("x :::MLLOG " + line) is None

"""What all tests share: an option, and that a fixture which cannot be made fails once."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

SEEN = pytest.StashKey[list[BaseException]]()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return half as many processes again as there are cores: the fast tests wait a third of their time."""
    return max(1, len(os.sched_getaffinity(0)) * 3 // 2)


def pytest_configure(config: pytest.Config) -> None:
    """Have Ansible pack each module once for all playbooks of this run (callbacks/shared_payloads.py)."""
    if "TORCHFLEET_TEST_PAYLOADS" not in os.environ:  # else this process is one of pytest-xdist's
        shared = tempfile.mkdtemp(prefix="torchfleet-payloads-")
        config.add_cleanup(lambda: shutil.rmtree(shared))
        os.environ["TORCHFLEET_TEST_PAYLOADS"] = shared
        os.environ["ANSIBLE_CALLBACK_PLUGINS"] = str(Path(__file__).parent / "callbacks")
        os.environ["ANSIBLE_CALLBACKS_ENABLED"] = "shared_payloads"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-transcripts", action="store_true", help="write tests/transcripts anew")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Mark the report of a test whose fixture failed before, in another test: pytest raises the same error again."""
    report = yield
    if call.when == "setup" and report.failed and call.excinfo is not None:
        seen = item.session.stash.setdefault(SEEN, [])
        report.__dict__["not_run"] = any(call.excinfo.value is error for error in seen)
        seen.append(call.excinfo.value)
    return report


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Count such a test, so that the last line says how many there were, and print nothing of it. It is no success."""
    return ("not run", "", "") if getattr(report, "not_run", False) else None

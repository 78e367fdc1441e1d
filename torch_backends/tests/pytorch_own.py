"""Runs on every rank: PyTorch's own tests of a distributed backend. Arguments: a directory, the backend.

Each rank writes <directory>/<rank>.json: of every test what came of it, "ok", "skipped: why", or what went wrong. Its
last line says how many there are of each.
"""

from __future__ import annotations

import json
import os
import sys
import unittest
from collections import Counter
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.testing._internal.common_distributed import TEST_SKIPS, DistTestCases

PLACE, BACKEND = sys.argv[1:]
BREAKS = "test_monitored_barrier"  # on purpose, and with it the world that the tests after it need
# PyTorch's DDP logs "custom" for whatever backend it does not know.
LEFT_OUT = [BREAKS, *(["test_ddp_logging_data"] if BACKEND == "shm" else [])]
if BACKEND in ("mpi", "shm"):
    for feature in ("ddp", "subgroup", "gpu"):  # PyTorch's own backend mpi has neither, and it does not know shm
        DistTestCases.backend_feature[feature].add(BACKEND)
dist.init_process_group(BACKEND)
os.environ.update(BACKEND=BACKEND, WORLD_SIZE=str(dist.get_world_size()), TEMP_DIR=PLACE)
for name in ("barrier", "test_dir", "init_dir"):
    Path(PLACE, name).mkdir(parents=True, exist_ok=True)

from torch.testing._internal.common_utils import TestCase  # noqa: E402
from torch.testing._internal.distributed.distributed_test import Barrier, DistributedTest  # noqa: E402


class OnRanks(TestCase, DistributedTest._DistTestBase):
    """The tests, in a world that is there already."""

    @property
    def rank(self) -> int:
        return int(dist.get_rank())

    @property
    def world_size(self) -> int:
        return int(dist.get_world_size())


class Told(unittest.TestResult):
    """What came of the tests so far, written down after each."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().startTest(test)
        self.found[test.id().rpartition(".")[2]] = "ok"
        Path(PLACE, f"{dist.get_rank()}.json").write_text(json.dumps(self.found))

    def tell(self, test: unittest.TestCase, what: str) -> None:
        self.found[test.id().rpartition(".")[2]] = what

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self.tell(test, f"skipped: {reason}")

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        skips = [skip.message for skip in TEST_SKIPS.values() if err[0] is SystemExit and skip.exit_code == err[1].code]
        self.tell(test, f"skipped: {skips[0]}" if skips else self._exc_info_to_string(err, test))  # type: ignore[attr-defined]

    addFailure = addError  # noqa: N815


def main() -> None:
    told = Told()
    for test in unittest.defaultTestLoader.loadTestsFromTestCase(OnRanks):
        if not isinstance(test, unittest.TestCase) or any(name in test.id() for name in LEFT_OUT):
            continue
        Barrier.barrier_id = 0  # theirs, of files: after a test that failed it would be out of step
        dist.barrier()
        if dist.get_rank() == 0:
            Barrier.init()
        dist.barrier()
        test.run(told)
    Path(PLACE, f"{dist.get_rank()}.json").write_text(json.dumps(told.found))
    kinds = Counter(text if text == "ok" else text.partition(":")[0] for text in told.found.values())
    wrong = {name: text for name, text in told.found.items() if not text.startswith(("ok", "skipped: "))}
    for name, text in wrong.items():
        print(name, text, file=sys.stderr)
    print(f"ok {kinds['ok']}, skipped {kinds['skipped']}, wrong {len(wrong)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

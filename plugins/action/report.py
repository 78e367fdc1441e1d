# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.report: make reports of runs. Documentation: plugins/modules/report.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.utils.display import Display

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.action import Action
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.values import parse_exports
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.run_directory import REPORT
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.choice import find_runs, parse_patterns
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.comparable import obstacles
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.compare import cautions, comparison, sentence
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.page import report
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.reading import read_run
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.run import Run
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.verdict import verdict_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.writer import write_exports, write_page

Result = dict[str, Any]
display = Display()


class ActionModule(Action):
    """One task on the controller; no node is asked."""

    BYPASS_HOST_LOOP = True
    options_are_typed = True

    def act(self, given: Result, variables: Result) -> Result:
        """Return changed, reports, and comparison and not_comparable if there are several."""
        found = find_runs(given["runs_dir"], parse_patterns(given["runs"]))
        exports = parse_exports(given["export"])
        proof = Path(given["verify_report"]).expanduser().absolute()
        together = Path(given["comparison"]).expanduser().absolute()
        pages = [path / REPORT for path in found]
        answer: Result = {"changed": True, "reports": [str(path) for path in pages]}
        if len(found) > 1:
            answer["comparison"] = str(together)
        if self._task.check_mode:
            return answer
        runs = [read_run(path, proof) for path in found]
        for run, path in zip(runs, pages, strict=True):
            write(path, report(run))
            display.display(f"{run.job_id}: {verdict_of(run).sentence}")
            for place in (path, *export(path.parent, run, exports)):
                display.display(f"  {place}")
        if len(runs) > 1:
            write(together, comparison(runs))
            answer["not_comparable"] = [obstacle.code for obstacle in obstacles(runs)]
            display.display("\n".join([sentence(runs), *cautions(runs), f"  {together}"]))
        return answer


def export(run_dir: Path, run: Run, exports: tuple[str, ...]) -> list[Path]:
    """Write a run for programs of others; return where. InputError if it cannot be written."""
    try:
        return write_exports(run_dir, run, exports)
    except OSError as error:
        raise InputError("export", str(run_dir), f"{error.strerror}: it cannot be written there") from None


def write(path: Path, text: str) -> None:
    """Write a page. InputError if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_page(path, text)
    except OSError as error:
        raise InputError("report", str(path), f"{error.strerror}: it cannot be written there") from None

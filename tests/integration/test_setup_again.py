"""A second `setup.yml` on this machine, which is all of the cluster: it changes nothing, and is short to read."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

from tests.driver import REPO

SKIPPED = 8  # at most: what is skipped without need hides what is skipped with a reason


def test_a_second_setup_changes_nothing_and_skips_little(tmp_path: Path) -> None:
    reports = {name: str(tmp_path / name) for name in ("preflight_report", "verify_report", "verify_runs")}
    given = json.dumps({**reports, "verify_launchers": ["openmpi"]})
    command = ["ansible-playbook", "setup.yml", "-e", given]
    shows_skipped = {**os.environ, "ANSIBLE_DISPLAY_SKIPPED_HOSTS": "true"}
    done = subprocess.run(
        command, cwd=REPO, env=shows_skipped, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout + done.stderr
    found = re.search(r"^localhost +: ok=\d+ +changed=(\d+) .* skipped=(\d+) ", done.stdout, re.MULTILINE)
    assert found, done.stdout
    changed, skipped = map(int, found.groups())
    assert changed == 0
    assert skipped <= SKIPPED, re.findall(r"TASK \[(.*?)\] \**\n(?=skipping)", done.stdout)

# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""report.html in a run directory. It is one view of the run's files: writing it never fails or delays a result."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.run_directory import REPORT

if TYPE_CHECKING:
    from .run import Run

PROOF = "reports/verify.json"  # where the user is: what verify.yml stored
SECONDS = 10.0  # that a playbook waits for a report; it takes some tenths of a second


def write_report(run_dir: Path, proof: Path, exports: Collection[str] = ()) -> None:
    """Write the report of a run. `proof`: the report of verify.yml, which may be absent; `exports`: of parse_exports().

    OSError.
    """
    from .page import report  # here: no job waits for what is needed when it is over
    from .reading import read_run

    run = read_run(run_dir, proof)
    write_page(run_dir / REPORT, report(run))
    write_exports(run_dir, run, exports)


def write_exports(run_dir: Path, run: Run, exports: Collection[str]) -> list[Path]:
    """Write a run for programs of others, and return where. OSError."""
    from .prometheus import text_of
    from .tensorboard import event_files

    written = []
    if "tensorboard" in exports:
        place = run_dir / "tensorboard"
        for name, data in event_files(run).items():
            (place / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(place / name, data)
        written.append(place)
    if "prometheus" in exports:
        write_page(run_dir / "metrics.prom", text_of(run))
        written.append(run_dir / "metrics.prom")
    return written


def write_page(path: Path, text: str) -> None:
    """Write a text that only its owner can read, whole or not at all. OSError."""
    write_whole(path, text.encode(errors="replace"))


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read, whole or not at all; a link in its place is replaced. OSError."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
        part.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def report_of(run_dir: Path, proof: Path | None = None, seconds: float = SECONDS, exports: Collection[str] = ()) -> str:
    """Write the report of a run and return an empty text, or a line that says why there is none.

    Whatever goes wrong, and however slow the disk is, the caller goes on.
    """
    said: list[str] = []

    def write() -> None:
        try:
            write_report(run_dir, proof or Path(PROOF).absolute(), exports)
            said.append("")
        except Exception as error:  # also a mistake of ours: the result of the job does not depend on a picture of it
            why = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"[:200]
            said.append(f"{run_dir / REPORT} cannot be written: {why}")

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    writer.join(seconds)
    again = f"ansible-playbook playbooks/report.yml -e runs={run_dir.name}"
    return said[0] if said else f"{run_dir / REPORT} is not there after {seconds:g} s: {again}"

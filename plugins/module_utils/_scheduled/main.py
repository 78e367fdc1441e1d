# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The first of our code that runs in a pod, or that srun starts on a node."""

from __future__ import annotations

import os
import sys

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.open_files import raise_files

from .entry import REFUSED, Entry
from .place import NoPlace
from .slurm_entry import FORM, SlurmEntry


def main() -> None:
    """Run the job of this node.

    Arguments: the directory of our files, our home, and slurm_entry.FORM, or plain.FORM if people read the log.
    """
    raise_files()
    source, home, *form = sys.argv[1:4]
    try:
        status = SlurmEntry(source, home).run() if form == [FORM] else Entry(source, home, *form).run()
    except (NoPlace, OSError, ValueError) as error:
        sys.stderr.write(f"torchfleet: {error}\n")
        sys.stderr.flush()  # Python 3.8 keeps it back
        status = REFUSED
    os._exit(status)

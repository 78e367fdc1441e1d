# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The parts that setup.yml installs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.gpu_vendors import VENDORS
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.launchers import MPIS
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.backends import BACKENDS

# The variable of setup.yml that lists each kind of part -> the parts that there are.
PARTS: Mapping[str, Sequence[str]] = {
    "accelerators": tuple(row.role for row in VENDORS.values() if row.role),
    "libraries": ("ucx", "ucc"),
    "mpis": MPIS,
    "backends": tuple(name for name, row in BACKENDS.items() if row.ours),
}

# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The choices that options of modules have, from the tables of launchers, backends, vendors, engines and parts."""

from __future__ import annotations

import json
from collections.abc import Iterable

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.engines import CHOICES
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.gpu_vendors import RESOURCES, USABLE
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.launchers import (
    LAUNCHERS,
    MPIS,
    TRIED,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.setup_parts import PARTS
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.backends import BACKENDS


def choices(**known: Iterable[str]) -> str:
    """Return the fragment of a module's documentation that gives options their choices."""
    return json.dumps({"options": {name: {"choices": list(names)} for name, names in known.items()}})


class ModuleDocFragment:
    """`torchfleet.cluster.choices.<module>`. The module itself has the rest of these options."""

    INVENTORY_CHECK = choices(**PARTS)
    LAUNCH = choices(
        backend=BACKENDS,
        container_engine=CHOICES,
        launcher=LAUNCHERS,
        pod_gpu_resource=RESOURCES,
        slurm_gpu_vendor=USABLE,
    )
    LAUNCHER_PROOF = choices(launcher=MPIS)
    STAGE = choices(launcher=LAUNCHERS)
    VERIFY = choices(launchers=TRIED)

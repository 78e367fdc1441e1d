# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Filters driver_plan and driver_reboot. Documentation: in the .yml of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import to_plain
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software.gpu_drivers import PLANS, REBOOTS


def driver_plan(facts: Mapping[str, object], role: str, options: Mapping[str, object]) -> dict[str, object]:
    """Return what a machine gets, as plain values."""
    return dataclasses.asdict(PLANS[to_plain(role)](to_plain(facts), to_plain(options)))


def driver_reboot(
    facts: Mapping[str, object], role: str, driver: str, versions: Mapping[str, str], branch: object = None
) -> str:
    """Return why a machine has to be rebooted."""
    return REBOOTS[to_plain(role)](to_plain(facts), to_plain(driver), to_plain(versions), to_plain(branch))


class FilterModule:
    """What Ansible asks for the filters."""

    def filters(self) -> dict[str, Callable[..., object]]:
        """Return them by name."""
        return {"driver_plan": driver_plan, "driver_reboot": driver_reboot}

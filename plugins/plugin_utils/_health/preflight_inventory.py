# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Preflight of the inventory: names and addresses that are valid one by one, but not together. Pure.

One by one, hostvars.cluster_from_hostvars() and cluster.check_cluster() have checked them before.
"""

from __future__ import annotations

import ipaddress
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from .findings import Finding, found
from .preflight_rules import RULES
from .preflight_types import Target


def inventory_findings(targets: Sequence[Target]) -> Iterator[Finding]:
    """Yield findings about names and addresses that are valid one by one, but not together."""
    labels = defaultdict(list)
    for target in targets:
        if not re.fullmatch(r"[\d.]+", target.name):
            labels[target.name.split(".")[0].lower()].append(target.name)
        if len(targets) > 1 and is_loopback(target.address):
            yield found(
                RULES, "TF-ADDRESS-LOOPBACK", [target.name], f"ansible_host is {target.address}", **target.words
            )
    for label, names in labels.items():
        if len(names) > 1:
            yield found(RULES, "TF-NAME-FIRST-LABEL", names, f"the names begin with the same label, {label}")


def is_loopback(address: str) -> bool:
    """Whether an address or name means the machine itself on every machine."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"

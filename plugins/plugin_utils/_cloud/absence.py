# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Proof that nothing of a cluster is left that would be billed.

The list of the stack's resources says what is the cluster's. A tag alone does not: whoever may start instances can copy
it (the console's "Launch more like this" does). What has only the tag is named, and left as it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from .answers import Instance, Remain
from .errors import CloudError
from .template import TAG

GONE_SECONDS = 120.0  # EC2 tells of a volume or interface for some time after it is deleted
# On every instance that CloudFormation made. Nobody else can set one that begins with aws: (EC2 User Guide, tags).
STACK_TAG = "aws:cloudformation:stack-name"


class Region(Protocol):
    """What is asked of AWS (aws.Aws)."""

    region: str

    def instances(self, cluster: str = "") -> list[Instance]: ...
    def remains(self, cluster: str, volumes: Sequence[str]) -> list[Remain]: ...
    def wait(self) -> None: ...


@dataclass(frozen=True)
class Left:
    """What is left of a cluster, and the instances that are not its own but have its tag. Ids."""

    own: tuple[str, ...]
    strangers: tuple[str, ...]


def left_of(cluster: str, stack: str, region: Region, members: Sequence[Instance]) -> Left:
    """Return what is left. `members`: the instances that the stack had, none if there was no stack any more."""
    ids = {each.id for each in members}
    tagged = region.instances(cluster)
    mine = [each.id for each in tagged if each.id in ids or each.tags.get(STACK_TAG) == stack]
    strangers = [each.id for each in tagged if each.id not in mine]
    volumes = sorted(part for each in members for part in each.parts if part.startswith("vol-"))
    parts = region.remains(cluster, volumes)
    return Left((*mine, *(each.id for each in parts if each.instance not in strangers)), tuple(strangers))


def prove_absence(
    cluster: str, stack: str, region: Region, members: Sequence[Instance], say: Callable[[str], object]
) -> None:
    """Return when AWS finds nothing of a cluster any more. CloudError with the ids of what stays."""
    deadline = time.monotonic() + GONE_SECONDS
    while (left := left_of(cluster, stack, region, members)).own:
        if time.monotonic() > deadline:
            told = f"in {region.region}, tag {TAG}={cluster}: {', '.join(sorted(left.own))}"
            raise CloudError("Remains", f"not removed, and maybe billed, {told}: end them in the console")
        region.wait()
    if left.strangers:
        told = f"{', '.join(left.strangers)}: tag {TAG}={cluster}, but not made by stack {stack}"
        say(f"{told}; left as it is, and billed: end it in the console if it is yours")

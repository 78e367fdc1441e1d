# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""All clusters of a region, so that nothing is billed unseen. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .answers import Instance, Stack, Tags, Volume
from .template import EXPIRES_TAG, OWNER_TAG, TAG


@dataclass(frozen=True)
class Row:
    """A cluster in a list: the type of each instance, and the volumes that no instance uses."""

    cluster: str
    region: str
    status: str
    instances: tuple[str, ...]
    volumes: tuple[str, ...]
    owner: str
    expires: str


def rows_of(
    region: str, stacks: Sequence[Stack], instances: Sequence[Instance], volumes: Sequence[Volume]
) -> list[Row]:
    """Return the clusters of a region: those with a stack, and what has the tag of one whose stack is gone."""
    found: dict[str, tuple[str, Tags]] = {stack.tags[TAG]: (stack.status, stack.tags) for stack in stacks}
    for tags in [each.tags for each in instances] + [each.tags for each in volumes]:
        found.setdefault(tags.get(TAG, ""), ("no stack", tags))
    return [
        Row(
            cluster=name,
            region=region,
            status=status,
            instances=tuple(sorted(each.type for each in instances if each.tags.get(TAG) == name)),
            volumes=tuple(sorted(each.id for each in volumes if each.tags.get(TAG) == name)),
            owner=tags.get(OWNER_TAG, ""),
            expires=tags.get(EXPIRES_TAG, ""),
        )
        for name, (status, tags) in sorted(found.items())
    ]


def row_line(row: Row) -> str:
    """Return a line of the list."""
    counts = [f"{row.instances.count(kind)} x {kind}" for kind in sorted(set(row.instances))]
    running = ", ".join([*counts, *row.volumes]) or "no instances"
    return (
        f"{row.cluster}: {row.region}, {row.status}, {running}, of {row.owner or 'nobody'}, until {row.expires or '?'}"
    )

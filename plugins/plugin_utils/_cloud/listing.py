# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""All clusters of a region, so that nothing is billed unseen. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from . import renewal
from .absence import STACK_TAG
from .answers import Instance, Stack, Tags, Volume
from .template import EXPIRES_TAG, OWNER_TAG, TAG, until_text


@dataclass(frozen=True)
class Row:
    """A cluster in a list: the type of each instance, and the volumes that no instance uses.

    `status`: of the stack; empty: there is none. `expires`: when the last lease ends. `strangers`: ids of those
    instances that no stack made: the tag was copied.
    """

    cluster: str
    region: str
    status: str
    instances: tuple[str, ...]
    volumes: tuple[str, ...]
    owner: str
    expires: str
    strangers: tuple[str, ...] = ()

    @property
    def is_cluster(self) -> bool:
        """Whether something of the cluster is there, and not only its tag on instances of others."""
        return bool(self.status) or len(self.strangers) < len(self.instances) or bool(self.volumes)


def rows_of(
    region: str,
    stacks: Sequence[Stack],
    instances: Sequence[Instance],
    volumes: Sequence[Volume],
    members: Collection[str],
) -> list[Row]:
    """Return the clusters of a region: those with a stack, and what has the tag of one whose stack is gone.

    `members`: the ids of the instances that are in the list of a stack.
    """
    strangers = {each.id for each in instances if each.id not in members and STACK_TAG not in each.tags}
    found: dict[str, tuple[str, Tags, str]] = {
        stack.tags[TAG]: (stack.status, stack.tags, stack.parameters.get("Expires", "")) for stack in stacks
    }
    for tags in [each.tags for each in instances] + [each.tags for each in volumes]:
        found.setdefault(tags.get(TAG, ""), ("", tags, tags.get(EXPIRES_TAG, "")))
    of = {name: [each for each in instances if each.tags.get(TAG) == name] for name in found}
    return [
        row_of(name, region, status, tags, first, of[name], volumes, strangers)
        for name, (status, tags, first) in sorted(found.items())
    ]


def row_of(
    name: str,
    region: str,
    status: str,
    tags: Tags,
    first: str,
    instances: Sequence[Instance],
    volumes: Sequence[Volume],
    strangers: Collection[str],
) -> Row:
    """Return the row of a cluster. `first`: when its lease ended at first, for one whose instances do not say."""
    ends = [end for each in instances if each.id not in strangers and (end := renewal.end_of(each))]
    return Row(
        cluster=name,
        region=region,
        status=status,
        instances=tuple(sorted(each.type for each in instances)),
        volumes=tuple(sorted(each.id for each in volumes if each.tags.get(TAG) == name)),
        owner=tags.get(OWNER_TAG, ""),
        expires=until_text(max(ends)) if ends else first,
        strangers=tuple(sorted(each.id for each in instances if each.id in strangers)),
    )


def row_line(row: Row) -> str:
    """Return a line of the list."""
    counts = [f"{row.instances.count(kind)} x {kind}" for kind in sorted(set(row.instances))]
    running = ", ".join([*counts, *row.volumes]) or "no instances"
    copied = f"; not of the stack, only its tag: {', '.join(row.strangers)}" if row.strangers else ""
    return (
        f"{row.cluster}: {row.region}, {row.status or 'no stack'}, {running}, of {row.owner or 'nobody'}, "
        f"until {row.expires or '?'}{copied}"
    )

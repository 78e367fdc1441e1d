# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The lease of a cluster that exists: when it ends, and how it is renewed.

What counts is a file on each instance (module_utils/_cloud/lease.py), which is written over SSH. The tags of what is
billed say the same in AWS; they are set when the file is written. The stack is not changed for it: AWS would make a new
version of the launch template, and replace every instance that has the one before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Protocol

from ansible_collections.torchfleet.cluster.plugins.module_utils._cloud import lease

from .answers import Instance
from .contact import AT_ONCE, Answer, Contact, Pin
from .errors import CloudError
from .request import MOST_HOURS, Request
from .template import EXPIRES_TAG, GRACE_TAG, UNTIL, until_text

LEAST = timedelta(minutes=10)  # less is left out: the same typed again at once changes nothing


class Region(Protocol):
    """What is asked of AWS (aws.Aws)."""

    def tag(self, ids: Sequence[str], tags: Mapping[str, str]) -> None: ...


def end_of(instance: Instance) -> datetime | None:
    """Return when the lease of an instance ends, as its tag says; None if it does not."""
    try:
        return datetime.strptime(instance.tags.get(EXPIRES_TAG, ""), UNTIL).replace(tzinfo=UTC)
    except ValueError:
        return None


def first_end(instances: Iterable[Instance]) -> datetime | None:
    """Return when the first lease ends; None if no tag says when."""
    return min((end for each in instances if (end := end_of(each))), default=None)


def wanted_end(request: Request, instances: Iterable[Instance], now: datetime) -> datetime:
    """Return when all leases are to end: as many hours from now as asked for, or as late as one of them ends already.

    So `present` with the default hours never shortens a long lease. A tag cannot make it longer than an option can.
    """
    latest = max((end for each in instances if (end := end_of(each))), default=now)
    found = max(now + timedelta(hours=request.hours), min(latest, now + timedelta(hours=MOST_HOURS)))
    return found.replace(microsecond=0)


def due(request: Request, instances: Iterable[Instance], until: datetime) -> list[Instance]:
    """Return the instances whose lease is to be renewed: it ends earlier, or gives jobs another time."""
    grace = str(request.grace_hours)
    known = [(each, end_of(each)) for each in instances]
    return [each for each, end in known if not end or until - end >= LEAST or each.tags.get(GRACE_TAG) != grace]


def renew(
    request: Request, contacts: Mapping[str, Contact], pins: Sequence[Pin], late: Sequence[Instance], until: datetime
) -> dict[str, Answer]:
    """Write the lease of these instances, and return what each said, by node."""
    words = ("renew", str(int(until.timestamp())), str(request.grace_hours * 3600))

    def one(instance: Instance) -> Answer:
        return contacts[instance.node].ask(pins, *words, program=lease.__file__)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip((each.node for each in late), pool.map(one, late), strict=True))


def note(
    request: Request, region: Region, late: Sequence[Instance], said: Mapping[str, Answer], until: datetime
) -> None:
    """Have the tags say what the leases of instances are now. CloudError for those that were not renewed."""
    done = [each for each in late if said[each.node].said and not said[each.node].error]
    if done:
        ids = [one for each in done for one in (each.id, *each.parts)]
        region.tag(ids, {EXPIRES_TAG: until_text(until)})
        region.tag([each.id for each in done], {GRACE_TAG: str(request.grace_hours)})
    left = [each for each in late if each not in done]
    if left:
        end = first_end(left)
        what = f"the lease of {', '.join(each.node for each in left)} was not renewed"
        ends = f"; it ends at {until_text(end)}" if end else ""
        why = said[left[0].node].error or "no answer"
        raise CloudError("Lease", f"{what}{ends}; when that is mended type the same again", f"{left[0].node}: {why}")

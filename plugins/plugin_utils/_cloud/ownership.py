# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whose a stack is. A name proves nothing: all users of an account share the names of stacks in a region.

CloudFormation lets nobody but who makes or updates a stack set its tags, and cluster.yml sets them when it makes one.
"""

from __future__ import annotations

from collections.abc import Callable

from .answers import Stack
from .errors import CloudError
from .files import Files, how_to_remove
from .template import OWNER_TAG, TAG


def refuse_stranger(stack: Stack | None, cluster: str) -> None:
    """Raise CloudError for a stack that cluster.yml did not make: it may have the name by chance."""
    if stack and stack.tags.get(TAG) != cluster:
        raise CloudError("Stranger", f"stack {stack.name} is not of torchfleet; give another cluster_name")


def refuse_another_owner(stack: Stack, files: Files, wanted: str, who: Callable[[], str]) -> None:
    """Raise CloudError unless a stack that would be deleted is this user's.

    It is if its key is here, or if it has the name of the user in AWS, or that which the user gives as cluster_owner.
    """
    owner = stack.tags.get(OWNER_TAG, "")
    if not owner or files.has_key() or owner == wanted:
        return
    me = who()
    if owner != me:
        told = f"cluster {files.cluster} belongs to {owner}, its key is not here, and you are {me or 'unknown'} in AWS"
        advice = f"give another cluster_name, or if it may go, type: {how_to_remove(files.cluster)}"
        raise CloudError("NotYours", f"{told}; {advice} -e cluster_owner={owner}")

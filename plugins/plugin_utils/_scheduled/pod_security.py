# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the programs of a pod may do: fields of `securityContext`, by `pod_security` and `pod_user`. Pure.

Source: Kubernetes' Pod Security Standards. Their level "restricted" asks for all fields that are here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .pod_request import NO_LIMITS, RESTRICTED, PodRequest

if TYPE_CHECKING:
    from .manifest import Json

CONTEXT = "securityContext"


class Limit(NamedTuple):
    """One field: its place below the specification of a pod, its value, why, and where that comes from."""

    path: tuple[str | int, ...]
    value: Json
    reason: str
    source: str


def limits_of(pods: PodRequest) -> list[Limit]:
    """Return what limits the programs of a pod: fields of the pod, then fields of its container."""
    source, rows = "user" if pods.security else "default", list[Limit]()
    if pods.level != NO_LIMITS:
        syscalls = "the container runtime's filter of system calls; pod_security=none has none"
        rows.append(Limit((CONTEXT, "seccompProfile", "type"), "RuntimeDefault", syscalls, source))
    if pods.level == RESTRICTED or pods.user:
        why = "pod_security=restricted" if pods.level == RESTRICTED else "pod_user"
        rows.append(Limit((CONTEXT, "runAsNonRoot"), True, f"{why}: a pod whose user is root does not start", "user"))
    if pods.user is not None:
        rows.append(Limit((CONTEXT, "runAsUser"), pods.user, "pod_user, in place of the image's user", "user"))
    if pods.level != NO_LIMITS:
        own, privileges = ("containers", 0, CONTEXT), "no rank needs setuid programs; pod_security=none allows them"
        rows.append(Limit((*own, "allowPrivilegeEscalation"), False, privileges, source))
        drop = "ranks need no rights of root, not even over others' files; pod_security=none keeps the image's"
        rows.append(Limit((*own, "capabilities", "drop"), ["ALL"], drop, source))
    return rows

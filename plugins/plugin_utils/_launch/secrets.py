# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which variables of the ranks are secret. Their values reach the ranks' own environment and are shown nowhere."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Node

from .request import Request

HIDDEN = "(hidden)"
# Usual names of secrets. Addresses count: a password is often part of them (DATABASE_URL, SENTRY_DSN).
USUAL = re.compile(
    r"TOKEN(?!I[ZS])|SECRET|PASSW|PASSPHRASE|CREDENTIAL|PRIVATE|API_?KEY|COOKIE|JWT|AUTH(?!ORS?(_|$))|CONNECTION_STRING"
    r"|(^|_)(PASS|PAT|KEY|KEY_ID|URL|URI|DSN)$|_PWD$",
    re.IGNORECASE,
)


def secret_names(request: Request, nodes: Sequence[Node]) -> tuple[str, ...]:
    """Return the names of the variables in job_env and torchfleet_env that are secret, sorted.

    Those are what secret_names names, what a vault holds, and what has a usual name of a secret. InputError for one in
    secret_names that is no variable of the job: a name with a slip in it would hide nothing.
    """
    given = {*request.job_env, *(name for node in nodes for name in node.env)}
    for name in request.secret_names:
        if name not in given:
            allowed = (
                f"give names of variables in job_env or torchfleet_env: {', '.join(sorted(given)) or 'none is set'}"
            )
            raise InputError("secret_names", name, allowed)
    vaulted = {*request.vaulted, *(name for node in nodes for name in node.vaulted)}
    named = vaulted | set(request.secret_names)
    return tuple(sorted(name for name in given if name in named or USUAL.search(name)))

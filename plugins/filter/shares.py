# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Filter shares. Documentation: shares.yml."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_answers import environment_answer
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import to_plain
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software.sharing import share_out


def shares(looks: Mapping[str, Any], head: str = "", head_reaches: bool = False) -> dict[str, Any]:
    """Return what becomes of each machine, as plain values."""
    try:
        seen = {name: environment_answer(name, "look", look) for name, look in to_plain(looks).items()}
    except InputError as error:
        raise AnsibleFilterError(str(error)) from None
    reaches = seen[head]["mesh"] if head in seen else head_reaches
    decided = share_out(seen, to_plain(head), reaches)
    facts = {name: dataclasses.asdict(share) for name, share in decided.items()}
    busy = {name: {key: value for key, value in fact.items() if value} for name, fact in facts.items()}
    return {name: fact for name, fact in busy.items() if fact}


class FilterModule:
    """What Ansible asks for the filters."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return them by name."""
        return {"shares": shares}

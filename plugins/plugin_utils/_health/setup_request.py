# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What setup.yml is asked for: an inventory with a head and workers, parts that there are, values that can be. Pure.

The values are those of roles that come late: a mistake would be found when packages, keys and firewalls were changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from ansible.module_utils.parsing.convert_bool import BOOLEANS, boolean

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.values import parse_flag
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.launcher_options import parse_ports
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._ssh.mesh import parse_cluster

from .preflight_input import parse_least
from .setup_parts import PARTS


def parse_switch(name: str, value: object) -> bool:
    """Return a boolean in any of the spellings that Ansible takes: what a role takes is not refused here."""
    return boolean(value) if str(value).lower() in {str(one) for one in BOOLEANS} else parse_flag(name, value)


# The variables of setup.yml that several roles take, and how each is checked.
VALUES: Mapping[str, Callable[[str, object], object]] = {
    "firewall_open": parse_switch,
    "torchfleet_cluster": parse_cluster,
    "torchfleet_ports": lambda name, value: parse_ports(value, name),
    "verify_floor_gbps": parse_least,
}
# The tags of steps of setup.yml in which no node needs the others.
STEPS_OF_ONE = {"prerequisites", "container", "accelerators", "libraries", "mpi", "pytorch", "torch_backends"}


def mistakes(groups: Mapping[str, Sequence[str]], asked: Mapping[str, object]) -> list[str]:
    """Return a line for each mistake: a head or workers are missing, a list of parts is none or has unknown ones, or a
    value cannot be.

    `groups`: the hosts of each group of the inventory. `asked`: what the user gave, unchecked, by variable.
    """
    lines = [unknown_parts(name, asked[name]) for name in PARTS if asked.get(name) is not None]
    lines += [wrong_value(name, asked[name]) for name in VALUES if asked.get(name) not in (None, "")]
    return [line for line in [missing_hosts(groups), *lines] if line]


def half_a_cluster(limit: str, tags: Sequence[str]) -> str:
    """Return why `--limit` does not go with these tags; empty if it does.

    A cluster is set up, proven and removed as a whole: with a part of its nodes the run would end in the middle.
    """
    if not limit or (tags and set(tags) <= STEPS_OF_ONE):
        return ""
    allowed = "leave nodes out with -e away=n7, name those to remove with -e nodes=n7; --limit goes only with --tags "
    return str(InputError("--limit", limit, allowed + ", ".join(sorted(STEPS_OF_ONE))))


def missing_hosts(groups: Mapping[str, Sequence[str]]) -> str:
    """Return what is wrong with groups head and workers; empty if nothing is. Ansible would do nothing, and succeed."""
    heads, workers = (len(groups.get(name, ())) for name in ("head", "workers"))
    if heads == 1 and workers:
        return ""
    return (
        "The inventory needs a group `head` with one host and a group `workers` with at least one, "
        f"but head has {heads} and workers has {workers}; inventory/examples shows how"
    )


def unknown_parts(name: str, given: object) -> str:
    """Return what is wrong with a list of parts; empty if nothing is."""
    known = PARTS[name]
    if isinstance(given, list) and all(part in known for part in given):
        return ""
    example = json.dumps({name: known[:1]})
    return str(InputError(name, given, f"give a list of {', '.join(known)}: -e '{example}'"))


def wrong_value(name: str, given: object) -> str:
    """Return what is wrong with a value; empty if nothing is."""
    try:
        VALUES[name](name, given)
    except InputError as error:
        return str(error)
    return ""

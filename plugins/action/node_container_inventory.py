# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.node_container_inventory. Documentation: plugins/modules."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._lab import directory as files
from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.podman import PodmanError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.action import Action, Result
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.away import groups_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import to_plain
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._node_container.members import (
    HEADER,
    member_of,
    texts,
)

COMMENT = "torchfleet-nodes"


class ActionModule(Action):
    """One task for all machines, on the controller."""

    BYPASS_HOST_LOOP = True

    def act(self, given: Result, variables: Result) -> Result:
        """Return changed and msg. InputError for a directory of others, and for what no node container tells."""
        place = given["directory"]
        if os.path.isdir(place) and os.listdir(place) and not files.is_ours(place, HEADER):
            raise InputError("node_container_directory", place, "it has other files; give a new one")
        try:
            return {"key": self.key, "present": self.write, "absent": self.remove}[given["state"]](given, variables)
        except (OSError, PodmanError) as error:
            raise InputError("node_container_directory", place, f"it cannot be written: {error}") from None

    def key(self, given: Result, _variables: Result) -> Result:
        """Make the key unless it is there."""
        there = files.public_key(given["directory"])
        key = there if there or self._task.check_mode else files.make_key(given["directory"], COMMENT)
        return {"changed": not there, "key": key, "msg": f"the key is {given['directory']}/key"}

    def write(self, given: Result, variables: Result) -> Result:
        """Write inventory and known_hosts. In check mode containers that do not run yet have no host keys."""
        hostvars = variables["hostvars"]
        names = [str(name) for name in variables["ansible_play_hosts_all"]]
        answers = {name: answer_of(hostvars[name], given["answers"]) for name in names}
        place = given["directory"]
        if self._task.check_mode and not all(answer.get("host_keys") for answer in answers.values()):
            return {"changed": True, "msg": f"{place}/hosts.yml would be written"}
        nodes = {name: member_of(name, machine_of(hostvars[name]), answers[name]) for name in names}
        groups = groups_of(variables)
        heads = [name for name in groups["head"] if name in names]
        if not heads:
            raise InputError("--limit", ",".join(names), "the head must be among the machines: leave --limit out")
        wanted = texts(nodes, heads[0], [name for name in groups["workers"] if name in names])
        before = {name: text_of(Path(place, name)) for name in wanted}
        if not self._task.check_mode:
            for name, text in wanted.items():
                files.write(os.path.join(place, name), text)
        diff = [{"before": before[name], "after": wanted[name], "before_header": name} for name in wanted]
        count = f"{len(names)} node container{'s' * (len(names) > 1)}"
        line = f"{count}; type: ansible-playbook -i {place}/hosts.yml setup.yml"
        return {"changed": before != wanted, "msg": line, "diff": diff}

    def remove(self, given: Result, _variables: Result) -> Result:
        """Remove the files."""
        place = given["directory"]
        found = files.files_of(place, HEADER)
        if not self._task.check_mode:
            files.remove_files(found, place)
        return {"changed": bool(found), "msg": f"removed {place}" if found else f"there is no {place}"}


def answer_of(machine: Mapping[str, object], name: str) -> Result:
    """Return what module node_container told of a machine."""
    told = to_plain(machine.get(name) or {}).get("node")
    return told if isinstance(told, dict) else {}


def machine_of(machine: Mapping[str, object]) -> Result:
    """Return the variables of a machine that its node container is described by."""
    names = ("ansible_host", "ansible_ssh_common_args", "slots", "ssh_mesh_address", "torchfleet_gpus")
    return {name: to_plain(machine.get(name)) for name in names}


def text_of(path: Path) -> str:
    """Return the text of a file, nothing if it is not there."""
    return path.read_text() if path.exists() else ""

# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.host_keys. Documentation: plugins/modules/host_keys.py."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible import constants, context
from ansible.utils.display import Display

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.action import Action
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import connection_words, to_plain
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._ssh import first_contact

BOOK = "playbooks/host_keys.yml"
display = Display()


class ActionModule(Action):
    """One task for all nodes, on the controller."""

    BYPASS_HOST_LOOP = True

    def act(self, given: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Return changed and msg. Failed for unknown keys, if the task only looks; InputError for a wrong digest."""
        names = to_plain(variables["ansible_play_hosts_all"])
        for name in given["replace"]:
            if name not in names:
                raise InputError("replace", name, f"give nodes of the inventory: {', '.join(names)}")
        contacts = {name: self.contact(name, variables["hostvars"][name]) for name in names}
        rows = first_contact.unknown({name: one for name, one in contacts.items() if one}, given["replace"])
        if not rows:
            return {"changed": False, "msg": "all host keys are known, or their nodes do not answer"}
        digest, count = first_contact.digest(rows), f"{len(rows)} host key{'s' * (len(rows) > 1)}"
        if given["accept"] != digest:
            display.display("\n".join([f"{count} of nodes, not known here:", *first_contact.table(rows)]))
        if given["accept"] and given["accept"] != digest:
            raise InputError("accept", given["accept"], f"the table above has {digest}: compare it, and give that")
        if not given["accept"]:
            return {"failed": True, "msg": f"{count} to compare (table above): {advice(digest, given)}"}
        files = [] if self._task.check_mode else first_contact.save(rows)
        return {"changed": True, "msg": f"{count} saved in {', '.join(files)}"}

    def contact(self, name: str, theirs: Mapping[str, Any]) -> tuple[Sequence[str], str] | None:
        """Return ssh with its options for a node, and its address; None if Ansible does not use ssh, or trusts all."""
        kind = str(to_plain(theirs.get("ansible_connection")) or "ssh").rpartition(".")[2]
        if kind not in ("ssh", "smart"):
            return None
        connection = self._shared_loader_obj.connection_loader.get(
            "ansible.builtin.ssh", self._play_context, "/dev/null"
        )
        wanted = constants.config.get_plugin_vars("connection", connection._load_name)
        there = {option: to_plain(theirs.get(option)) for option in wanted}
        connection.set_options(var_options={key: value for key, value in there.items() if value is not None})

        def option(key: str) -> Any:
            return to_plain(connection.get_option(key))

        if option("host_key_checking") is False:
            return None
        return connection_words(option), str(to_plain(theirs.get("ansible_host")) or name)


def advice(digest: str, given: Mapping[str, Any]) -> str:
    """Return in one line what to do about unknown keys, and what to type."""
    words = ["ansible-playbook", BOOK if Path(BOOK).exists() else "torchfleet.cluster.host_keys"]
    words += [word for path in context.CLIARGS.get("inventory") or () for word in ("-i", str(path))]
    words += ["-e", f"replace={','.join(given['replace'])}"] if given["replace"] else []
    words += ["-e", f"accept={digest}"]
    console = f"on its console ({first_contact.ON_THE_CONSOLE})"
    compare = f"compare each with what the machine itself says, {console}, or your provider"
    return f"{compare}; if all match, type: {shlex.join(words)}"

# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.standalone_python: the module, and the archive that it unpacks.

Documentation: plugins/modules/standalone_python.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible import constants

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health import standalone
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.node_seen import SeenNode
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import to_plain
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software.wheelhouse import (
    Machine,
    NotBroughtError,
    Order,
    fetched,
)

Result = dict[str, Any]


class ActionModule(SeenNode):
    """One node; which workers get a Python is decided for all of them."""

    def act(self, given: Result, variables: Result) -> Result:
        """Return python. Failed where the archive cannot be had."""
        node = str(variables["inventory_hostname"])
        group = variables["groups"].get("workers", ())
        workers = [name for name in variables["ansible_play_hosts_all"] if name in group]
        if node not in workers:
            return {"changed": False, "python": ""}
        facts = self.seen(node, given["seen"], variables, home=given["home"]).facts or {}
        pythons = {**self.others(workers, variables), node: facts["python"]}
        if not standalone.is_wanted(given["switch"], pythons, given["python_min"], given["python_max"]):
            return {"changed": False, "python": ""}
        source = standalone.source_for(facts["system"]["arch"], given["sources"], given["mirror"])
        if facts["python"]["standalone"] == source["version"]:
            return {"changed": False, "python": source["version"]}
        if self._task.check_mode:
            return {"changed": True, "python": source["version"]}
        return self.bring(given, source, facts["home"]["path"], variables)

    @staticmethod
    def others(workers: list[str], variables: Result) -> Result:
        """Return the Python of each worker that preflight saw."""
        seen = {name: to_plain(variables["hostvars"][name].get("preflight_seen") or {}) for name in workers}
        return {name: answer["facts"]["python"] for name, answer in seen.items() if answer.get("facts")}

    def bring(self, given: Result, source: dict[str, str], home: str, variables: Result) -> Result:
        """Fetch the archive, copy it to the node and have it unpacked."""
        order = Order(
            role="prerequisites",
            machine=Machine(source["version"], "", ""),
            into=Path(constants.DEFAULT_LOCAL_TMP, "torchfleet-wheels"),
            wheelhouse=given["wheelhouse"] and str(Path(given["wheelhouse"]).expanduser().resolve()),
            fill=given["wheelhouse_fill"],
            programs=[source],
        )
        there = f"{home}/python-{source['version']}.tar.gz"
        try:
            copied = self.bring_file(str(fetched(order)[0]), there, variables)
        except NotBroughtError as error:
            return {"failed": True, "msg": f"prerequisites: {error}"}
        if copied.get("failed"):
            return copied
        told = {"archive": there, "version": source["version"], "sha256": source["sha256"]}
        return self.answer(variables, {**given, "seen": {}, "home": home, **told})

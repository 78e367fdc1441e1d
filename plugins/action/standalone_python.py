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
    """One node; whether they get a Python is decided for all of them."""

    def act(self, given: Result, variables: Result) -> Result:
        """Return python. Failed where the archive cannot be had."""
        node = str(variables["inventory_hostname"])
        facts = self.seen(node, given["seen"], variables, home=given["home"]).known
        pythons = {**self.others(variables), node: facts["python"]}
        if not standalone.is_wanted(given["switch"], pythons, given["python_min"], given["python_max"]):
            return {"changed": False, "python": ""}
        source = standalone.source_for(facts["system"]["arch"], given["sources"], given["mirror"])
        if facts["python"]["standalone"] == source["version"]:
            return {"changed": False, "python": source["version"]}
        if self._task.check_mode:
            return {"changed": True, "python": source["version"]}
        return self.bring(given, source, facts["home"]["path"], variables)

    @staticmethod
    def others(variables: Result) -> Result:
        """Return the Python of each node that preflight saw."""
        names, known = variables["ansible_play_hosts_all"], variables["hostvars"]
        seen = {name: to_plain(known[name].get("preflight_seen") or {}) for name in names}
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

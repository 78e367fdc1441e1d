# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.python_environment: the module, and what it needs of the controller.

Documentation: plugins/modules/python_environment.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from ansible import constants

from ansible_collections.torchfleet.cluster.plugins.module_utils._software.environment_files import brought_file
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.node_action import OnNode
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_answers import line
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import to_plain
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software.answers import Look, look_of, unsent_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software.environment_request import (
    Given,
    difference,
    missing_tools,
    order_for,
    prepared,
    transfer_of,
    why_not_sent,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software.wheelhouse import NotBroughtError, pack

Result = dict[str, Any]
# A machine without a plan.
ON_ITS_OWN: Result = {"makes": True, "adopts": False, "source": "", "to": [], "proven": False}


class ActionModule(OnNode):
    """One state of one environment on one machine."""

    parses_values = False

    def act(self, given: Result, variables: Result) -> Result:
        """Return what the state returns. Failed, with one line that begins with the role's name, for what cannot be."""
        states = {"look": self.look, "make": self.make, "send": self.send, "prove": self.prove}
        self.given, self.variables, self.node = cast(Given, given), variables, str(variables["inventory_hostname"])
        try:
            self.prepared = prepared(self.given)
            self.share = ON_ITS_OWN | (given["plan"].get("nodes") or {}).get(self.node, {})
            return states[given["state"]]()
        except (InputError, NotBroughtError) as error:
            return self.failure(str(error))

    def failure(self, why: str) -> Result:
        """Return what a task that failed returns."""
        return {"failed": True, "msg": f"{self.given['role']}: {why}"}

    def ask(self, state: str, **more: Any) -> Result:
        """Return what the module answers on the node."""
        extra = {**self.prepared, **more}
        plain = {**self.given, "state": state, "plan": {}, "prepared": extra}
        return self.answer(self.variables, plain)

    def look(self) -> Result:
        """Return what is there. Failed where the environment cannot be made."""
        answer = self.ask("look")
        if answer.get("failed"):
            return answer
        seen = look_of(self.node, answer)
        if seen["refusals"]:
            return {"failed": True, "msg": line("; ".join(seen["refusals"]))}
        return {"changed": False, **seen}

    def make(self) -> Result:
        """Copy what is needed, and make the environment, if the plan says so."""
        if not (self.share["makes"] or self.share["adopts"]):
            return {"changed": False}
        seen = self.look()
        makes, adopts = self.share["makes"] and not seen.get("ready"), seen.get("adopts")
        if seen.get("failed") or not (makes or adopts):
            return seen
        told = {"changed": True, "diff": difference(self.given["packages"], cast(Look, seen)) if makes else []}
        if self._task.check_mode:
            return told
        adopted = self.ask("adopt") if adopts else {}
        if adopted.get("failed") or not makes:
            return adopted if adopted.get("failed") else told
        look = cast(Look, seen)  # it did not fail
        if look["missing_tools"]:
            return self.failure(missing_tools(self.given, self.node, look))
        self.given["proof"] = self.proof()
        made = self.ask("make", brought=self.bring(look))
        return made if made.get("failed") else {**told, "changed": made.get("changed") is True}

    def bring(self, seen: Look) -> str:
        """Copy a file with what the machine needs there. Return its path, or "" if nothing is needed."""
        order = order_for(self.given, self.prepared, seen, Path(constants.DEFAULT_LOCAL_TMP, "torchfleet-wheels"))
        if order.is_empty:
            return ""
        packed, there = pack(order), brought_file(Path(seen["place"]))
        copied = self.bring_file(str(packed), there, self.variables)
        if copied.get("failed"):
            raise NotBroughtError(line(str(copied.get("msg"))))
        return there

    def send(self) -> Result:
        """Have the environment sent from the machine that the plan names, on which this runs."""
        answer = self.ask("send", transfer=transfer_of(self.share, self.node))
        if answer.get("failed"):
            return answer
        return {"changed": False, "unsent": unsent_of(self.share["sender"], answer.get("unsent"))}

    def prove(self) -> Result:
        """Fail if the environment was sent and did not arrive, or does not work."""
        source = self.share["source"]
        if self.share["proven"] or self._task.check_mode:
            return {"changed": bool(source)}
        self.given["proof"] = self.proof()
        answer = self.ask("prove", is_sent=bool(source))
        if not answer.get("failed") and answer.get("arrived") is False:
            sent = to_plain(self.variables["hostvars"][source].get(self.given["sent"]) or {})
            return self.failure(f"{self.given['path']} did not come from {source}: {why_not_sent(sent, self.node)}")
        return answer if answer.get("failed") else {"changed": bool(source) or answer.get("changed") is True}

    def proof(self) -> str:
        """Return the text of the program that proves it."""
        name = self.given["proof"]
        return Path(self._find_needle("files", name)).read_text(encoding="utf-8") if name else ""

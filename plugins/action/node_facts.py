# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.node_facts: the module, and a look at the clock. Documentation: plugins/modules."""

from __future__ import annotations

import random
import time
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError

from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.proof import HUNG_UP
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.action import Action
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.answers import facts_of, usual_facts_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.clock import clock_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.preflight_no_answer import has_reason
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import container_of, to_plain

Result = dict[str, Any]
ATTEMPTS = 6


def checked(variables: Result, answer: Result) -> Result:
    """Return the checked answer of a node, without keys that Ansible acts on. Raise InputError for an invalid one."""
    node = str(variables["inventory_hostname"])
    facts, usual = facts_of(node, answer["facts"]), usual_facts_of(node, answer.get("ansible_facts"))
    return {"changed": False, "facts": facts, "ansible_facts": usual}


def image_asked_for(args: Result, variables: Result) -> Result:
    """Return the image that ranks of this node run in, and what may start it. InputError."""
    node = str(variables["inventory_hostname"])
    image, engine = (str(to_plain(args.get(f"container_{part}") or "")) for part in ("image", "engine"))
    setting = container_of(node, variables, image, engine)
    return {"container_image": setting.image, "engines": setting.fitting if setting.image else []}


class ActionModule(Action):
    """Reads the facts of one node. A node that does not answer is no failure, so that it does not hide the others."""

    def act(self, given: Result, variables: Result) -> Result:
        """Return facts and clock; or problem (of the connection), or failure (on the node).

        An sshd or bastion that hangs up on too many first contacts at once (MaxStartups) is tried again.
        """
        answer = self.look(variables)
        for attempt in range(1, ATTEMPTS):
            problem = str(answer.get("problem", ""))
            # Without a reason: ssh ended while it was sent the module, and the command without data went through.
            if not problem or (has_reason(problem) and not HUNG_UP.search(problem)):
                break
            time.sleep(attempt * random.uniform(0.5, 1.5))  # some 15 s in all
            answer = self.look(variables)
        return answer

    def look(self, variables: Result) -> Result:
        """Return the answer of one attempt."""
        try:
            args = {**self._task.args, **image_asked_for(self._task.args, variables)}
            answer: Result = self._execute_module(module_args=args, task_vars=variables)
            if "facts" not in answer:
                return {"failure": self.reason(answer)}
            # A separate command on the open connection: a module takes too long to start to read the clock.
            sent = time.time()
            said = self._low_level_execute_command("date +%s.%N")["stdout"]
            return {**checked(variables, answer), "clock": clock_of(said, sent, time.time())}
        except AnsibleConnectionFailure as error:
            return {"problem": self.connection_problem(str(error))}
        except (AnsibleError, InputError) as error:
            return {"failure": str(error)}

    def connection_problem(self, said: str) -> str:
        """Return why the node cannot be reached.

        If ssh ends while Ansible still sends it the module, Ansible drops what ssh said (`_send_initial_data` of its
        connection plugin). A command without data is answered with it.
        """
        if has_reason(said):
            return said
        try:
            self._low_level_execute_command("true")
        except AnsibleConnectionFailure as error:
            return str(error)
        return said

    @staticmethod
    def reason(answer: Result) -> str:
        """Return the messages of a failed module: Ansible's, and the last output of the node."""
        words = [str(answer.get(key) or "").strip() for key in ("msg", "module_stdout", "module_stderr")]
        return "\n".join(dict.fromkeys(word for word in words if word))

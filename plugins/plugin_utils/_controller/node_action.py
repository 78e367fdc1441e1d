# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The base class of actions whose module runs on a node: the node's answer is checked before Ansible sees it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_answers import line, module_answer
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import to_plain

from .action import Action

Result = dict[str, Any]


class OnNode(Action):
    """Runs the module of the same name on the node. Ansible alone would accept host variables from its answer."""

    parses_values = True  # the module does
    node_paths = True
    _task: Any

    def act(self, given: Result, variables: Result) -> Result:
        """Return the module's answer."""
        return self.answer(variables)

    @contextlib.contextmanager
    def without_root(self) -> Iterator[None]:
        """Let the module run as the user of the connection, whatever the task's `become` says."""
        become = self._connection.become
        self._connection.set_become_plugin(None)
        try:
            yield
        finally:
            self._connection.set_become_plugin(become)

    def looked(self, variables: Result) -> Result:
        """Return what the module answers in check mode and without root."""
        task = self._task
        self._task = task.copy()
        self._task.check_mode = True
        try:
            with self.without_root():
                return self.answer(variables)
        finally:
            self._task = task

    def why_not_root(self) -> str:
        """Return why this task is not root on the node. Empty if it is."""
        try:
            done = self._low_level_execute_command("id -u")
        except AnsibleConnectionFailure:
            raise
        except AnsibleError as error:  # the password, and how it is asked for
            return line(str(error))
        if done["stdout"].split()[-1:] == ["0"]:
            return ""
        return line(done["stderr"] or f"user {done['stdout'].strip()}")

    def answer(self, variables: Result, options: Result | None = None) -> Result:
        """Run the module on the node, with its task's options or these.

        InputError for an answer that no module of ours gives.
        """
        node = str(self._task.delegate_to or variables["inventory_hostname"])
        args = self._task.args if options is None else options
        told = self._execute_module(module_args=args, task_vars=variables)
        crash = getattr(getattr(told.get("exception"), "event", None), "msg", "")  # an answer with it has no message
        if told.get("failed") and not told.get("msg"):
            told = {**told, "msg": f"{node}: module {self._task.action} failed: {crash or 'it gave no reason'}"}
        return module_answer(node, to_plain(told))

    def refused_root(self) -> str | None:
        """Return why becoming root fails; None if it works. Ansible reports a missing password itself."""
        tried = self._low_level_execute_command("true")
        return None if tried["rc"] == 0 else str(tried["stderr"] or tried["stdout"])

    def bring_file(self, source: str, there: str, variables: Result) -> Result:
        """Copy a file of the controller to the node as this task's user, for that user alone. Return the answer."""
        directory = {"path": str(Path(there).parent), "state": "directory", "mode": "u+rwx"}
        made = self._execute_module(module_name="ansible.builtin.file", module_args=directory, task_vars=variables)
        if made.get("failed"):
            return dict(made)
        return self.copy(source, there, variables)

    def copy(self, source: str, there: str, variables: Result) -> Result:
        """Copy a file into a directory that is there."""
        task = self._task.copy()
        task.args = {"src": source, "dest": there, "mode": "0600"}
        action = self._shared_loader_obj.action_loader.get(
            "ansible.builtin.copy",
            task=task,
            connection=self._connection,
            play_context=self._play_context,
            loader=self._loader,
            templar=self._templar,
            shared_loader_obj=self._shared_loader_obj,
        )
        return dict(action.run(task_vars=variables))

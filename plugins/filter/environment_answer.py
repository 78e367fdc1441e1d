# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Filter environment_answer. Documentation: environment_answer.yml."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input import node_answers
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import to_plain


def environment_answer(text: str, verb: str, node: str) -> dict[str, Any]:
    """Return the answer of a node with the fields that it may have."""
    try:
        return node_answers.environment_answer(to_plain(node), verb, to_plain(text))
    except InputError as error:
        raise AnsibleFilterError(str(error)) from None


class FilterModule:
    """What Ansible asks for the filters."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return them by name."""
        return {"environment_answer": environment_answer}

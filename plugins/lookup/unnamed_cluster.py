# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Lookup unnamed_cluster."""

from __future__ import annotations

DOCUMENTATION = r"""
name: unnamed_cluster
short_description: The name of a cluster without C(torchfleet_cluster)
description:
  - Returns the name of the cluster that was set up from the inventory's directory and has a node in common with it, or
    from a directory that is gone and with the same nodes. Else a name that is made of the directory's path.
  - Reads the directories of clusters in C(~/.torchfleet/ca) on the controller. Changes nothing.
version_added: 0.6.0
author:
  - The torchfleet authors (@torchfleet)
"""

EXAMPLES = r"""
- name: Show the name of the cluster
  ansible.builtin.debug:
    msg: "{{ lookup('torchfleet.cluster.unnamed_cluster') }}"
"""

RETURN = r"""
_raw:
  description: The name.
  type: list
  elements: str
"""

from collections.abc import Mapping

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster_name import unnamed
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import to_plain


class LookupModule(LookupBase):
    """What Ansible asks for the name."""

    def run(
        self, terms: object, variables: Mapping[str, Mapping[str, Mapping[str, object]]] | None = None, **kwargs: object
    ) -> list[str]:
        """Return the name."""
        there = variables or {}
        try:
            return [unnamed(to_plain(there["groups"]), there["hostvars"], str(there["playbook_dir"]))]
        except InputError as error:
            raise AnsibleLookupError(str(error)) from None

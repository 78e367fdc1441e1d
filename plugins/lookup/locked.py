# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Lookup locked."""

from __future__ import annotations

DOCUMENTATION = r"""
name: locked
short_description: Read entries of the lockfile
description:
  - Reads C(versions.yml) of this collection. Entries of the user's own file replace those of the same name.
version_added: 0.4.0
author:
  - The torchfleet authors (@torchfleet)
options:
  _terms:
    description: Names of entries, with dots between the parts.
    required: true
  version:
    description: The version of a source, if it is not the version in the lockfile.
    type: str
    default: ''
  torchfleet_versions:
    description: A file on the controller with entries that replace those of the same name.
    type: str
    vars:
      - name: torchfleet_versions
"""

EXAMPLES = r"""
- name: Show the version of Open MPI
  ansible.builtin.debug:
    msg: "{{ lookup('torchfleet.cluster.locked', 'openmpi.version') }}"
"""

RETURN = r"""
_raw:
  description: The entries. C({version}) in an address is replaced. C(sha256) is that of the version.
  type: list
  elements: raw
"""

from pathlib import Path

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import to_plain
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software.versions_file import entry, read_lock

SHIPPED = Path(__file__).resolve().parents[2] / "versions.yml"


class LookupModule(LookupBase):
    """What Ansible asks for the entries."""

    def run(self, terms: list[object], variables: dict[str, object] | None = None, **kwargs: object) -> list[object]:
        """Return the entries."""
        self.set_options(var_options=variables, direct=kwargs)
        given = self._templar.template(self.get_option("torchfleet_versions"))  # it may name other variables
        own = to_plain(given) or ""
        try:
            lock = read_lock(str(SHIPPED), own)
            return [entry(lock, to_plain(term), to_plain(self.get_option("version"))) for term in terms]
        except InputError as error:
            raise AnsibleLookupError(str(error)) from None

# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the documentation of the modules has in common: the attributes. A module says of its own what differs."""

from __future__ import annotations


class ModuleDocFragment:
    """`torchfleet.cluster.attributes`, and the parts for actions: `.controller` and `.once`."""

    # Every module says in a description what it does under --check.
    DOCUMENTATION = r"""
attributes:
  check_mode:
    description: Runs the same in check mode.
    support: full
  diff_mode:
    description: Returns no diff.
    support: none
"""

    CONTROLLER = r"""
attributes:
  action:
    description: Runs as an action plugin on the controller.
    support: full
  async:
    description: Supports being used with the C(async) keyword.
    support: none
"""

    ONCE = r"""
attributes:
  bypass_host_loop:
    description: Runs once, whatever the number of hosts in the play. Set C(run_once) too.
    support: full
"""

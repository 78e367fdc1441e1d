# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.node_container: the module on a machine. Documentation: plugins/modules."""

from __future__ import annotations

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.node_action import OnNode


class ActionModule(OnNode):
    """The node container of one machine."""

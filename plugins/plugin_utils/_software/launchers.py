# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The versions of a launcher on the nodes, checked and compared. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_answers import WORD, take


def version_of(node: str, proof: object) -> str:
    """Return the version that a node found, or an empty string. InputError for what is no version."""
    version: str = take(node, "version", WORD, proof.get("version", "") if isinstance(proof, Mapping) else "")
    return version


def difference(launcher: str, versions: Mapping[str, str]) -> str:
    """Return why these versions, by node, cannot work together; an empty string if they can."""
    known = {node: version for node, version in versions.items() if version}
    if len(set(known.values())) < 2:
        return ""
    shown = ", ".join(f"{node} has {version}" for node, version in known.items())
    return f"{launcher}: not one version on all nodes: {shown}: set {launcher}_install_method to wheel"

# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.ssh_mesh_plan. Documentation: plugins/modules/ssh_mesh_plan.py."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from ansible.utils.display import Display

from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.keys import KeyFailed
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.action import Action
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.away import every_node
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import to_plain
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._ssh import files, refusals
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._ssh.authority import Authority
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._ssh.certified_names import could_pose, with_issued
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._ssh.mesh import (
    Member,
    Refused,
    Request,
    check_request,
    member_from,
    mesh_of,
    refuse,
    revoked_keys,
    shut_out_keys,
)

display = Display()


class ActionModule(Action):
    """One task for all nodes."""

    def act(self, given: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Return changed, nodes (the work of each), proof (input of ssh_mesh_prove) and findings."""
        try:
            members = self.members(given["members"], variables["hostvars"])
            groups = to_plain(variables["groups"])  # a node that is away stays in the mesh
            names = [name for name in every_node(groups) if name not in given["leaving"]]
            planned = plan(cast(Request, given), members, names, self._task.check_mode)
        except (Refused, KeyFailed) as error:
            return {"failed": True, "msg": f"ssh_mesh: {error}"}
        for finding in planned["findings"]:
            display.warning(f"ssh_mesh: {finding}")
        return planned

    def members(self, found: list[dict[str, Any]], hostvars: Mapping[str, Any]) -> tuple[Member, ...]:
        names = ("ansible_host", "ansible_port", "ansible_connection")
        return tuple(
            member_from(one, {name: to_plain(hostvars[one["name"]].get(name)) for name in names}) for one in found
        )


def former_of(directory: str) -> tuple[str, tuple[str, ...]]:
    """Return the cluster's former name, made from its path, and the nodes it had under that name."""
    name = directory.rpartition("/")[2]
    return name, tuple(Authority(directory, name, dry_run=True).known()) if directory else ()


def plan(given: Request, fresh: tuple[Member, ...], names: list[str], dry_run: bool) -> dict[str, Any]:
    """Return changed, nodes, proof and findings. Raise InputError or Refused if the mesh must not be made."""
    request = check_request(given, names)
    authority = Authority(given["directory"], given["cluster"], dry_run, given["inventory"])
    with authority.held(make=given["state"] == "present"):
        before, revoked, shut_out, certified = authority.stored()
        certified = {} if given["rotate"] else certified
        mesh = mesh_of(request, fresh, before, names)
        if given["state"] == "absent":
            authority.forget([member.name for member in fresh])
            nodes = {member.name: files.node_removal(mesh, member) for member in fresh}
            nothing: dict[str, Any] = {"proof": [], "findings": []}
            return {
                "changed": authority.changed,
                "cluster": given["cluster"],
                "nodes": nodes,
                "open": list(nodes),
            } | nothing
        refuse(refusals.renamed(former_of(given["former"]), before, names))
        refuse([] if dry_run else refusals.keyless(fresh))
        names_out = {revoked[key] for key in shut_out if key in revoked} - before.keys()
        refuse(refusals.shut_out(mesh, shut_out, names_out, given["accept_changed"]))
        refuse(refusals.refusals(mesh, before, revoked, given["accept_changed"], time.time()))
        refuse(could_pose(mesh, certified))
        revoked = revoked_keys(revoked, before, mesh.members)
        mesh = authority.sign_for(replace(mesh, revoked=tuple(revoked)), given["rotate"])
        issued = authority.issue(mesh)
        shut_out = shut_out_keys(shut_out, revoked, given["shut_out"])
        authority.remember(mesh.members, revoked, shut_out, with_issued(certified, mesh, issued))
    nodes = {member.name: files.node_work(mesh, member, issued) for member in fresh}
    proof, findings = files.proof(mesh), refusals.findings(mesh, fresh)
    open_ = [name for name, work in nodes.items() if work["steps"]]
    done = {"changed": authority.changed, "cluster": given["cluster"], "nodes": nodes, "open": open_}
    return {**done, "proof": proof, "findings": findings}

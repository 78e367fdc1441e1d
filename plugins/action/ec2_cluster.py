# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.ec2_cluster: a cluster on EC2 as one stack. Documentation: plugins/modules.

It is our own, and not amazon.aws.cloudformation, because that would be a second collection to install, and still need
code before it (types, zones, images, prices), after it (first contact, inventory) and beside it (absence proven, all
regions listed, a stack that was never whole). Over boto3 all of that is one task, with one line for what goes wrong.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml
from ansible.utils.display import Display

from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.podman import PodmanError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cloud import lifecycle, listing
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cloud.absence import STACK_TAG
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cloud.aws import Aws
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cloud.errors import CloudError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cloud.files import Files, alone, how_to_remove
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cloud.request import (
    parse_name,
    parse_owner,
    parse_region,
    parse_request,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.action import Action

REGIONS_AT_ONCE = 8
Result = dict[str, Any]
display = Display()


class ActionModule(Action):
    """One task on the controller."""

    BYPASS_HOST_LOOP = True
    options_are_typed = True

    def act(self, given: Result, variables: Result) -> Result:
        """Return changed, msg, and nodes or clusters. Failed with one line for what AWS refuses."""
        try:
            if given["cluster_state"] == "list":
                return self.show(given)
            if self._task.check_mode:
                return self.manage(given)
            with alone(parse_name(given["cluster_name"]), display.display):
                return self.manage(given)
        except CloudError as error:
            return {"failed": True, "msg": f"EC2: {error}", "code": error.code}
        except (OSError, PodmanError) as error:
            return {"failed": True, "msg": f"cluster.yml: {error}"}

    def manage(self, given: Result) -> Result:
        """Make or remove a cluster."""
        name = parse_name(given["cluster_name"])
        directory = Path(given["cluster_directory"] or f"inventory/{name}").absolute()
        check = bool(self._task.check_mode)
        if given["cluster_state"] == "present":
            request = parse_request(given)
            region = Aws(request.region)
            done = lifecycle.present(request, region, Files(name, directory, region.place()), check, display.display)
        else:
            owner, region = parse_owner(given["cluster_owner"]), Aws(parse_region(given["cluster_region"]))
            self.refuse_elsewhere(name, region)
            files = Files(name, directory, region.place())
            done = lifecycle.absent(name, region, files, check, display.display, owner)
        answer: Result = {"changed": done.changed, "msg": done.msg, "nodes": done.nodes}
        if done.until:
            answer["expires"] = done.until
        if self._task.diff and done.changed:
            before, after = (yaml.safe_dump(dict(each)) if each else "" for each in (done.was, done.template))
            answer["diff"] = {"before": before, "after": after}
        return answer

    def refuse_elsewhere(self, name: str, region: Aws) -> None:
        """Raise CloudError if a cluster that is to be removed is in another region: it would be billed on unseen."""
        stack = lifecycle.stack_name(name)
        if region.stack(stack) or any(each.tags.get(STACK_TAG) == stack for each in region.instances(name)):
            return
        rows, unseen = self.look(region)
        for line in unseen:
            display.warning(line)
        there = sorted({row.region for row in rows if row.cluster == name and row.is_cluster} - {region.region})
        if there:
            advice = f"type: {how_to_remove(name)} -e cluster_region={there[0]}"
            raise CloudError(
                "Elsewhere", f"cluster {name} is not in {region.region} but in {', '.join(there)}; {advice}"
            )

    def show(self, given: Result) -> Result:
        """Show the clusters of all regions. Any region knows them, so that none has to be given."""
        try:
            rows, unseen = self.look(Aws(parse_region(given["cluster_region"])))
        except CloudError as error:
            if error.code != "NoRegion":
                raise
            rows, unseen = self.look(Aws("us-east-1"))
        for row in rows:
            display.display(listing.row_line(row))
        for line in unseen:
            display.warning(line)
        count = f"{len(rows)} cluster{'s' * (len(rows) != 1)}"
        running = sum(len(row.instances) for row in rows)
        clusters = [
            {key: list(value) if isinstance(value, tuple) else value for key, value in row.__dict__.items()}
            for row in rows
        ]
        left_out = f"; {len(unseen)} regions were not looked at" if unseen else ""
        msg = f"{count}, {running} instance{'s' * (running != 1)}{left_out}"
        return {"changed": False, "msg": msg, "clusters": clusters}

    def look(self, anywhere: Aws) -> tuple[list[listing.Row], list[str]]:
        """Return the clusters of all regions of the account, and a line for each region that did not answer."""

        def one(region: Aws) -> list[listing.Row] | str:
            try:
                stacks = region.stacks()
                members = {each.id for stack in stacks for each in region.members(stack.id)}
                return listing.rows_of(region.region, stacks, region.instances(), region.volumes(), members)
            except CloudError as error:
                return f"{region.region} was not looked at: {error}"

        regions = [Aws(name, anywhere) for name in anywhere.regions()]
        for region in regions:  # a session of boto3 makes clients in one thread only
            region.client("cloudformation")
            region.client("ec2")
        with ThreadPoolExecutor(REGIONS_AT_ONCE) as pool:
            found = list(pool.map(one, regions))
        rows = [row for each in found if not isinstance(each, str) for row in each]
        return rows, [each for each in found if isinstance(each, str)]

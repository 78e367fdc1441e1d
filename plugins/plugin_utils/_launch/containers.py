# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Ranks in an image: which nodes have one, whether it is the same, and the container of each node's part of a job."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.containers.user_namespaces import TURNED_ON
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.engine_commands import (
    MEASURED,
    Box,
    Mount,
    Part,
    is_below,
    words_of,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.engines import (
    DIRECTORY,
    ENGINES,
    form_of,
    is_file,
    own_mounts,
    without_doubles,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.launchers import (
    LAUNCHERS,
    STARTED_BY_SLURMD,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types import orders
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.reasons import ImageFlaw
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import NodeFacts
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.containers import (
    ContainerSetting,
    parse_container,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Cluster, Node

from .request import Request


@dataclass(frozen=True)
class ContainerPlan:
    """The container of a node's part of a job. `parts`: the engine's command line, each word with its reason."""

    engine: str
    image: str
    name: str
    parts: tuple[Part, ...]
    step: tuple[str, ...]  # our first program in the image, which takes the environment from the order

    @property
    def before(self) -> tuple[str, ...]:
        """Return the words before a launcher's command."""
        return (*words_of(self.parts), *self.step)

    @property
    def order(self) -> orders.Container:
        """Return it as the node is told."""
        below_guard = ENGINES[self.engine].below_guard
        return {"engine": self.engine, "name": self.name, "below_guard": below_guard, "before": list(self.before)}


def with_containers(cluster: Cluster, request: Request) -> Cluster:
    """Return the cluster with the images that the request names. InputError for what does not go with an image."""

    def changed(node: Node) -> Node:
        return dataclasses.replace(node, container=parse_container(request.container, default=node.container))

    found = Cluster(changed(cluster.head), tuple(changed(node) for node in cluster.workers))
    if not found.has_images:
        return found
    bare = [node.name for node in (found.head, *found.workers) if not node.container.image]
    if bare:
        with_image = "give all nodes of the job one: -e container_image=NAME, or none: -e container_image=none"
        raise InputError("container_image", f"none on {', '.join(dict.fromkeys(bare))}", with_image)
    if request.launcher in STARTED_BY_SLURMD:
        others = ", ".join(name for name in LAUNCHERS if name not in STARTED_BY_SLURMD)
        raise InputError("container_image", request.launcher, f"Slurm starts ranks itself: -e launcher= of {others}")
    if request.requirements not in (None, "none"):
        raise InputError("requirements", request.requirements, "an image has what its program needs: install it there")
    return found


def check_containers(cluster: Cluster, facts: Mapping[str, NodeFacts]) -> None:
    """InputError if a node cannot run ranks in its image, or nodes have different images."""
    images: dict[str, str] = {}
    for node in {node.name: node for node in (cluster.head, *cluster.workers)}.values():
        if not node.container.image:
            continue
        found = facts[node.name]["container"]
        if found is None:
            raise InputError("container_image", node.container.image, f"{node.name} did not report on it: try again")
        if found["flaw"]:
            why = flaw_of(node.name, node.container, found["engine"], found["flaw"], found["said"])
            raise InputError("container_image", node.container.image, why)
        if found["engine"] not in node.container.fitting:
            raise InputError(
                f"answer of {node.name}", found["engine"], "the controller did not ask for this engine: check that node"
            )
        images[node.name] = found["image"]
    if len(set(images.values())) > 1:
        each = ", ".join(f"{name} {image[:24]}" for name, image in images.items())
        raise InputError("container_image", each, "not one image on all nodes: bring the same one to each of them")


def flaw_of(name: str, wanted: ContainerSetting, engine: str, flaw: ImageFlaw, said: str) -> str:
    """Return what is wrong with an image on a node, and what to do about it. `said`: by the engine."""
    row = ENGINES.get(engine)
    title, fetch = (row.title, row.fetch) if row else ("", "")
    fits = " or ".join(ENGINES[each].program for each in wanted.fitting)
    form = form_of(wanted.image)
    kind = "directory" if form == DIRECTORY else "file" if is_file(wanted.image) else "image"
    turn_on = f"sysctl -w {said if said in TURNED_ON else TURNED_ON[0]}"  # to type: not what a node makes up
    python = "an image needs Python 3.8 or newer, and /bin/sh: -e python=/its/python names it"
    return {
        ImageFlaw.NO_ENGINE: f"it is {form}, which {fits} starts, and {name} has no {fits}: install it there"
        if fits
        else f"{wanted.engine} does not start {form}: -e container_engine=auto",
        ImageFlaw.ENGINE_FAILED: f"{title} on {name} does not work ({said}): try it there by hand",
        ImageFlaw.NO_IMAGE: f"{name} has no such {kind}: {fetch}",
        ImageFlaw.NO_SHELL: f"its /bin/sh or Python is not found on {name} ({said}); {python}",
        ImageFlaw.NO_PYTHON: f"it has no Python on {name}; {python}",
        ImageFlaw.OLD_PYTHON: f"on {name} {said}; {python}",
        ImageFlaw.NOT_STARTED: f"{title} could not start it on {name} ({said})",
        ImageFlaw.NO_NAMESPACES: f"{title} needs user namespaces, which are off on {name}; as root there: {turn_on}",
    }.get(flaw, str(flaw))


def plan_container(
    node: Node, fact: NodeFacts, job_id: str, token: str, runtime: Sequence[str], places: Sequence[str]
) -> ContainerPlan | None:
    """Return the container of a node, None if its ranks run in no image.

    `runtime`: how our code is started in the image; `places`: directories of the node that the job uses.
    """
    found, setting = fact["container"], node.container
    if not found or not setting.image:
        return None
    own = [
        *own_mounts(fact["home"], fact["tmpdir"]),
        *(Mount(place, place, reason="the job works there", source=MEASURED) for place in places),
    ]
    mounts = [*own, *(user_mount(row, own, fact["home"]) for row in setting.mounts)]
    row = ENGINES[found["engine"]]
    box = Box(
        image=found["image"] if row.identify else setting.image,
        name=f"torchfleet-{job_id}-{token}",
        home=fact["home"],
        mounts=without_doubles(mounts),
        devices=found["devices"],
        uid=fact["uid"],
        gid=found["gid"],
        groups=found["groups"],
        limits=found["limits"],
        args=setting.args,
        job_id=job_id,
        user_home=found["user_home"],
        has_environment=found["has_environment"],
        code=runtime[-1].rpartition("/")[0],
    )
    step = (*runtime, "inside", f"{fact['home']}/jobs/{job_id}")
    return ContainerPlan(found["engine"], box.image, box.name, tuple(row.parts(box)), step)


def user_mount(row: tuple[str, str, str], own: Sequence[Mount], home: str) -> Mount:
    """Return a mount that the user wants. InputError if something of the node is at that place already."""
    here, there, mode = row
    wanted = Mount(here, there.rstrip("/"), mode == "ro")
    taken = [mount for mount in own if mount.there.rstrip("/") == wanted.there]
    if is_below(wanted.there, home) or any((each.here, each.read_only) != (here, wanted.read_only) for each in taken):
        what = taken[0].reason if taken else "torchfleet's home"
        given = f"{here}:{there}{':ro' * wanted.read_only}"
        raise InputError("container_mounts", given, f"the image has that path of the node ({what}): give another")
    return wanted

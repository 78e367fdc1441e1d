# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.container_image: builds or reads the archive, copies it, has it loaded.

Documentation: plugins/modules.
"""

from __future__ import annotations

from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.engines import (
    DIRECTORY,
    ENGINES,
    form_of,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.reasons import ImageFlaw
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.images import UNPACK
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.node_action import OnNode, Result
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.containers import ContainerSetting
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_answers import line, take
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import container_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.containers import flaw_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software.image_build import build, wanted_build
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software.images import (
    ANSWER,
    UNPACKED,
    ImageAnswer,
    check_source,
    step_for,
    sum_of_archive,
)

SOURCES = "to bring it: -e container_archive=/its/archive.tar, or -e container_pull=true"
DONE = {"load": "loaded", "pull": "pulled"}


class ActionModule(OnNode):
    """One image on one node."""

    parses_values = False

    def act(self, given: Result, variables: Result) -> Result:
        """Return what the state returns. InputError for what cannot be."""
        self.given, self.variables, self.node = given, variables, str(variables["inventory_hostname"])
        if given["state"] == "absent":
            return self.absent()
        setting = container_of(self.node, variables["hostvars"][self.node], given["image"], given["engine"])
        check_source(setting, given["archive"], given["pull"])
        if given["state"] == "archive":
            return self.archived(setting)
        return self.present(setting) if setting.image else {"changed": False}

    def part(self, name: str, **more: object) -> Result:
        """Run a part of the module on the node."""
        return self.answer(self.variables, {**self.given, "part": name, **more})

    def archived(self, setting: ContainerSetting) -> Result:
        """Have the archive built if that is asked for, and return its checksum."""
        wanted = wanted_build(setting.image, self.given["build"], self.given["archive"])
        if wanted and self._task.check_mode:
            msg = f"would build {wanted.image} from {wanted.folder}: {wanted.builder}"
            return {"changed": True, "sha256": "", "msg": msg, "_ansible_verbose_always": True}
        changed = bool(wanted and build(wanted))
        told: Result = {"changed": changed, "sha256": ""}
        if wanted and changed:
            told.update(msg=f"built {wanted.image}, and kept it in {wanted.archive}", _ansible_verbose_always=True)
        return {**told, "sha256": sum_of_archive(self.given["archive"])} if self.given["archive"] else told

    def absent(self) -> Result:
        """Remove what was brought."""
        found = self.part("remove")
        removed = [line(str(name)) for name in found.get("removed") or []]
        if found.get("failed") or not removed:
            return found
        verb = "would remove" if self._task.check_mode else "removed"
        msg = f"{verb}: {', '.join(removed)}"
        return {"changed": True, "removed": removed, "msg": msg, "_ansible_verbose_always": True}

    def present(self, setting: ContainerSetting) -> Result:
        """Bring the image, if it is not there."""
        named = {"image": setting.image, "engines": setting.fitting}
        answer = self.part("look", **named)
        if answer.get("failed"):
            return answer
        seen = self.checked(answer)
        self.refuse(setting, seen)
        step = step_for(seen, self.given["sha256"], self.given["pull"])
        if self._task.check_mode and self.given["build"] and not seen["id"]:
            step = "load"  # what is not built yet has no checksum
        title = ENGINES[seen["engine"]].title
        if not step:
            return {"changed": False, "id": seen["id"], "engine": seen["engine"]}
        told: Result = {"changed": True, "engine": seen["engine"], "_ansible_verbose_always": True}
        if self._task.check_mode:
            return {**told, "id": "", "msg": f"would {step} {setting.image}: {title}"}
        if step == "load" and not seen["brought"]:
            archive = Path(self.given["archive"]).expanduser().absolute()  # Ansible seeks others beside the playbook
            copied = self.bring_file(str(archive), seen["place"], self.variables)
            if copied.get("failed"):
                return {"failed": True, "msg": f"container: the archive did not come to {self.node}: {why(copied)}"}
        answer = self.part(step, **named)
        if answer.get("failed"):
            return {"failed": True, "msg": f"container: {self.node}: {answer['msg']}"}
        return {**told, "id": self.checked(answer)["id"], "msg": f"{DONE[step]} {setting.image}: {title}"}

    def checked(self, answer: Result) -> ImageAnswer:
        """Return the checked answer of the node."""
        found: ImageAnswer = take(self.node, "container_image", ANSWER, answer)
        return found

    def refuse(self, setting: ContainerSetting, seen: ImageAnswer) -> None:
        """Raise InputError for a node that cannot have the image."""
        missing = seen["flaw"] == ImageFlaw.NO_IMAGE
        if seen["flaw"] and not missing:
            raise InputError(
                "container_image",
                setting.image,
                flaw_of(self.node, setting, seen["engine"], seen["flaw"], seen["said"]),
            )
        if missing and not (self.given["sha256"] or self.given["pull"] or self.given["build"]):
            raise InputError("container_image", setting.image, f"{self.node} has no such image; {SOURCES}")
        if seen["engine"] not in setting.fitting:
            raise InputError(
                f"answer of {self.node}", seen["engine"], "the controller did not ask for this engine: check that node"
            )
        if self.given["sha256"] and form_of(setting.image) == DIRECTORY and seen["engine"] not in UNPACK:
            raise InputError("container_archive", self.given["archive"], f"{self.node} has no ch-run; {UNPACKED}")


def why(copied: Result) -> str:
    """Return why a file could not be copied."""
    return line(str(copied.get("msg") or "no reason was given"))

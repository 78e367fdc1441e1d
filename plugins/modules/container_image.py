#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: container_image
short_description: Bring the image that ranks run in to a node
description:
  - Loads an image from an archive of the controller, or has the engine of the node pull it, if it is not there.
  - Notes on the node what it brought, and removes only that.
version_added: 0.5.0
author:
  - The torchfleet authors (@torchfleet)
options:
  state:
    description:
      - V(archive) builds or reads the archive on the controller. V(present) brings the image.
      - V(absent) removes from the node all images that this module brought there.
    type: str
    choices: [archive, present, absent]
    default: present
  image:
    description:
      - A name, or the absolute path of an unpacked image or of a C(.sif) or C(.sqsh) file on the node.
      - Empty for that of the inventory, V(none) for no image.
    type: str
    default: ''
  engine:
    description: What starts the image. Empty for that of the inventory, or the first that the node has.
    type: str
    default: ''
  archive:
    description:
      - An archive on the controller, as C(podman save) or C(docker save) write it.
      - For Charliecloud it is a tar archive of the image's files, for a C(.sif) or C(.sqsh) file that file.
    type: str
    default: ''
  build:
    description:
      - A folder on the controller with a C(Containerfile) or C(Dockerfile). O(state=archive) has podman or docker of
        the controller build the image, and writes O(archive) unless it holds that image already.
    type: str
    default: ''
  sha256:
    description: The checksum of O(archive), as O(state=archive) returned it.
    type: str
    default: ''
  pull:
    description: Have the engine pull an image that is not there.
    type: bool
    default: false
  home:
    description: torchfleet's directory on the node.
    type: path
    default: ~/.torchfleet
  engines:
    description: Engines that may start the image, the first choice first. The action sets this option.
    type: list
    elements: str
    default: []
  part:
    description: What to do on the node. The action sets this option. V(look) changes nothing.
    type: str
    choices: [look, load, pull, remove]
    default: look
extends_documentation_fragment:
  - torchfleet.cluster.attributes
attributes:
  check_mode:
    description: Says whether the image would be brought or removed.
seealso:
  - module: torchfleet.cluster.launch
"""

EXAMPLES = r"""
- name: Read the archive
  torchfleet.cluster.container_image:
    state: archive
    archive: ~/train.tar
  register: archive
  run_once: true

- name: Bring the image
  torchfleet.cluster.container_image:
    image: localhost/train:1
    archive: ~/train.tar
    sha256: "{{ archive.sha256 }}"
"""

RETURN = r"""
sha256:
  description: The checksum of the archive.
  returned: for O(state=archive)
  type: str
  sample: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
id:
  description: What tells the image from all others. Empty in check mode if it would be brought.
  returned: for O(state=present) with an image
  type: str
  sample: 1721a9ca67e5e9833b38881872bcc340103eedcf1a261c58bd47ec2839f34306
engine:
  description: The engine that has it.
  returned: for O(state=present) with an image
  type: str
  sample: podman
removed:
  description: The images that were removed, or would be in check mode.
  returned: for O(state=absent)
  type: list
  elements: str
  sample: [image localhost/train:1 (podman)]
msg:
  description: What was done, or would be.
  returned: if anything was or would be done
  type: str
  sample: loaded localhost/train:1 into Podman
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.home import home_path
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.containers.containers import image_of_node
from ansible_collections.torchfleet.cluster.plugins.module_utils._software import images

TEXT = {"type": "str", "default": ""}
OPTIONS: dict[str, object] = {
    "state": {"type": "str", "choices": ["archive", "present", "absent"], "default": "present"},
    "image": TEXT,
    "engine": TEXT,
    "archive": TEXT,
    "build": TEXT,
    "sha256": TEXT,
    "pull": {"type": "bool", "default": False},
    "home": {"type": "path", "default": "~/.torchfleet"},
    "engines": {"type": "list", "elements": "str", "default": []},
    "part": {"type": "str", "choices": ["look", "load", "pull", "remove"], "default": "look"},
}


def look(home: str, given: dict[str, object]) -> dict[str, object]:
    """Return what this node has of an image, and where its archive is to be put."""
    engines, (image, sha256) = as_list(given["engines"]), (str(given[name]) for name in ("image", "sha256"))
    engine, found, flaw, said = image_of_node(engines, image)
    note = images.read_note(images.note_path(home, engine, image))
    ending = images.ending_of(str(given["archive"]))
    place = images.archive_path(home, sha256, ending) if sha256 else ""
    return {
        "engine": engine,
        "id": found,
        "flaw": flaw,
        "said": said,
        "loaded": note["sha256"] if note and note["id"] == found else "",
        "place": place,
        "brought": bool(place) and images.sum_of(place) == sha256,
    }


def as_list(value: object) -> list[str]:
    """Return a list that Ansible has checked."""
    return [str(item) for item in value] if isinstance(value, list) else []


def done(home: str, given: dict[str, object], part: str) -> dict[str, object]:
    """Do a part on this node. ImageError, OSError."""
    if part == "remove":
        return {"removed": images.removable(home)}
    found = look(home, given)
    engine, image = str(found["engine"]), str(given["image"])
    if part == "load":
        note = images.load(home, engine, image, str(found["place"]), str(given["sha256"]))
        return {**found, "id": note["id"]}
    if part == "pull":
        return {**found, "id": images.pull(home, engine, image)["id"]}
    return found


def main() -> None:
    """Entry of the module."""
    module = AnsibleModule(argument_spec=OPTIONS, supports_check_mode=True)
    given = module.params
    part = given["part"] if given["part"] == "remove" or not module.check_mode else "look"
    try:
        home = home_path(given["home"])
        found = done(home, given, part)
        if part == "remove" and not module.check_mode:
            images.remove(home)
    except images.ImageError as error:
        module.fail_json(msg=f"{given['image'] or 'images'}: {error}")
    except OSError as error:
        module.fail_json(msg=f"{error.filename or given['home']}: {error.strerror or error}")
    changed = bool(found["removed"]) if part == "remove" else part != "look"
    module.exit_json(changed=changed, **found)


if __name__ == "__main__":
    main()

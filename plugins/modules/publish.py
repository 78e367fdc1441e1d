#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: publish
short_description: Write small text files that every user can read
description:
  - Writes several files in one task, each atomically.
version_added: 0.3.0
author:
  - The torchfleet authors (@torchfleet)
options:
  directory:
    description: Directory of the files on the node. It is created if it does not exist.
    type: path
    required: true
  files:
    description: The text of each file, by file name. Without any, the node is not asked.
    type: dict
    required: true
extends_documentation_fragment:
  - torchfleet.cluster.attributes
attributes:
  check_mode:
    description: Reports whether a file would change.
  diff_mode:
    description: Shows the files before and after.
    support: full
seealso:
  - module: torchfleet.cluster.fabric_choose
"""

EXAMPLES = r"""
- name: Publish the fabric
  torchfleet.cluster.publish:
    directory: ~/.torchfleet
    files: "{{ fabric_choice.files[inventory_hostname] }}"
"""

RETURN = r"""
files:
  description: The paths of the files that were written, or would be in check mode.
  returned: success
  type: list
  elements: path
  sample: [/home/me/.torchfleet/fabric.json]
"""

import os
import tempfile

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchfleet.cluster.plugins.module_utils._fabric.sysfs import read


def publish(path: str, text: str) -> None:
    """Replace a file at once."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=os.path.dirname(path))
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.chmod(draft, 0o644)
    os.replace(draft, path)


def main() -> None:
    """Entry of the module."""
    options = {"directory": {"type": "path", "required": True}, "files": {"type": "dict", "required": True}}
    module = AnsibleModule(argument_spec=options, supports_check_mode=True)
    directory, files = os.path.abspath(module.params["directory"]), module.params["files"]
    before = {name: read(os.path.join(directory, name), strip=False) for name in files}
    stale = [name for name in files if before[name] != files[name]]
    try:
        for name in stale if not module.check_mode else []:
            publish(os.path.join(directory, name), files[name])
    except OSError as error:
        module.fail_json(msg=f"{directory} cannot be written: {error.strerror}; set torchfleet_home of this node")
    diff = [
        {"before": before[name], "after": files[name], "before_header": name, "after_header": name} for name in stale
    ]
    module.exit_json(changed=bool(stale), files=[os.path.join(directory, name) for name in stale], diff=diff)


if __name__ == "__main__":
    main()

#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: signing_key
short_description: Fetch the signing key of a package repository
description:
  - Fetches a file with OpenPGP keys, and writes the keys with the given fingerprints as a keyring for apt.
  - The file may be binary, armored text, or a mixture of both. Only Python is needed.
  - A key with another fingerprint is never written.
version_added: 0.4.0
author:
  - The torchfleet authors (@torchfleet)
options:
  url:
    description: Address that the node fetches the keys from, with C(https://), C(http://) or C(file://).
    type: str
    required: true
  fingerprints:
    description: The full fingerprints of the keys. Each key must be in the file.
    type: list
    elements: str
    required: true
  dest:
    description: The keyring to write. Its directory is created if it does not exist.
    type: path
    required: true
extends_documentation_fragment:
  - torchfleet.cluster.attributes
attributes:
  check_mode:
    description: Fetches and compares the keys, and writes nothing.
"""

EXAMPLES = r"""
- name: Fetch the key of NVIDIA's repository
  torchfleet.cluster.signing_key:
    url: https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/3bf863cc.pub
    fingerprints: [EB693B3035CD5710E231E123A4B469963BF863CC]
    dest: /etc/apt/keyrings/cuda.gpg
  become: true
"""

RETURN = r"""
dest:
  description: The keyring.
  returned: success
  type: str
  sample: /etc/apt/keyrings/cuda.gpg
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchfleet.cluster.plugins.module_utils._software.openpgp import KeyFileError
from ansible_collections.torchfleet.cluster.plugins.module_utils._software.signing_keys import (
    content,
    fetch_keyring,
    write,
)


def main() -> None:
    """Entry of the module."""
    options = {
        "url": {"type": "str", "required": True},
        "fingerprints": {"type": "list", "elements": "str", "required": True, "no_log": False},
        "dest": {"type": "path", "required": True},
    }
    module = AnsibleModule(argument_spec=options, supports_check_mode=True)
    url, dest = module.params["url"], os.path.abspath(module.params["dest"])
    try:
        wanted = fetch_keyring(url, module.params["fingerprints"])
        stale = content(dest) != wanted
        if stale and not module.check_mode:
            write(dest, wanted)
    except KeyFileError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{dest} cannot be written: {error}")
    module.exit_json(changed=stale, dest=dest)


if __name__ == "__main__":
    main()

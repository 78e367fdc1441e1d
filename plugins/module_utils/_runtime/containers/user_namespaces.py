# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether a kernel lets users make user namespaces, without which most engines start nothing."""

from __future__ import annotations

import os

from ..software.engines import ENGINES
from ..types.reasons import ImageFlaw

# Each setting that turns them off with 0, with a value that turns them on: user_namespaces(7), and Debian's own patch.
TURNED_ON = ("user.max_user_namespaces=15000", "kernel.unprivileged_userns_clone=1")


def turned_off(root: str = "/proc/sys") -> str:
    """Return what turns them on again, as `sysctl` has it: "user.max_user_namespaces=15000". Empty if they are on."""
    for setting in TURNED_ON:
        try:
            with open(os.path.join(root, setting.partition("=")[0].replace(".", "/"))) as file:
                if file.read(20).strip() == "0":
                    return setting
        except OSError:
            continue
    return ""


def reason_for(engine: str, flaw: ImageFlaw, said: str) -> tuple[ImageFlaw, str]:
    """Return a flaw of an image and what is said of it; NO_NAMESPACES if that explains why its engine fails."""
    row = ENGINES[engine]
    # Podman 4.3.1 without them ends as if the image were not there.
    failed = flaw in (ImageFlaw.ENGINE_FAILED, ImageFlaw.NOT_STARTED) or (flaw == ImageFlaw.NO_IMAGE and row.exists)
    setting = turned_off() if failed and row.user_namespaces and os.getuid() != 0 else ""
    return (ImageFlaw.NO_NAMESPACES, setting) if setting else (flaw, said)

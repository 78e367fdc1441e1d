# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The files of a job in pods as a ConfigMap has them."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.orders import RunOrder
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.workdir import Folder

from .entry_files import entry_files
from .pod_request import PodRequest

MOST_BYTES = 1_000_000  # of a ConfigMap: the API refuses more than 1 MiB (kubernetes.io/docs, ConfigMap)


def files_of(order: RunOrder, folder: Folder | None, pods: PodRequest) -> dict[str, bytes]:
    """Return the files of the ConfigMap by name. InputError if they are more than it takes."""
    return entry_files(order, folder, pods.output, pods.start_timeout, MOST_BYTES, "a ConfigMap", ", or into the image")


def encoded(files: Mapping[str, bytes]) -> dict[str, str]:
    """Return files as binaryData has them."""
    return {name: base64.b64encode(data).decode() for name, data in files.items()}

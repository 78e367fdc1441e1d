# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which network NCCL or RCCL really used, from what a rank printed with NCCL_DEBUG=INFO. Pure.

Lines as NCCL 2.4 to 2.30 print them (some are in tests/unit/test_nccl_log.py). RCCL prints the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

# "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/3/GDRDMA": plugin, number of the device, and whether it reads the
# memory of the GPU by itself. A connection within a node is "via P2P/..." or "via SHM/...".
CHANNEL = re.compile(r"NCCL INFO Channel \S+ ?: .{1,80}? via NET/([A-Za-z][\w ]{0,30})/(\d{1,3})(/GDRDMA)?")
# "Channel 00/0 : 3[3] -> 4[0] via P2P/MNNVL": to a GPU of another machine over NVLink (NVIDIA GB200 NVL72).
NVLINK = re.compile(r"NCCL INFO Channel \S+ ?: .{1,80}? via P2P/MNNVL")
# "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>": the devices by number.
DEVICES = re.compile(r"NCCL INFO NET/IB : Using ((?:\[\d{1,3}\][\w.-]{1,64}:\d{1,3}/\w{1,8} ?){1,64})")
DEVICE = re.compile(r"\[(\d+)\]([\w.-]+):\d+/\w+")
SOCKET = "Socket"


@dataclass(frozen=True)
class Transport:
    """The connections of ranks to other nodes: plugins of NCCL, names of RDMA devices, and GPUDirect.

    `devices` has a device's number in place of its name where the log does not name it. `nvlink`: NVLink joins nodes.
    """

    plugins: frozenset[str] = frozenset()
    devices: frozenset[str] = frozenset()
    direct: bool = False
    nvlink: bool = False

    def __str__(self) -> str:
        devices = f" ({', '.join(sorted(self.devices))})" if self.devices else ""
        network = f"{', '.join(sorted(self.plugins))}{devices}{' with GPUDirect RDMA' if self.direct else ''}"
        return ", ".join(filter(None, ["NVLink" * self.nvlink, network])) or "none"

    @property
    def is_known(self) -> bool:
        """Whether the log tells of a connection to another node."""
        return bool(self.plugins) or self.nvlink


def transport_of(texts: Iterable[str]) -> Transport:
    """Return the transport of all ranks together, from the output of each."""
    plugins, devices, direct, nvlink = set[str](), set[str](), False, False
    for text in texts:
        nvlink = nvlink or bool(NVLINK.search(text))
        names = {number: name for listed in DEVICES.findall(text) for number, name in DEVICE.findall(listed)}
        for plugin, number, gdr in CHANNEL.findall(text):
            plugins.add(plugin)
            direct = direct or bool(gdr)
            if plugin != SOCKET:
                devices.add(names.get(number, number))
    return Transport(frozenset(plugins), frozenset(devices), direct, nvlink)

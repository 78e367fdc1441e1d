"""Machines with RDMA as sysfs shows them, from documents of their vendors and reports of people who have them.

No machine here has any, so these trees are written, not recorded. What a source does not say is marked as a belief.
"""

from __future__ import annotations

import copy
import functools
import ipaddress
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.torchfleet.cluster.plugins.module_utils._fabric import nics, rdma
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.networks import NodeNet, node_net
from tests.unit.nets import Sysfs, write

DEFAULT_PREFIX = "fe80::"  # of an InfiniBand subnet whose manager was told no other


@dataclass(frozen=True)
class Card:
    """An RDMA device with one port."""

    device: str
    pci: str = ""
    layer: str = "InfiniBand"
    gbit: str = "400"
    driver: str = "mlx5_core"
    node_type: str = "1: CA"
    vpd: bytes = b""
    netdev: str = ""
    prefix: str = DEFAULT_PREFIX
    physfn: str = ""  # where the function is that a virtual one belongs to


@dataclass(frozen=True)
class Machine:
    """A machine: its GPUs and NICs, and which of its RDMA devices are rails."""

    source: str
    cards: tuple[Card, ...]
    rails: tuple[str, ...]
    gpus: tuple[str, ...] = ()
    vendor: str = "0x10de"
    gpu_class: str = "0x030200"
    nics: tuple[tuple[str, str], ...] = ()  # name and driver


def behind_switch(bus: int, slot: int = 0) -> str:
    """Return the way to a device behind a PCIe switch of its own root port, `slot` being the port of that switch."""
    root, up, down = (f"{number:02x}" for number in (bus - 3, bus - 2, bus - 1))
    last = f"{bus + slot:02x}"
    return f"pci0000:{root}/0000:{root}:01.0/0000:{up}:00.0/0000:{down}:{slot:02x}.0/0000:{last}:00.0"


def at_root(bus: int, function: int = 0) -> str:
    """Return the way to a device right below a root port."""
    root = f"{bus - 1:02x}"
    return f"pci0000:{root}/0000:{root}:01.0/0000:{bus:02x}:00.{function}"


# DGX H100 user guide, table 6: the RDMA device of each GPU and its bus (ibp24s0 is bus 0x18). The matrix of
# `nvidia-smi topo -m` in bytedance/flux#14 has the same eight beside a GPU (PXB), and the others nowhere (SYS).
# Belief: the buses of switches, and that the two cards for storage (dual port, same rate) are right below root ports.
DGX = {0: 0x18, 3: 0x40, 4: 0x4F, 5: 0x5E, 6: 0x9A, 9: 0xC0, 10: 0xCE, 11: 0xDC}
DGX_H100 = Machine(
    "DGX H100 user guide, table 6; bytedance/flux#14",
    tuple(
        Card(f"mlx5_{number}", behind_switch(DGX[number]))
        if number in DGX
        else Card(f"mlx5_{number}", at_root(0x29 if number < 3 else 0xAA, (number + 1) % 2))
        for number in range(12)
        if number in DGX or number in (1, 2, 7, 8)
    ),
    tuple(f"mlx5_{number}" for number in DGX),
    tuple(behind_switch(bus, 3) for bus in DGX.values()),
)
# The same board with Ethernet: eight ConnectX-7 as RoCE, and a BlueField-3 for storage whose two ports are slower.
HGX_H100_ROCE = Machine(
    "belief, after Supermicro's and Dell's data sheets of HGX H100",
    (
        *(Card(f"mlx5_{n}", behind_switch(bus), "Ethernet", netdev=f"rail{n}") for n, bus in enumerate(DGX.values())),
        *(Card(f"mlx5_{n}", at_root(0x29, n - 8), "Ethernet", "200", netdev=f"stor{n - 8}") for n in (8, 9)),
    ),
    tuple(f"mlx5_{number}" for number in range(8)),
    tuple(behind_switch(bus, 3) for bus in DGX.values()),
)
# siderolabs/extensions#893: mlx5_8 to mlx5_11 of an HGX B200 control its NVSwitches; their VPD says SMDL=SW_MNG.
# Belief: their ports are active and as fast as rails, and where they are on PCI.
HGX_B200 = Machine(
    "siderolabs/extensions#893",
    (
        *(Card(f"mlx5_{number}", behind_switch(bus)) for number, bus in enumerate(DGX.values())),
        *(Card(f"mlx5_{number}", at_root(0x30 + number), vpd=b"\x82..SMDL=SW_MNG..") for number in range(8, 12)),
    ),
    tuple(f"mlx5_{number}" for number in range(8)),
    tuple(behind_switch(bus, 3) for bus in DGX.values()),
)
# Juniper's validated design for AMD: gpu0_eth to gpu7_eth are Broadcom BCM57608 at 400G, storage is on its own cards.
# Belief: names bnxt_re0 to 7, the rate of the storage cards, all places on PCI. Instinct docs: class 0x1200.
MI300X = Machine(
    "Juniper JVD AI data center with AMD GPUs; instinct.docs.amd.com, topology mapping",
    (
        *(
            Card(f"bnxt_re{n}", behind_switch(bus), "Ethernet", driver="bnxt_en", netdev=f"gpu{n}_eth")
            for n, bus in enumerate(DGX.values())
        ),
        *(Card(f"mlx5_{n}", at_root(0x29, n), "Ethernet", netdev=f"stor{n}_eth") for n in (0, 1)),
    ),
    tuple(f"bnxt_re{number}" for number in range(8)),
    tuple(behind_switch(bus, 3) for bus in DGX.values()),
    vendor="0x1002",
    gpu_class="0x120000",
)
# NVIDIA/NVSentinel, topology tests: four ConnectX-7 as InfiniBand and two BlueField-3 as RoCE; no GPU shares a switch.
GB200 = Machine(
    "NVIDIA/NVSentinel, topology_test.go",
    (
        *(
            Card(name, f"pci{domain}:00/{domain}:00:00.0/{domain}:03:00.0")
            for name, domain in (
                ("ibP16p3s0", "0010"),
                ("ibP18p3s0", "0012"),
                ("ibP2p3s0", "0002"),
                ("ibp3s0", "0000"),
            )
        ),
        Card("roceP22p3s0", "pci0016:00/0016:00:00.0/0016:03:00.0", "Ethernet", netdev="enP22p3s0"),
        Card("roceP6p3s0", "pci0006:00/0006:00:00.0/0006:03:00.0", "Ethernet", netdev="enP6p3s0"),
    ),
    ("ibP16p3s0", "ibP18p3s0", "ibP2p3s0", "ibp3s0"),
    tuple(f"pci{domain}:00/{domain}:00:00.0/{domain}:01:00.0" for domain in ("0008", "0009", "0018", "0019")),
)
# rdma-core#884 and NVSentinel#1750: link layer Unknown, driver efa. aws/sagemaker-hyperpod-cli#282: on p6-b200 two
# devices ibp* control NVLink. Belief: these two look like active InfiniBand, and their VPD cannot be read.
P6_B200 = Machine(
    "aws/sagemaker-hyperpod-cli#282; linux-rdma/rdma-core#884",
    (
        *(Card(f"ibp{bus}s0f0", at_root(bus)) for bus in (115, 116)),
        *(Card(f"rdmap{bus}s0", at_root(bus), "Unknown", "100", driver="efa") for bus in (79, 80, 96, 97)),
    ),
    (),
)
# Azure's documents of ND H100 v5: mlx5_ib0 to 7, one per GPU, and one port of accelerated networking (RoCE). Belief:
# a virtual machine shows each in a PCI domain of its own.
ND_H100 = Machine(
    "Azure ND H100 v5 series",
    (
        Card("mlx5_an0", "pcif00a:00/f00a:00:02.0", "Ethernet", "100", netdev="enP61450s1"),
        *(Card(f"mlx5_ib{n}", f"pci010{n + 1}:00/010{n + 1}:00:00.0") for n in range(8)),
    ),
    tuple(f"mlx5_ib{number}" for number in range(8)),
    tuple(f"pci000{number + 1}:00/000{number + 1}:00:00.0" for number in range(8)),
)
# rdma-core#1177 and azurelinux#17960: the device is mana_0. Belief: RoCE by its link layer.
AZURE_MANA = Machine(
    "microsoft/azurelinux#17960",
    (Card("mana_0", "pci7870:00/7870:00:00.0", "Ethernet", "200", driver="mana", netdev="eth0"),),
    (),
)
# Google's documents: A3 Mega has gVNIC alone (driver gve), A3 Ultra has eight ConnectX-7 as RoCE beside it.
A3_MEGA = Machine("Google Cloud, A3 Mega", (), (), nics=(("eth0", "gve"),))
A3_ULTRA = Machine(
    "Google Cloud, A3 Ultra; belief: names and places",
    tuple(Card(f"rocep{n}s0", f"pci0000:{n:02x}/0000:{n:02x}:00.0", "Ethernet", netdev=f"rdma{n}") for n in range(8)),
    tuple(f"rocep{number}s0" for number in range(8)),
    nics=(("eth0", "gve"),),
)
# Intel's E810 with irdma in its iWARP mode (kernel, irdma: node type RNIC).
IWARP = Machine(
    "linux, drivers/infiniband/hw/irdma",
    (Card("irdma0", at_root(0x31), "Ethernet", "100", driver="ice", node_type="4: RNIC", netdev="eth0"),),
    (),
)
# Linux, Documentation/ABI/testing/sysfs-bus-pci: a virtual function has a link physfn to its card. Belief: those
# that no guest has taken are bound to mlx5_core on the host, active and of the card's rate, as their names here.
SR_IOV = Machine(
    "Linux, Documentation/ABI/testing/sysfs-bus-pci; NVIDIA, HowTo configure SR-IOV for ConnectX",
    (
        *(Card(f"mlx5_{n}", at_root(0x20 + 0x10 * n), "Ethernet", netdev=f"rail{n}") for n in (0, 1)),
        *(
            Card(
                f"mlx5_{2 + n}",
                at_root(0x20 + 0x10 * n, 2),
                "Ethernet",
                netdev=f"rail{n}v0",
                physfn=at_root(0x20 + 0x10 * n),
            )
            for n in (0, 1)
        ),
    ),
    ("mlx5_0", "mlx5_1"),
)

MACHINES = {
    "dgx-h100": DGX_H100,
    "hgx-h100-roce": HGX_H100_ROCE,
    "hgx-b200": HGX_B200,
    "mi300x": MI300X,
    "gb200": GB200,
    "p6-b200": P6_B200,
    "nd-h100": ND_H100,
    "azure-mana": AZURE_MANA,
    "a3-mega": A3_MEGA,
    "a3-ultra": A3_ULTRA,
    "iwarp": IWARP,
    "sr-iov": SR_IOV,
}


def build(machine: Machine, root: Path, host: int) -> Sysfs:
    """Write the sysfs of a machine. Its Ethernet rails have the addresses 10.64.<rail>.<host>."""
    tree = Sysfs(root)
    for gpu in machine.gpus:
        tree.pci(gpu, vendor=machine.vendor, **{"class": machine.gpu_class})
    for name, driver in machine.nics:
        place = tree.pci(at_root(0xF0), driver)
        (tree.nic(name) / "device").symlink_to(place)
    for number, card in enumerate(machine.cards):
        port = tree.port(card.device, layer=card.layer)
        write(port / "rate", f"{card.gbit} Gb/sec (4X NDR)")
        write(port.parents[1] / "node_type", card.node_type)
        place = tree.pci(card.pci, card.driver)
        if card.vpd:
            (place / "vpd").write_bytes(card.vpd)
        if card.physfn:
            (place / "physfn").symlink_to(tree.root / "devices" / card.physfn)
        if card.netdev:
            (place / "net" / card.netdev).mkdir(parents=True)
        tree.on_pci(card.device, place)
        if card.layer == "InfiniBand":
            guid = ipaddress.IPv6Address(int(ipaddress.IPv6Address(card.prefix)) + host * 256 + number + 1)
            tree.gid(port, 0, str(guid), "IB/RoCE v1", "")
        elif card.netdev:
            tree.gid(port, 0, f"fe80::{host}:{number + 1}", "RoCE v2", card.netdev)
            tree.gid(port, 3, f"10.64.{number}.{host}", "RoCE v2", card.netdev)
    return tree


def node_of(machine: Machine, host: int, asked: tuple[str, ...] = ()) -> NodeNet:
    """Return node n<host> as it tells of itself, through the check of what nodes answer; `asked` is its fabric_rdma."""
    return node_net(f"n{host}", networks_of_machine(machine, host), {"rdma": list(asked)}, True)


def networks_of_machine(machine: Machine, host: int) -> dict[str, Any]:
    """Return the networks of node n<host>, which is such a machine."""
    return copy.deepcopy(read_back(machine, host))


@functools.cache
def read_back(machine: Machine, host: int) -> dict[str, Any]:
    """Return what a node finds in the sysfs of a machine. It has some hundred files, so each is written once."""
    with tempfile.TemporaryDirectory() as root:
        return networks_of(f"n{host}", str(build(machine, Path(root), host).root))


def networks_of(name: str, root: str = "/nowhere") -> dict[str, Any]:
    """Return the networks of a node, as it tells them. Its address is 10.91.0.<number>."""
    address = {"address": f"10.91.0.{name[1:]}", "prefix": 24, "peer": "", "stable": True, "route": "eth0"}
    rows = [{**row, "addresses": []} for row in nics.nics(root, [])]
    eth0 = {"name": "eth0", "kind": "physical", "mtu": 1500, "speed_mbit": 25000, "up": True, "carrier": True}
    own = {**eth0, "operstate": "up", "port_of": "", **next((r for r in rows if r["name"] == "eth0"), {})}
    return {
        "host_name": name,
        "host_name_addresses": [],
        "arrival": "",
        "nics": [{**own, "addresses": [address]}],
        "rdma": rdma.rdma_ports(root),
        "gpus": rdma.gpus(root),
        "files": {"fabric.json": "", "fabric.env": ""},
    }

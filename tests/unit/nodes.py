"""Facts as a node tells them, for tests without a node."""

from __future__ import annotations

from typing import Any

Facts = dict[str, Any]


def launcher(path: str, version: str, said: str = "", refused: str = "") -> Facts:
    """Return a launcher as a node tells of it."""
    return {"path": path, "version": version, "wanted": path or "/x/mpirun", "said": said, "refused": refused}


def facts_of_a_node(**changed: Any) -> Facts:
    """Return what survey() finds on a small machine without GPU; keyword arguments replace parts."""
    return {
        "home": "/home/me/.torchfleet",
        "cwd": "/home/me",
        "uid": 1000,
        "tmpdir": "",
        "interpreter": "/usr/bin/python3",
        "python": "/home/me/.torchfleet/pytorch/bin/python",
        "python_wanted": "/home/me/.torchfleet/pytorch/bin/python",
        "torch": {"version": "2.13.0+cpu", "cuda": "", "hip": ""},
        "launcher": launcher("/opt/ompi/bin/mpirun", "5.0.11"),
        "hostname": "node",
        "nics": ["eth0", "eth1", "lo"],
        "backends": [],
        "cores": 4,
        "accelerators": {"nvidia": 0, "amd": 0},
        "free_bytes": 1 << 40,
        "port": 23456,
        "fabric": None,
        "jobs": [],
        "leftovers": [],
        **changed,
    }


def fabric(nic: str, address: str) -> Facts:
    """Return the fabric.json of a node."""
    return {"version": 1, "nic": nic, "address": address, "network": "10.1.0.0/24", "mtu": 1500, "rdma": []}

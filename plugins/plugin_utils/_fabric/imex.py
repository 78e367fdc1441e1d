# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which nodes nvidia-imex of a node names: those whose GPUs are in its NVLink domain. Pure.

All of them must have the same list in the same order (NVIDIA, IMEX guide, deployment), so it has the inventory's.
"""

from __future__ import annotations

from collections.abc import Mapping

from .answers import published


def imex_nodes(
    domains: Mapping[str, str | None], files: Mapping[str, Mapping[str, str]], name: str, there: str, ours: str
) -> dict[str, object]:
    """Return `text` of nodes_config.cfg, whether to `write` it, `refusal` and `msg` (empty if there is none).

    `domains`: of every node of the cluster, None if it was not asked; `files`: what they have
    published, empty for a node that was not asked.
    `there`: the file's present text; `ours`: what we last wrote. A file that is not ours is never written.
    """
    same = [node for node, domain in domains.items() if domain == domains[name]]
    unknown = [node for node, domain in domains.items() if domain is None or (node in same and not files[node])]
    if unknown:
        return told(refusal=f"IMEX needs to know all nodes, and {', '.join(unknown)} was not asked: leave --limit out")
    addresses = {node: str(published(files[node].get("fabric.json") or "{}").get("address", "")) for node in same}
    without = [node for node, address in addresses.items() if not address]
    if without:
        return told(refusal=f"no network was chosen on {', '.join(without)}: ansible-playbook setup.yml --tags fabric")
    text = "".join(f"{address}\n" for address in addresses.values())
    if entries(there) and there != ours:
        is_right = entries(there) == list(addresses.values())
        stays = f"nodes_config.cfg is not ours and stays; it names {', '.join(entries(there))}, "
        return told(text, msg="" if is_right else f"{stays}and the domain has {', '.join(addresses.values())}")
    return told(text, write=there != text)


def told(text: str = "", write: bool = False, refusal: str = "", msg: str = "") -> dict[str, object]:
    """Return the variables for role cuda."""
    return {"text": text, "write": write, "refusal": refusal, "msg": msg}


def entries(text: str) -> list[str]:
    """Return the addresses in a file of nodes. A package may bring one that has comments only."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]

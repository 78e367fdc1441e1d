"""Write what cannot derive from the tables of launchers and backends when it is read: choices of roles, and a page.

Usage: registry_tables.py, and then role_tables.py. Whoever changes a row runs them; tests/unit/test_registries.py says
where that was forgotten.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "collections"))

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software import launchers
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.gpu_vendors import VENDORS
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.setup_parts import PARTS
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.backends import BACKENDS, Backend
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launchers.registry import COMMANDS, supported
from tests.transcripts import PROGRAMS

REPO = Path(__file__).resolve().parents[1]
ROLE_FILES = [
    "roles/torch_backends/meta/argument_specs.yml",
    "roles/verify/defaults/main.yml",
    "roles/verify/meta/argument_specs.yml",
]
PAGE = "docs/launchers.md"
CHOICES = {  # of options of roles
    "torch_backends_mpis": PARTS["mpis"],
    "torch_backends_names": PARTS["backends"],
    "verify_launchers": launchers.TRIED,
}
STARTED_BY = {
    launchers.DAEMONS: "a daemon of the launcher on each node",
    launchers.AGENTS: "an agent on each node, all started by the one command",
    launchers.SLURMD: "Slurm, in an allocation of the planned nodes",
}


def main() -> None:
    """Write them."""
    for name in (*ROLE_FILES, PAGE):
        (REPO / name).write_text(written(name))


def written(name: str) -> str:
    """Return what a file ought to be."""
    text = (REPO / name).read_text()
    if name != PAGE:
        return with_choices(text)
    text = with_rows(text, "launcher", (f"`{each}` | {launcher_row(each)}" for each in launchers.LAUNCHERS))
    return with_rows(text, "backend", (f"`{each}` | {backend_row(each, row)}" for each, row in BACKENDS.items()))


def with_choices(text: str) -> str:
    """Return the argument specs or the defaults of a role with the choices of its options."""
    for option, known in CHOICES.items():
        listed = f"[{', '.join(known)}]"
        block = re.search(rf"^( *){option}:.*\n(\1  .*\n)*", text, re.MULTILINE)
        if block:
            text = text.replace(block[0], re.sub(r"(?<=: )\[.*\]$", listed, block[0], flags=re.MULTILINE))
    return text


def with_rows(text: str, of: str, rows: Iterable[str]) -> str:
    """Return a page with the rows of the table whose first column has this name."""
    table = "".join(f"| {row} |\n" for row in rows)
    text, found = re.subn(rf"^(\| `{of}` \|.*\n.*\n)(\|.*\n)*", lambda old: old[1] + table, text, flags=re.MULTILINE)
    if found != 1:
        raise SystemExit(f"{PAGE}: it has {found} tables whose first column is `{of}`")
    return text


def launcher_row(name: str) -> str:
    """Return which versions of a launcher are supported, what it needs, and what starts the ranks."""
    row = launchers.LAUNCHERS[name]
    tried = ", ".join(program.version for program in PROGRAMS.values() if program.launcher == name)
    needs = f"{row.title} on head and workers" if row.programs else "only torch"
    if row.wheel:
        needs += f""": `setup.yml -e '{{"mpis": ["{name}"]}}'`"""
    if not row.on_workers:
        needs = f"a {row.title} cluster of these nodes, `{row.programs[0]}` on the head"
    return f"{supported(COMMANDS[name])} ({tried}) | {needs} | {STARTED_BY[row.started_by]}"


def backend_row(name: str, row: Backend) -> str:
    """Return who has a backend, and which variables it wants."""
    titles = " or ".join(VENDORS[vendor].title for vendor in row.vendors)
    has = row.provider or (f"torch for GPUs of {titles} has it" if titles else "every torch has it")
    if row.ours:
        has = f"""the stock torch has it after `setup.yml -e '{{"backends": ["{name}"]}}'`"""
        has += " ([what it is](../torch_backends/README.md))"
        has += "; only under the launchers of the `mpis` of that setup" if row.needs_mpi else "; any launcher"
    with_rdma, without = row.environment({}, True), row.environment({}, False)
    names = [f"`{each}`{'' if each in with_rdma else ' without RDMA'}" for each in {**with_rdma, **without}]
    more = {vendor: row.environment({vendor: 1}, True).keys() - with_rdma for vendor in VENDORS}
    names += [f"{len(own)} more for GPUs of {VENDORS[vendor].title}" for vendor, own in more.items() if own]
    return f"{has}{'; GPUs of one vendor' if row.one_vendor else ''} | {', '.join(names)}"


if __name__ == "__main__":
    main()

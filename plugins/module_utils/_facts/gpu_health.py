# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether GPUs that are there are sound, as NVIDIA's driver tells it, and whether they will be after a reboot."""

from __future__ import annotations

import glob
import os
import re

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.gpu_vendors import MODULES

from . import nvlink
from .reading import names_in, output_of, program, text_of

# Fields of nvidia-smi --query-gpu. Drivers before 535 do not know fabric.state, and then answer nothing at all.
FIELDS = ("pci.bus_id", "vbios_version", "ecc.errors.uncorrected.volatile.total")
FABRIC = "fabric.state"
UNKNOWN = re.compile(r"\[?(?:N/A|Not Supported|Unknown Error|GPU is lost)\]?\Z", re.IGNORECASE)
KERNEL_LOG = "dev/kmsg"
LOG_BYTES = 16 << 20  # the kernel's own buffer is smaller
XID = re.compile(rb"NVRM: Xid \(PCI:([0-9a-fA-F:]+)(?:\.\d)?\): (\d{1,4})\b")


def gpu_health(root: str = "/") -> dict[str, object]:
    """Return `nvidia`: a row for each GPU of nvidia-smi, `nvlink`, `xids`: errors since the boot, and `next_kernel`.

    A row has address, vbios, ecc_errors (uncorrected, since the driver was loaded; None if not counted), and fabric
    (the state of its NVSwitch fabric; empty where there is none). `nvlink`: see nvlink.fabrics(). `xids` have address
    and number; only root can read them. Nothing is raised: what cannot be read is not there.
    """
    return {
        "nvidia": nvidia_rows() if os.path.isdir(os.path.join(root, "sys/module/nvidia")) else [],
        "nvlink": nvlink.fabrics(root),
        "xids": xids(kernel_log(root)),
        "next_kernel": next_kernel(root),
    }


def nvidia_rows() -> list[dict[str, object]]:
    """Ask nvidia-smi about every GPU."""
    path = program("nvidia-smi")
    for fields in ((*FIELDS, FABRIC), FIELDS) if path else ():
        text = output_of([path, f"--query-gpu={','.join(fields)}", "--format=csv,noheader"])
        rows = rows_of(text, len(fields))
        if rows:
            return rows
    return []


def rows_of(text: str, width: int) -> list[dict[str, object]]:
    """Return the rows of nvidia-smi's CSV with so many fields; a line that is no such row is left out."""
    found: list[dict[str, object]] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == width and re.fullmatch(r"[0-9a-fA-F:.]+", cells[0]):
            known = ["" if UNKNOWN.match(cell) else cell for cell in (*cells, "")]
            found.append(
                {
                    "address": address(known[0]),
                    "vbios": known[1],
                    "ecc_errors": int(known[2]) if known[2].isdigit() else None,
                    "fabric": known[3],
                }
            )
    return found


def address(text: str) -> str:
    """Return a PCI address as sysfs writes it. nvidia-smi has a domain of eight digits, the kernel log no function."""
    match = re.fullmatch(r"([0-9a-f]+):([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-9a-f]))?", text.lower())
    return f"{int(match[1], 16):04x}:{match[2]}:{match[3]}.{match[4] or 0}" if match else text


def kernel_log(root: str = "/") -> bytes:
    """Return what is in the kernel's log; nothing for a user who may not read it."""
    text = b""
    try:
        descriptor = os.open(os.path.join(root, KERNEL_LOG), os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return text
    try:
        while len(text) < LOG_BYTES:
            record = os.read(descriptor, 65536)
            if not record:
                break
            text += record
    except OSError:  # the end of the log (EAGAIN), or records were overwritten meanwhile (EPIPE)
        pass
    finally:
        os.close(descriptor)
    return text


def xids(log: bytes) -> list[dict[str, object]]:
    """Return the errors of NVIDIA's driver: PCI address and number (XID), each pair once."""
    pairs = {(address(pci.decode()), int(number)) for pci, number in XID.findall(log)}
    return [{"address": pci, "number": number} for pci, number in sorted(pairs)]


def next_kernel(root: str = "/") -> dict[str, object]:
    """Return the newest installed kernel, which boots next, and for which of MODULES it has a module."""
    releases = [name[len("vmlinuz-") :] for name in names_in(os.path.join(root, "boot")) if name.startswith("vmlinuz-")]
    there = [release for release in releases if os.path.isdir(os.path.join(root, "lib/modules", release))]
    newest = max(there, key=by_version, default="")
    return {"release": newest, "modules": [name for name in MODULES if newest and has_module(root, newest, name)]}


def by_version(release: str) -> list[tuple[int, str]]:
    """Return what kernel releases are ordered by: 6.1.0-9 is before 6.1.0-10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.findall(r"\d+|[^\d.\-]+", release)]


def has_module(root: str, release: str, name: str) -> bool:
    """Whether a kernel has a module: of a package, in the kernel's own file, or built in place (DKMS)."""
    directory = os.path.join(root, "lib/modules", release)
    lists = [text_of(os.path.join(directory, file)) for file in ("modules.dep", "modules.builtin")]
    built = glob.glob(os.path.join(directory, "updates", "**", f"{name}.ko*"), recursive=True)
    return bool(built) or any(f"/{name}.ko" in text for text in lists)

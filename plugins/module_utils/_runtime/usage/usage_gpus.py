# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What GPUs do: NVIDIA's by the library of their driver (NVML), AMD's by files of theirs in sysfs.

A GPU that does not answer has no values; nothing is raised. A driver may hang: call this where nobody waits.
"""

from __future__ import annotations

import ctypes
import glob
import os
from typing import Protocol

from .usage_node import read, whole

GPUS_MOST = 16
LIBRARY = "libnvidia-ml.so.1"
# nvml.h: nvmlClocksEventReasons, those that slow a GPU down because of heat or its power supply. Its power limit (0x4)
# is none of them: a GPU that works hard always is at that.
SLOWED = 0x8 | 0x20 | 0x40 | 0x80  # HwSlowdown, SwThermalSlowdown, HwThermalSlowdown, HwPowerBrakeSlowdown
SM_CLOCK = 1  # NVML_CLOCK_SM


class Gpus(Protocol):
    """The GPUs of a vendor on this node."""

    def values(self) -> list[dict[str, float]]: ...  # of each: by the name of its series, without number

    def limits(self) -> list[dict[str, float]]: ...  # the most that these can be


class Utilization(ctypes.Structure):
    """nvmlUtilization_t: in percent."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Memory(ctypes.Structure):
    """nvmlMemory_t: in bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Nvidia:
    """NVIDIA's GPUs."""

    def __init__(self, library: str = LIBRARY) -> None:
        """OSError if there is no such library, or it has no GPU."""
        self.nvml = ctypes.CDLL(library)
        count = ctypes.c_uint()
        if self.nvml.nvmlInit_v2() or self.nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            raise OSError(f"{library} does not start")
        self.handles = [ctypes.c_void_p() for _ in range(min(count.value, GPUS_MOST))]
        for number, handle in enumerate(self.handles):
            self.nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(number), ctypes.byref(handle))

    def works(self, name: str, handle: ctypes.c_void_p, *arguments: object) -> bool:
        """Call a function that returns 0 if it succeeded; older libraries lack some."""
        function = getattr(self.nvml, name, None)
        return function is not None and bool(handle) and function(handle, *arguments) == 0

    def values(self) -> list[dict[str, float]]:
        return [self.values_of(handle) for handle in self.handles]

    def values_of(self, handle: ctypes.c_void_p) -> dict[str, float]:
        """Return what one GPU does."""
        found: dict[str, float] = {}
        busy, memory, number, reasons = Utilization(), Memory(), ctypes.c_uint(), ctypes.c_ulonglong()
        if self.works("nvmlDeviceGetUtilizationRates", handle, ctypes.byref(busy)):
            found["gpu"] = busy.gpu / 100
        if self.works("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory)):
            found["gpu_memory"] = float(memory.used)
        if self.works("nvmlDeviceGetPowerUsage", handle, ctypes.byref(number)):
            found["gpu_power"] = number.value / 1000
        if self.works("nvmlDeviceGetClockInfo", handle, ctypes.c_uint(SM_CLOCK), ctypes.byref(number)):
            found["gpu_clock"] = number.value * 1e6
        if self.works("nvmlDeviceGetCurrentClocksThrottleReasons", handle, ctypes.byref(reasons)):
            found["gpu_throttled"] = float(bool(reasons.value & SLOWED))
        return found

    def limits(self) -> list[dict[str, float]]:
        found = []
        for handle in self.handles:
            row = {"gpu": 1.0}
            memory, number = Memory(), ctypes.c_uint()
            if self.works("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory)):
                row["gpu_memory"] = float(memory.total)
            if self.works("nvmlDeviceGetEnforcedPowerLimit", handle, ctypes.byref(number)):
                row["gpu_power"] = number.value / 1000
            found.append(row)
        return found


class Amd:
    """AMD's GPUs: driver amdgpu has a file for each value."""

    FILES = (  # of a value, by the name of its series, and what one step of it is
        ("gpu", "gpu_busy_percent", 0.01),
        ("gpu_memory", "mem_info_vram_used", 1.0),
        ("gpu_power", "hwmon/hwmon*/power1_average", 1e-6),
        ("gpu_power", "hwmon/hwmon*/power1_input", 1e-6),  # of those that tell no average
        ("gpu_clock", "hwmon/hwmon*/freq1_input", 1.0),
    )
    LIMITS = (("gpu_memory", "mem_info_vram_total", 1.0), ("gpu_power", "hwmon/hwmon*/power1_cap", 1e-6))

    def __init__(self, root: str = "/") -> None:
        """OSError if there is none."""
        found = sorted(glob.glob(os.path.join(root, "sys/class/drm/card*/device/gpu_busy_percent")))
        self.places = [os.path.dirname(path) for path in found][:GPUS_MOST]
        if not self.places:
            raise OSError("no GPU of AMD's is here")

    def values(self) -> list[dict[str, float]]:
        return [self.read(place, self.FILES) for place in self.places]

    def limits(self) -> list[dict[str, float]]:
        return [{"gpu": 1.0, **self.read(place, self.LIMITS)} for place in self.places]

    @staticmethod
    def read(place: str, files: tuple[tuple[str, str, float], ...]) -> dict[str, float]:
        """Return the values in files of one GPU."""
        found: dict[str, float] = {}
        for series, name, step in files:
            path = next(iter(glob.glob(os.path.join(glob.escape(place), name))), "")
            value = whole(read(path)) if path and series not in found else -1
            if value >= 0:
                found[series] = value * step
        return found


def gpus_here(root: str = "/", library: str = LIBRARY) -> list[Gpus]:
    """Return the GPUs of this node, by vendor."""
    found: list[Gpus] = []
    if glob.glob(os.path.join(root, "dev/nvidia[0-9]*")):
        try:
            found.append(Nvidia(library))
        except (OSError, AttributeError):  # no driver, or a library that is none of theirs
            pass
    try:
        found.append(Amd(root))
    except OSError:
        pass
    return found


def numbered(rows: list[list[dict[str, float]]]) -> dict[str, float]:
    """Return the values of all GPUs by the names of their series: "gpu.0", "gpu_memory.0", "gpu.1"."""
    every = [row for vendor in rows for row in vendor][:GPUS_MOST]
    return {f"{name}.{number}": value for number, row in enumerate(every) for name, value in row.items()}

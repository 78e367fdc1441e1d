# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A job that is to be profiled: for how long, which ranks, and the variables that tell them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.hooks.profile_note import VARIABLE
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

SECONDS_MOST = 60  # a trace grows by some 4 MB in a second
HOW = f"give seconds from 1 to {SECONDS_MOST}: -e profile=10s"


@dataclass(frozen=True)
class Profile:
    """`seconds` that are recorded; 0: none. `ranks`: None for all."""

    seconds: float = 0.0
    ranks: tuple[int, ...] | None = None

    def variables(self, world_size: int) -> dict[str, tuple[str, str, str]]:
        """Return the variables of ranks: value, reason and source by name. InputError for a rank that will not be."""
        if not self.seconds:
            return {}
        for rank in self.ranks or ():
            if rank >= world_size:
                allowed = f"the ranks are 0 to {world_size - 1}: -e profile_ranks=all"
                raise InputError("profile_ranks", rank, allowed)
        ranks = "" if self.ranks is None else f":{','.join(map(str, self.ranks))}"
        quiet = ("99", "PyTorch's profiler writes less to stderr", "default")
        return {VARIABLE: (f"{self.seconds:g}{ranks}", "profile, profile_ranks", "user"), "KINETO_LOG_LEVEL": quiet}


NO_PROFILE = Profile()


def parse_profile(given: Mapping[str, object], ranks: tuple[int, ...] | None) -> Profile:
    """Return what is to be profiled. `ranks`: as profile_ranks has them. InputError."""
    value = given.get("profile")
    if value is None:
        if given.get("profile_ranks") is not None:
            raise InputError("profile_ranks", given["profile_ranks"], "it goes with profile: add -e profile=10s")
        return NO_PROFILE
    found = re.match(r"(\d{1,2}(?:\.\d{1,3})?) ?s?\Z", str(value).strip())
    if isinstance(value, bool) or not found or not 1 <= float(found[1]) <= SECONDS_MOST:
        raise InputError("profile", value, HOW)
    if ranks == ():
        raise InputError("profile_ranks", given["profile_ranks"], "give at least one: -e profile_ranks=0,1")
    return Profile(float(found[1]), ranks)

# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""launcher_args: the user's own options in a launcher's command, and which of the plan's options they replace."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.command import LaunchCommand, Option
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.plan import LaunchPlan

# Options whose first word says what kind of thing is set, and the second what.
KINDS = {"mca": "mca", "gmca": "mca", "prtemca": "mca", "pmixmca": "mca", "genv": "env", "env": "env", "x": "env"}
SYNONYMS = {"prte_if_include": "oob_tcp_if_include", "plm_ssh_agent": "plm_rsh_agent"}  # 5.0 knows the old names too
Key = tuple[str, ...]


def key_of(words: Sequence[str]) -> Key:
    """Return what an option is about: the same for `-bind-to none` and `--bind-to=core`; nothing for a mere value."""
    if not words or not words[0].startswith("-"):
        return ()
    name = words[0].lstrip("-").partition("=")[0]
    if name in KINDS and len(words) > 1:
        what = words[1].partition("=")[0]
        return KINDS[name], SYNONYMS.get(what, what)
    return (name,)


def with_arguments(command: LaunchCommand, plan: LaunchPlan, placed_by: Mapping[str, str]) -> LaunchCommand:
    """Return the command with the user's own options before the program.

    They replace options that the plan does not need. `placed_by`: options that place ranks, and what to type instead.
    InputError for those, and for options that the plan needs.
    """
    words = plan.options.args
    if not words:
        return command
    keys = {key_of(words[number:]): number for number in range(len(words))}
    for key, number in keys.items():
        if key and key[0] in placed_by:
            raise InputError("launcher_args", words[number], f"the plan decides that: {placed_by[key[0]]}...")
    replaced = [option for option in command.options if key_of(option.words) in keys and key_of(option.words)]
    for option in replaced:
        if not option.free:
            given = words[keys[key_of(option.words)]]
            raise InputError("launcher_args", given, f"remove it: the plan has {shlex.join(option.words)}")
    own = Option(words, "launcher_args", "user")
    on = {
        name: (
            *(option for option in options[:-1] if key_of(option.words) not in keys or not option.free),
            own,
            options[-1],
        )
        for name, options in command.on.items()
    }
    warnings = tuple(f"launcher_args replaces {shlex.join(option.words)} ({option.reason})" for option in replaced)
    return dataclasses.replace(command, on=on, warnings=warnings)

# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Values that users type in YAML and on a command line: checked and converted. Pure."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping

from .errors import InputError

# Seconds of silence after which a node is lost. The default is longer than a network's failover (spanning tree: 50 s)
# or the migration of a virtual machine. Below the minimum, a late heartbeat would look like a dead node.
LEASE_SECONDS, LEAST_LEASE, MOST_LEASE = 60.0, 5.0, 3600.0

ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


# Names that the plan sets: a job that set them itself would contradict its own placement.
OWNED_NAMES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    *("GROUP_RANK", "NODE_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME"),
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
    *("TORCHFLEET_JOB_ID", "TORCHFLEET_JOB_DIR", "TORCHFLEET_EXIT_NOTE", "TORCHFLEET_BACKEND"),
)


def parse_text(name: str, value: object) -> str:
    """Return a text without NUL that is not empty."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise InputError(name, value, "give a text that is not empty")
    return value


def parse_flag(name: str, value: object) -> bool:
    """Return a boolean from its spellings in YAML and on a command line."""
    words = {"true": True, "yes": True, "false": False, "no": False}
    if str(value).lower() not in words:
        raise InputError(name, value, f"give true or false: -e {name}=true")
    return words[str(value).lower()]


def choice_of(name: str, value: object, choices: tuple[str, ...]) -> str:
    """Return one of the choices."""
    if value in choices:
        return str(value)
    raise InputError(name, value, f"choose one of {', '.join(choices)}: -e {name}={choices[0]}")


def parse_choice(name: str, value: object, choices: tuple[str, ...]) -> str | None:
    """Return one of the choices, None for None."""
    return None if value is None else choice_of(name, value, choices)


def whole_of(name: str, value: object, least: int, most: int | None, example: str = "") -> int:
    """Return a whole number in [least, most]. Text of digits is accepted, 2.5 and true are not."""
    text = str(value).strip()
    if isinstance(value, (int, str)) and not isinstance(value, bool) and re.match(r"-?\d{1,18}\Z", text):
        number = int(text)
        if number >= least and (most is None or number <= most):
            return number
    bounds = f"from {least} to {most}" if most is not None else f"of at least {least}"
    raise InputError(name, value, f"give a whole number {bounds}: {example or f'-e {name}={max(least, 2)}'}")


def parse_whole(name: str, value: object, least: int, most: int | None, example: str = "") -> int | None:
    """Return a whole number in [least, most], None for None."""
    return None if value is None else whole_of(name, value, least, most, example)


def seconds_of(name: str, value: object, example: float, least: float = 0.0, most: float = 1e9) -> float:
    """Return a time in seconds greater than 0 and from `least` to `most`. `example` is what an error names."""
    try:
        seconds = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else 0.0
    except (TypeError, ValueError):
        seconds = 0.0
    if not (seconds > 0 and least <= seconds <= most):  # also refuses nan and inf
        bounds = f"from {least:g} to {most:g}" if least else "greater than 0"
        raise InputError(name, value, f"give seconds {bounds}, or leave it out: -e {name}={example:g}")
    return seconds


def parse_seconds(name: str, value: object, example: float) -> float | None:
    """Return a time in seconds greater than 0, None for None."""
    return None if value is None else seconds_of(name, value, example)


def parse_bytes(name: str, value: object) -> int:
    """Return a number of bytes; K, M, G and T stand for powers of 1024."""
    found = re.match(r"(\d{1,12})([KMGT]?)\Z", str(value).strip().upper())
    if not found or isinstance(value, bool) or int(found.group(1)) < 1:
        raise InputError(name, value, f"give bytes, such as 500M or 2G: -e {name}=2G")
    return int(found.group(1)) << 10 * " KMGT".index(found.group(2) or " ")


def parse_words(name: str, value: object) -> tuple[str, ...]:
    """Return a list of texts; one text is split as a shell would split it."""
    if isinstance(value, str):
        try:
            value = shlex.split(value)
        except ValueError as error:
            raise InputError(name, value, f"{error}: close the quotes, or give a list") from None
    if not isinstance(value, (list, tuple)) or any(isinstance(word, (list, tuple, Mapping)) for word in value):
        raise InputError(name, value, "give a list of words, or one text to split as a shell does")
    words = tuple(plain_text(word) for word in value)
    if any("\0" in word for word in words):
        raise InputError(name, value, "an argument cannot contain a NUL character: leave it out")
    return words


def parse_names(name: str, value: object) -> tuple[str, ...]:
    """Return a list of names; one text is split at commas and spaces."""
    return parse_words(name, value.replace(",", " ") if isinstance(value, str) else value)


def plain_text(value: object) -> str:
    """Return a scalar as the text that a person would type."""
    return str(value).lower() if isinstance(value, bool) else str(value)


EXPORTS = ("tensorboard", "prometheus")


def parse_exports(value: object) -> tuple[str, ...]:
    """Return what a run is exported to. InputError for anything else."""
    items = value.split(",") if isinstance(value, str) else value
    found = [str(item).strip() for item in items] if isinstance(items, (list, tuple)) else [str(items)]
    for name in filter(None, found):
        if name not in EXPORTS:
            raise InputError("export", name, f"give {' or '.join(EXPORTS)}, or both: -e export={','.join(EXPORTS)}")
    return tuple(dict.fromkeys(filter(None, found)))


def parse_environment(value: object, source: str = "job_env") -> dict[str, str]:
    """Return environment variables of ranks. Values may contain any character but NUL; names follow POSIX."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = str(value)
    if not isinstance(value, Mapping):  # it may be secret, so it is not shown
        raise InputError(source, kind_of(value), """give a dict: -e '{"job_env": {"NAME": "value"}}'""")
    for name, content in value.items():
        if not isinstance(name, str) or not ENV_NAME.match(name):
            raise InputError(source, name, "a name consists of letters, digits and _ and does not begin with a digit")
        if name in OWNED_NAMES:
            raise InputError(
                source, name, "the plan sets this variable: use the options np, backend, master_port and job_id"
            )
        if content is None or isinstance(content, (list, tuple, Mapping)) or "\0" in str(content):
            raise InputError(source, {name: kind_of(content)}, "give a text or a number, without NUL characters")
    return {name: plain_text(content) for name, content in value.items()}


def kind_of(value: object) -> str:
    """Return the kind of a value, for a message that must not show it."""
    kinds = {"NoneType": "nothing", "str": "a text", "list": "a list", "tuple": "a list", "dict": "a dict"}
    return kinds.get(type(value).__name__, f"a value of type {type(value).__name__}")

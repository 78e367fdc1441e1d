# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Preflight of a node that gave no facts: which finding a message of SSH or Ansible is. Pure."""

from __future__ import annotations

import re

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import shorten

from .findings import Finding, found
from .preflight_rules import RULES
from .preflight_types import Answer, Target, commands_for

# Messages of OpenSSH's client (ssh/clientloop.c, sshconnect.c) and of Ansible, the most specific first.
KNOWN_MESSAGES = (
    (r"Failed to create temporary directory", "TF-ANSIBLE-TMP"),
    (r"REMOTE HOST IDENTIFICATION HAS CHANGED|host key for .* has changed", "TF-HOST-KEY-CHANGED"),
    (r"Host key verification failed|No .* host key is known", "TF-HOST-KEY-UNKNOWN"),
    (r"Permission denied|Too many authentication failures|no such identity", "TF-SSH-KEY"),
    (r"Could not resolve hostname", "TF-NAME-UNKNOWN"),
    (r"Connection refused", "TF-SSH-PORT"),
    (r"timed out|No route to host|Network is unreachable|Host is down", "TF-UNREACHABLE"),
    (r"Connection (closed|reset)|kex_exchange_identification|banner exchange", "TF-SSH-CLOSED"),
    (r"requires a minimum of Python|future feature annotations", "TF-PYTHON-OLD"),
    (
        r"interpreter \S+ was not found|python\S*: ((command )?not found|No such file)|No python interpreters found",
        "TF-NO-PYTHON",
    ),
    (r"No space left on device|No usable temporary directory", "TF-DISK-TMP"),
)
PREFIXES = r"^(Task failed: |Failed to connect to the host via ssh: |Data could not be sent.*?: )+"  # of Ansible
CLOSING_LINE = r"(Shared connection|Connection) to .* closed"  # of ssh, after the messages of the remote program


def has_reason(text: str) -> bool:
    """Return whether a text contains a known message of SSH or Ansible."""
    return any(re.search(says, text, re.IGNORECASE) for says, _name in KNOWN_MESSAGES)


def explain_no_answer(target: Target, answer: Answer) -> Finding:
    """Return why a node has no facts, from the most specific line that SSH or the failed module printed."""
    words = {**target.words, **commands_for([])}
    if answer.timed_out:
        return found(RULES, "TF-SLOW", [target.name], f"no answer within {answer.timed_out} s", **words)
    text = answer.problem or answer.failure
    lines = [
        line.strip(" @\r") for line in text.splitlines() if line.strip(" @\r") and not re.match(CLOSING_LINE, line)
    ]
    telling = [(name, line) for says, name in KNOWN_MESSAGES for line in lines if re.search(says, line, re.IGNORECASE)]
    last = lines[-1] if lines else "no reason was given"
    name, line = telling[0] if telling else ("TF-UNREACHABLE" if answer.problem else "TF-NO-ANSWER", last)
    return found(RULES, name, [target.name], shorten(re.sub(PREFIXES, "", line), 160), **words)

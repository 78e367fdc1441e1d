# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Filter build_options. Documentation: build_options.yml."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import to_plain
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software.build_options import build_with, check_build


def build_options(
    parts: Mapping[str, str],
    role: str,
    wanted: str | Sequence[str],
    facts: Mapping[str, Mapping[str, str]],
    node: str,
    needs: str = "",
) -> dict[str, object]:
    """Return how a library is built on a node, and why it cannot be built as asked for (`refusal`)."""
    parts, wanted, facts = to_plain(parts), to_plain(wanted), to_plain(facts)
    build = {**build_with(parts, wanted, facts)._asdict(), "refusal": ""}
    try:
        check_build(to_plain(role), parts, wanted, facts, to_plain(node), to_plain(needs))
    except InputError as error:
        build["refusal"] = str(error)
    return build


class FilterModule:
    """What Ansible asks for the filters."""

    def filters(self) -> dict[str, Callable[..., object]]:
        """Return them by name."""
        return {"build_options": build_options}

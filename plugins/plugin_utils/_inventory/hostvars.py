# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The border to Ansible: converts inventory and arguments from Ansible's types to plain values."""

from __future__ import annotations

import math
import os
import pwd
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.launchers import LAUNCHERS
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.containers import (
    PARTS,
    ContainerSetting,
    parse_container,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.values import (
    LEASE_SECONDS,
    parse_environment,
    parse_whole,
)

from .cluster import Cluster, Node

ALIVE_SECONDS = 5  # between two keep-alive messages of ssh


def to_plain(value: object) -> Any:
    """Return a value without Ansible's tagged and lazy types (ansible-core 2.19 hands plugins `_AnsibleTaggedStr`)."""
    if isinstance(value, Mapping):
        return {to_plain(key): to_plain(content) for key, content in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return value if kind is bool else kind(value)
    return None if value is None else str(value)


def asked_of_fabric(host: Mapping[str, object]) -> dict[str, object]:
    """Return what the variables of a host ask of role fabric: of its NIC, its address and its rails."""
    rdma = to_plain(host.get("fabric_rdma")) or []
    texts = {key: str(to_plain(host.get(f"fabric_{key}")) or "") for key in ("nic", "address")}
    return {**texts, "rdma": [str(item) for item in (rdma if isinstance(rdma, list) else [rdma])]}


def vaulted_names(environment: object) -> frozenset[str]:
    """Return the names in an environment whose values come from a vault: `!vault`, or an encrypted file.

    ansible-core 2.19 passes plugins decrypted texts tagged with their origin. A text that a template made from such a
    value has no tag; secret_names is for these.
    """
    if isinstance(environment, Mapping):
        return frozenset(str(name) for name, value in environment.items() if from_vault(value))
    if environment and from_vault(environment):  # all of it as one text of JSON
        return frozenset(parse_environment(to_plain(environment)))
    return frozenset()


def from_vault(value: object) -> bool:
    """Whether a value was encrypted in its source."""
    from ansible.parsing.vault import VaultHelper

    if VaultHelper.get_ciphertext(value, with_tags=False):
        return True
    path = next(filter(None, (getattr(tag, "path", None) for tag in tags_of(value))), None)
    return bool(path) and is_vault(str(path))


def tags_of(value: object) -> Collection[object]:
    """Return ansible-core's tags of a value, such as the file it comes from. There is no public API for them."""
    from ansible.module_utils._internal._datatag import AnsibleTagHelper

    found: Collection[object] = AnsibleTagHelper.tags(value)
    return found


def is_vault(path: str) -> bool:
    """Whether a file is encrypted as a whole."""
    from ansible.parsing.vault import is_encrypted_file

    try:
        with open(path, "rb") as file:
            return bool(is_encrypted_file(file))
    except OSError:
        return False


def refuse_stray_words(variables: Mapping[str, object]) -> None:
    """Raise InputError for words left over from `-e name=value with spaces`: Ansible drops them silently."""
    stray = to_plain(variables.get("_raw_params"))
    if stray:
        raise InputError("-e", stray, """no variable takes these words: quote the value as -e '{"name": "a value"}'""")


def refuse_what_misleads(variables: Mapping[str, object]) -> None:
    """Raise InputError for input that Ansible accepts but that would be ignored.

    `--limit`: the job would not run on the hosts that the user expects. Stray words after `-e`.
    """
    refuse_stray_words(variables)
    limit = to_plain(variables.get("ansible_limit"))
    if limit:
        raise InputError(
            "--limit",
            limit,
            "a job takes its nodes from the inventory: use -e nodes=..., or leave some out with -e away=...",
        )


def cluster_from_hostvars(
    groups: Mapping[str, Sequence[str]], hostvars: Mapping[str, Mapping[str, object]], only: Sequence[str] = ()
) -> Cluster:
    """Return the cluster of an inventory; with `only`, just these workers.

    Raise InputError if group head does not have one host, group workers is empty, or one of `only` is not a worker.
    """
    head = head_from_hostvars(groups, hostvars)
    workers = list(groups.get("workers", ()))
    if not workers:
        raise InputError("inventory", workers, "group workers needs hosts: the machines that run ranks")
    unknown = [name for name in only if name not in (head.name, *workers)]
    if unknown:
        raise InputError("nodes", unknown[0], f"there is no such node: give some of {', '.join(workers)}")
    workers = [name for name in workers if not only or name in only]
    return Cluster(
        head,
        tuple(node_from_hostvars(name, hostvars[name]) for name in workers),
    )


def head_from_hostvars(groups: Mapping[str, Sequence[str]], hostvars: Mapping[str, Mapping[str, object]]) -> Node:
    """Return the head of an inventory. InputError if group head does not have one host."""
    heads = list(groups.get("head", ()))
    if len(heads) != 1:
        raise InputError("inventory", heads, "group head needs one host: the machine that runs the launcher")
    return node_from_hostvars(heads[0], hostvars[heads[0]])


def ssh_words(connection: Any, node: Node, lease: float = LEASE_SECONDS) -> tuple[str, ...]:
    """Return the argv prefix that runs a command on a node over SSH, from the options of Ansible's connection.

    Empty for a local connection. A head that is silent for `lease` seconds is lost. Raise InputError for another kind
    of connection, or one that needs Ansible itself.
    """
    refuse_become(connection, node)
    if node.local:
        return ()

    def option(name: str) -> object:
        return to_plain(connection.get_option(name))

    kind = connection.transport
    if kind != "ssh":
        raise InputError(f"ansible_connection of {node.name}", kind, "give ssh or local for the head")
    for name, remedy in (
        ("password", "training needs an SSH key: ssh-copy-id to the head"),
        ("private_key", "training needs the key in a file: ansible_ssh_private_key_file, or in your own ssh-agent"),
    ):
        if option(name):
            raise InputError(f"ansible_{name} of {node.name}", "(hidden)", remedy)
    if option("host_key_checking") is False:
        remedy = "training checks host keys: remove that setting, and log in once by hand to save the key"
        raise InputError(f"host_key_checking of {node.name}", False, remedy)
    words = connection_words(option)
    alive = (f"ServerAliveInterval={ALIVE_SECONDS}", f"ServerAliveCountMax={math.ceil(lease / ALIVE_SECONDS)}")
    words += [word for setting in ("BatchMode=yes", *alive) for word in ("-o", setting)]
    return (*words, "--", node.address)


def connection_words(option: Callable[[str], object]) -> list[str]:
    """Return ssh with the options of Ansible's connection. `option`: returns one of these by its name."""
    words = [str(option("ssh_executable") or "ssh"), *shlex.split(str(option("ssh_args") or ""))]
    for flag, name in (("-p", "port"), ("-l", "remote_user"), ("-i", "private_key_file"), ("-I", "pkcs11_provider")):
        words += [flag, str(option(name))] if option(name) else []
    words += ["-o", f"ConnectTimeout={option('timeout')}"]
    for name in ("ssh_common_args", "ssh_extra_args"):  # in Ansible's order, because ssh uses the first of two
        words += shlex.split(str(option(name) or ""))
    return words


def refuse_become(connection: Any, node: Node) -> None:
    """Raise InputError if the connection becomes another user: jobs run as the user that logs in."""
    become = getattr(connection, "become", None)
    if become is None:
        return
    wanted = str(to_plain(become.get_option("become_user")) or "root")
    user = pwd.getpwuid(os.getuid()).pw_name if node.local else to_plain(connection.get_option("remote_user"))
    if user != wanted:
        remedy = f"jobs run as the user that logs in: remove -b and ansible_become, or log in as {wanted}"
        raise InputError(f"become on {node.name}", wanted, remedy)


def refuse_become_of(nodes: Sequence[Node], hostvars: Mapping[str, Mapping[str, object]]) -> None:
    """Raise InputError if a node that the head logs in to has another become user."""
    for node in nodes:
        known = {
            name: to_plain(hostvars[node.name].get(f"ansible_{name}")) for name in ("become", "become_user", "user")
        }
        if boolean(known["become"] or False, strict=False) and known["user"] != (known["become_user"] or "root"):
            remedy = "jobs run as the user that the head logs in as: set it to false for train.yml"
            raise InputError(f"ansible_become of {node.name}", known["become"], remedy)


def expected_gpus(name: str, variables: Mapping[str, object]) -> int | None:
    """Return how many GPUs a host should have by its inventory, or None. InputError for anything but a number."""
    given = to_plain(variables.get("torchfleet_gpus"))
    return parse_whole(f"torchfleet_gpus of {name}", given, 0, None, "torchfleet_gpus: 8")


def has_image(given: str | None, variables: Mapping[str, Mapping[str, object]], hosts: Sequence[str]) -> bool:
    """Whether ranks of one of the hosts run in an image: the given one, else that of the inventory. InputError."""
    own = {"container_image": given}
    named = [to_plain(variables[host].get("torchfleet_container_image")) for host in hosts]
    return any(parse_container(own, default=parse_container({"container_image": image})).image for image in named)


def node_from_hostvars(name: str, variables: Mapping[str, object]) -> Node:
    """Return one host of the inventory as a node."""

    def text(key: str) -> str:
        return str(to_plain(variables.get(key)) or "")

    interpreter = text("ansible_python_interpreter")
    if interpreter.startswith("auto") or not interpreter:
        facts = to_plain(variables.get("ansible_facts") or {})
        interpreter = text("discovered_interpreter_python") or facts.get("discovered_interpreter_python") or "python3"
    return Node(
        name=str(name),
        address=str(to_plain(variables.get("ansible_host", name))),
        local=text("ansible_connection") == "local",
        slots=parse_whole(f"slots of {name}", to_plain(variables.get("slots")), 1, None, "slots: 2"),
        home=text("torchfleet_home"),
        python=text("torchfleet_python"),
        launcher_paths={name: text(row.variable) for name, row in LAUNCHERS.items() if row.variable},
        interpreter=interpreter,
        env=parse_environment(to_plain(variables.get("torchfleet_env") or {}), f"torchfleet_env of {name}"),
        vaulted=vaulted_names(variables.get("torchfleet_env")),
        container=own_container(name, variables),
    )


def own_container(name: str, variables: Mapping[str, object]) -> ContainerSetting:
    """Return what ranks of a host run in by the inventory. InputError."""
    given = {part: to_plain(variables.get(f"torchfleet_{part}")) for part in PARTS}
    return parse_container(given, f" of {name}", "torchfleet_")


def container_of(name: str, variables: Mapping[str, object], image: str, engine: str) -> ContainerSetting:
    """Return what ranks of a host run in. Empty texts: what the inventory says. InputError."""
    given = {"container_image": image or None, "container_engine": engine or None}
    return parse_container(given, default=own_container(name, variables))

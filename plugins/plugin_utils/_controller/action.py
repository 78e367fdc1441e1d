# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The base class of the action plugins. Their options are those that the module of the same name documents."""

from __future__ import annotations

import difflib
import functools
import importlib
from collections.abc import Iterable, Mapping
from typing import Any

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.common.yaml import yaml_load
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible.utils.vars import load_extra_vars

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import (
    refuse_stray_words,
    to_plain,
)

PLUGINS = "ansible_collections.torchfleet.cluster.plugins"
TYPES = {"bool": "true or false", "int": "a whole number", "float": "a number"}
KEYS = ("type", "elements", "required", "default", "choices")  # of an option's documentation, for the validator
Result = dict[str, Any]
Options = Mapping[str, Mapping[str, Any]]
display = Display()


class Action(ActionBase):
    """An action that checks its options and turns a mistake into a failure of one line."""

    TRANSFERS_FILES = False
    parses_values = False  # act() checks the values itself; only names are checked here

    node_paths = False  # options of type path are those of a node: a ~ stays, for it is expanded there
    options_are_typed = False  # users type the options after -e, and the playbook passes them on

    def run(self, tmp: str | None = None, task_vars: Result | None = None) -> Result:
        """Return what act() returns, or failed and msg, and code if there is one."""
        result: Result = super().run(tmp, task_vars)
        try:
            if self.options_are_typed:
                refuse_stray_words(task_vars or {})
            return {**result, **self.act(self.options(), task_vars or {})}
        except InputError as error:
            code = {"code": error.code} if error.code else {}
            return {**result, "failed": True, "msg": str(error), **code}

    def act(self, given: Result, variables: Result) -> Result:
        """Run the task and return its result. `given`: the options as plain values. Raise InputError for a mistake."""
        raise NotImplementedError

    def options(self) -> Result:
        """Return the options of the task as plain values. Raise InputError for an unknown name or invalid value."""
        name = type(self).__module__.rpartition(".")[2]
        known = on_node(documented(name)) if self.node_paths else documented(name)
        check_names(name, self._task.args, known)
        for line in misspelled(load_extra_vars(self._loader) if self.options_are_typed else (), known):
            display.warning(line)
        return to_plain(self._task.args) if self.parses_values else values_of(name, to_plain(self._task.args), known)


@functools.cache
def documented(module: str) -> Options:
    """Return the options of a module of this collection by name, from its documentation and the fragments of that."""
    text = yaml_load(importlib.import_module(f"{PLUGINS}.modules.{module}").DOCUMENTATION)
    for fragment in text["extends_documentation_fragment"]:
        for name, shared in fragment_of(fragment).get("options", {}).items():
            text["options"][name] = {**shared, **text["options"][name]}
    return options_in(text)


def fragment_of(name: str) -> Mapping[str, Any]:
    """Return a fragment of documentations, `torchfleet.cluster.<file>.<part>`. Ansible itself reads them for people."""
    _namespace, _collection, file, *part = name.split(".")
    fragments = importlib.import_module(f"{PLUGINS}.doc_fragments.{file}").ModuleDocFragment
    return dict(yaml_load(getattr(fragments, "".join(part).upper() or "DOCUMENTATION")))


def on_node(known: Options) -> Options:
    """Return the options with paths as texts: the validator would expand the ~ of a path to a home of this machine."""
    return {
        name: {
            part: "str" if value == "path" and part in ("type", "elements") else value for part, value in option.items()
        }
        for name, option in known.items()
    }


def options_in(documentation: Mapping[str, Any], key: str = "options") -> Options:
    """Return options of a documentation, or those within an option of it (key `suboptions`)."""
    return {
        name: {
            **{part: option[part] for part in KEYS if part in option},
            **({"options": options_in(option, "suboptions")} if "suboptions" in option else {}),
        }
        for name, option in (documentation.get(key) or {}).items()
    }


def check_names(module: str, given: Mapping[str, Any], known: Options) -> None:
    """Raise InputError for the first unknown or missing option."""
    for name in sorted(map(str, given.keys() - known.keys())):
        near = difflib.get_close_matches(name, known, 1)
        advice = f"did you mean {near[0]}? It" if near else "it"
        options = f"has the options {', '.join(known)}" if known else "has no options"
        raise InputError(module, name, f"{advice} {options}")
    for name, option in known.items():
        if option.get("required") and given.get(name) is None:
            raise InputError(f"{name} of {module}", None, f"it is required: {wanted(option)}")


def misspelled(typed: Iterable[str], known: Options) -> list[str]:
    """Return a line for each name after -e that is similar to an option. It may be one of the user's own variables."""
    near = [(name, similar(name, known)) for name in map(str, typed) if name not in known]
    return [f"-e {name}: there is no option of that name; did you mean {found[0]}?" for name, found in near if found]


def similar(name: str, known: Iterable[str]) -> list[str]:
    """Return the name that was meant, if it is one of these: another letter, or the same in another order."""
    swapped = [other for other in known if sorted(other) == sorted(name)]
    return swapped[:1] or difflib.get_close_matches(name, known, 1, 0.8)


def values_of(module: str, given: Mapping[str, Any], known: Options) -> Result:
    """Return every option with its value, converted as Ansible does. Raise InputError for a wrong type."""
    values = {}
    for name, option in known.items():
        checked = ArgumentSpecValidator({name: option}).validate(
            {name: given[name]} if given.get(name) is not None else {}
        )
        if checked.error_messages and given.get(name) is not None:
            why = checked.error_messages[0] if "options" in option else wanted(option)
            raise InputError(f"{name} of {module}", given[name], why)
        values[name] = checked.validated_parameters.get(name)
    return values


def wanted(option: Mapping[str, Any]) -> str:
    """Return which values an option accepts."""
    if "choices" in option:
        return f"choose one of {', '.join(option['choices'])}"
    if option.get("type") in TYPES:
        return f"give {TYPES[option['type']]}"
    elements = f" of {option['elements']}" if "elements" in option else ""
    return f"give a value of type {option.get('type', 'str')}{elements}"

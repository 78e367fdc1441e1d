"""Write the tables of options in the READMEs of the roles, from their argument specs.

Usage: role_tables.py. It changes what stands between the two marks of a README, and nothing else. Whoever changes an
argument_specs.yml runs it; tests/collection/test_role_tables.py says where that was forgotten.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROLES = Path(__file__).resolve().parents[1] / "roles"
BEGIN = "<!-- Options: written by docs/role_tables.py from meta/argument_specs.yml -->\n"
END = "<!-- End of the options -->\n"
DEFAULTS = "[worked out](defaults/main.yml)"
MOST_CHARACTERS = 70  # of a default in a table
# Defaults that are no values.
PATTERNS = {
    r"\{\{ lookup\('torchfleet\.cluster\.locked', '[\w.]+'\) \}\}": "that of `versions.yml`",
    r"\{\{ ansible_facts\['python'\]\['executable'\] \}\}": "Ansible's interpreter on the machine",
}
FALLBACK = re.compile(r"\{\{ (\w+) \| default\(((?:'[^']*'|true|false|\[[^\]]*\]))\) \}\}")


def main() -> None:
    """Write them."""
    for readme in sorted(ROLES.glob("*/README.md")):
        text = readme.read_text()
        if BEGIN in text:
            readme.write_text(with_table(text, options_of(readme.parent)))


def options_of(role: Path) -> dict[str, dict[str, Any]]:
    """Return the options of a role by name."""
    specs = yaml.safe_load((role / "meta/argument_specs.yml").read_text())
    return dict(specs["argument_specs"]["main"].get("options", {}))


def with_table(text: str, options: dict[str, dict[str, Any]]) -> str:
    """Return a README with the table of these options between its marks."""
    before, _, rest = text.partition(BEGIN)
    rows = [f"| `{name}` | {default_of(option)} | {meaning_of(option)} |\n" for name, option in options.items()]
    table = "| variable | default | meaning |\n| --- | --- | --- |\n" + "".join(rows)
    return before + BEGIN + table + END + rest.partition(END)[2]


def default_of(option: dict[str, Any]) -> str:
    """Return what stands for the default of an option."""
    return "required" if option.get("required") else shown(option["default"])


def shown(value: Any) -> str:
    """Return a default in words: the value itself, or where it comes from."""
    if isinstance(value, str) and "{{" in value:
        return next((text for pattern, text in PATTERNS.items() if re.fullmatch(pattern, value)), fallback(value))
    if value in ("", [], {}):
        return "none"
    words = [str(word) for word in value] if isinstance(value, list) else [yaml.safe_dump(value).splitlines()[0]]
    return as_code(words)


def as_code(words: list[str]) -> str:
    """Return words as code, or where to find them if that is too long for a table."""
    text = ", ".join(f"`{word}`" for word in words)
    return text.replace("|", r"\|") if len(text) <= MOST_CHARACTERS else DEFAULTS


def fallback(value: str) -> str:
    """Return what stands for a default that is another variable, or else a value; of others the template itself."""
    found = FALLBACK.fullmatch(value)
    return f"`{found[1]}`, else {shown(yaml.safe_load(found[2]))}" if found else as_code([value])


def meaning_of(option: dict[str, Any]) -> str:
    """Return the description in Markdown, and the choices that it does not name."""
    told = option["description"]
    text = " ".join(told if isinstance(told, list) else [told])
    choices = [f"`{choice}`" for choice in option.get("choices", [])]
    text = re.sub(r"\b[CVOMP]\(([^()]*?)(?:#\w+)?\)", r"`\1`", text)
    if not all(choice in text for choice in choices):
        text += f" {'Any' if option.get('type') == 'list' else 'One'} of {', '.join(choices)}."
    return text.replace("|", r"\|")


if __name__ == "__main__":
    main()

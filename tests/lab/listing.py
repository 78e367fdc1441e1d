"""All that can be told of a lab node, so that two times can be compared."""

from __future__ import annotations

import re

from tests.lab.lab import Lab

# Type, mode and owner of every path, then what the system says of packages, users, services and firewalls.
LISTING = r"""
places="$(echo /*)"; for gone in proc sys dev run tmp; do places="$(echo " $places " | sed "s: /$gone : :")"; done
find $places -xdev -printf '%y %m %U:%G %p %l\n' | sort
dpkg-query --show --showformat 'dpkg ${db:Status-Abbrev} ${Package} ${Version}\n'
apt-mark showhold | sed 's/^/hold /'
getent passwd | sed 's/^/user /'
getent group | sed 's/^/group /'
systemctl list-unit-files --no-legend --plain | sed 's/^/unit /'
if command -v nft >/dev/null; then nft --stateless list ruleset | cat -n | sed 's/^/nft /'; fi
"""
CONTENTS = r"""find %s -xdev -type f -print0 | xargs -0 sha256sum | sort -k 2"""
# What differs after any installation and removal by apt, or any login. Nothing else may.
CHANGES_BY_ITSELF = re.compile(
    r"(^| )/(var/log/|"  # logins, and what apt and dpkg did
    r"var/lib/apt/lists/|var/cache/apt/\w+\.bin *$|var/lib/dpkg/\w+-old *$|"  # their state
    r"var/cache/ldconfig/|"  # that of the loader
    r"home/\w+/\.ansible(/tmp)? $)"  # Ansible's own directory, empty
)


def listing(lab: Lab, node: str, contents: bool = True, below: str = "$places") -> set[str]:
    """Return all that can be told of a node, a line each; `contents`: also what is in files `below` these places."""
    script = LISTING + (CONTENTS % below) * contents
    return {line for line in lab.root(node, "sh", "-c", script).splitlines() if not CHANGES_BY_ITSELF.search(line)}

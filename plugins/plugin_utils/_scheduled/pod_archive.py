# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""All that a pod is given as one file that Python runs, for pods that mount no ConfigMap."""

from __future__ import annotations

from collections.abc import Mapping

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.bootstrap import pack
from ansible_collections.torchfleet.cluster.plugins.module_utils._scheduled.entry import REFUSED
from ansible_collections.torchfleet.cluster.plugins.module_utils._scheduled.plain import FORM
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.runtime_archive import digest

# The first thing that runs: lays the files out as a ConfigMap has them, and becomes the first program of such pods.
# Argument: our home in the pod. Any Python reads it.
MAIN = """import os, sys, zipfile
home = sys.argv[1]
source = os.path.join(home, "files")
try:
    os.makedirs(source, 0o700, exist_ok=True)
    packed = zipfile.ZipFile(sys.argv[0])
    packed.extractall(source)
except (OSError, ValueError) as error:
    sys.stderr.write("our files cannot be laid into %s: %s\\n" % (source, error))
    sys.exit(REFUSED)
words = ["-I", "-S", os.path.join(source, "entry.py"), source, home, VERSION, FORM]
os.execv(sys.executable, [sys.executable] + words)
"""


def archive_of(files: Mapping[str, bytes]) -> bytes:
    """Return the file. `files`: those of the ConfigMap."""
    texts = {"REFUSED": str(REFUSED), "VERSION": repr(digest()), "FORM": repr(FORM)}
    main = MAIN
    for word, value in texts.items():
        main = main.replace(word, value)
    return pack({**files, "__main__.py": main.encode()})

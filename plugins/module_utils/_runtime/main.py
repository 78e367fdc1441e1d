# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Entry of the runtime on a node: torchfleet.py supervise | rank <job directory> | shell <job directory> ...

`wait <ticket> <descriptor>`: as kept_job starts it. In the image of a job: inside <job directory> ..., facts <request>.
Around the look at an image: fenced ..., which leaves nothing of a program.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run one of the runtime's verbs. Imports are late: a rank must not pay for the supervisor."""
    if sys.argv[1] == "rank":
        from .ranks import rank

        raise SystemExit(rank.main(sys.argv[2]))
    if sys.argv[1] == "shell":
        from .node_job import remote_shell

        raise SystemExit(remote_shell.main(sys.argv[2], sys.argv[3:]))
    if sys.argv[1] == "inside":
        from .containers import inside

        inside.main(sys.argv[2], sys.argv[3:])
    if sys.argv[1] == "fenced":
        from .processes import fence

        raise SystemExit(fence.main(sys.argv[2:]))
    if sys.argv[1] == "facts":
        import json

        from .nodes import survey

        request = json.loads(sys.argv[2])
        print(json.dumps(survey.image_facts(request, request["home"], sys.executable)))
        raise SystemExit(0)
    from . import supervisor

    supervisor.main(*(sys.argv[2:4] if sys.argv[1] == "wait" else ()))
    os._exit(0)  # the controller waits for this end: nothing is left to tear down

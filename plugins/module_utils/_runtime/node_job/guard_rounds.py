# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A guard's part in rounds: torchrun's agents start the ranks again while the job runs (restart_by=torchrun).

What ends a job elsewhere ends a round here: the head is told, and says whether the round ends or the job. A round ends
as a job does, but the agents stay. Then each rank's wrapper is let go with a status that is a failure to its agent, so
that all agents start theirs again, and agree on it in a new rendezvous. What an agent starts before that waits for its
place (rank_rounds.py).
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from ..basics.bounded_write import write_in_thread
from ..processes import processes
from ..processes.ending import Ending
from ..processes.processes import Process
from ..ranks.rank_output import copy_all, streams_of
from ..types import reasons
from ..types.reasons import OF_A_ROUND, Reason
from ..usage.sampler import Sampling
from ..wire.protocol import NextRound, ending
from .launcher_process import launcher_pids
from .round_files import order_of_round, turn

if TYPE_CHECKING:
    from .guard import Guard

LEFTOVER_GRACE = 1.0  # seconds between SIGTERM and SIGKILL for what outlived its rank


class GuardRounds:
    """The rounds of one node's part of a job."""

    def __init__(self, guard: Guard) -> None:
        self.guard, self.first = guard, guard.order
        self.wanted = guard.order.get("rounds") is not None
        self.told = False  # the head, that this round is to end
        self.closed = False  # the round is over here, and the next one has not begun
        self.wrappers: list[Process] = []  # of the ranks of the round that is over

    def hold(self, reason: Reason | None) -> Reason | None:
        """Return why the job is to end here. What ends a round is told to the head, once, and it says what follows."""
        guard = self.guard
        if not reason or not self.wanted or guard.end_requested or guard.detached or reason.code not in OF_A_ROUND:
            return reason
        if not self.told:
            self.told = True
            guard.send(ending(reason))
        return None

    def close(self, reason: Reason) -> None:
        """End all programs of the round, then tell the supervisor."""
        guard = self.guard
        self.told = self.closed = True
        guard.collect_children()
        guard.check_ranks()  # a wrapper that died, perhaps before this round was to end, has no better record
        write_in_thread(lambda: guard.job.claim_end(*reason))  # before the programs, as at the end of a job
        guard.job.open_gate()
        Ending(lambda: guard.snapshot().trees, guard.order["grace"]).run()
        guard.wait_for_records()
        self.wrappers = living_wrappers(guard)
        left = processes.end_all(self.foreign, LEFTOVER_GRACE)
        if left:
            write_in_thread(lambda: guard.job.write("leftovers.json", left))
        guard.sampling.stop()
        guard.sampling.wait()
        guard.excluded_pids = ()
        for streams in guard.streams.values():
            copy_all(streams)
            for stream in streams:
                stream.close()
        guard.streams, guard.done, guard.saved = {}, {}, None
        guard.deadline, guard.notice_at = None, math.inf
        guard.send({"kind": "round_ended"})

    def foreign(self) -> list[Process]:
        """Return what lives of the programs. What an agent has started anew waits for its round, and is the agent's."""
        seen = self.guard.snapshot()
        ours = launcher_pids(seen, self.guard.job, self.guard.order, self.guard.private_tmp) | set(seen.ours)
        return [process for process in seen.processes if process.pid not in ours]

    def begin(self, message: NextRound) -> None:
        """Make room for the next round, and have the agents start it."""
        guard = self.guard
        order = order_of_round(self.first, message["restarts"], message["after"])
        try:
            turn(guard.job, order, {"started": time.time(), "private_tmp": guard.private_tmp})
        except OSError as error:
            guard.send(ending(reasons.never_started(f"{guard.order['host']}: {error}")))
            return
        guard.order, guard.sampling = order, Sampling(guard.job, order)
        guard.streams = streams_of(guard.job, order["ranks"])
        guard.placed, guard.exit_by = False, None
        guard.noticed.clear()
        self.told = self.closed = False
        guard.start_clock()
        guard.send({"kind": "round_begun"})
        processes.terminate(self.wrappers)  # they look at order.json for what they say to their agent

    def finish(self) -> None:
        """All ranks of the job are done, and none is started again: let the wrappers exit."""
        if self.wanted and not self.guard.ending and not self.guard.end_requested:
            processes.terminate(living_wrappers(self.guard))


def living_wrappers(guard: Guard) -> list[Process]:
    """Return the processes of the wrappers of this node's ranks."""
    seen = guard.snapshot()
    return [process for process in seen.processes if process.pid in seen.trees]

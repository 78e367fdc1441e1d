# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which failure ended a job: of all processes that died together, the one that died first by itself. Pure functions."""

from __future__ import annotations

import os
import signal
from typing import Collection, Iterable, Mapping, NamedTuple

from ..looks.hang import Verdict
from ..ranks.rank_record import ended_at, how_it_failed, rank_state
from ..types import reasons
from ..types.orders import JobOrder
from ..types.reasons import BY_ITSELF, BatchEnd, EndReason, FinalState, RankError
from ..types.records import BlamedLauncher, End, FirstFailure, LauncherExit, RankRecord, ResultRank

# What a rank prints when another rank died first: a consequence, named as the cause only if nothing better is known.
# The book of causes (plugin_utils/_causes) has the same texts, in the entries that follow another failure.
CONSEQUENCES = (
    *("Connection closed", "connection closed", "Connection reset", "connection reset", "Broken pipe", "broken pipe"),
    *("Timed out waiting", "timed out waiting", "SIGPIPE", "RendezvousConn", "remote process exited"),
    "Watchdog caught collective operation timeout",
)
# How a process ends whose peer is gone. It aborts by an exception in C++, or by NCCL's watchdog.
OF_CONSEQUENCES = (None, signal.SIGABRT, signal.SIGPIPE)
# Seconds. A clock is measured to some milliseconds; a victim needs longer to end.
SAME_MOMENT = 0.005
# Of a job that took too long: its first rank is shown, for its log, and must not be taken for the culprit.
NOBODY = "; no rank is known to have kept the others waiting"


class Death(NamedTuple):
    """The end of a launcher's process by a signal, before we had begun to end the job."""

    host: str
    signal: int
    at: float
    on_head: bool

    @property
    def precedence(self) -> tuple[bool, bool, float]:
        """The cause comes first: SIGKILL before signals by which a process aborts, and a launcher before its daemons.

        No launcher is killed because its daemons died.
        """
        return self.signal != signal.SIGKILL, not self.on_head, self.at


def deaths_of(launchers: Mapping[str, LauncherExit], head: str) -> list[Death]:
    """Return the deaths of launcher processes. `launchers`: their states by host."""
    killed = [(host, signal_of(row)) for host, row in launchers.items()]
    return [Death(host, number, launchers[host]["at"], host == head) for host, number in killed if number]


def signal_of(row: LauncherExit) -> int:
    """Return the signal that ended a launcher or a daemon before we had begun to, 0 if none did."""
    number = int(row.get("rc", 0)) - 128
    return number if row.get("unasked") and 0 < number <= signal.SIGRTMAX else 0


def blame_lost_node(
    end: End | None,
    silent: Iterable[str],
    launcher: LauncherExit,
    records: Mapping[int, RankRecord],
    lines: Mapping[int, tuple[str, str]],
) -> End | None:
    """Return why the job ended: the loss of a node, if that explains everything recorded before.

    A launcher leaves by itself when one of its nodes is gone (Open MPI 5.0.11 with status 0), ranks lose a connection;
    the loss of the node itself is noticed only when its lease is over.
    """
    lost = next(iter(silent), "")
    if not lost or not end or end["reason"] not in BY_ITSELF or signal_of(launcher):
        return end
    failed = [rank for rank, record in records.items() if rank_state(record, end) == "failed"]
    orphaned = [rank for rank in failed if is_orphan(records[rank])]
    if all(rank in orphaned or is_consequence(records[rank], lines[rank][1]) for rank in failed):
        code, detail = reasons.node_lost(lost, "it did not answer when the job ended")
        return {**end, "reason": code, "host": lost, "detail": detail}
    return end


def blame_launcher(
    end: End | None, deaths: Collection[Death], records: Mapping[int, RankRecord], head: str
) -> End | None:
    """Return why the job ended: the death of a launcher's process, if that explains it.

    One death takes the rest down at once (a launcher its daemons, a daemon the launcher, Hydra's daemons the rank
    wrappers), and which of them we hear of first is chance. Ranks that died with a launcher are marked as ended.
    """
    if end is None or end["reason"] not in BY_ITSELF:
        return end
    host, claimed = end.get("host") or head, end["reason"] == EndReason.LAUNCHER_DIED
    orphans = [record for record in records.values() if is_orphan(record)]
    killed = killed_with_srun(deaths, records.values())
    if end["reason"] == EndReason.RANK_FAILED and all(record["host"] != host for record in killed):
        killed = []  # that rank failed by itself
    victims = [*orphans, *killed] if killed or end["reason"] != EndReason.RANK_FAILED else []
    if not claimed:  # a daemon counts only if it died before the first wrapper
        before = min((record.get("ended", end["at"]) for record in orphans), default=end["at"])
        deaths = [death for death in deaths if death.on_head or death.at < before] if victims else []
    culprit = min(deaths, key=lambda death: death.precedence, default=None)
    if culprit is None:
        return end
    for record in victims:
        record["ended_by_us"] = True
    if claimed and culprit.host == host:
        return end
    code, detail = reasons.launcher_killed(culprit.host, culprit.signal)
    return {**end, "reason": code, "host": culprit.host, "detail": detail}


def blame_batch_system(
    end: End | None, ended: BatchEnd | None, records: Mapping[int, RankRecord], head: str
) -> End | None:
    """Return why the job ended: the batch system that ended it, if its ranks and launcher seem to have died alone.

    Slurm kills wrappers, programs and srun of all nodes at once, and srun leaves with 128 + the signal of its ranks.
    """
    if end is None or ended is None or end["reason"] not in BY_ITSELF:
        return end
    for record in records.values():
        record["ended_by_us"] = True
    code, detail = reasons.ended_in_queue(ended)
    return {**end, "reason": code, "host": head, "detail": detail}


def is_orphan(record: RankRecord) -> bool:
    """Whether the wrapper of a rank died before it could write how its program ended."""
    return record.get("error_code") == RankError.WRAPPER_DIED


def killed_with_srun(deaths: Iterable[Death], records: Iterable[RankRecord]) -> list[RankRecord]:
    """Return the records of ranks that Slurm killed because their srun was killed.

    It kills what is left of the step on every node, and a rank's program may go before its wrapper.
    """
    if not any(death.on_head and death.signal == signal.SIGKILL for death in deaths):
        return []
    return [record for record in records if record.get("signal") == signal.SIGKILL]


def is_consequence(ended: RankRecord | ResultRank, line: str) -> bool:
    """Whether a rank ended because another had gone, by its last line."""
    return ended.get("signal") in OF_CONSEQUENCES and any(text in line for text in CONSEQUENCES)


def first_failed(rows: Iterable[ResultRank], records: Mapping[int, RankRecord]) -> int | None:
    """Return the rank to blame: of those that failed the earliest.

    Consequences (a connection to another rank was closed) come last. Of two at the same moment the one that says why.
    """
    failed = [row for row in rows if row["state"] == "failed"]

    def order(row: ResultRank) -> tuple[bool, float]:
        consequence = is_consequence(row, row["last_line"])
        return consequence, ended_at(records[row["rank"]]) - (SAME_MOMENT if row["last_line"] else 0.0)

    return min(failed, key=order)["rank"] if failed else None


def first_failure(
    order: JobOrder,
    state: FinalState,
    rows: list[ResultRank],
    blamed: int | None,
    records: Mapping[int, RankRecord],
    end: End | None,
    launcher: BlamedLauncher,
    last_lines: Mapping[int, tuple[str, str]],
    hang: Verdict | None = None,
) -> FirstFailure | None:
    """Return rank, host, cause, message and log of what went wrong first; null if nothing did, or a person ended it.

    `hang`: who kept a job from going on that took too long.
    """
    if state in ("succeeded", "saved", "cancelled"):
        return None
    if blamed is not None and state == "failed":
        row = next(row for row in rows if row["rank"] == blamed)
        return failure_of_rank(order, row, how_it_failed(records[blamed]), last_lines[blamed][0])
    where = end.get("host") or order["head"] if end else ""
    of_a_rank = any(row["host"] == where for row in rows)  # not of a head that only launches: no worker is to blame
    waited = end is not None and end["reason"] in (EndReason.TIMED_OUT, EndReason.HUNG)
    if end and (waited or (end["reason"] == EndReason.LOST and of_a_rank)):
        undone = [row for row in rows if row["state"] != "succeeded"] or rows
        late = next((row for row in undone if row["host"] == end.get("host")), undone[0])
        culprit = next((row for row in rows if waited and hang and row["rank"] in hang.ranks[:1]), late)
        nobody = NOBODY if waited and len(rows) > 1 else ""
        cause = end["detail"] + (f": {hang.sentence}" if hang and waited else nobody)
        return failure_of_rank(order, culprit, cause, last_lines[culprit["rank"]][0])
    silent = next((row for row in rows if row["state"] == "silent"), None)
    if silent and not launcher.get("rc") and (not end or end["reason"] == EndReason.LAUNCHER_DIED):
        how = f"it left no record, and {order['launcher']['name']} ended with status 0"
        return failure_of_rank(order, silent, how, last_lines[silent["rank"]][0])
    cause = end["detail"] if end else f"{order['launcher']['name']} ended with status {launcher.get('rc')}"
    host = launcher.get("host", order["head"])
    name = "launcher.out" if host == order["head"] else f"launcher.{host}.out"
    log = os.path.join(order["run_dir"], name)
    return {"rank": None, "host": host, "cause": cause, "message": launcher.get("last_line", ""), "log": log}


def failure_of_rank(order: JobOrder, row: ResultRank, cause: str, stream: str) -> FirstFailure:
    """Return the first_failure entry of a rank whose last line is in that stream."""
    log = os.path.join(order["run_dir"], "ranks", str(row["rank"]), stream)
    return {"rank": row["rank"], "host": row["host"], "cause": cause, "message": row["last_line"], "log": log}

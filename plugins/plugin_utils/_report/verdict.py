# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What became of a job in one sentence, and what to type next. Codes of the result decide, never its sentences."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable
from dataclasses import dataclass

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.reasons import NoteCode, RankError

from .markup import count, span
from .run import Known, RankRun, Run

NO_MARK = "?"
MARKS = {"succeeded": "✓", "failed": "✕", "timed_out": "◷", "cancelled": "■", "lost": "!", "saved": "◆"}
# The same signs as lines in a square of 24, for fonts lack some of them.
ICONS = {
    "✓": "M4 13L10 19L20 6",
    "✕": "M6 6L18 18M18 6L6 18",
    "◷": "M12 3A9 9 0 1 1 11.99 3M12 7V12L16 14",
    "■": "M6 6H18V18H6Z",
    "!": "M12 4V14M12 19V19.1",
    "◆": "M12 3L21 12L12 21L3 12Z",
    NO_MARK: "M7 8A5 5 0 1 1 12 13V15M12 20V20.1",
}
WHO_HUNG = (NoteCode.HUNG, NoteCode.KEPT_WAITING)  # who kept the others waiting when a job was ended
CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)


@dataclass(frozen=True)
class Verdict:
    """`mark`: a sign that says the same without colour. `commands`: what to type, each of one line."""

    mark: str
    sentence: str
    next_step: str
    commands: tuple[str, ...] = ()


def verdict_of(run: Run) -> Verdict:
    """Return the verdict on a run."""
    judge = JUDGES.get(run.state, unknown)
    return judge(run)


def took(run: Run) -> str:
    """Return " in 8.3 s", or nothing if that is not recorded."""
    return f" in {span(run.seconds)}" if run.seconds is not None else ""


def blamed(run: Run) -> RankRun | None:
    """Return the rank that the result blames."""
    wanted = run.failure.rank if run.failure else None
    return next((row for row in run.ranks if row.rank == wanted), None)


def succeeded(run: Run) -> Verdict:
    """Every rank left a record of success."""
    every = {1: "The one rank", 2: "Both ranks"}.get(run.world_size, f"All {run.world_size} ranks")
    if any(note.code == NoteCode.RANKS_NEVER_MET for note in run.notes):
        sentence = f"{every} succeeded{took(run)}, but each ran alone: they never met."
        step = "Use the backend that the job was started with: it is in TORCHFLEET_BACKEND. See docs/frameworks.md."
        return Verdict("!", sentence, step)
    step, command = "Nothing is left to do. Compare it with another run:", compare(run.job_id)
    if run.slow and not run.budget:
        step, command = (
            "See what the rank does that kept the others waiting:",
            "ansible-playbook train.yml ... -e profile=10s",
        )
    elif run.slow:
        step = "Look below at what the ranks spent their time on. Then compare the next run with this one:"
    return Verdict(MARKS["succeeded"], f"{every} succeeded{took(run)}.", step, (command,))


def compare(job_id: str) -> str:
    """Return the command that lays a run over another one."""
    return f"ansible-playbook playbooks/report.yml -e {shlex.quote(f'runs={job_id},OTHER')}"


def is_hung(run: Run) -> bool:
    """Whether a job was ended because it hung."""
    return any(note.code == NoteCode.HANG_END for note in run.notes)


def hang_of(run: Run) -> str:
    """Return who kept a job waiting when it was ended, as a sentence: "It hung: rank 1 on n2 is ...". Empty if none."""
    text = next((note.text for note in run.notes if note.code in WHO_HUNG), "")
    return f"{text[:1].upper()}{text[1:]}. " if text else ""


def hung(run: Run) -> Verdict:
    """Return the verdict on a job that hang_end ended."""
    step = mend(run.known, run.failure.rank if run.failure else None) if run.known else "Each rank wrote where it was."
    who = hang_of(run)
    sentence = f"{who}It was ended{took(run)}." if who else f"It hung, and was ended{took(run)}."
    return Verdict(MARKS["failed"], sentence, step, (read(run), *compare_stacks(run)))


def failed(run: Run) -> Verdict:
    """A rank, or the launcher, failed."""
    if is_hung(run):
        return hung(run)
    row, failure = blamed(run), run.failure
    if failure is None:
        return Verdict(MARKS["failed"], f"The job failed{took(run)}.", "Read result.json in the run's directory.")
    if row is None:
        sentence = f"The launcher on {failure.host} failed: {failure.cause}."
        step, command = "Read what it wrote, and the command below.", read(run)
    else:
        when = f" after {span(row.ended - run.start)}" if row.ended is not None else ""
        sentence = f"Rank {row.rank} on {row.host} failed first{when}: {failure.cause}."
        step, command = advice(run, row)
    return Verdict(MARKS["failed"], sentence, mend(run.known, failure.rank) if run.known else step, (command,))


def mend(known: Known, blamed: int | None) -> str:
    """Return what the book of causes says. `blamed`: the rank that the sentence names already."""
    whose = "" if known.rank in (None, blamed) else f"Rank {known.rank} on {known.host} says {known.line!r}: "
    return f"{whose}{known.cause} Fix: {known.mend}. (cause {known.id} of docs/causes.md)"


def advice(run: Run, row: RankRun) -> tuple[str, str]:
    """Return what to do about a rank that failed: by the code of its record, then by its signal."""
    if row.error_code == RankError.MISPLACED:
        return (
            "The launcher put it elsewhere than planned. See what would be started:",
            "ansible-playbook train.yml --check",
        )
    if row.error_code in (RankError.DISK_FULL, RankError.OUTPUT_LOST):
        return f"Its output could not be written. Look for room on {row.host}:", "df -h ~/.torchfleet"
    if row.error_code == RankError.OUT_OF_MEMORY:
        why = f"Pod {row.host} has too little memory for its ranks. See what it asks for:"
        return why, "ansible-playbook train.yml --check"
    if row.signal == signal.SIGKILL or row.error_code == RankError.WRAPPER_DIED:
        why = f"Somebody killed it, most often the kernel, for want of memory. Ask the kernel of {row.host}:"
        return why, "journalctl -k | grep -i -e oom -e killed"
    if row.signal in CRASHES:
        return "It crashed in compiled code. Read the end of its output:", read(run)
    return "Read the end of its output:", read(run)


def read(run: Run) -> str:
    """Return the command that shows the end of the log of what failed first."""
    return (
        f"tail -n 40 {shlex.quote(f'{run.run_dir}/{run.failure.log}')}"
        if run.failure
        else f"ls {shlex.quote(run.run_dir)}"
    )


def timed_out(run: Run) -> Verdict:
    """job_timeout passed."""
    running = sum(row.state not in ("succeeded", "saved") for row in run.ranks)
    limit = f"of {span(run.job_timeout)} " if run.job_timeout else ""
    who = hang_of(run)
    over = f"The time limit {limit}passed, and {count(running, 'rank')} of {run.world_size} still ran."
    last = max((rows[-1][0] for ranks in run.series.values() for rows in ranks.values() if rows), default=None)
    quiet = f"The last report came {span(run.end - last)} before the end. " if last is not None else ""
    step = f"{quiet}Each Python rank wrote where it was when the time was over. If it made progress, raise job_timeout."
    sentence, step = (who.rstrip(), f"{over} {step}") if who else (over, step)
    return Verdict(MARKS["timed_out"], sentence, step, (read(run), *compare_stacks(run)))


def compare_stacks(run: Run) -> tuple[str, ...]:
    """Return the command that shows where all ranks were, if there are several."""
    return (
        (f"grep -A 3 'most recent call first' {shlex.quote(run.run_dir)}/ranks/*/stderr",) if run.world_size > 1 else ()
    )


def cancelled(run: Run) -> Verdict:
    """A person ended it."""
    by_node = next((note.text for note in run.notes if note.code == NoteCode.CANCELLED_BY_A_NODE), "")
    sentence = f"{hang_of(run)}It was ended from outside{took(run)}" + (f": {by_node}." if by_node else ".")
    return Verdict(MARKS["cancelled"], sentence, "Start it again when you like.")


def lost(run: Run) -> Verdict:
    """Who watched it died, or a node was lost."""
    why = f": {run.failure.cause}" if run.failure else ""
    step = "Fetch what is still on the nodes, and prove the cluster before the next run:"
    commands = ("ansible-playbook clean.yml", "ansible-playbook verify.yml")
    return Verdict(MARKS["lost"], f"{hang_of(run)}The job was lost{took(run)}{why}.", step, commands)


def saved(run: Run) -> Verdict:
    """Ranks exited with the status that asks to be run again."""
    step = "It saved its work and asks to be run again. Let that happen by itself:"
    again = "ansible-playbook train.yml ... -e max_restarts=10"
    return Verdict(MARKS["saved"], f"The job saved its work and stopped{took(run)}.", step, (again,))


def unknown(run: Run) -> Verdict:
    """There is no result, or it has a state that this version does not know."""
    if run.state:
        return Verdict(
            NO_MARK, f"The result says {run.state!r}, which this version does not know.", "Read result.json."
        )
    command = f"ansible-playbook clean.yml -e {shlex.quote(f'job_id={run.job_id}')}"
    return Verdict(NO_MARK, "The result of this run is not here.", "If it is on the head, this fetches it:", (command,))


JUDGES: dict[str, Callable[[Run], Verdict]] = {
    "succeeded": succeeded,
    "failed": failed,
    "timed_out": timed_out,
    "cancelled": cancelled,
    "lost": lost,
    "saved": saved,
}

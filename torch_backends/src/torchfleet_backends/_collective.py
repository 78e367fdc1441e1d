"""A collective that was requested, and the threads of a group that run it: for libraries whose calls have no limit."""

from __future__ import annotations

import contextlib
import datetime
import functools
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

Tensors = Sequence[torch.Tensor]
Row = dict[str, object]  # of the record of collectives
END_SECONDS = 5.0  # for a group's last operations when the process ends
LOOK_SECONDS = 0.1  # between two looks of who waits for a collective that has not begun


class Collective(dist.Work):
    """A requested collective. It fails when its timeout is over, which starts when it begins to run."""

    def __init__(self, name: str, outputs: Tensors, limit: datetime.timedelta, row: Row, worker: Worker) -> None:
        """`limit`: its timeout, which PyTorch 2.14 has as a property that cannot be set. `row`: of the record."""
        super().__init__()
        self.row, self.worker = row, worker
        self.name, self.outputs, self.limit = name, list(outputs), limit
        self.future: torch.futures.Future[Any] | None = None
        self.lock = threading.Lock()
        self.over = threading.Event()
        self.begun: float | None = None  # by time.monotonic()
        self.error: Exception | None = None

    def run(self, operation: Callable[[], None]) -> None:
        """Run the collective, in the worker's thread."""
        self.begun = time.monotonic()
        try:
            with torch.inference_mode():  # the caller's no_grad or inference_mode is not this thread's
                operation()
            self.end(None)
        except Exception as error:
            self.worker.fail(self, error)

    def end(self, error: Exception | None) -> None:
        """Let all who wait for it go on, unless it has ended."""
        with self.lock:
            if not self.over.is_set():
                self.error = error
                self.row["time_discovered_completed_ns"], self.row["retired"] = time.time_ns(), True
                self.over.set()

    def seconds_left(self) -> float:
        """Return the time that it still has; all while it has not begun."""
        gone = 0.0 if self.begun is None else time.monotonic() - self.begun
        return self.limit.total_seconds() - gone

    def lasts(self, limit: datetime.timedelta) -> dist.DistBackendError:
        """Return the error of one that has not ended in time."""
        milliseconds = int(limit.total_seconds() * 1000)
        told = f"{self.name} has not ended within {milliseconds} ms: another rank does not take part in it"
        return dist.DistBackendError(told)

    def wait(self, timeout: datetime.timedelta = datetime.timedelta()) -> bool:
        """Wait for its end. Raise DistBackendError when its time is over, although the library itself has no limit.

        With a timeout of its own, raise that when this is over; the collective goes on.
        """
        if not timeout:
            self.await_end()
        elif not self.over.wait(timeout.total_seconds()):
            raise self.lasts(timeout)
        self.outcome()
        return True

    def await_end(self) -> None:
        """Wait until it has ended, or has failed because its time is over."""
        # One that has not begun waits for another one, whose time may be over before.
        while not self.over.wait(LOOK_SECONDS if self.begun is None else max(self.seconds_left(), 0.0)):
            self.worker.look()

    def outcome(self, _over: object = None) -> list[torch.Tensor]:
        """Return what came of one that has ended, or raise its error."""
        if self.error:
            raise self.error
        return self.outputs

    def get_future(self) -> torch.futures.Future[Any]:
        """Return its future. It fails in C++ too, as DDP needs it.

        Future.set_exception would not do: C++ then takes the exception for the value (torch/futures, PyTorch 2.13).
        """
        with self.lock:
            if self.future is not None:
                return self.future
            over: torch.futures.Future[None] = torch.futures.Future()
            future = self.future = over.then(self.outcome)
        self.worker.start(functools.partial(self.complete, over))
        return future

    def complete(self, over: torch.futures.Future[None]) -> None:
        """Run the functions of the future, in a thread of its own: they may wait for other collectives."""
        self.await_end()
        over.set_result(None)

    def result(self) -> list[torch.Tensor]:
        return self.outputs

    def is_completed(self) -> bool:
        return self.over.is_set()


class Worker:
    """The threads of a group. One runs its collectives one after the other, in the order of the calls.

    Each group has its own, since other ranks may call several groups in another order.
    """

    def __init__(self, destroy: Callable[[], None]) -> None:
        """`destroy`: releases the group's communicator."""
        self.destroy, self.closed = destroy, False
        self.jobs: queue.SimpleQueue[tuple[Collective, Callable[[], None]] | None] = queue.SimpleQueue()
        self.running: Collective | None = None
        self.broken = ""  # why a collective failed; all later ones fail too
        self.lock = threading.Lock()
        self.threads: list[threading.Thread] = []
        self.start(self.serve)

    def start(self, function: Callable[[], None]) -> None:
        """Run a function in a thread of its own, for which the end of the group waits."""
        thread = threading.Thread(target=function, name="torchfleet-backends", daemon=True)
        thread.start()
        with self.lock:
            self.threads = [*(other for other in self.threads if other.is_alive()), thread]

    def serve(self) -> None:
        """Run what is submitted until the group is closed."""
        while job := self.jobs.get():
            self.running, operation = job
            self.running.run(operation)
            del job, operation  # and the tensors with it
            self.running = None

    def submit(self, work: Collective, operation: Callable[[], None]) -> None:
        """Run a collective after those that were submitted before, or refuse it after a failure."""
        with self.lock:
            if self.broken:
                self.refuse(work)
            else:
                self.jobs.put((work, operation))

    def refuse(self, work: Collective) -> None:
        """Fail a collective because of an earlier one."""
        told = f"{work.name}: an earlier operation of its group failed: {self.broken}"
        work.end(dist.DistBackendError(told))

    def look(self) -> None:
        """Fail the collective that runs if its time is over."""
        running = self.running
        if running is not None and running.seconds_left() <= 0:
            self.fail(running, running.lasts(running.limit))

    def fail(self, work: Collective, error: Exception) -> None:
        """End a collective with an error, and all later ones."""
        with self.lock:
            if work.is_completed():
                return
            self.broken = self.broken or str(error)
            work.end(error)
            with contextlib.suppress(queue.Empty):
                while job := self.jobs.get_nowait():
                    self.refuse(job[0])
                self.jobs.put(None)  # the group was closed meanwhile

    def close(self) -> None:
        """Release the communicator after the last collectives, unless these never end."""
        with self.lock:
            if self.closed:
                return
            self.closed = True
            self.jobs.put(None)
        end = time.monotonic() + (0.0 if self.broken else END_SECONDS)
        for thread in self.threads:
            if thread is not threading.current_thread():
                thread.join(max(end - time.monotonic(), 0.0))
        if not self.is_at_work():
            self.destroy()

    def is_at_work(self) -> bool:
        """Say whether a thread has not ended: that of a collective that waits for ever does not."""
        return any(thread.is_alive() for thread in self.threads)

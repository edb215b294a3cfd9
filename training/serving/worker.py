"""The one thread that computes: jobs wait in a bounded queue, begin between two tokens and go on together.

A job is a generator. It yields the engine whose next step it waits for, or None when it has computed a piece
by itself. So the answers to many requests grow together, and a long score does not hold them up: between two
tokens one piece is computed.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Protocol

from training.serving.http import RequestError

logger = logging.getLogger(__name__)


class Steps(Protocol):
    """Engine that advances all waiting jobs by one token."""

    def step(self) -> None:
        """Go on by one token."""


Emit = Callable[[Any], None]
Work = Callable[[Emit], Iterator[Steps | None]]
Observe = Callable[["ServingJob", str], None]
"""Called with every job that has ended, and how: answered, refused, cancelled, overdue or failed."""

_LONGEST_RETRY_SECONDS = 60


class NotNowError(Exception):
    """There is no place for the job as long as those that run go on. Raised before it has begun."""


class _Finished:
    """Put into a job's events after its last."""


class ServingJob:
    """One piece of work. Its events are read on the event loop that made it."""

    def __init__(self, work: Work, *, route: str, client: str, seconds: float, worker: WorkerThread) -> None:
        self.route = route
        self.client = client
        self.asked_at = time.monotonic()
        self.begun_at: float | None = None
        """Monotonic time when it began; None while it waits."""
        self.overdue_at = self.asked_at + seconds
        self.seconds = seconds
        self.waits_for: Steps | None = None
        self._work = work
        self._steps: Iterator[Steps | None] | None = None
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Any] = asyncio.Queue()
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Ask the job to end before its next token; it never starts if it has not yet."""
        self._cancelled.set()
        self._worker.wake()

    @property
    def cancelled(self) -> bool:
        """Return whether nobody wants its result any more."""
        return self._cancelled.is_set()

    async def events(self) -> AsyncIterator[Any]:
        """Yield the events of the job until it is done. Raises what the job raised."""
        while True:
            event = await self._events.get()
            if isinstance(event, _Finished):
                return
            if isinstance(event, Exception):
                raise event
            yield event

    def go_on(self) -> bool:
        """Do the next piece; return True if there is more. Raises `NotNowError` where it cannot begin yet,
        and what went wrong with it."""
        if self._steps is None:
            self._steps = self._work(self.emit)
        try:
            self.waits_for = next(self._steps)
        except StopIteration:
            return False
        except NotNowError:
            self._steps = None
            raise
        return True

    def close(self) -> None:
        """Give back what it holds, wherever it is."""
        close = getattr(self._steps, "close", None)
        if close is not None:
            close()

    def emit(self, event: Any) -> None:
        """Send an event to the caller."""
        try:
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)
        except RuntimeError:
            # The loop is closed: the server has stopped, and nobody waits any more.
            self._cancelled.set()


class WorkerThread:
    """The thread, its queue, and the jobs that it has begun."""

    def __init__(
        self, capacity: int, *, per_client: int | None = None, observe: Observe = lambda job, outcome: None
    ) -> None:
        """capacity: jobs that may wait. per_client: jobs of one client that may wait and run; None sets no
        bound."""
        self._capacity = capacity
        self._per_client = per_client
        self._observe = observe
        self._changed = threading.Condition()
        self._waiting: deque[ServingJob] = deque()
        self._running: list[ServingJob] = []
        self._in_flight: Counter[str] = Counter()
        self._stopping = False
        self._ended_at = 0.0
        self._pace = 1.0
        """Seconds between two jobs' ends while there is work, on average over the last ones."""
        self._thread = threading.Thread(target=self._run, name="generation", daemon=True)

    def start(self) -> None:
        """Begin to take jobs."""
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Jobs that have not begun."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Jobs that have begun."""
        return len(self._running)

    @property
    def computing(self) -> bool:
        """Return whether a job runs."""
        return bool(self._running)

    def submit(self, work: Work, *, route: str, client: str = "", seconds: float = math.inf) -> ServingJob:
        """Queue a job, which is given so many seconds. Raises `RequestError` 429 when the queue is full or
        the client has too many in flight, 503 while stopping."""
        job = ServingJob(work, route=route, client=client, seconds=seconds, worker=self)
        with self._changed:
            refusal = self._refusal(client)
            if refusal is None:
                self._in_flight[client] += 1
                self._waiting.append(job)
                self._changed.notify()
        if refusal is not None:
            self._observe(job, "refused")
            raise refusal
        return job

    def _refusal(self, client: str) -> RequestError | None:
        if self._stopping:
            return _stopping()
        retry = min(_LONGEST_RETRY_SECONDS, max(1, math.ceil(self._pace)))
        if self._per_client is not None and self._in_flight[client] >= self._per_client:
            return RequestError(
                429,
                f"{self._per_client} requests with this key are in flight, which is as many as may be. Ask "
                "again when one of them is answered.",
                code="too_many_in_flight",
                retry_after=retry,
            )
        if len(self._waiting) >= self._capacity:
            return RequestError(
                429,
                f"{self._capacity} requests are already waiting. Ask again in a few seconds.",
                code="queue_full",
                retry_after=retry,
            )
        return None

    def wake(self) -> None:
        """Look again: a job was called off."""
        with self._changed:
            self._changed.notify()

    def stop(self, timeout: float) -> bool:
        """Call off what runs and what waits, then wait for the thread; return True if it ended in time."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # ── On the thread ─────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._waiting or self._running or self._stopping):
                    self._changed.wait()
            if self._stopping:
                break
            self._end_unwanted()
            self._begin()
            self._step()
        for job in [*self._running, *self._waiting]:
            self._end(job, "cancelled", _stopping())

    def _end_unwanted(self) -> None:
        """End what was called off, and what has had its time."""
        now = time.monotonic()
        for job in [*self._running, *self._waiting]:
            if job.cancelled:
                self._end(job, "cancelled")
            elif now >= job.overdue_at:
                self._end(job, "overdue", _overdue(job))

    def _begin(self) -> None:
        """Begin those that wait, in the order in which they came, as long as there is place."""
        while self._waiting:
            job = self._waiting[0]
            if not self._go_on(job):
                return

    def _step(self) -> None:
        engines = dict.fromkeys(job.waits_for for job in self._running if job.waits_for is not None)
        for engine in engines:
            try:
                engine.step()
            except Exception:
                logger.exception("A step of generation failed")
                for job in [job for job in self._running if job.waits_for is engine]:
                    self._end(job, "failed", _failed())
        for job in [job for job in self._running if job.waits_for is not None]:
            self._go_on(job)
        # One piece at a time between two tokens, in turn.
        alone = next((job for job in self._running if job.waits_for is None), None)
        if alone is not None:
            self._running.remove(alone)
            self._running.append(alone)
            self._go_on(alone)

    def _go_on(self, job: ServingJob) -> bool:
        """The next piece of a job; False where it must go on waiting. An error reaches the one who asked,
        nobody else."""
        try:
            more = job.go_on()
        except NotNowError as error:
            if self._running:
                return False
            # Nothing runs that it could wait for.
            self._end(job, "refused", RequestError(503, f"{error}", code="no_room"))
        except RequestError as error:
            self._end(job, "refused", error)
        except Exception:
            logger.exception("A request failed")
            self._end(job, "failed", _failed())
        else:
            if not more:
                self._end(job, "answered")
            elif job in self._waiting:
                job.begun_at = time.monotonic()
                with self._changed:
                    self._waiting.remove(job)
                    self._running.append(job)
        return True

    def _end(self, job: ServingJob, outcome: str, error: RequestError | None = None) -> None:
        try:
            job.close()
        except Exception:
            logger.exception("A request could not be ended in order")
        with self._changed:
            for jobs in (self._waiting, self._running):
                if job in jobs:
                    jobs.remove(job)
            self._in_flight[job.client] -= 1
            if not self._in_flight[job.client]:
                del self._in_flight[job.client]
        now = time.monotonic()
        since = now - max(self._ended_at, job.asked_at)
        self._pace, self._ended_at = 0.8 * self._pace + 0.2 * since, now
        self._observe(job, outcome)
        job.emit(error if error is not None else _Finished())
        if error is not None:
            job.emit(_Finished())


def _stopping() -> RequestError:
    return RequestError(503, "The model server is stopping.", code="stopping", retry_after=5)


def _failed() -> RequestError:
    message = "The model server failed on this request; its log says why."
    return RequestError(500, message, code="internal_error")


def _overdue(job: ServingJob) -> RequestError:
    return RequestError(
        504,
        f"The answer was not there after {job.seconds:g} seconds. Ask for less, or give it more time.",
        code="deadline_exceeded",
    )

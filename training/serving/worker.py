"""The one thread that computes: a bounded queue of jobs, each of which can be called off.

The backbone has one active adapter at a time, and two generations at once on one device only
share its speed. So jobs run one after another, while the event loop goes on answering.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

from training.serving.errors import RequestError

logger = logging.getLogger(__name__)

Emit = Callable[[Any], None]
Cancelled = Callable[[], bool]
Call = Callable[[Emit, Cancelled], None]

_RETRY_AFTER_SECONDS = 5


class _Finished:
    """Put into a job's events after its last."""


class Job:
    """One piece of work. Its events are read on the event loop that made it."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Any] = asyncio.Queue()
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Ask the job to end before its next token; it never starts if it has not yet."""
        self._cancelled.set()

    async def events(self) -> AsyncIterator[Any]:
        """What the job emits, until it is done. Raises what the job raised."""
        while True:
            event = await self._events.get()
            if isinstance(event, _Finished):
                return
            if isinstance(event, Exception):
                raise event
            yield event

    def run(self) -> None:
        """Do the work; called by the worker's thread. An error reaches the one who asked, nobody else."""
        try:
            if not self._cancelled.is_set():
                self._call(self._emit, self._cancelled.is_set)
        except RequestError as error:
            self._emit(error)
        except Exception:
            logger.exception("A request failed")
            self._emit(
                RequestError(
                    500, "The model server failed on this request; its log says why.", code="internal_error"
                )
            )
        finally:
            self._emit(_Finished())

    def refuse(self, error: RequestError) -> None:
        """End a job that will never run."""
        self._emit(error)

    def _emit(self, event: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)
        except RuntimeError:
            # The loop is closed: the server has stopped, and nobody waits any more.
            self._cancelled.set()


class Worker:
    """The thread and its queue."""

    def __init__(self, capacity: int) -> None:
        self._queue: queue.Queue[Job | None] = queue.Queue()
        self._slots = threading.BoundedSemaphore(capacity)
        self._capacity = capacity
        self._stopping = threading.Event()
        self._running: Job | None = None
        self._thread = threading.Thread(target=self._work, name="generation", daemon=True)

    def start(self) -> None:
        """Begin to take jobs."""
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Jobs that have not begun."""
        return self._queue.qsize()

    @property
    def computing(self) -> bool:
        """Whether a job runs."""
        return self._running is not None

    def submit(self, call: Call) -> Job:
        """Queue a job. Raises `RequestError` 429 when the queue is full, 503 while stopping."""
        if self._stopping.is_set():
            raise RequestError(503, "The model server is stopping.", code="stopping")
        if not self._slots.acquire(blocking=False):
            raise RequestError(
                429,
                f"{self._capacity} requests are already waiting. Ask again in a few seconds.",
                code="queue_full",
                retry_after=_RETRY_AFTER_SECONDS,
            )
        job = Job(call)
        self._queue.put(job)
        return job

    def stop(self, timeout: float) -> bool:
        """Call off what runs and what waits, then wait for the thread; whether it ended in time."""
        self._stopping.set()
        if running := self._running:
            running.cancel()
        self._queue.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            self._slots.release()
            if self._stopping.is_set():
                job.refuse(RequestError(503, "The model server is stopping.", code="stopping"))
                continue
            self._running = job
            if self._stopping.is_set():
                job.cancel()
            job.run()
            self._running = job = None

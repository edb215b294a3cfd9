"""The worker by itself, with jobs of Python alone: order, turns, and whose fault reaches whom."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

from training.serving.http import RequestError
from training.serving.worker import Emit, NotNowError, ServingJob, WorkerThread


class Ticks:
    """Steps that are counted, and held until the test lets them go."""

    def __init__(self, *, held: bool = False, fails: bool = False) -> None:
        self.count = 0
        self.fails = fails
        self.free = threading.Event()
        if not held:
            self.free.set()

    def step(self) -> None:
        assert self.free.wait(30)
        self.count += 1
        if self.fails:
            raise RuntimeError("the machine is on fire")


def counting(ticks: Ticks, steps: int) -> Callable[[Emit], Iterator[Ticks]]:
    def work(emit: Emit) -> Iterator[Ticks]:
        for _ in range(steps):
            yield ticks
        emit(ticks.count)

    return work


def run(test: Callable[[WorkerThread, list[str]], Awaitable[None]], **choices: Any) -> list[str]:
    """Run a test's coroutine beside a worker; how its jobs ended."""
    ended: list[str] = []

    async def with_worker() -> None:
        worker = WorkerThread(
            8, observe=lambda job, outcome: ended.append(f"{job.route} {outcome}"), **choices
        )
        worker.start()
        try:
            await asyncio.wait_for(test(worker, ended), 30)
        finally:
            assert await asyncio.to_thread(worker.stop, 10)

    # In a thread of its own: the event loop of browser tests in this process stays in this one.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, with_worker()).result()
    return ended


async def result(job: ServingJob) -> Any:
    return [event async for event in job.events()][-1]


def test_jobs_that_wait_for_one_engine_share_its_steps():
    async def test(worker: WorkerThread, _ended: list[str]) -> None:
        ticks = Ticks(held=True)
        jobs = [worker.submit(counting(ticks, 5), route=f"{n}") for n in range(3)]
        while worker.running < 1:
            await asyncio.sleep(0.01)
        ticks.free.set()
        results = [await result(job) for job in jobs]
        # Three times five steps would be 15; one or two may have passed before the last one joined.
        assert max(results) <= 7

    assert sorted(run(test)) == ["0 answered", "1 answered", "2 answered"]


def test_an_error_reaches_the_one_who_asked_and_nobody_else():
    async def test(worker: WorkerThread, _ended: list[str]) -> None:
        ticks = Ticks()

        def broken(emit: Emit) -> Iterator[Ticks]:
            yield ticks
            raise ZeroDivisionError

        def refused(emit: Emit) -> Iterator[Ticks]:
            yield ticks
            raise RequestError(422, "No.", code="no")

        good = worker.submit(counting(ticks, 500), route="good")
        for work, status in ((broken, 500), (refused, 422)):
            with pytest.raises(RequestError) as refusal:
                await result(worker.submit(work, route="bad"))
            assert refusal.value.status == status
        assert await result(good) >= 500

    assert sorted(run(test)) == ["bad failed", "bad refused", "good answered"]


def test_a_step_that_fails_ends_those_that_wait_for_it_and_the_next_ones_are_answered():
    async def test(worker: WorkerThread, _ended: list[str]) -> None:
        burning, good = Ticks(fails=True), Ticks()
        steady = worker.submit(counting(good, 300), route="steady")
        with pytest.raises(RequestError) as refusal:
            await result(worker.submit(counting(burning, 3), route="burnt"))
        assert refusal.value.status == 500
        assert await result(steady) >= 300
        assert await result(worker.submit(counting(Ticks(), 3), route="next")) == 3

    assert sorted(run(test)) == ["burnt failed", "next answered", "steady answered"]


def test_between_two_steps_one_piece_is_computed_and_those_who_compute_take_turns():
    order: list[str] = []

    async def test(worker: WorkerThread, _ended: list[str]) -> None:
        ticks = Ticks(held=True)

        def computing(name: str) -> Callable[[Emit], Iterator[None]]:
            def work(emit: Emit) -> Iterator[None]:
                for _ in range(3):
                    yield
                    order.append(name)
                emit(None)

            return work

        def writing(emit: Emit) -> Iterator[Ticks]:
            while len(order) < 12:
                yield ticks
                order.append("step")
            emit(None)

        jobs = [worker.submit(writing, route="w")]
        jobs += [worker.submit(computing(name), route=name) for name in "ab"]
        ticks.free.set()
        for job in jobs:
            await result(job)

    run(test)
    pieces = [name for name in order if name != "step"]
    assert pieces == ["a", "b", "a", "b", "a", "b"]
    places = [place for place, name in enumerate(order) if name != "step"]
    assert all(later - earlier >= 2 for earlier, later in pairwise(places))


def test_who_finds_no_place_begins_as_soon_as_there_is_some_before_those_who_came_later():
    begun: list[str] = []

    async def test(worker: WorkerThread, _ended: list[str]) -> None:
        ticks = Ticks(held=True)
        holders: list[str] = []

        def needing(name: str) -> Callable[[Emit], Iterator[Ticks]]:
            def work(emit: Emit) -> Iterator[Ticks]:
                if holders:
                    raise NotNowError("There is one place.")
                holders.append(name)
                begun.append(name)
                try:
                    for _ in range(3):
                        yield ticks
                finally:
                    holders.clear()
                emit(name)

            return work

        jobs = [worker.submit(needing(name), route=name) for name in "abcd"]
        while worker.running < 1:
            await asyncio.sleep(0.01)
        assert worker.waiting == 3
        ticks.free.set()
        jobs[2].cancel()
        assert [await result(jobs[place]) for place in (0, 1, 3)] == ["a", "b", "d"]

    assert "c cancelled" in run(test)
    assert begun == ["a", "b", "d"]


def test_what_finds_no_place_even_alone_is_refused():
    async def test(worker: WorkerThread, _ended: list[str]) -> None:
        def work(emit: Emit) -> Iterator[None]:
            raise NotNowError("It is too large.")
            yield

        with pytest.raises(RequestError, match="too large") as refusal:
            await result(worker.submit(work, route="large"))
        assert refusal.value.status == 503

    run(test)


def test_a_job_that_is_called_off_gives_back_what_it_holds():
    given_back = threading.Event()

    async def test(worker: WorkerThread, ended: list[str]) -> None:
        def work(emit: Emit) -> Iterator[Ticks]:
            emit("begun")
            try:
                while True:
                    yield Ticks()
            finally:
                given_back.set()

        job = worker.submit(work, route="long")
        events = job.events()
        assert await anext(events) == "begun"
        job.cancel()
        assert [event async for event in events] == []
        assert given_back.is_set()
        assert ended == ["long cancelled"]

    run(test)


def test_stopping_calls_off_what_runs_and_refuses_what_waits():
    async def test(worker: WorkerThread, ended: list[str]) -> None:
        jobs = [worker.submit(counting(Ticks(), 10**9), route="long") for _ in range(2)]
        while worker.running < 2:
            await asyncio.sleep(0.01)
        assert await asyncio.to_thread(worker.stop, 10)
        for job in jobs:
            with pytest.raises(RequestError) as refusal:
                await result(job)
            assert (refusal.value.status, refusal.value.code) == (503, "stopping")
        with pytest.raises(RequestError):
            worker.submit(counting(Ticks(), 1), route="late")

    run(test)

"""Bases wake on demand, and sleep when they are idle or memory is short. With servers that load nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from training.serving.catalogue import Catalogue
from training.serving.http import RequestError
from training.serving.router.supervisor import Bases, Room, SleepPolicy, Supervisor, needed_bytes, rooms

NAMES = ("first", "second", "third")
GIB = 2**30

# Writes its status as a real server does, then waits to be stopped.
_SERVER = """
import json, os, sys, time
status = {"state": sys.argv[2], "message": sys.argv[2], "progress": None, "url": "http://127.0.0.1:1"}
open(sys.argv[1] + ".new", "w").write(json.dumps(status | {"gpu": os.environ.get("CUDA_VISIBLE_DEVICES")}))
os.replace(sys.argv[1] + ".new", sys.argv[1])
time.sleep(0 if sys.argv[2] == "ends" else 60)
"""


@pytest.fixture
def bases(tmp_path: Path) -> Bases:
    """Three bases, as far as their files' names go."""
    for name in NAMES:
        folder = tmp_path / "models" / name
        folder.mkdir(parents=True)
        for file in ("config.json", "tokenizer.json", "model.safetensors"):
            (folder / file).touch()
    return Bases(tmp_path / "models", Catalogue(tmp_path / "models" / "first", tmp_path / "checkpoints"))


@contextlib.asynccontextmanager
async def supervising(
    bases: Bases,
    tmp_path: Path,
    policy: SleepPolicy | None = None,
    *,
    needed: int = GIB,
    list_rooms: Callable[[], list[Room]] = lambda: [Room(gpu=None, free=10 * GIB, total=10 * GIB)],
    state: str = "ready",
) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(
        bases,
        policy or SleepPolicy(),
        command=lambda base, status: [sys.executable, "-c", _SERVER, str(status), state],
        needed=lambda base: needed,
        rooms=list_rooms,
        folder=tmp_path,
    )
    await supervisor.start()
    try:
        yield supervisor
    finally:
        await supervisor.stop()


def awake(supervisor: Supervisor) -> set[str]:
    return {process.name for process in supervisor.processes if process.is_running}


async def use(supervisor: Supervisor, *names: str) -> None:
    for name in names:
        async with supervisor.using(name):
            pass


async def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        await asyncio.sleep(0.05)


def test_the_default_base_is_awake_from_the_start_and_the_others_on_demand(bases: Bases, tmp_path: Path):
    async def scene() -> None:
        async with supervising(bases, tmp_path) as supervisor:
            assert awake(supervisor) == {"first"}
            await use(supervisor, "third")
            assert awake(supervisor) == {"first", "third"}

    asyncio.run(scene())


def test_requests_for_one_base_at_once_start_one_server(bases: Bases, tmp_path: Path):
    async def scene() -> None:
        async with supervising(bases, tmp_path) as supervisor:
            begun = asyncio.gather(*(use(supervisor, "second") for _ in range(5)))
            await begun
            process = supervisor.process("second")
            assert process.in_flight == 0
            assert awake(supervisor) == {"first", "second"}

    asyncio.run(scene())


def test_an_idle_base_sleeps_and_the_one_used_last_stays(bases: Bases, tmp_path: Path):
    async def scene() -> None:
        async with supervising(bases, tmp_path, SleepPolicy(idle_seconds=0.5)) as supervisor:
            await use(supervisor, "second", "third")
            await until(lambda: awake(supervisor) == {"third"})
            await asyncio.sleep(2)
            assert awake(supervisor) == {"third"}

    asyncio.run(scene())


def test_a_base_in_use_does_not_sleep_however_long_it_computes(bases: Bases, tmp_path: Path):
    async def scene() -> None:
        async with (
            supervising(bases, tmp_path, SleepPolicy(idle_seconds=0.1)) as supervisor,
            supervisor.using("first"),
        ):
            await use(supervisor, "second")
            await asyncio.sleep(2.5)
            assert awake(supervisor) == {"first", "second"}

    asyncio.run(scene())


def test_the_base_used_longest_ago_makes_room_for_another(bases: Bases, tmp_path: Path):
    async def scene() -> None:
        async with supervising(bases, tmp_path, SleepPolicy(memory_bytes=2 * GIB + 1)) as supervisor:
            await use(supervisor, "second")
            assert awake(supervisor) == {"first", "second"}
            await use(supervisor, "first", "third")
            assert awake(supervisor) == {"first", "third"}

    asyncio.run(scene())


def test_where_all_are_in_use_a_further_base_is_told_to_wait(bases: Bases, tmp_path: Path):
    async def scene() -> None:
        async with (
            supervising(bases, tmp_path, SleepPolicy(memory_bytes=GIB + 1)) as supervisor,
            supervisor.using("first"),
        ):
            with pytest.raises(RequestError) as refused:
                await use(supervisor, "second")
            assert (refused.value.status, refused.value.code, refused.value.retry_after) == (
                503,
                "no_room",
                5,
            )
            assert awake(supervisor) == {"first"}

    asyncio.run(scene())


def test_a_base_larger_than_all_memory_is_refused_with_both_sizes(bases: Bases, tmp_path: Path):
    async def scene() -> None:
        policy = SleepPolicy(memory_bytes=3 * GIB)
        async with supervising(bases, tmp_path, policy, needed=4 * GIB) as supervisor:
            with pytest.raises(RequestError) as refused:
                await use(supervisor, "second")
            assert refused.value.code == "too_large"
            assert "second needs about 4.0 GiB, and bases may take 3.0 here" in refused.value.message

    asyncio.run(scene())


def test_memory_that_runs_out_later_puts_the_least_recently_used_base_to_sleep(bases: Bases, tmp_path: Path):
    room = Room(gpu=None, free=5 * GIB, total=10 * GIB)

    async def scene() -> None:
        free = [room]
        async with supervising(bases, tmp_path, list_rooms=lambda: free) as supervisor:
            await use(supervisor, "second", "third")
            free[0] = replace(room, free=GIB // 4)
            await until(lambda: "first" not in awake(supervisor))
            free[0] = room
            assert "third" in awake(supervisor)

    asyncio.run(scene())


def test_a_base_goes_to_the_gpu_with_the_most_free_memory(bases: Bases, tmp_path: Path):
    async def scene() -> None:
        gpus = [Room(gpu=0, free=2 * GIB, total=80 * GIB), Room(gpu=1, free=70 * GIB, total=80 * GIB)]
        async with supervising(bases, tmp_path, list_rooms=lambda: gpus) as supervisor:
            await use(supervisor, "first")
            process = supervisor.process("first")
            assert process.gpu == 1
            assert process.status["gpu"] == "1"

    asyncio.run(scene())


@pytest.mark.parametrize(("state", "code"), [("fetching", "model_not_ready"), ("failed", "model_not_ready")])
def test_a_base_that_will_not_be_ready_soon_is_said_so_at_once(
    state: str, code: str, bases: Bases, tmp_path: Path
):
    async def scene() -> None:
        async with supervising(bases, tmp_path, state=state) as supervisor:
            begun = time.monotonic()
            with pytest.raises(RequestError) as refused:
                await use(supervisor, "first")
            assert (refused.value.status, refused.value.code) == (503, code)
            assert time.monotonic() - begun < 20

    asyncio.run(scene())


def test_a_server_that_ends_by_itself_is_failed_until_the_next_request(bases: Bases, tmp_path: Path):
    async def scene() -> None:
        async with supervising(bases, tmp_path, state="ends") as supervisor:
            await until(lambda: supervisor.process("first").status["state"] == "failed")
            assert "ended with status 0" in supervisor.process("first").status["message"]

    asyncio.run(scene())


def test_a_base_that_was_removed_is_stopped(bases: Bases, tmp_path: Path):
    async def scene() -> None:
        async with supervising(bases, tmp_path) as supervisor:
            await use(supervisor, "second")
            process = supervisor.process("second")
            for file in bases.folder("second").iterdir():
                file.unlink()
            await until(lambda: not process.is_running)
            assert [child.name for child in supervisor.processes] == ["first", "third"]

    asyncio.run(scene())


# ── Memory ────────────────────────────────────────────────────────────────────────────


def test_what_a_base_needs_is_its_weights_its_keys_and_values_and_the_process(tmp_path: Path):
    header = json.dumps({"a": {"dtype": "F32", "shape": [100, 10], "data_offsets": [0, 4000]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    config = {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 48,
        "num_hidden_layers": 3,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    # Keys and values of three layers with two heads of twelve numbers.
    numbers = 1000 + 50 * 2 * 3 * 2 * 12
    assert needed_bytes(tmp_path, places=50, dtype="auto", on_gpu=True) == numbers * 2
    assert needed_bytes(tmp_path, places=50, dtype="auto", on_gpu=False) == numbers * 4 + 700 * 1024**2
    assert needed_bytes(tmp_path / "nothing", places=50, dtype="auto", on_gpu=False) == 0


def test_gpus_are_those_that_nvidia_smi_lists_and_this_process_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho '0, 1000, 81559'\necho '1, 70000, 81559'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [(room.gpu, room.free) for room in rooms("auto")] == [(0, 1000 << 20), (1, 70000 << 20)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [room.gpu for room in rooms("auto")] == [1]
    assert [room.gpu for room in rooms("cpu")] == [None]

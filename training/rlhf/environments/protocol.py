"""Environments: the protocol, its bounds, and the three places where one runs.

    reset(seed) → messages                     the same seed always begins the same episode
    step(completion) → messages, reward, done  what answers the policy's turn, what the turn earned, the end

A folder with `environment.py` that defines a class `Environment` is an environment; the examples of this
package run in the trainer's process, every other folder in a child process that reaches nothing, with the
standard library alone. `http` asks a server: its address comes from the trainer's environment, as a spec that
named it could have anyone's server asked.

    POST URL/reset {"seed": 7}                            → {"episode": "a", "messages": […]}
    POST URL/step  {"episode": "a", "completion": "…"}    → {"messages": […], "reward": 0.0, "done": false}
"""

from __future__ import annotations

import importlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import httpx

from training.contract import ContractError
from training.contract.methods.policy import EnvironmentSettings
from training.rlhf.rewards.sandbox import Limits, SandboxedProcess, SandboxError

Seen = TypeVar("Seen", covariant=True)
Action = TypeVar("Action", contravariant=True)
Messages = tuple[Mapping[str, str], ...]
"""Messages as a chat template takes them: `role`, `content`, and of a tool's result `name`."""

URL_VARIABLE = "RONDO_ENVIRONMENT_URL"
"""Variable with the address of the server of environment `http`."""
MODULE = "environment.py"
RECIPE = "recipe.json"

MOST_MESSAGES, MOST_CHARACTERS = 16, 16_000
"""Of one reply; the characters are those of all its messages."""
MOST_REWARD = 1e6
_MOST_BYTES = 1 << 20


class Environment(Protocol[Seen, Action]):
    """One episode at a time. For language models what is seen is messages, and an action a completion."""

    def reset(self, seed: int) -> Seen:
        """Begin an episode and return what is seen first."""
        ...

    def step(self, action: Action) -> tuple[Seen, float, bool]:
        """Return what is seen next, the reward of the action, and whether the episode is over."""
        ...


class BrokenEnvironmentError(Exception):
    """An environment broke in one episode, which then cannot be scored."""


class Reply(NamedTuple):
    """An environment's answer to a turn, checked."""

    messages: Messages
    reward: float = 0.0
    done: bool = False


def checked(messages: Any, reward: Any = 0.0, done: Any = False, *, first: bool = False) -> Reply:
    """Return a reply within its bounds. Raises `BrokenEnvironmentError` that names the field.

    first: the messages begin an episode, so that they may hold a system message and must end with the user.
    """
    plain = _checked_messages(messages, first=first)
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not math.isfinite(reward):
        raise BrokenEnvironmentError("reward: must be a finite number")
    if abs(reward) > MOST_REWARD:
        raise BrokenEnvironmentError(f"reward: must lie within ±{MOST_REWARD:g}")
    if not isinstance(done, bool):
        raise BrokenEnvironmentError("done: must be true or false")
    if not (first or done or plain):
        raise BrokenEnvironmentError("messages: an episode that goes on needs a message")
    return Reply(plain, float(reward), done)


def _checked_messages(messages: Any, *, first: bool) -> Messages:
    if not isinstance(messages, list | tuple) or len(messages) > MOST_MESSAGES:
        raise BrokenEnvironmentError(f"messages: must be a list of at most {MOST_MESSAGES}")
    roles = ("system", "user", "assistant") if first else ("user", "tool")
    plain: list[Mapping[str, str]] = []
    for number, message in enumerate(messages):
        where = f"messages, item {number}"
        if not isinstance(message, Mapping) or message.get("role") not in roles:
            raise BrokenEnvironmentError(f"{where}: role must be one of {', '.join(roles)}")
        if not set(message) <= {"role", "content", "name"}:
            raise BrokenEnvironmentError(f"{where}: has fields other than role, content and name")
        if not all(isinstance(value, str) for value in message.values()) or "content" not in message:
            raise BrokenEnvironmentError(f"{where}: content must be a text")
        plain.append(dict(message))
    if sum(len(message["content"]) for message in plain) > MOST_CHARACTERS:
        raise BrokenEnvironmentError(f"messages: have more than {MOST_CHARACTERS} characters")
    if first and (not plain or plain[-1]["role"] != "user"):
        raise BrokenEnvironmentError("messages: an episode must begin with a message of the user")
    return tuple(plain)


@dataclass(frozen=True, kw_only=True, slots=True)
class Description:
    """An environment before any episode."""

    name: str
    sentence: str
    success: float = 1.0
    """Sum of rewards from which on an episode counts as a success."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """Tools as OpenAI describes functions, for the chat template."""


class Episodes(Protocol):
    """Many episodes of one environment, side by side. A failure of one leaves the others alone."""

    def reset(self, seeds: Mapping[int, int]) -> dict[int, Reply | BrokenEnvironmentError]:
        """Begin episodes, by number, from their seeds."""
        ...

    def step(self, completions: Mapping[int, str]) -> dict[int, Reply | BrokenEnvironmentError]:
        """Let each of these episodes take a turn."""
        ...


def _guarded(call: Callable[[], Reply]) -> Reply | BrokenEnvironmentError:
    try:
        return call()
    except BrokenEnvironmentError as failure:
        return failure
    except Exception as error:  # an environment may raise anything
        return BrokenEnvironmentError(f"{type(error).__name__}: {str(error)[:200]}")


# ── In this process: the examples of this package ──


class LocalEpisodes:
    """Episodes in this process."""

    def __init__(self, make: Callable[[], Environment[Any, str]]) -> None:
        self._make = make
        self._running: dict[int, Environment[Any, str]] = {}

    def reset(self, seeds: Mapping[int, int]) -> dict[int, Reply | BrokenEnvironmentError]:
        """Begin episodes."""
        self._running |= {number: self._make() for number in seeds}
        return {
            number: _guarded(lambda number=number, seed=seed: self._begin(number, seed))  # type: ignore[misc]
            for number, seed in seeds.items()
        }

    def step(self, completions: Mapping[int, str]) -> dict[int, Reply | BrokenEnvironmentError]:
        """Take turns."""
        return {
            number: _guarded(lambda number=number, text=text: checked(*self._running[number].step(text)))  # type: ignore[misc]
            for number, text in completions.items()
        }

    def _begin(self, number: int, seed: int) -> Reply:
        return checked(self._running[number].reset(seed), first=True)


# ── In a child process: a folder that somebody added ──

_LIMITS = Limits(cpu_seconds=120, wall_seconds=20.0, memory_bytes=512 * 1024**2)
"""Of the process that holds the episodes of one step; the seconds on the wall are those of one answer."""

_DRIVER = """
import json, os, sys, types

def read():
    data = bytearray()
    while not data.endswith(b"\\n"):
        byte = os.read(0, 65536)
        if not byte:
            os._exit(0)
        data += byte
    return json.loads(data)

for _name in ("training", "training.rlhf", "training.rlhf.environments", "training.rlhf.environments.calls"):
    sys.modules[_name] = types.ModuleType(_name)
exec(compile(_CALLS, "calls.py", "exec"), sys.modules["training.rlhf.environments.calls"].__dict__)
_answers = os.dup(1)
# What the environment prints is not an answer.
sys.stdout = sys.stderr
sys.path.insert(0, _FOLDER)
_module = types.ModuleType("environment")
sys.modules["environment"] = _module
exec(compile(_SOURCE, "environment.py", "exec"), _module.__dict__)
_running = {}

def answer(request):
    if "describe" in request:
        kind = _module.Environment
        sentence = ((kind.__doc__ or "").strip().splitlines() or [""])[0]
        return {"sentence": sentence, "success": getattr(kind, "success", 1.0),
                "tools": list(getattr(kind, "tools", ()))}
    number = request["episode"]
    if "seed" in request:
        _running[number] = _module.Environment()
        return {"messages": _running[number].reset(request["seed"])}
    messages, reward, done = _running[number].step(request["completion"])
    return {"messages": messages, "reward": reward, "done": done}

while True:
    request = read()
    try:
        line = json.dumps(answer(request))
    except Exception as error:
        line = json.dumps({"error": f"{type(error).__name__}: {str(error)[:200]}"})
    data = line.encode() + b"\\n"
    while data:
        data = data[os.write(_answers, data):]
"""


class ChildEpisodes:
    """Episodes in one child process. Where it ends, so do all of its episodes, as failures."""

    def __init__(self, folder: Path, *, limits: Limits = _LIMITS) -> None:
        """Start it. Raises `ContractError` for a folder without `environment.py` and `SandboxError` where
        this machine cannot hold a process in."""
        module = folder / MODULE
        if not module.is_file():
            raise ContractError(
                f"environment, name: {folder} has no {MODULE}; name one of the examples "
                f"({', '.join(built_in())}) or a folder with it"
            )
        calls = Path(__file__).with_name("calls.py").read_text(encoding="utf-8")
        names = {"_CALLS": calls, "_SOURCE": module.read_text(encoding="utf-8"), "_FOLDER": str(folder)}
        program = "".join(f"{name} = {text!r}\n" for name, text in names.items()) + _DRIVER
        self._process = SandboxedProcess(program, limits=limits, readable=(str(folder),))

    def close(self) -> None:
        """End the process."""
        self._process.close()

    def describe(self) -> Any:
        """Return sentence, success and tools of the environment as it states them."""
        return self._asked({"describe": True})

    def reset(self, seeds: Mapping[int, int]) -> dict[int, Reply | BrokenEnvironmentError]:
        """Begin episodes."""
        return self._all({number: {"seed": seed} for number, seed in seeds.items()}, first=True)

    def step(self, completions: Mapping[int, str]) -> dict[int, Reply | BrokenEnvironmentError]:
        """Take turns."""
        return self._all({number: {"completion": text} for number, text in completions.items()}, first=False)

    def _all(
        self, requests: Mapping[int, Mapping[str, Any]], *, first: bool
    ) -> dict[int, Reply | BrokenEnvironmentError]:
        def ask(number: int, request: Mapping[str, Any]) -> Reply:
            return _reply(self._asked({"episode": number, **request}), first=first)

        return {
            number: _guarded(lambda number=number, request=request: ask(number, request))  # type: ignore[misc]
            for number, request in requests.items()
        }

    def _asked(self, request: Mapping[str, Any]) -> Any:
        try:
            line = self._process.ask(json.dumps(request).encode() + b"\n", most_bytes=_MOST_BYTES)
        except SandboxError as error:
            raise BrokenEnvironmentError(str(error)) from error
        return _decoded(line)


def _decoded(line: bytes) -> Any:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BrokenEnvironmentError("the answer is no JSON") from error
    if not isinstance(value, dict):
        raise BrokenEnvironmentError("the answer is no object")
    if "error" in value:
        raise BrokenEnvironmentError(str(value["error"])[:300])
    return value


def _reply(value: Any, *, first: bool) -> Reply:
    return checked(value.get("messages"), value.get("reward", 0.0), value.get("done", False), first=first)


# ── Behind HTTP ──


class RemoteEpisodes:
    """Episodes that a server holds."""

    def __init__(
        self, url: str, *, seconds: float = 30.0, transport: httpx.BaseTransport | None = None
    ) -> None:
        self._client = httpx.Client(timeout=seconds, transport=transport, follow_redirects=False)
        self._url = url.rstrip("/")
        self._names: dict[int, str] = {}

    def close(self) -> None:
        """Give the connections back."""
        self._client.close()

    def reset(self, seeds: Mapping[int, int]) -> dict[int, Reply | BrokenEnvironmentError]:
        """Begin episodes."""

        def begin(number: int, seed: int) -> Reply:
            value = self._asked("reset", {"seed": seed})
            name = value.get("episode")
            if not isinstance(name, str) or not 0 < len(name) <= 200:
                raise BrokenEnvironmentError("episode: must be a text of at most 200 characters")
            self._names[number] = name
            return _reply(value, first=True)

        return {
            number: _guarded(lambda number=number, seed=seed: begin(number, seed))  # type: ignore[misc]
            for number, seed in seeds.items()
        }

    def step(self, completions: Mapping[int, str]) -> dict[int, Reply | BrokenEnvironmentError]:
        """Take turns."""

        def take(number: int, text: str) -> Reply:
            value = self._asked("step", {"episode": self._names[number], "completion": text})
            return _reply(value, first=False)

        return {
            number: _guarded(lambda number=number, text=text: take(number, text))  # type: ignore[misc]
            for number, text in completions.items()
        }

    def _asked(self, path: str, request: Mapping[str, Any]) -> Any:
        data = bytearray()
        try:
            with self._client.stream("POST", f"{self._url}/{path}", json=request) as response:
                if response.status_code != httpx.codes.OK:
                    raise BrokenEnvironmentError(f"the server answered {response.status_code}")
                for piece in response.iter_bytes():
                    data += piece
                    if len(data) > _MOST_BYTES:
                        raise BrokenEnvironmentError(f"the answer is longer than {_MOST_BYTES} bytes")
        except httpx.HTTPError as error:
            raise BrokenEnvironmentError(f"the server does not answer ({type(error).__name__})") from error
        return _decoded(bytes(data))


# ── Which environment a setting names ──

_EXAMPLES = Path(__file__).parent
HTTP = "http"


def built_in() -> dict[str, Path]:
    """Return the examples of this package: name and folder."""
    return {path.parent.name: path.parent for path in sorted(_EXAMPLES.glob(f"*/{MODULE}"))}


def environment_folder(name: str, base: Path) -> Path:
    """Return the folder that a name means: an example's, else a path, which begins at `base` if relative."""
    return built_in().get(name) or base / name


@contextmanager
def opened(
    settings: EnvironmentSettings, *, base: Path, variables: Mapping[str, str] = os.environ
) -> Iterator[Episodes]:
    """Open the environment of the settings for the episodes of one step.

    base: where a relative path begins. Raises `ContractError` where there is none.
    """
    if settings.name in built_in():
        yield LocalEpisodes(_example(settings.name))
        return
    episodes: ChildEpisodes | RemoteEpisodes
    if settings.name == HTTP:
        url = variables.get(URL_VARIABLE, "").strip()
        if not url.startswith(("http://", "https://")):
            raise ContractError(
                f"environment, name: {URL_VARIABLE} is not set in the trainer's environment; set it to the "
                "address of the server, or name a folder"
            )
        episodes = RemoteEpisodes(url)
    else:
        episodes = _child(settings.name, base)
    try:
        yield episodes
    finally:
        episodes.close()


def describe(name: str, base: Path) -> Description:
    """Return what an environment states of itself. Raises `ContractError` for one that cannot be used."""
    if name == HTTP:
        return Description(name=name, sentence="")
    if name in built_in():
        kind = _example(name)
        sentence = (kind.__doc__ or "").strip().splitlines()[0]
        return Description(
            name=name, sentence=sentence, success=kind.success, tools=tuple(getattr(kind, "tools", ()))
        )
    child = _child(name, base)
    try:
        values = child.describe()
        success, tools = values["success"], values["tools"]
        if isinstance(success, bool) or not isinstance(success, int | float) or not math.isfinite(success):
            raise BrokenEnvironmentError("success: must be a number")
        if not all(isinstance(tool, dict) for tool in tools):
            raise BrokenEnvironmentError("tools: must be objects")
    except BrokenEnvironmentError as failure:
        raise ContractError(f"environment, name: {name}: {failure}") from failure
    finally:
        child.close()
    return Description(
        name=Path(name).name, sentence=values["sentence"][:300], success=float(success), tools=tuple(tools)
    )


def _example(name: str) -> Any:
    return importlib.import_module(f"{__package__}.{name}.{MODULE.removesuffix('.py')}").Environment


def _child(name: str, base: Path) -> ChildEpisodes:
    try:
        return ChildEpisodes(environment_folder(name, base))
    except SandboxError as error:
        raise ContractError(f"environment, name: {error}") from error

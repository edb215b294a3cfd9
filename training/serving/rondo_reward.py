"""A reward model that Rondo serves, as a reward function of TRL, OpenRLHF, verl and NeMo-RL.

Needs httpx only: the file can be copied beside any training script. Set RONDO_REWARD_URL to the model server
(http://host:8001), RONDO_REWARD_MODEL to the checkpoint, and RONDO_REWARD_KEY to the key. A reward model with
heads of groups scores for some of them where RONDO_REWARD_POPULATION is "groups" or "worst_group" and
RONDO_REWARD_GROUPS names them with their weights, as JSON ({"nurses": 2, "doctors": 1}). Then

    TRL       GRPOTrainer(reward_funcs=rondo_reward.trl_reward, …)
    OpenRLHF  --remote_rm_url rondo_reward.py          (`reward_func`)
    verl      custom_reward_function.path=rondo_reward.py custom_reward_function.name=compute_score
    NeMo-RL   rondo_reward.nemo_environment()          (a class for its registry of environments)

or call the model itself, whole and by segment:

    with Reward("http://127.0.0.1:8001", "tea-round-1-reward", key) as reward:
        scores = reward.score([{"role": "user", "content": "Tea?"}], ["Yes.", "No."])

Reward models read chats. A prompt that is one text is taken as the user's only message. Hand over messages
wherever a library can (TRL's conversational data, OpenRLHF's labels, `messages` in verl's `extra_info`), so
that no chat template is applied twice.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import httpx

_AT_ONCE = 64
"""Completions of one request: the server's bound."""
_REQUESTS = 4
_AGAIN = (429, 502, 503, 504)
_LONGEST_WAIT = 60.0

Messages = Sequence[Mapping[str, str]]


class RewardError(Exception):
    """The model server refused a request or could not be reached in time."""


class Reward:
    """A served reward model. May be used by several threads."""

    def __init__(
        self,
        url: str,
        model: str,
        key: str,
        *,
        population: str = "common",
        groups: Mapping[str, float] | None = None,
        patience: float = 600.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """population: whose reward it is: "common", "groups" or "worst_group". groups: weight of each group
        that counts; none counts all alike. patience: seconds for which a server that is busy, loading or away
        is asked again."""
        self.model = model
        self._whose: dict[str, Any] = {}
        if population != "common":
            self._whose = {"reward": population, "groups": dict(groups or {})}
        self._patience = patience
        self._client = httpx.Client(
            base_url=url.removesuffix("/").removesuffix("/v1"),
            headers={"Authorization": f"Bearer {key}"},
            timeout=httpx.Timeout(patience, connect=10.0),
            transport=transport,
        )

    def __enter__(self) -> Reward:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def score(
        self, messages: Messages, completions: Sequence[str], *, context: Sequence[Any] = ()
    ) -> list[float]:
        """Return one score per completion of a chat, higher is better. Raises `RewardError`.

        context: passages ({title, sentences}) of models that were trained with context.
        """
        scores: list[float] = []
        for body in self._bodies(messages, completions, context):
            scores += self._ask(body)["scores"]
        return scores

    def segments(
        self, messages: Messages, completions: Sequence[str], *, context: Sequence[Any] = ()
    ) -> dict[str, list[list[dict[str, float]]]]:
        """Return rewards of segments by head: for each completion {start, end, reward}, in code points.

        Empty for a model without heads of segments. Raises `RewardError`.
        """
        rewards: dict[str, list[list[dict[str, float]]]] = {}
        for body in self._bodies(messages, completions, context):
            for head, of_completions in self._ask({**body, "heads": True})["segments"].items():
                rewards.setdefault(head, []).extend(of_completions)
        return rewards

    def score_pairs(self, pairs: Sequence[tuple[Messages, str]]) -> list[float]:
        """Return one score per (chat, completion), in order; completions of one chat share a request.

        Raises `RewardError`.
        """
        by_chat: dict[str, list[int]] = {}
        for number, (messages, _) in enumerate(pairs):
            by_chat.setdefault(
                json.dumps([dict(message) for message in messages], sort_keys=True), []
            ).append(number)

        def of_chat(numbers: list[int]) -> list[float]:
            return self.score(pairs[numbers[0]][0], [pairs[number][1] for number in numbers])

        scores = [0.0] * len(pairs)
        with ThreadPoolExecutor(_REQUESTS) as pool:
            for numbers, chat_scores in zip(
                by_chat.values(), pool.map(of_chat, by_chat.values()), strict=True
            ):
                for number, score in zip(numbers, chat_scores, strict=True):
                    scores[number] = score
        return scores

    def _bodies(
        self, messages: Messages, completions: Sequence[str], context: Sequence[Any]
    ) -> list[dict[str, Any]]:
        chat = [{"role": message["role"], "content": message["content"]} for message in messages]
        more = {"context": list(context)} if context else {}
        return [
            {
                "model": self.model,
                "messages": chat,
                "completions": list(completions[start : start + _AT_ONCE]),
            }
            | more
            | self._whose
            for start in range(0, len(completions), _AT_ONCE)
        ]

    def _ask(self, body: dict[str, Any]) -> dict[str, Any]:
        until = time.monotonic() + self._patience
        pause = 0.5
        while True:
            try:
                response = self._client.post("/v1/score", json=body)
            except httpx.TransportError as error:
                trouble, wait = f"{type(error).__name__}: {error}", pause
            else:
                if response.status_code == 200:
                    answer: dict[str, Any] = response.json()
                    return answer
                trouble = f"{response.status_code}: {_message(response)}"
                if response.status_code not in _AGAIN:
                    raise RewardError(f"The model server refused to score ({trouble}).")
                wait = _seconds(response.headers.get("Retry-After")) or pause
            pause = min(_LONGEST_WAIT, pause * 2)
            if time.monotonic() + wait > until:
                raise RewardError(f"The model server did not score within {self._patience:g} s ({trouble}).")
            time.sleep(wait)


def _message(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return response.text[:200]


def _seconds(text: str | None) -> float:
    try:
        return min(_LONGEST_WAIT, max(0.0, float(text or 0)))
    except ValueError:
        return 0.0


@cache
def reward_from_environment() -> Reward:
    """Return the reward model that RONDO_REWARD_URL, _MODEL and _KEY name. Raises `RewardError`."""
    names = ("RONDO_REWARD_URL", "RONDO_REWARD_MODEL", "RONDO_REWARD_KEY")
    if missing := [name for name in names if not os.environ.get(name)]:
        raise RewardError(f"Set {', '.join(missing)}: the model server's address, the checkpoint, the key.")
    groups = json.loads(os.environ.get("RONDO_REWARD_GROUPS") or "{}")
    population = os.environ.get("RONDO_REWARD_POPULATION") or ("groups" if groups else "common")
    return Reward(*(os.environ[name] for name in names), population=population, groups=groups)


# ── What each library calls ───────────────────────────────────────────────────────────


def trl_reward(prompts: Sequence[Any], completions: Sequence[Any], **_: Any) -> list[float]:
    """Reward function of TRL (`reward_funcs`): prompts and completions as texts or as messages."""
    pairs = [
        (_chat(prompt), _text(completion)) for prompt, completion in zip(prompts, completions, strict=True)
    ]
    return reward_from_environment().score_pairs(pairs)


def reward_func(
    queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any] | None = None, **_: Any
) -> dict[str, Any]:
    """Reward function of OpenRLHF (`--remote_rm_url`): a query is its prompt with the response behind it.

    labels: where one holds messages (a list, or one as JSON), they are the chat; else the prompt is.
    Returns `rewards` and `scores` as tensors, and `extra_logs`.
    """
    # Only OpenRLHF calls this, and it brings torch.
    import torch

    chats = [
        _messages_in(label) or _chat(prompt)
        for prompt, label in zip(prompts, labels or [None] * len(prompts), strict=True)
    ]
    texts = [query.removeprefix(prompt) for query, prompt in zip(queries, prompts, strict=True)]
    scores = torch.tensor(reward_from_environment().score_pairs(list(zip(chats, texts, strict=True))))
    return {"rewards": scores, "scores": scores, "extra_logs": {"rondo_reward": scores}}


def compute_score(
    data_source: Any = None,
    solution_str: Any = "",
    ground_truth: Any = None,
    extra_info: Any = None,
    **batch: Any,
) -> float | list[float]:
    """Reward function of verl: of one response, or of a batch by verl's batch manager.

    extra_info: `messages`, or `question` or `prompt`, is what was answered. A batch comes as `data_sources`,
    `solution_strs`, `ground_truths` and `extra_infos`, and gets a list.
    """
    reward = reward_from_environment()
    if "solution_strs" in batch:
        infos = batch.get("extra_infos") or [None] * len(batch["solution_strs"])
        pairs = zip(infos, batch["solution_strs"], strict=True)
        return reward.score_pairs([(_prompt_messages(info), text) for info, text in pairs])
    return reward.score(_prompt_messages(extra_info), [solution_str])[0]


def nemo_environment() -> type:
    """Return an environment class for NeMo-RL, which ends every conversation after its first response."""
    import torch
    from nemo_rl.environments.interfaces import (  # type: ignore[import-not-found]
        EnvironmentInterface,
        EnvironmentReturn,
    )

    class RondoReward(EnvironmentInterface):  # type: ignore[misc]
        """Scores the last message of each log by the ones before it."""

        def step(self, message_log_batch: Any, metadata: Any, *_: Any, **__: Any) -> Any:
            """Score a batch."""
            pairs = [(_chat(log[:-1]), str(log[-1]["content"])) for log in message_log_batch]
            count = len(pairs)
            return EnvironmentReturn(
                observations=[{"role": "environment", "content": ""}] * count,
                metadata=metadata,
                next_stop_strings=[None] * count,
                rewards=torch.tensor(reward_from_environment().score_pairs(pairs)),
                terminateds=torch.ones(count),
                answers=[None] * count,
            )

        def global_post_process_and_metrics(self, batch: Any) -> tuple[Any, dict[str, float]]:
            """Report the mean reward."""
            return batch, {"rondo_reward": float(batch["total_reward"].float().mean())}

    return RondoReward


def _chat(prompt: Any) -> list[dict[str, str]]:
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    return [{"role": str(message["role"]), "content": str(message["content"])} for message in prompt]


def _text(completion: Any) -> str:
    return completion if isinstance(completion, str) else str(completion[-1]["content"])


def _messages_in(label: Any) -> list[dict[str, str]] | None:
    if isinstance(label, str):
        try:
            label = json.loads(label)
        except ValueError:
            return None
    is_chat = (
        isinstance(label, list)
        and label
        and all(isinstance(message, dict) and "role" in message for message in label)
    )
    return _chat(label) if is_chat else None


def _prompt_messages(info: Any) -> list[dict[str, str]]:
    values = info if isinstance(info, Mapping) else {}
    for name in ("messages", "question", "prompt"):
        if values.get(name) is not None:
            return _messages_in(values[name]) or _chat(values[name])
    raise RewardError(
        "extra_info holds neither messages nor question nor prompt: what was answered is not known."
    )

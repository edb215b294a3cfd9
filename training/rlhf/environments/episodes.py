"""Episodes: the policy acts in many at once, turn by turn, and the ids that it drew stay as they were drawn.

    prompt ids | turn 1 | what the environment said, as the chat template writes it | turn 2 | …
                learned   read and never learned from                                learned

Nothing that the policy wrote is tokenised a second time. After a turn the template's text from the end of the
answer on is appended, taken from a rendering with a placeholder in place of the answer, so that templates
that rewrite earlier answers (dropped thinking, stripped white space) change nothing that was drawn.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from training.contract import ContractError
from training.rlhf.environments.protocol import BrokenEnvironmentError, Description, Episodes, Messages, Reply
from training.rlhf.model.backbone import Backbone
from training.rlhf.model.templates import TurnEnd, renderer
from training.rlhf.rollout.engine import RolloutEngine
from training.rlhf.rollout.samples import Cancelled, Handle, Sample, SampleRequest, TokenLogProb, end_tokens
from training.rlhf.sampling import MAX_SEED, SamplingParameters

_HELD_OUT_SEEDS = 1_000_000
"""First seed of held-out episodes."""
_TURN_STREAM = 6
"""Keeps the seeds of turns apart from all else that is drawn."""
_KEPT_TOKENS = 1 << 17
"""Tokens whose keys stay between two turns, so that an episode is not read from its start again."""


def held_out_seeds(count: int) -> range:
    """Return the environment's seeds of held-out episodes."""
    return range(_HELD_OUT_SEEDS, _HELD_OUT_SEEDS + count)


class EpisodeEncoder:
    """An environment's messages as token ids, by the model's own chat template."""

    def __init__(self, tokenizer: Any, description: Description) -> None:
        self._tokenizer = tokenizer
        self._render = renderer(tokenizer)
        self._end = TurnEnd(tokenizer)
        source = str(tokenizer.chat_template)
        self._tools = list(description.tools)
        self._takes_tools = "tools" in source
        self._variables: Mapping[str, Any] = (
            {"tools": self._tools} if self._tools and self._takes_tools else {}
        )

    def prompt(self, messages: Messages) -> tuple[int, ...]:
        """Return the ids of an episode's beginning, up to where the policy's first turn begins.

        Raises `BrokenEnvironmentError` for text with a control token and `ContractError` for a chat that the
        template refuses.
        """
        self._refuse_control_tokens(messages)
        return self._ids(self._render(self.chat(messages), True, self._variables))

    def chat(self, messages: Messages) -> list[dict[str, str]]:
        """Return an episode's beginning as the template gets it: with the tools in the system message where
        the template has no place for them."""
        chat = [dict(message) for message in messages]
        if self._tools and not self._takes_tools:
            text = (
                "You may call these tools:\n"
                + "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in self._tools)
                + '\nTo call one write <tool_call>{"name": "…", "arguments": {…}}</tool_call>'
            )
            if chat[0]["role"] == "system":
                chat[0]["content"] += f"\n\n{text}"
            else:
                chat.insert(0, {"role": "system", "content": text})
        return chat

    def after_turn(
        self, before: Sequence[Mapping[str, str]], messages: Messages, *, is_ended: bool
    ) -> tuple[int, ...]:
        """Return the ids between a turn of the policy and its next: the end of the turn, unless it drew that
        itself (is_ended), the messages, and the beginning of the next turn.

        before: the chat before the turn, as `chat` gives it.
        """
        self._refuse_control_tokens(messages)
        placeholder = "Answer"
        texts = [message["content"] for message in (*before, *messages)]
        while any(placeholder in text for text in texts):
            placeholder += "0"
        answer = {"role": "assistant", "content": placeholder}
        listed = [self._placed(message) for message in messages]
        whole = self._render([*before, answer, *listed], True, self._variables)
        _, found, rest = whole.rpartition(placeholder)
        if not found:
            raise ContractError("the base model's chat template does not render an answer after its prompt")
        end = self._end.after(rest)
        if is_ended:
            rest = rest.removeprefix(end)
        elif not rest.startswith(end):
            rest = end + rest
        return self._ids(rest)

    def _placed(self, message: Mapping[str, str]) -> dict[str, str]:
        """Return a message in a role that the template knows."""
        if message["role"] != "tool" or self._takes_tools:
            return dict(message)
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}

    def placed(self, messages: Messages) -> list[dict[str, str]]:
        """Return messages as the template gets them."""
        return [self._placed(message) for message in messages]

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _refuse_control_tokens(self, messages: Messages) -> None:
        for message in messages:
            if match := self._end.control.search(message["content"]):
                raise BrokenEnvironmentError(f"a message holds the control token {match.group()!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeSample(Sample):
    """An episode as a sample: `tokens` and `text` are the policy's alone, of all turns."""

    after_prompt: tuple[int, ...]
    """Ids of all speakers after the prompt, up to the policy's last."""
    turns: tuple[tuple[int, int], ...]
    """The policy's turns, [start, end) in `after_prompt`."""
    rewards: tuple[float, ...]
    """Reward of each turn."""
    completions: tuple[str, ...]
    """Text of each turn."""
    start: Messages
    """Messages of the environment before the first turn."""
    replies: tuple[Messages, ...]
    """Messages after each turn."""
    failure: str = ""
    """Why the environment broke; empty where it did not."""
    is_done: bool = False
    """True where the environment ended the episode; else turns or tokens did."""

    @property
    def learned(self) -> tuple[tuple[int, int], ...] | None:
        """Return the runs that are learned from."""
        return self.turns

    @property
    def total(self) -> float:
        """Return the sum of its rewards."""
        return float(sum(self.rewards))


@dataclass(slots=True, eq=False)
class _Running:
    """An episode under way."""

    seed: int
    prompt: tuple[int, ...]
    chat: list[dict[str, str]]
    start: Messages
    after: list[int] = field(default_factory=list)
    tokens: list[TokenLogProb] = field(default_factory=list)
    turns: list[tuple[int, int]] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    completions: list[str] = field(default_factory=list)
    replies: list[Messages] = field(default_factory=list)
    visible: int = 0
    failure: str = ""
    is_over: bool = False
    is_done: bool = False
    is_cut: bool = False
    is_cancelled: bool = False

    @property
    def ids(self) -> tuple[int, ...]:
        """Return all ids so far."""
        return (*self.prompt, *self.after)

    def add(self, sample: Sample) -> None:
        """Take the policy's turn."""
        begin = len(self.after)
        self.after += sample.token_ids
        self.tokens += sample.tokens
        self.turns.append((begin, len(self.after)))
        self.completions.append(sample.text)
        self.rewards.append(0.0)
        self.replies.append(())
        self.visible += sample.visible_tokens

    def sample(self) -> EpisodeSample:
        end = self.turns[-1][1] if self.turns else 0
        return EpisodeSample(
            tokens=tuple(self.tokens),
            text="".join(self.completions),
            visible_tokens=self.visible,
            finish_reason="cancelled" if self.is_cancelled else "length" if self.is_cut else "stop",
            seed=self.seed,
            after_prompt=tuple(self.after[:end]),
            turns=tuple(self.turns),
            rewards=tuple(self.rewards),
            completions=tuple(self.completions),
            start=self.start,
            replies=tuple(self.replies),
            failure=self.failure,
            is_done=self.is_done,
        )


def turn_seed(seed: int, turn: int) -> int:
    """Return the seed of a turn's sample: of its episode's seed and the turn's number alone."""
    word = np.random.SeedSequence([seed, _TURN_STREAM, turn]).generate_state(1, np.uint64)[0]
    return int(word) % (MAX_SEED + 1)


def play(
    backbone: Backbone,
    episodes: Episodes,
    encoder: EpisodeEncoder,
    starts: Sequence[int],
    parameters: SamplingParameters,
    *,
    n: int,
    turns: int,
    max_tokens: int,
    adapter: str | None,
    seeds: Sequence[int],
    cancelled: Cancelled | None = None,
    max_rows: int | None = None,
) -> list[list[EpisodeSample]]:
    """Let the policy act in `n` episodes from each start; all that go on draw their turns together.

    starts: the environment's seeds. turns: at most. max_tokens: of prompt and episode together; an episode
    without room for another turn ends as cut off. seeds: the sampler's first seed of each start.
    Returns episodes by start. An episode depends on its start and seed, not on those beside it (in float32
    up to rounding). Raises `BrokenEnvironmentError` where the environment does not begin one.
    """
    order = [
        (start, (seed + number) % (MAX_SEED + 1))
        for start, seed in zip(starts, seeds, strict=True)
        for number in range(n)
    ]
    begun = episodes.reset({number: start for number, (start, _) in enumerate(order)})
    running = [
        _begun(begun[number], encoder, seed, room=max_tokens - parameters.max_tokens)
        for number, (_, seed) in enumerate(order)
    ]
    ends = end_tokens(backbone)
    engine = RolloutEngine(backbone, ends=ends, max_rows=max_rows, keep_tokens=_KEPT_TOKENS)
    for turn in range(turns):
        for episode in running:
            if len(episode.ids) + parameters.max_tokens > max_tokens and not episode.is_over:
                episode.is_over = episode.is_cut = True
        live = {number: episode for number, episode in enumerate(running) if not episode.is_over}
        if not live:
            break
        handle = engine.submit(
            SampleRequest(
                prompt=episode.ids,
                parameters=parameters,
                seed=turn_seed(episode.seed, turn),
                adapter=adapter,
            )
            for episode in live.values()
        )
        is_cancelled = _written(engine, handle, backbone, adapter, cancelled)
        for episode, sample in zip(live.values(), handle.samples, strict=True):
            episode.add(sample)
        if is_cancelled:
            for episode in running:
                episode.is_cancelled = True
            break
        replies = episodes.step({number: episode.completions[-1] for number, episode in live.items()})
        for number, episode in live.items():
            _answer(episode, replies[number], encoder, ends)
    flat = [episode.sample() for episode in running]
    return [flat[first : first + n] for first in range(0, len(flat), n)]


def _written(
    engine: RolloutEngine,
    handle: Handle,
    backbone: Backbone,
    adapter: str | None,
    cancelled: Cancelled | None,
) -> bool:
    """Write the turns of a request to their end; True where they were cancelled."""
    with backbone.using(adapter):
        while engine.busy:
            if cancelled is not None and cancelled():
                engine.cancel(handle)
                return True
            engine.step()
    return False


def _begun(
    reply: Reply | BrokenEnvironmentError, encoder: EpisodeEncoder, seed: int, *, room: int
) -> _Running:
    """Return an episode before its first turn, whose prompt may have `room` tokens."""
    if isinstance(reply, BrokenEnvironmentError):
        raise reply
    prompt = encoder.prompt(reply.messages)
    if len(prompt) > room:
        raise BrokenEnvironmentError(
            f"an episode begins with {len(prompt)} tokens, and max_tokens leaves {room} beside a turn"
        )
    return _Running(seed, prompt, encoder.chat(reply.messages), reply.messages)


def _answer(
    episode: _Running, reply: Reply | BrokenEnvironmentError, encoder: EpisodeEncoder, ends: frozenset[int]
) -> None:
    """Take the environment's answer to an episode's last turn."""
    if isinstance(reply, BrokenEnvironmentError):
        episode.failure, episode.is_over = str(reply), True
        return
    episode.rewards[-1], episode.replies[-1] = reply.reward, reply.messages
    if reply.done:
        episode.is_over = episode.is_done = True
        return
    try:
        is_ended = bool(episode.after) and episode.after[-1] in ends
        episode.after += encoder.after_turn(episode.chat, reply.messages, is_ended=is_ended)
    except BrokenEnvironmentError as failure:
        episode.failure, episode.is_over = str(failure), True
        return
    episode.chat += [{"role": "assistant", "content": episode.completions[-1]}]
    episode.chat += encoder.placed(reply.messages)


def success_figures(samples: Sequence[EpisodeSample], success: float) -> dict[str, float]:
    """Return the shares of episodes that succeed, that turns or tokens ended, and their mean turns."""
    if not samples:
        return {}
    count = len(samples)
    # Rewards are sums of floating-point numbers: 0.3 + 1 may lie just below 1.3.
    return {
        "success": sum(sample.total >= success - 1e-6 for sample in samples) / count,
        "turns": sum(len(sample.turns) for sample in samples) / count,
        "not_done": sum(not sample.is_done for sample in samples) / count,
    }

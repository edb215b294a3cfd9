"""Samples on their way from a request to their end: limits, log-probabilities, text, rows."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from training.rlhf.model.backbone import Backbone
from training.rlhf.model.families import context_limit
from training.rlhf.model.templates import hidden_ids, turn_end_id
from training.rlhf.rollout.cache import CachedPrefix
from training.rlhf.rollout.distribution import Noise, make_noise
from training.rlhf.sampling import FinishReason, SamplingParameters

if TYPE_CHECKING:
    from training.rlhf.rollout.distribution import Constraint


# ── Limits of a completion: the model's end tokens and its context ──


_WITHOUT_LIMIT = 32_768
"""Context of a model that has no limit of its own, as those have that keep a state instead of keys."""


def context_length(backbone: Backbone) -> int:
    """Tokens that fit into the model: prompt and completion together."""
    return context_limit(backbone.config) or _WITHOUT_LIMIT


def end_tokens(backbone: Backbone) -> frozenset[int]:
    """Ids that end a completion: those of the tokenizer, the model's and the generation configuration, and
    the end of a trained row.

    A base model whose template ends turns with another token than `eos_token` may name that token nowhere.
    """
    tokenizer = backbone.tokenizer
    candidates = [tokenizer.eos_token_id, turn_end_id(tokenizer)]
    candidates.append(getattr(backbone.config, "eos_token_id", None))
    path = backbone.folder / "generation_config.json"
    if path.is_file():
        # Some chat models name their end of turn only here.
        candidates.append(json.loads(path.read_text(encoding="utf-8")).get("eos_token_id"))
    ids = [id for entry in candidates for id in (entry if isinstance(entry, list | tuple) else [entry])]
    return frozenset(id for id in ids if id is not None)


# ── Samples of a rollout with the log-probability of every token, whole or streamed ──


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenLogProb:
    """One drawn token."""

    id: int
    log_prob: float
    """Log-probability that it was drawn by: after temperature, top-k and top-p."""
    model_log_prob: float | None = None
    """Log-probability by the model itself, of the tokens that the sample's grammar allows here where it has
    one; None unless `alternatives` asked for it."""
    alternatives: tuple[tuple[int, float], ...] = ()
    """The model's likeliest tokens here with their log-probabilities, the likeliest first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One finished completion of one prompt."""

    tokens: tuple[TokenLogProb, ...]
    """All that was drawn: the end token is among them, and so is what a stop string cut off."""
    text: str
    """Without special tokens; ends before the stop string."""
    visible_tokens: int
    """Number of tokens, from the first, that have a part in the text."""
    finish_reason: FinishReason
    seed: int
    """Drawing one sample of the prompt with this seed gives this sample again."""

    @property
    def token_ids(self) -> list[int]:
        """Return the drawn ids."""
        return [token.id for token in self.tokens]

    @property
    def after_prompt(self) -> tuple[int, ...]:
        """Return the ids after the prompt: all of them are drawn, but in an episode of several speakers."""
        return tuple(self.token_ids)

    @property
    def learned(self) -> tuple[tuple[int, int], ...] | None:
        """Return the runs of `after_prompt` that were drawn; None is all."""
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Delta:
    """Text and tokens of one sample that became certain since its last delta."""

    prompt: int
    sample: int
    text: str
    tokens: tuple[TokenLogProb, ...]
    """Tokens with a part in the text given so far that no earlier delta held."""
    finished: Sample | None = None
    """The whole sample, with its last delta."""


OnDelta = Callable[[Delta], None]
Cancelled = Callable[[], bool]


# ── From token ids to text while it is being written: whole characters only, nothing past a stop string ──

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class TextStream:
    """The text of one sample, growing by tokens.

    Holds back what may still change: the bytes of an unfinished character, and a tail that may
    turn out to begin a stop string. What `push` and `finish` return, put together, is `text`.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        # Without its delimiters the thinking of gpt-oss could not be distinguished from its answer.
        self._hidden = hidden_ids(tokenizer)
        self._ids: list[int] = []
        self._starts: list[int] = []
        self._length = 0
        self._given = 0
        self._searched = 0
        self.text = ""
        """All that was given out so far; after `finish`, the sample's text."""
        self.stopped = False
        """True if a stop string was met; the text ends before it."""
        self.visible_tokens = 0
        """Number of tokens, from the first, that have a part in `text`."""

    def push(self, token: int) -> str:
        """Take one token; return the text that is now certain. Sets `stopped`."""
        self._ids.append(token)
        self._starts.append(self._length)
        text = self._decode().rstrip(_REPLACEMENT)
        self._length = len(text)
        return self._advance(text)

    def extend(self, tokens: Iterable[int]) -> None:
        """Take tokens without looking for text or stop strings; `finish` gives the text."""
        self._ids.extend(tokens)

    def finish(self, *, complete: bool) -> str:
        """Give what was held back.

        complete: the model ended the text, so bytes that are no character stay, as replacement
        characters; else a character cut off in the middle is left out.
        """
        if self.stopped:
            return ""
        text = self._decode()
        if not complete:
            text = text.rstrip(_REPLACEMENT)
        delta = self._advance(text, last=True)
        if not self.stopped:
            self.visible_tokens = len(self._ids)
        return delta

    def _decode(self) -> str:
        # The whole sequence each time: what a decoder makes of a token depends on those before
        # it, and 500 tokens take 0.1 ms.
        hidden = self._hidden
        text: str = self._tokenizer.decode(
            self._ids if hidden is None else [id for id in self._ids if id not in hidden],
            skip_special_tokens=hidden is None,
            clean_up_tokenization_spaces=False,
        )
        return text

    def _advance(self, text: str, *, last: bool = False) -> str:
        cut = self._find_stop(text)
        if cut is not None:
            self.stopped = True
            certain = cut
        else:
            certain = len(text) if last else len(text) - self._held_back(text)
        delta = text[self._given : certain]
        self._given = max(self._given, certain)
        self.text += delta
        self.visible_tokens = bisect_left(self._starts, self._given)
        return delta

    def _find_stop(self, text: str) -> int | None:
        start = max(0, self._searched - max(map(len, self._stop), default=0))
        self._searched = len(text)
        positions = [position for stop in self._stop if (position := text.find(stop, start)) >= 0]
        return min(positions, default=None)

    def _held_back(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = max(map(len, self._stop), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stop):
                return length
        return 0


# ── One sample on its way from a prompt to its end, and the request that it belongs to ──


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleRequest:
    """One sample that is asked for."""

    prompt: tuple[int, ...]
    """Token ids, rendered chat included; not empty and shorter than the context."""
    parameters: SamplingParameters
    """Parameters of the draw; its seed is the next field."""
    seed: int
    adapter: str | None = None
    """Adapter that writes it; None is the base."""
    place: tuple[int, int] = (0, 0)
    """The numbers of prompt and sample in its deltas."""
    constraint: Constraint | None = None
    """Grammar that the sample is of; None leaves it free."""


@dataclass(slots=True, eq=False)
class Slot:
    """A prompt as one adapter reads it: what all samples of it have in common."""

    adapter: str | None
    prompt: tuple[int, ...]
    users: int = 0
    """Samples that are not finished; with the last one the prompt is forgotten."""
    broken: bool = False
    """True if it led to a number that is not finite."""
    known: CachedPrefix | None = None
    """Its beginning that need not be read, from when it is looked up until it is used."""


class Handle:
    """The samples of one request, in the order in which they were asked for."""

    def __init__(self, on_delta: OnDelta | None) -> None:
        self.on_delta = on_delta
        self.rows: list[SampleRow] = []
        self.error: Exception | None = None
        """Error of one of its samples; then none of them goes on."""

    @property
    def finished(self) -> bool:
        """Return whether nothing more will come."""
        return self.error is not None or all(row.finished is not None for row in self.rows)

    @property
    def samples(self) -> list[Sample]:
        """Return all of them. Raises what went wrong."""
        if self.error is not None:
            raise self.error
        return [row.finished for row in self.rows if row.finished is not None]


@dataclass(slots=True, eq=False)
class SampleRow:
    """One sample being written."""

    wanted: SampleRequest
    handle: Handle
    slot: Slot
    generator: Noise
    text: TextStream
    limit: int
    """Tokens at most."""
    constraint: Constraint | None = None
    """Grammar of the sample, and how much of it is written."""
    read: int = 0
    """Number of its tokens in the slot's prompt: those that it had when it had to begin again."""
    tokens: list[TokenLogProb] = field(default_factory=list)
    streamed_tokens: int = 0
    finished: Sample | None = None

    @classmethod
    def begin(cls, backbone: Backbone, sample: SampleRequest, handle: Handle, slot: Slot) -> SampleRow:
        """Return a sample without tokens."""
        return cls(
            wanted=sample,
            handle=handle,
            slot=slot,
            generator=make_noise(sample.seed, backbone.device),
            text=TextStream(backbone.tokenizer, sample.parameters.stop),
            limit=min(sample.parameters.max_tokens, context_length(backbone) - len(sample.prompt)),
            constraint=sample.constraint and sample.constraint.begin(),
        )

    @property
    def alive(self) -> bool:
        """Return whether it goes on."""
        return self.finished is None and self.handle.error is None

    @property
    def place(self) -> int:
        """Return the position of the token that it drew last."""
        return len(self.wanted.prompt) + len(self.tokens) - 1

    def append(self, token: TokenLogProb, ends: frozenset[int], tokenizer: object) -> None:
        """Take the token that was drawn. Raises `FloatingPointError` where that had no probability, and
        `ConstraintError` where the grammar has become too complex."""
        if not math.isfinite(token.log_prob):
            self.slot.broken = True
            raise FloatingPointError("the model's probabilities are not finite numbers")
        self.tokens.append(token)
        ended = token.id in ends
        if self.constraint is not None and not ended:
            self.constraint.advance(token.id)
        delta = self.text.push(token.id) if self._needs_text and not ended else ""
        if ended or self.text.stopped:
            self.finish("stop", tokenizer, delta, ended=ended)
        elif len(self.tokens) >= self.limit:
            self.finish("length", tokenizer, delta)
        elif delta:
            self._tell(delta)

    @property
    def _needs_text(self) -> bool:
        return self.handle.on_delta is not None or bool(self.wanted.parameters.stop)

    def finish(
        self, reason: FinishReason, tokenizer: object, delta: str = "", *, ended: bool = False
    ) -> None:
        """End the sample, and emit its last delta."""
        if not self._needs_text:
            self.text = TextStream(tokenizer)
            self.text.extend(token.id for token in self.tokens[: len(self.tokens) - ended])
        delta += self.text.finish(complete=ended)
        if self.text.stopped:
            # A stop string can also show only now, in bytes that were held back.
            reason = "stop"
        self.finished = Sample(
            tokens=tuple(self.tokens),
            text=self.text.text,
            visible_tokens=self.text.visible_tokens,
            finish_reason=reason,
            seed=self.wanted.seed,
        )
        self._tell(delta)

    def _tell(self, text: str) -> None:
        if self.handle.on_delta is None:
            return
        shown = self.text.visible_tokens
        tokens = tuple(self.tokens[self.streamed_tokens : shown])
        self.streamed_tokens = max(self.streamed_tokens, shown)
        prompt, sample = self.wanted.place
        self.handle.on_delta(
            Delta(prompt=prompt, sample=sample, text=text, tokens=tokens, finished=self.finished)
        )


def tokens_held(rows: Sequence[SampleRow]) -> int:
    """Places that the keys of these rows take at most: every prompt as long as the longest, every sample as
    long as the one that may become longest."""
    if not rows:
        return 0
    slots = {row.slot for row in rows}
    longest = max(len(slot.prompt) for slot in slots)
    return len(slots) * longest + len(rows) * max(row.limit - row.read for row in rows)

"""The backbone as the server uses it: which checkpoint answers, generating, scoring, comparing.

Everything here runs on the one generation thread. What a request asks for is a generator, as `worker` wants
it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch

from training.contract import ContractError, Population, RewardSettings, RunSpec, SegmentHead, with_context
from training.rlhf.loop.log_probabilities import answer_token_log_probabilities
from training.rlhf.methods.objectives.ratings import read_heads
from training.rlhf.methods.objectives.segments import SegmentReward, segment_rewards
from training.rlhf.methods.people import check_population, group_scores, population_scores
from training.rlhf.methods.reward import encode
from training.rlhf.model.backbone import SCORE, Backbone
from training.rlhf.rollout.distribution import Constraint, ConstraintError
from training.rlhf.rollout.engine import Engine
from training.rlhf.rollout.samples import Sample, SampleRequest, context_length, end_tokens
from training.rlhf.sampling import SamplingParameters
from training.rlhf.tokens.encoding import Answered
from training.rlhf.tokens.example import Example
from training.rlhf.tokens.packing import Batch, pack
from training.serving.catalogue import Catalogue
from training.serving.errors import RequestError
from training.serving.prompt_log_probabilities import PromptToken, prompt_log_probabilities
from training.serving.requests import (
    DEFAULT_CHAT_TOKENS,
    DEFAULT_COMPLETION_TOKENS,
    ChatRequest,
    CompletionRequest,
    DivergenceRequest,
    SamplingRequest,
    ScoreRequest,
)
from training.serving.shelf import Held, Shelf
from training.serving.structures import Structures
from training.serving.texts import Texts
from training.serving.worker import Emit, NotNowError

_SCORED_AT_ONCE = 8
"""Rows of one forward pass: enough to be fast, few enough for a small machine's memory."""

_READ_AT_ONCE = 512
"""Tokens of prompts between two tokens of those that are being answered, which wait for them; of a
longer prompt so many at a time."""

_SCORING = 4
"""Requests that score or compare at a time; each keeps its checkpoint in memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EchoedPrompt:
    """A prompt that is given back before what continues it."""

    text: str
    tokens: tuple[PromptToken, ...]
    """Empty where nobody asked for log-probabilities."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationStarted:
    """The request is in order and its first token is being computed."""

    prompt_tokens: int
    fingerprint: str
    echoed: tuple[EchoedPrompt, ...] = ()
    """The prompts, where the request wants them back."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Generated:
    """All samples of a request, in the order of its choices."""

    samples: list[Sample]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """One score per completion; none where the model has no head for it."""

    digest: str
    """Of the checkpoint's manifest."""
    scores: list[float]
    heads: dict[str, list[list[float]]]
    """By head, for each completion the head's outputs, as `objectives.reading.read_heads` gives them."""
    segments: dict[str, list[list[SegmentReward]]]
    """By segment head, for each completion its segments in order; empty unless every head was asked for."""
    groups: dict[str, list[float]]
    """By group of annotators, its reward of each completion; empty as above."""
    granularity: dict[str, str]
    """By segment head, the unit of text that it scores."""
    context: bool
    """True if the model was trained on prompts with their context passages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DivergenceResult:
    """Divergence of a model from its reference on each token of one completion."""

    tokens: list[str]
    kl: list[float]
    """log π − log π_ref of each token, without temperature."""
    offsets: list[tuple[int, int]]
    """Position of each token in the answer, [start, end) in code points; the end token has the empty place
    after it."""


class Model:
    """One base model and the checkpoints that were asked for last."""

    def __init__(
        self,
        backbone: Backbone,
        catalogue: Catalogue,
        *,
        max_adapters: int,
        max_rows: int,
        cache_tokens: int,
        kept_tokens: int,
    ) -> None:
        """max_rows: answers that are written at a time. cache_tokens: places for keys and values; those of
        one answer always find place. kept_tokens: places for those of earlier answers, see `Prefixes`."""
        self.backbone = backbone
        self.shelf = Shelf(backbone, catalogue, max_adapters=max_adapters)
        self.engine = Engine(
            backbone,
            ends=end_tokens(backbone),
            max_rows=max_rows,
            max_tokens=max(cache_tokens, context_length(backbone)),
            read_at_once=_READ_AT_ONCE,
            steady=True,
            keep_tokens=kept_tokens,
        )
        self.structures = Structures(backbone)
        """Makes constraints; not bound to the generation thread."""
        self._texts = Texts(backbone)
        self._scoring = 0

    # ── Generating ────────────────────────────────────────────────────────────────────

    def chat(self, request: ChatRequest, constraint: Constraint | None, emit: Emit) -> Iterator[Engine]:
        """Answer a chat; emits `GenerationStarted`, deltas if streaming, `Generated`. constraint: of this
        request, by `structures`."""
        self._refuse_without_room()
        with self.shelf.holding(request.model) as (held,):
            prompt = self._texts.chat(request)
            yield from self._generate(request, [prompt], held, emit, constraint=constraint)

    def complete(self, request: CompletionRequest, emit: Emit) -> Iterator[Engine | None]:
        """Continue raw text; emits `GenerationStarted`, deltas if streaming, `Generated`."""
        self._refuse_without_room()
        with self.shelf.holding(request.model) as (held,):
            prompts = [self._texts.prompt(prompt, index) for index, prompt in enumerate(request.prompt)]
            self._token_limit(request, prompts)
            echoed: list[EchoedPrompt] = []
            for prompt, ids in zip(request.prompt, prompts, strict=True) if request.echo else ():
                if request.alternatives is not None:
                    yield None
                echoed.append(self._echoed(prompt, ids, held, request.alternatives))
            yield from self._generate(request, prompts, held, emit, echoed=echoed)

    def _echoed(
        self, prompt: str | list[int], ids: list[int], held: Held, alternatives: int | None
    ) -> EchoedPrompt:
        text = prompt
        if not isinstance(text, str):
            text = self.backbone.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        tokens: tuple[PromptToken, ...] = ()
        if alternatives is not None:
            tokens = prompt_log_probabilities(self.backbone, held.adapter, ids, alternatives=alternatives)
        return EchoedPrompt(text=text, tokens=tokens)

    def _refuse_without_room(self) -> None:
        if not self.engine.has_room:
            raise NotNowError("No more answers can be written at a time.")

    def _generate(
        self,
        request: SamplingRequest,
        prompts: list[list[int]],
        held: Held,
        emit: Emit,
        *,
        echoed: Sequence[EchoedPrompt] = (),
        constraint: Constraint | None = None,
    ) -> Iterator[Engine]:
        limit = self._token_limit(request, prompts)
        seed = request.seed if request.seed is not None else secrets.randbelow(2**31)
        emit(
            GenerationStarted(
                prompt_tokens=sum(map(len, prompts)), fingerprint=held.fingerprint, echoed=tuple(echoed)
            )
        )
        if not limit:
            emit(Generated(samples=_nothing_written(len(prompts) * request.samples, seed)))
            return
        parameters = request.parameters(seed=seed, max_tokens=limit)
        handle = self.engine.submit(
            _requested_samples(prompts, parameters, request.samples, held.adapter, constraint),
            emit if request.stream else None,
        )
        try:
            while not handle.finished:
                yield self.engine
        finally:
            self.engine.cancel(handle)
        try:
            emit(Generated(samples=handle.samples))
        except ConstraintError as error:
            message = f"The answer cannot be held to its format any further: {error}."
            place = request.constraining_field if isinstance(request, ChatRequest) else None
            raise RequestError(400, message, code="invalid_schema", param=place) from error

    def _token_limit(self, request: SamplingRequest, prompts: list[list[int]]) -> int:
        context = context_length(self.backbone)
        longest = max(map(len, prompts))
        limit = request.token_limit
        field = "messages" if isinstance(request, ChatRequest) else "prompt"
        if longest > context or (longest == context and limit != 0):
            message = f"The prompt has {longest} tokens; the model's context holds {context}. Shorten it."
            raise RequestError(400, message, code="context_length_exceeded", param=field)
        if limit is None:
            chat = isinstance(request, ChatRequest)
            return min(DEFAULT_CHAT_TOKENS if chat else DEFAULT_COMPLETION_TOKENS, context - longest)
        if longest + limit > context:
            message = (
                f"The prompt's {longest} tokens and the {limit} asked for do not fit into the model's "
                f"context of {context}. Ask for at most {context - longest}."
            )
            raise RequestError(400, message, code="context_length_exceeded", param="max_tokens")
        return limit

    # ── Scoring ───────────────────────────────────────────────────────────────────────

    def score(self, request: ScoreRequest, emit: Emit) -> Iterator[None]:
        """Score completions with a reward model, some at a time; emits `Scored`."""
        with self._place_to_score(), self.shelf.holding(request.model) as (held,):
            settings = _reward_settings(held)
            if settings is None or not (settings.loss != "none" or request.heads):
                raise RequestError(
                    400,
                    f"Model '{request.model}' has no score head. Name a checkpoint of a reward model.",
                    code="no_score_head",
                    param="model",
                )
            self._check_population(held, request.population())
            # Read as in training: with context only if trained with it, and cut at the same length.
            messages = request.chat()
            if settings.context:
                messages = with_context(messages, request.passages())
            segments = settings.segments if request.heads else ()
            rows = self._texts.answers(
                messages,
                request.completions,
                max_tokens=settings.max_tokens,
                offsets=bool(segments),
                thinking=settings.thinking,
            )
            by_head: dict[str, list[list[float]]] = {}
            scores: list[float] = []
            groups: dict[str, list[float]] = {}
            dense: dict[str, list[list[SegmentReward]]] = {head.name: [] for head in segments}
            for start in range(0, len(rows), _SCORED_AT_ONCE):
                yield
                some = slice(start, start + _SCORED_AT_ONCE)
                texts = request.completions[some]
                read, rewards, states = self._read(held, settings, rows[some], texts, segments=segments)
                if SCORE in read:
                    scores += self._population_scores(held, states, request.population())
                    for name, values in self._group_scores(held, states).items() if request.heads else ():
                        groups.setdefault(name, []).extend(values)
                for head, outputs in read.items():
                    by_head.setdefault(head, []).extend(outputs.tolist())
                for head in dense:
                    dense[head] += [of_heads[head] for of_heads in rewards]
            emit(
                Scored(
                    digest=held.digest,
                    scores=scores,
                    heads=by_head,
                    segments=dense,
                    groups=groups,
                    granularity={head.name: head.granularity for head in segments},
                    context=settings.context,
                )
            )

    def _check_population(self, held: Held, population: Population) -> None:
        try:
            check_population(self.backbone, str(held.adapter), population)
        except ContractError as error:
            raise RequestError(400, f"{error}.", code="no_such_group", param="groups") from None

    @torch.inference_mode()
    def _population_scores(self, held: Held, states: torch.Tensor, population: Population) -> list[float]:
        scores = population_scores(self.backbone, str(held.adapter), states, population)
        return [float(score) for score in scores]

    @torch.inference_mode()
    def _group_scores(self, held: Held, states: torch.Tensor) -> dict[str, list[float]]:
        by_group = group_scores(self.backbone, str(held.adapter), states)
        return {name: [float(score) for score in scores] for name, scores in by_group.items()}

    @torch.inference_mode()
    def _read(
        self,
        held: Held,
        settings: RewardSettings,
        rows: Sequence[Answered],
        texts: Sequence[str],
        *,
        segments: Sequence[SegmentHead],
    ) -> tuple[dict[str, torch.Tensor], list[Mapping[str, list[SegmentReward]]], torch.Tensor]:
        """Return scores by head, rewards of segments by completion, and the states read, from one pass."""
        adapter = str(held.adapter)
        batch = self._packed(rows)
        states = encode(self.backbone, adapter, batch)
        return (
            read_heads(self.backbone, adapter, states[batch.last], settings),
            segment_rewards(self.backbone, adapter, segments, states, batch, answers=rows, texts=texts),
            states[batch.last],
        )

    def _packed(self, rows: Sequence[Answered]) -> Batch:
        return pack([Example("", tuple(rows), (0,) * len(rows))], device=self.backbone.device)

    # ── Comparing with a reference ────────────────────────────────────────────────────

    def divergence(self, request: DivergenceRequest, emit: Emit) -> Iterator[None]:
        """Compute the divergence from a reference on each token of a completion; emit `DivergenceResult`."""
        with (
            self._place_to_score(),
            self.shelf.holding(request.model) as (policy,),
            self._reference(request) as reference,
        ):
            [row] = self._texts.answers(
                request.chat(), [request.completion], offsets=True, field="completion"
            )
            batch = self._packed([row])
            yield
            policy_log_probs = self._log_probabilities(policy, batch)
            yield
            kl = policy_log_probs - self._log_probabilities(reference, batch)
        tokenizer = self.backbone.tokenizer
        ids = list(row.ids)[row.answer_start :]
        tokens = [tokenizer.decode([id], clean_up_tokenization_spaces=False) for id in ids]
        emit(DivergenceResult(tokens=tokens, kl=kl.tolist(), offsets=list(row.offsets)))

    @contextmanager
    def _reference(self, request: DivergenceRequest) -> Iterator[Held]:
        with ExitStack() as stack:
            try:
                [held] = stack.enter_context(self.shelf.holding(request.reference or self.shelf.base_name))
            except RequestError as error:
                error.param = "reference"
                raise
            yield held

    @torch.inference_mode()
    def _log_probabilities(self, held: Held, batch: Batch) -> torch.Tensor:
        return answer_token_log_probabilities(self.backbone, held.adapter, batch)

    @contextmanager
    def _place_to_score(self) -> Iterator[None]:
        if self._scoring >= _SCORING:
            raise NotNowError("No more requests can be scored at a time.")
        self._scoring += 1
        try:
            yield
        finally:
            self._scoring -= 1


def _nothing_written(count: int, seed: int) -> list[Sample]:
    """Return samples without a token, as of a request for 0 of them."""
    return [
        Sample(tokens=(), text="", visible_tokens=0, finish_reason="length", seed=seed + number)
        for number in range(count)
    ]


def _requested_samples(
    prompts: Sequence[Sequence[int]],
    parameters: SamplingParameters,
    samples: int,
    adapter: str | None,
    constraint: Constraint | None,
) -> Iterator[SampleRequest]:
    """Every choice of the request, each with a seed of its own."""
    for number, prompt in enumerate(prompts):
        ids = tuple(prompt)
        for sample in range(samples):
            yield SampleRequest(
                prompt=ids,
                parameters=parameters,
                seed=parameters.seed + number * samples + sample,
                adapter=adapter,
                place=(number, sample),
                constraint=constraint,
            )


def _reward_settings(held: Held) -> RewardSettings | None:
    """Return a reward model's training settings; None for the base and other kinds of checkpoint."""
    settings = None if held.manifest is None else RunSpec.from_json(held.manifest.spec).settings
    return settings if isinstance(settings, RewardSettings) else None

"""The backbone as the server uses it: which checkpoint answers, generating, scoring, comparing.

Everything here runs on the one generation thread. What a request asks for is a generator, as `worker` wants
it.
"""

from __future__ import annotations

import itertools
import secrets
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import torch

from training.contract import ContractError, read_manifest
from training.contract.chat_template import Thinking
from training.contract.checkpoint import Manifest, manifest_digest
from training.contract.methods.reward import RewardSettings, SegmentHead
from training.contract.run import RunSpec
from training.contract.snapshot import Message, with_context
from training.contract.validation import Population
from training.rlhf.loop.log_probabilities import answer_token_log_probabilities
from training.rlhf.methods.objectives.ratings import read_heads
from training.rlhf.methods.objectives.segments import SegmentReward, segment_rewards
from training.rlhf.methods.people import check_population, group_scores, population_scores
from training.rlhf.methods.reward import encode
from training.rlhf.model.attention import Layout, Segment
from training.rlhf.model.backbone import SCORE, Backbone
from training.rlhf.model.templates import TurnEnd, token_pattern
from training.rlhf.rollout.distribution import Constraint, ConstraintError
from training.rlhf.rollout.engine import RolloutEngine
from training.rlhf.rollout.samples import Sample, SampleRequest, context_length, end_tokens
from training.rlhf.sampling import SamplingParameters
from training.rlhf.tokens.encoding import EncodedAnswer, Encoder, shorten
from training.rlhf.tokens.example import Example
from training.rlhf.tokens.packing import Batch, pack
from training.serving.catalogue import Catalogue
from training.serving.http import RequestError
from training.serving.requests import (
    DEFAULT_CHAT_TOKENS,
    DEFAULT_COMPLETION_TOKENS,
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    DivergenceRequest,
    EmbeddingRequest,
    SamplingRequest,
    ScoreRequest,
)
from training.serving.startup import ServerLimits
from training.serving.structures import Structures, ToolPrompts
from training.serving.worker import Emit, NotNowError

# ── Log-probabilities of a prompt's tokens, as evaluations read them to score given texts ──


_CHUNK = 128
"""Tokens whose logits are held at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptToken:
    id: int
    model_log_prob: float | None
    """Log-probability after the tokens before it; None for the first."""
    alternatives: tuple[tuple[int, float], ...] = ()
    """The likeliest tokens here with their log-probabilities, the likeliest first."""


@torch.inference_mode()
def prompt_log_probabilities(
    backbone: Backbone, adapter: str | None, ids: Sequence[int], *, alternatives: int
) -> tuple[PromptToken, ...]:
    """Return the tokens of a prompt with their log-probabilities under `adapter`; None is the base."""
    device = backbone.device
    row = torch.tensor([list(ids)], device=device)
    with backbone.using(adapter):
        states = backbone.packed_states(
            row, torch.arange(len(ids), device=device)[None], Layout([Segment(0, len(ids))], device)
        )
        tokens = [PromptToken(id=ids[0], model_log_prob=None)]
        for chunk, targets in zip(
            torch.split(states[:-1], _CHUNK), torch.split(row[0, 1:], _CHUNK), strict=True
        ):
            logits = backbone.unknown_tokens.exclude(backbone.logits(chunk).float())
            log_probs = torch.log_softmax(logits, -1)
            values = log_probs.gather(-1, targets[:, None])[:, 0].tolist()
            best, best_ids = torch.topk(log_probs, alternatives, dim=-1)
            tokens += [
                PromptToken(id=id, model_log_prob=value, alternatives=tuple(zip(near_ids, near, strict=True)))
                for id, value, near_ids, near in zip(
                    targets.tolist(), values, best_ids.tolist(), best.tolist(), strict=True
                )
            ]
    return tuple(tokens)


# ── Requests' texts as token ids, refused where the model would read something else than was sent ──


class Texts:
    """Chats, raw prompts and answers, for one base model."""

    def __init__(self, backbone: Backbone) -> None:
        self._backbone = backbone
        self._encoders = {
            thinking: Encoder(backbone.tokenizer, thinking=thinking) for thinking in get_args(Thinking)
        }
        self._encoder = self._encoders["train"]
        tokenizer = backbone.tokenizer
        self._tools = ToolPrompts(tokenizer)
        self._control = token_pattern({*tokenizer.all_special_tokens, *TurnEnd(tokenizer).tokens})

    def chat(self, request: ChatRequest) -> list[int]:
        """Return token ids of a chat up to where the answer begins, or up to the end of its prefix."""
        self._check(request)
        messages, tools = request.answered, request.callable_tools
        # What is JSON or a call from its first token on is no thinking.
        thinks = not request.must_call and (request.response_format is None or bool(tools))
        try:
            if (tools or _has_calls(messages)) and self._tools.template_knows_tools:
                text = self._tools.render(messages, tools, thinks=thinks)
                return list(self._backbone.tokenizer(text, add_special_tokens=False)["input_ids"])
            plain = self._tools.plain(messages, tools)
            if request.prefix is not None:
                return list(self._encoder.begun(plain, request.prefix))
            return list(self._encoder.chat(plain) if thinks else self._encoder.chat_answered_at_once(plain))
        except ContractError as error:
            raise RequestError(400, f"{error}.", code="invalid_value", param="messages") from error

    def _check(self, request: ChatRequest) -> None:
        """Raise `RequestError` for a control token in a text, and a result of a tool that was not called."""
        called: set[str] = set()
        for index, message in enumerate(request.messages):
            content = message.content or ""
            if message.role == "assistant":
                content = self._encoder.undelimited(Message(role="assistant", content=content))
            self._refuse_control(content, f"messages[{index}].content")
            for number, call in enumerate(message.tool_calls or ()):
                place = f"messages[{index}].tool_calls[{number}].function.arguments"
                self._refuse_control(call.function.arguments, place)
                called.add(call.id)
            if message.role == "tool" and message.tool_call_id not in called:
                reason = "No call of an earlier message of the assistant has this id."
                place = f"messages[{index}].tool_call_id"
                raise RequestError(400, reason, code="invalid_value", param=place)
        for index, tool in enumerate(request.tools or ()):
            self._refuse_control(tool.model_dump_json(by_alias=True), f"tools[{index}]")

    def _refuse_control(self, text: str, place: str) -> None:
        if match := self._control.search(text):
            raise RequestError(
                400,
                f"The text holds the control token {match.group()!r}. Take it out.",
                code="control_token",
                param=place,
            )

    def prompt(self, prompt: str | list[int], index: int, *, field: str = "prompt") -> list[int]:
        """Return token ids of a raw prompt; with ids given, those, if the model knows them.

        field: of the request, for errors.
        """
        size = int(self._backbone.config.vocab_size)
        ids: list[int] = prompt if isinstance(prompt, list) else self._backbone.tokenizer(prompt)["input_ids"]
        if not ids:
            raise RequestError(400, "The text is empty.", code="invalid_value", param=f"{field}[{index}]")
        unknown = self._backbone.unknown_tokens.ids
        if not all(0 <= id < size and id not in unknown for id in ids):
            message = f"Token ids must be the tokenizer's, which lie between 0 and {size - 1}."
            raise RequestError(400, message, code="invalid_value", param=f"{field}[{index}]")
        return ids

    def answers(
        self,
        messages: Sequence[Message],
        texts: Sequence[str],
        *,
        max_tokens: int | None = None,
        offsets: bool = False,
        thinking: Thinking = "train",
        field: str = "completions[{}]",
    ) -> tuple[EncodedAnswer, ...]:
        """Each text as the answer that ends the chat, in at most so many tokens; the front of a long prompt
        is cut for all alike. thinking: what becomes of theirs. field: how an error names the text that it
        is about."""
        encoded = []
        for index, text in enumerate(texts):
            try:
                encoded.append(self._encoders[thinking].encode(messages, text, offsets=offsets))
            except ContractError as error:
                param = field.format(index)
                raise RequestError(400, f"{error}.", code="invalid_value", param=param) from error
        context = context_length(self._backbone)
        rows = shorten(encoded, min(max_tokens or context, context), self._encoder)
        for index, row in enumerate(rows):
            if len(row.ids) > context:
                message = f"The completion has {len(row.ids)} tokens; the model's context holds {context}."
                param = field.format(index)
                raise RequestError(400, message, code="context_length_exceeded", param=param)
        return rows


def _has_calls(messages: Sequence[ChatMessage]) -> bool:
    return any(message.tool_calls or message.role == "tool" for message in messages)


# ── The checkpoints that are in memory beside the base: loaded when asked for, never dropped while in
# use ──


@dataclass(slots=True, eq=False)
class Held:
    """A model that is in memory."""

    name: str
    digest: str
    """Of the checkpoint's manifest, or of the base."""
    manifest: Manifest | None
    """None for the base."""
    users: int = 0
    """Requests that use it now."""

    @property
    def adapter(self) -> str | None:
        """Its name on the backbone; None is the base. The same name with other content is another adapter, so
        that an answer that has begun ends as it began."""
        return None if self.manifest is None else f"{self.name}@{self.digest}"

    @property
    def fingerprint(self) -> str:
        """Return the system fingerprint of a response."""
        return f"fp_{self.digest[:16]}"


class Shelf:
    """The base and at most so many checkpoints; those not used for longest make place. For one thread."""

    def __init__(self, backbone: Backbone, catalogue: Catalogue, *, max_adapters: int) -> None:
        self._backbone = backbone
        self._catalogue = catalogue
        self._max_adapters = max_adapters
        self._base = Held(catalogue.base_name, backbone.base_digest, None)
        self._loaded: OrderedDict[str, Held] = OrderedDict()

    @property
    def base_name(self) -> str:
        """Return the base model's name."""
        return self._base.name

    @property
    def loaded(self) -> tuple[str, ...]:
        """Return the names of the checkpoints in memory, the one used last at the end."""
        # Another thread may ask: a list is made at once, a dictionary that changes cannot be gone through.
        return tuple(held.name for held in list(self._loaded.values()))

    @contextmanager
    def holding(self, *names: str) -> Iterator[tuple[Held, ...]]:
        """Inside, these models are in memory.

        Raises `RequestError` for one that cannot be loaded, `NotNowError` where all places are taken by those
        in use.
        """
        with ExitStack() as stack:
            yield tuple(stack.enter_context(self._holding(name)) for name in names)

    @contextmanager
    def _holding(self, name: str) -> Iterator[Held]:
        held = self._base if name == self._catalogue.base_name else self._fetch(name)
        held.users += 1
        try:
            yield held
        finally:
            held.users -= 1

    def _fetch(self, name: str) -> Held:
        try:
            folder = self._catalogue.folder(name)
        except RequestError:
            # It is gone: so is its place.
            self._drop_versions(name, but=None)
            raise
        try:
            held = Held(name, manifest_digest(folder), read_manifest(folder))
        except (OSError, ContractError) as error:
            raise _damaged(name, error) from error
        key = str(held.adapter)
        if key not in self._loaded:
            self._load(held, folder)
        self._loaded.move_to_end(key)
        return self._loaded[key]

    def _load(self, held: Held, folder: Path) -> None:
        self._refuse_other_base(held)
        self._drop_versions(held.name, but=held.digest)
        self._make_place()
        try:
            self._backbone.load_adapter(str(held.adapter), folder)
        except (OSError, ContractError) as error:
            raise _damaged(held.name, error) from error
        self._loaded[str(held.adapter)] = held

    def _refuse_other_base(self, held: Held) -> None:
        manifest = held.manifest
        if manifest is not None and manifest.base_digest != self._backbone.base_digest:
            message = (
                f"Checkpoint '{held.name}' was trained on base {manifest.base_model} "
                f"({manifest.base_digest[:12]}), but {self._catalogue.base_name} "
                f"({self._backbone.base_digest[:12]}) is loaded. Start the model server with that base."
            )
            raise RequestError(409, message, code="base_mismatch", param="model")

    def _drop_versions(self, name: str, *, but: str | None) -> None:
        """Drop what a checkpoint was before, where no answer comes from it any more."""
        for key, held in list(self._loaded.items()):
            if held.name == name and held.digest != but and not held.users:
                self._drop(key)

    def _make_place(self) -> None:
        while len(self._loaded) >= self._max_adapters:
            unused = next((key for key, held in self._loaded.items() if not held.users), None)
            if unused is None:
                raise NotNowError(
                    f"The request needs more checkpoints at once than the {self._max_adapters} that the "
                    "model server holds. Start it with a larger --max-adapters."
                )
            self._drop(unused)

    def _drop(self, key: str) -> None:
        del self._loaded[key]
        self._backbone.drop_adapter(key)


def _damaged(name: str, error: Exception) -> RequestError:
    message = f"Checkpoint '{name}' cannot be loaded: {error}. Restore its folder or train it again."
    return RequestError(422, message, code="checkpoint_damaged", param="model")


# ── Model ──


_SCORED_AT_ONCE = 8
"""Rows of one forward pass: enough to be fast, few enough for a small machine's memory."""

_READ_AT_ONCE = 512
"""Tokens of prompts between two tokens of those that are being answered, which wait for them; of a
longer prompt so many at a time."""

_EMBEDDED_AT_ONCE = 1024
"""Tokens of texts that one forward pass embeds; a longer text is a pass of its own."""

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Embedded:
    """One vector of length 1 per text, and the number of tokens that were read."""

    vectors: list[list[float]]
    tokens: int


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
        self.engine = RolloutEngine(
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

    def chat(
        self, request: ChatRequest, constraint: Constraint | None, emit: Emit
    ) -> Iterator[RolloutEngine]:
        """Answer a chat; emits `GenerationStarted`, deltas if streaming, `Generated`. constraint: of this
        request, by `structures`."""
        self._refuse_without_room()
        with self.shelf.holding(request.model) as (held,):
            prompt = self._texts.chat(request)
            yield from self._generate(request, [prompt], held, emit, constraint=constraint)

    def complete(self, request: CompletionRequest, emit: Emit) -> Iterator[RolloutEngine | None]:
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
    ) -> Iterator[RolloutEngine]:
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
        rows: Sequence[EncodedAnswer],
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

    def _packed(self, rows: Sequence[EncodedAnswer]) -> Batch:
        return pack([Example("", tuple(rows), (0,) * len(rows))], device=self.backbone.device)

    # ── Embedding ─────────────────────────────────────────────────────────────────────

    def embed(self, request: EmbeddingRequest, emit: Emit) -> Iterator[None]:
        """Read texts, some at a time; emits `Embedded`: the mean of each text's last hidden states, of
        length 1."""
        with self._place_to_score(), self.shelf.holding(request.model) as (held,):
            context, last = context_length(self.backbone), request.truncate_prompt_tokens
            texts = []
            for index, text in enumerate(request.input):
                ids = self._texts.prompt(text, index, field="input")[-(last or 0) :]
                if len(ids) > context:
                    message = f"The text has {len(ids)} tokens; the model's context holds {context}."
                    param = f"input[{index}]"
                    raise RequestError(400, message, code="context_length_exceeded", param=param)
                texts.append(ids)
            vectors: list[list[float]] = []
            while len(vectors) < len(texts):
                yield
                waiting = texts[len(vectors) :]
                ends = itertools.accumulate(map(len, waiting))
                fitting = sum(end <= _EMBEDDED_AT_ONCE for end in ends)
                vectors += self._mean_states(held, waiting[: max(1, fitting)])
            emit(Embedded(vectors=vectors, tokens=sum(map(len, texts))))

    @torch.inference_mode()
    def _mean_states(self, held: Held, texts: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return the vectors of texts that are packed into one row, where none of them sees another."""
        device, lengths = self.backbone.device, [len(ids) for ids in texts]
        starts = itertools.accumulate(lengths, initial=0)
        layout = Layout([Segment(start, size) for start, size in zip(starts, lengths, strict=False)], device)
        row = torch.tensor([[id for ids in texts for id in ids]], device=device)
        places = torch.cat([torch.arange(size, device=device) for size in lengths])[None]
        with self.backbone.using(held.adapter):
            states = self.backbone.packed_states(row, places, layout).float()
        means = torch.stack([text.mean(0) for text in torch.split(states, lengths)])
        vectors: list[list[float]] = torch.nn.functional.normalize(means, dim=-1).tolist()
        return vectors

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


# ── Loading of the base model: device and precision ──


def choose_device(name: str) -> torch.device:
    """Return the named device; "auto" takes a GPU when there is one."""
    if name != "auto":
        return torch.device(name)
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the named precision; "auto" is bfloat16 on a GPU and float32 on a CPU.

    Few CPUs compute in bfloat16: where they do not, it is slower, and float32 gives the same
    text for the same seed whatever else is in the batch.
    """
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


def load_model(catalogue: Catalogue, *, device: str, dtype: str, limits: ServerLimits) -> Model:
    """Load the base and make ready to answer. Raises `ContractError` where the folder holds no model."""
    place = choose_device(device)
    backbone = Backbone.load(catalogue.base_folder, device=place, dtype=choose_dtype(dtype, place))
    # Read now, not in the first request for a checkpoint: it goes over all weights.
    _ = backbone.base_digest
    return Model(
        backbone,
        catalogue,
        max_adapters=limits.max_adapters,
        max_rows=limits.max_rows,
        cache_tokens=limits.cache_tokens,
        kept_tokens=limits.kept_tokens,
    )

"""The backbone as the server uses it: which checkpoint answers, tokenising, generating, scoring.

Everything here runs on the one generation thread.
"""

from __future__ import annotations

import re
import secrets
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jinja2 import TemplateError

from training.contract import (
    ContractError,
    Manifest,
    Message,
    RewardSettings,
    RunSpec,
    SegmentHead,
    manifest_digest,
    read_manifest,
    with_context,
)
from training.rlhf.backbone import SCORE, Backbone
from training.rlhf.data import Example
from training.rlhf.encoding import Answered, Encoder, shorten
from training.rlhf.methods.reward import encode
from training.rlhf.objectives.reading import read_heads
from training.rlhf.packing import pack
from training.rlhf.rollout import Sample, rollout
from training.rlhf.rollout.generate import context_length
from training.rlhf.segment_rewards import SegmentReward, segment_rewards
from training.serving.catalogue import Catalogue
from training.serving.errors import RequestError
from training.serving.requests import (
    DEFAULT_CHAT_TOKENS,
    DEFAULT_COMPLETION_TOKENS,
    ChatRequest,
    CompletionRequest,
    SamplingRequest,
    ScoreRequest,
)
from training.serving.worker import Cancelled, Emit

_SCORED_AT_ONCE = 8
"""Rows of one forward pass: enough to be fast, few enough for a small machine's memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    """The request is in order and its first token is being computed."""

    prompt_tokens: int
    fingerprint: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Generated:
    """All samples of a request, in the order of its choices."""

    samples: list[Sample]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """One score per completion; none where the model has no head for it."""

    scores: list[float]
    heads: dict[str, list[list[float]]]
    """By head, for each completion the head's outputs, as `objectives.reading.read_heads` gives them."""
    segments: dict[str, list[list[SegmentReward]]]
    """By segment head, for each completion its segments in order; empty unless every head was asked for."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    digest: str
    manifest: Manifest


class Model:
    """One base model and the checkpoints that were asked for last."""

    def __init__(self, backbone: Backbone, catalogue: Catalogue, *, max_adapters: int) -> None:
        self.backbone = backbone
        self._catalogue = catalogue
        self._max_adapters = max_adapters
        self._loaded: OrderedDict[str, _Loaded] = OrderedDict()
        self._encoder = Encoder(backbone.tokenizer)
        control = sorted(backbone.tokenizer.all_special_tokens, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, control)))

    @property
    def loaded(self) -> tuple[str, ...]:
        """Names of the checkpoints in memory."""
        return tuple(self._loaded)

    # ── Requests ──────────────────────────────────────────────────────────────────────

    def chat(self, request: ChatRequest, emit: Emit, cancelled: Cancelled) -> None:
        """Answer a chat; emits `Started`, deltas if streaming, `Generated`."""
        adapter = self._use(request.model)
        self._generate(request, [self._encode_chat(request.chat())], adapter, emit, cancelled)

    def complete(self, request: CompletionRequest, emit: Emit, cancelled: Cancelled) -> None:
        """Continue raw text; emits `Started`, deltas if streaming, `Generated`."""
        adapter = self._use(request.model)
        prompts = [self._encode_prompt(prompt, index) for index, prompt in enumerate(request.prompt)]
        self._generate(request, prompts, adapter, emit, cancelled)

    def score(self, request: ScoreRequest, emit: Emit, cancelled: Cancelled) -> None:
        """Score completions with a reward model; emits `Scored`."""
        adapter = self._use(request.model)
        settings = None if adapter is None else self._settings_of(request.model)
        if adapter is None or settings is None or not (settings.loss != "none" or request.heads):
            raise RequestError(
                400,
                f"Model '{request.model}' has no score head. Name a checkpoint of a reward model.",
                code="no_score_head",
                param="model",
            )
        # Read as in training: with context only if trained with it, and cut at the same length.
        messages = request.chat()
        if settings.context:
            messages = with_context(messages, request.passages())
        segments = settings.segments if request.heads else ()
        rows = self._encode_answers(
            messages, request.completions, settings.max_tokens, offsets=bool(segments)
        )
        found: dict[str, list[list[float]]] = {}
        dense: dict[str, list[list[SegmentReward]]] = {head.name: [] for head in segments}
        with torch.inference_mode():
            for start in range(0, len(rows), _SCORED_AT_ONCE):
                if cancelled():
                    return
                some = slice(start, start + _SCORED_AT_ONCE)
                read, rewards = self._read(
                    adapter, settings, rows[some], request.completions[some], segments=segments
                )
                for head, outputs in read.items():
                    found.setdefault(head, []).extend(outputs.tolist())
                for head in dense:
                    dense[head] += [of_heads[head] for of_heads in rewards]
        scores = [sum(outputs) / len(outputs) for outputs in found.get(SCORE, [])]
        emit(Scored(scores=scores, heads=found, segments=dense))

    def _read(
        self,
        adapter: str,
        settings: RewardSettings,
        rows: Sequence[Answered],
        texts: Sequence[str],
        *,
        segments: Sequence[SegmentHead],
    ) -> tuple[dict[str, torch.Tensor], list[Mapping[str, list[SegmentReward]]]]:
        """What heads on whole answers say, by head, and heads on segments, by answer: one forward pass."""
        batch = pack([Example("", tuple(rows), (0,) * len(rows))], device=self.backbone.device)
        states = encode(self.backbone, adapter, batch)
        return (
            read_heads(self.backbone, adapter, states[batch.last], settings),
            segment_rewards(self.backbone, adapter, segments, states, batch, answers=rows, texts=texts),
        )

    def _settings_of(self, name: str) -> RewardSettings | None:
        """How a loaded reward model was trained; None for another kind of checkpoint."""
        settings = RunSpec.from_json(self._loaded[name].manifest.spec).settings
        return settings if isinstance(settings, RewardSettings) else None

    def _generate(
        self,
        request: SamplingRequest,
        prompts: list[list[int]],
        adapter: str | None,
        emit: Emit,
        cancelled: Cancelled,
    ) -> None:
        limit = self._token_limit(request, prompts)
        seed = request.seed if request.seed is not None else secrets.randbelow(2**31)
        emit(Started(prompt_tokens=sum(map(len, prompts)), fingerprint=self._fingerprint(request.model)))
        samples = rollout(
            self.backbone,
            prompts,
            request.parameters(seed=seed, max_tokens=limit),
            n=request.samples,
            adapter=adapter,
            # Every choice of the request has a seed of its own.
            seeds=[seed + index * request.samples for index in range(len(prompts))],
            on_delta=emit if request.stream else None,
            cancelled=cancelled,
        )
        emit(Generated(samples=[sample for group in samples for sample in group]))

    def _token_limit(self, request: SamplingRequest, prompts: list[list[int]]) -> int:
        context = context_length(self.backbone)
        longest = max(map(len, prompts))
        field = "messages" if isinstance(request, ChatRequest) else "prompt"
        if longest >= context:
            message = f"The prompt has {longest} tokens; the model's context holds {context}. Shorten it."
            raise RequestError(400, message, code="context_length_exceeded", param=field)
        asked = request.token_limit
        if asked is None:
            chat = isinstance(request, ChatRequest)
            return min(DEFAULT_CHAT_TOKENS if chat else DEFAULT_COMPLETION_TOKENS, context - longest)
        if longest + asked > context:
            message = (
                f"The prompt's {longest} tokens and the {asked} asked for do not fit into the model's "
                f"context of {context}. Ask for at most {context - longest}."
            )
            raise RequestError(400, message, code="context_length_exceeded", param="max_tokens")
        return asked

    # ── Checkpoints ───────────────────────────────────────────────────────────────────

    def _use(self, name: str) -> str | None:
        """Name of the adapter that model `name` is, loaded where it was not; None for the base."""
        if name == self._catalogue.base_name:
            return None
        folder = self._catalogue.folder(name)
        try:
            digest = manifest_digest(folder)
            if name in self._loaded and self._loaded[name].digest == digest:
                self._loaded.move_to_end(name)
                return name
            manifest = read_manifest(folder)
        except (OSError, ContractError) as error:
            raise _damaged(name, error) from error
        if manifest.base_digest != self.backbone.base_digest:
            message = (
                f"Checkpoint '{name}' was trained on base {manifest.base_model} "
                f"({manifest.base_digest[:12]}), but {self._catalogue.base_name} "
                f"({self.backbone.base_digest[:12]}) is loaded. Start the model server with that base."
            )
            raise RequestError(409, message, code="base_mismatch", param="model")
        self._forget(name)
        while len(self._loaded) >= self._max_adapters:
            self._forget(next(iter(self._loaded)))
        try:
            manifest = self.backbone.load_adapter(name, folder)
        except (OSError, ContractError) as error:
            raise _damaged(name, error) from error
        self._loaded[name] = _Loaded(digest, manifest)
        return name

    def _forget(self, name: str) -> None:
        if self._loaded.pop(name, None) is not None:
            self.backbone.drop_adapter(name)

    def _fingerprint(self, name: str) -> str:
        """What the answer comes from: the digest of the checkpoint's manifest, or of the base."""
        digest = self._loaded[name].digest if name in self._loaded else self.backbone.base_digest
        return f"fp_{digest[:16]}"

    # ── Tokens ────────────────────────────────────────────────────────────────────────

    def _encode_chat(self, messages: Sequence[Message]) -> list[int]:
        for index, message in enumerate(messages):
            if found := self._control.search(message.content):
                raise RequestError(
                    400,
                    f"The text holds the control token {found.group()!r}. Take it out.",
                    code="control_token",
                    param=f"messages[{index}].content",
                )
        chat = [{"role": message.role, "content": message.content} for message in messages]
        tokenizer: Any = self.backbone.tokenizer
        try:
            text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        except TemplateError as error:
            raise RequestError(
                400,
                f"The model's chat template refuses these messages: {error}",
                code="invalid_value",
                param="messages",
            ) from error
        # The template writes the beginning-of-text token itself where there is one.
        ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _encode_prompt(self, prompt: str | list[int], index: int) -> list[int]:
        """Token ids of a raw prompt; with ids given, those, if the model knows them."""
        size = int(self.backbone.config.vocab_size)
        ids: list[int] = prompt if isinstance(prompt, list) else self.backbone.tokenizer(prompt)["input_ids"]
        if not ids:
            raise RequestError(400, "The prompt is empty.", code="invalid_value", param=f"prompt[{index}]")
        if not all(0 <= id < size for id in ids):
            message = f"Token ids must lie between 0 and {size - 1}."
            raise RequestError(400, message, code="invalid_value", param=f"prompt[{index}]")
        return ids

    def _encode_answers(
        self, messages: Sequence[Message], texts: Sequence[str], max_tokens: int, *, offsets: bool
    ) -> tuple[Answered, ...]:
        """Each text as the answer that ends the chat; the front of a long prompt is cut for all alike."""
        encoded = []
        for index, text in enumerate(texts):
            try:
                encoded.append(self._encoder.encode(messages, text, offsets=offsets))
            except ContractError as error:
                param = f"completions[{index}]"
                raise RequestError(400, f"{error}.", code="invalid_value", param=param) from error
        context = context_length(self.backbone)
        rows = shorten(encoded, min(max_tokens, context), self._encoder)
        for index, row in enumerate(rows):
            if len(row.ids) > context:
                message = f"The completion has {len(row.ids)} tokens; the model's context holds {context}."
                param = f"completions[{index}]"
                raise RequestError(400, message, code="context_length_exceeded", param=param)
        return rows


def _damaged(name: str, error: Exception) -> RequestError:
    message = f"Checkpoint '{name}' cannot be loaded: {error}. Restore its folder or train it again."
    return RequestError(422, message, code="checkpoint_damaged", param="model")

"""Response bodies, whole and streamed, in OpenAI's formats.

Beyond OpenAI's: each choice carries `seed`, with which it can be drawn again alone, and
`token_count`.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from training.rlhf.rollout.samples import Delta, Sample, TokenLogProb
from training.serving.model import GenerationStarted, PromptToken
from training.serving.requests import ChatRequest, CompletionRequest, SamplingRequest
from training.serving.structures import CallReader

DONE = b"data: [DONE]\n\n"
_Token = TokenLogProb | PromptToken


def event(body: dict[str, Any]) -> bytes:
    """Return one server-sent event."""
    return f"data: {json.dumps(body, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


@dataclass(slots=True)
class CompletionResponse:
    """The answer to one request for chat or text completions."""

    request: SamplingRequest
    started: GenerationStarted
    tokenizer: Any
    created: int = field(default_factory=lambda: int(time.time()))
    offsets: dict[int, int] = field(default_factory=dict)
    """Characters of text already sent, by choice: where `text_offset` goes on from."""
    id: str = ""
    readers: dict[int, CallReader] = field(default_factory=dict)
    """The reader of each choice's calls, where it may call tools."""

    def __post_init__(self) -> None:
        self.id = f"{'chatcmpl' if self.is_chat else 'cmpl'}-{secrets.token_hex(12)}"

    @property
    def is_chat(self) -> bool:
        """Return whether it is a chat's."""
        return isinstance(self.request, ChatRequest)

    def whole(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """Return the body of an answer that is not streamed."""
        choices = [self._choice(index, sample) for index, sample in enumerate(samples)]
        kind = "chat.completion" if self.is_chat else "text_completion"
        return self._frame(kind, choices) | {"usage": self._usage(samples)}

    def opening(self, choice: int) -> dict[str, Any]:
        """Return the first chunk of a choice of a chat: whose turn it is."""
        return self._chunk({"index": choice, "delta": {"role": "assistant", "content": ""}})

    def piece(self, delta: Delta) -> dict[str, Any]:
        """Return a chunk with the text that has become certain; the last of a choice says how it ended."""
        choice: dict[str, Any] = {"index": delta.prompt * self.request.samples + delta.sample}
        if self._calls_tools:
            choice["delta"] = self._read(choice["index"], delta.text, ended=delta.finished is not None)
        elif self.is_chat:
            choice["delta"] = {"content": delta.text} if delta.text else {}
        else:
            choice["text"] = delta.text
        choice["logprobs"] = self._log_probs(delta.tokens, choice["index"])
        choice["finish_reason"] = None
        if delta.finished is not None:
            choice |= self._ending(choice["index"], delta.finished)
        return self._chunk(choice)

    def usage_piece(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """Return the last chunk, for clients that asked for the usage."""
        return self._frame(self._chunk_kind, []) | {"usage": self._usage(samples)}

    def _choice(self, index: int, sample: Sample) -> dict[str, Any]:
        whole = isinstance(self.request, CompletionRequest) and bool(self.request.return_token_ids)
        shown: Sequence[_Token] = sample.tokens if whole else sample.tokens[: sample.visible_tokens]
        text = sample.text
        if self.started.echoed:
            prompt = self.started.echoed[index // self.request.samples]
            shown, text = (*prompt.tokens, *shown), prompt.text + text
        choice: dict[str, Any] = {"index": index, "logprobs": self._log_probs(shown, index)}
        if whole:
            choice["token_ids"] = sample.token_ids
        if self.is_chat:
            choice["message"] = {"role": "assistant", "content": sample.text, "refusal": None}
        else:
            choice["text"] = text
        if self._calls_tools:
            read = self._read(index, sample.text, ended=True)
            choice["message"]["content"] = read.get("content")
            if calls := read.get("tool_calls"):
                choice["message"]["tool_calls"] = [
                    {name: value for name, value in call.items() if name != "index"} for call in calls
                ]
        return choice | self._ending(index, sample)

    @property
    def _calls_tools(self) -> bool:
        return isinstance(self.request, ChatRequest) and bool(self.request.callable_tools)

    def _read(self, index: int, text: str, *, ended: bool) -> dict[str, Any]:
        """Return OpenAI's delta of a choice that may call tools: content, calls, or both."""
        delta = self.readers.setdefault(index, CallReader()).push(text, ended=ended)
        for call in delta.get("tool_calls", ()):
            if "type" in call:
                call["id"] = f"call_{secrets.token_hex(12)}"
        return delta

    def _ending(self, index: int, sample: Sample) -> dict[str, Any]:
        called = index in self.readers and self.readers[index].calls and sample.finish_reason == "stop"
        return {
            "finish_reason": "tool_calls" if called else sample.finish_reason,
            "seed": sample.seed,
            "token_count": len(sample.tokens),
        }

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.is_chat else "text_completion"

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        choice = {"logprobs": None, "finish_reason": None, **choice}
        return self._frame(self._chunk_kind, [choice])

    def _frame(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.request.model,
            "system_fingerprint": self.started.fingerprint,
            "choices": choices,
        }

    def _usage(self, samples: Sequence[Sample]) -> dict[str, int]:
        written = sum(len(sample.tokens) for sample in samples)
        prompt = self.started.prompt_tokens
        return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}

    # ── Log-probabilities: the model's own, before temperature and filters ────────────

    def _log_probs(self, tokens: Sequence[_Token], index: int) -> dict[str, Any] | None:
        if self.request.alternatives is None:
            return None
        return self._chat_log_probs(tokens) if self.is_chat else self._text_log_probs(tokens, index)

    def _chat_log_probs(self, tokens: Sequence[_Token]) -> dict[str, Any]:
        content = [
            self._token(token.id, token.model_log_prob)
            | {"top_logprobs": [self._token(id, value) for id, value in token.alternatives]}
            for token in tokens
        ]
        return {"content": content, "refusal": None}

    def _text_log_probs(self, tokens: Sequence[_Token], index: int) -> dict[str, Any]:
        texts = [self._text(token.id) for token in tokens]
        offset = self.offsets.get(index, 0)
        offsets = []
        for text in texts:
            offsets.append(offset)
            offset += len(text)
        self.offsets[index] = offset
        return {
            "tokens": texts,
            "token_logprobs": [token.model_log_prob for token in tokens],
            # Nothing predicts the first token of a prompt.
            "top_logprobs": [
                None
                if token.model_log_prob is None
                else {self._text(id): value for id, value in reversed(token.alternatives)}
                for token in tokens
            ],
            "text_offset": offsets,
        }

    def _token(self, id: int, log_prob: float | None) -> dict[str, Any]:
        text = self._text(id)
        # A token may be some bytes of a character; which ones, the decoder does not tell.
        known = "\N{REPLACEMENT CHARACTER}" not in text
        return {"token": text, "logprob": log_prob, "bytes": list(text.encode()) if known else None}

    def _text(self, id: int) -> str:
        text: str = self.tokenizer.decode([id], clean_up_tokenization_spaces=False)
        return text

"""The same samples from a server: vLLM, or any that speaks OpenAI's completions and returns token ids."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, Self

import httpx

from training.model_server import ModelServer, ServerError
from training.rlhf.rollout.samples import Sample, TextStream, TokenLogProb
from training.rlhf.sampling import MAX_SEED, FinishReason, SamplingParameters

LogProbSource = Literal["model", "sampler"]
"""Log-probabilities that a server returns: the model's before temperature and filters, or those drawn by."""

VLLM_NEUTRAL: Mapping[str, Any] = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
"""Fields that a request to vLLM must set: they default to the model's generation configuration."""

_MOST_BIASED = 1024
"""Tokens that vLLM takes a bias for."""


def vllm_fields(*, ends: Collection[int], unknown: Collection[int]) -> dict[str, Any]:
    """Return further fields of a request to vLLM, so that it draws as `rollout` does.

    ends: tokens that end a completion; vLLM knows those of the generation configuration alone, which may lack
    the end of a turn. unknown: ids that the tokenizer does not have, which are not to be drawn.
    """
    fields: dict[str, Any] = {**VLLM_NEUTRAL, "stop_token_ids": sorted(ends)}
    if 0 < len(unknown) <= _MOST_BIASED:
        fields["logit_bias"] = {str(id): -100 for id in sorted(unknown)}
    return fields


_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length"}


class RemoteRollout:
    """Samples from a server, as `rollout` gives them from a backbone. Safe to use from several threads.

    The server must know the same tokenizer, and the field `return_token_ids` of POST /v1/completions
    (vLLM from 0.10.2 on; Rondo's own model server): a text alone does not determine its tokens. Every choice
    of a request is taken to be drawn with the request's seed plus the choice's number, as both do it.
    """

    def __init__(
        self,
        *,
        url: str,
        model: str,
        tokenizer: Any,
        end_tokens: frozenset[int],
        unknown_tokens: frozenset[int] = frozenset(),
        key: str = "",
        tells: LogProbSource = "model",
        timeout: float = 600.0,
        attempts: int = 3,
        pause: float = 1.0,
        workers: int = 8,
        extra_fields: Mapping[str, Any] | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """url: the server's, without `/v1`. model: the name that it serves the policy under.

        end_tokens: ids that end a completion, see `limits.end_tokens`. unknown_tokens: ids that the tokenizer
        does not have; a sample with one is refused. tells: "sampler" for a vLLM
        that was started with `--logprobs-mode processed_logprobs`. timeout: seconds for one prompt's
        samples. attempts: times a prompt is sent when the server is busy or silent, after `pause`
        seconds, then twice that and so on. workers: prompts at a time. extra_fields: further fields of every
        request: `vllm_fields` for a vLLM.
        """
        if attempts < 1 or workers < 1:
            raise ValueError(f"attempts {attempts} and workers {workers} must be at least 1")
        self.model = model
        """The name that the policy is served under; may be changed between two rollouts."""
        self._tokenizer, self._ends, self._unknown = tokenizer, end_tokens, unknown_tokens
        self._tells, self._workers, self._extra_fields = tells, workers, dict(extra_fields or {})
        self._server = ModelServer(
            name="the model server",
            url=url,
            key=key,
            timeout=timeout,
            attempts=attempts,
            pause=pause,
            transport=transport,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        self._server.close()

    def abort(self) -> None:
        """Break off the requests of other threads, which raise `ServerError`; none succeeds any more."""
        self._server.abort()

    def rollout(
        self,
        prompts: Sequence[Sequence[int]],
        parameters: SamplingParameters,
        *,
        n: int = 1,
        seeds: Sequence[int] | None = None,
    ) -> list[list[Sample]]:
        """Draw `n` samples of every prompt; prompts, seeds and what is returned are as in `rollout`.

        Raises `ValueError` for what no server can be asked, `ServerError` where one gives no samples:
        it does not answer, it refuses, or it leaves out ids or log-probabilities.
        """
        self._check(prompts, parameters, n, seeds)
        firsts = [parameters.seed] * len(prompts) if seeds is None else seeds
        with ThreadPoolExecutor(self._workers) as pool:
            return list(
                pool.map(lambda prompt, first: self._samples(prompt, parameters, n, first), prompts, firsts)
            )

    def _check(
        self,
        prompts: Sequence[Sequence[int]],
        parameters: SamplingParameters,
        n: int,
        seeds: Sequence[int] | None,
    ) -> None:
        if n < 1:
            raise ValueError("n must be at least 1")
        if seeds is not None and len(seeds) != len(prompts):
            raise ValueError(f"seeds holds {len(seeds)} numbers for {len(prompts)} prompts")
        if parameters.alternatives is not None:
            raise ValueError("alternatives must be None: a server tells their texts, not their ids")
        free = parameters.temperature == 1 and parameters.top_p == 1 and parameters.top_k == 0
        if self._tells == "model" and not free:
            raise ValueError(
                "the server tells log-probabilities before temperature and filters, so temperature and top_p "
                "must be 1 and top_k 0; or start vLLM with --logprobs-mode processed_logprobs and say "
                "tells='sampler'"
            )

    def _samples(
        self, prompt: Sequence[int], parameters: SamplingParameters, n: int, first: int
    ) -> list[Sample]:
        body: dict[str, Any] = {
            **self._extra_fields,
            "model": self.model,
            "prompt": list(prompt),
            "n": n,
            "seed": first,
            "temperature": parameters.temperature,
            "top_p": parameters.top_p,
            "max_tokens": parameters.max_tokens,
            "logprobs": 0,
            "return_token_ids": True,
        }
        if parameters.top_k:
            body["top_k"] = parameters.top_k
        if parameters.stop:
            body["stop"] = list(parameters.stop)
        response = self._server.post("/v1/completions", body)
        try:
            choices = sorted(response.json()["choices"], key=lambda choice: int(choice["index"]))
            samples = [
                self._sample(choice, parameters, (first + number) % (MAX_SEED + 1))
                for number, choice in enumerate(choices)
            ]
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise ServerError(
                "the model server's answer lacks token ids or their log-probabilities; it must know "
                "return_token_ids, as vLLM from 0.10.2 on does"
            ) from error
        if len(samples) != n:
            raise ServerError(f"the model server gave {len(samples)} samples of {n}")
        return samples

    def _sample(self, choice: Any, parameters: SamplingParameters, seed: int) -> Sample:
        ids = [int(id) for id in choice["token_ids"]]
        values = [float(value) for value in choice["logprobs"]["token_logprobs"]]
        reason = str(choice["finish_reason"])
        if unknown := self._unknown.intersection(ids):
            raise ServerError(
                f"the model server drew the token {min(unknown)}, which the base's tokenizer does not have"
            )
        if reason not in _REASONS:
            raise ServerError(f"the model server broke a sample off ({reason})")
        ended = bool(ids) and ids[-1] in self._ends
        text = TextStream(self._tokenizer, parameters.stop)
        for id in ids[: len(ids) - ended]:
            text.push(id)
            if text.stopped:
                break
        text.finish(complete=ended)
        return Sample(
            tokens=tuple(TokenLogProb(id=id, log_prob=value) for id, value in zip(ids, values, strict=True)),
            text=text.text,
            visible_tokens=text.visible_tokens,
            finish_reason=_REASONS[reason],
            seed=seed,
        )

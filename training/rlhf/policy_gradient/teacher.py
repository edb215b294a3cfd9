"""A teacher on a server: the log-probabilities that it gives to the tokens which the policy drew.

The server must speak OpenAI's completions and give the log-probabilities of a prompt that it is sent: POST
/v1/completions with token ids, `echo`, `logprobs` and `max_tokens` 0. Rondo's model server and vLLM do, and
SGLang by its source; llama.cpp's gives those of the tokens alone that it draws, and is refused.

Where the server is and its key are the machine owner's to say, in the trainer's environment: a spec that
named them could have anyone's server asked.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import httpx

from training.contract import ContractError
from training.contract.methods.policy import TeacherSettings
from training.model_server import Closing, ModelServer
from training.rlhf.tokens.encoding import EncodedAnswer

URL_VARIABLE = "RONDO_TEACHER_URL"
"""Environment variable: the server of the teacher that a run learns from, without `/v1`."""
KEY_VARIABLE = "RONDO_TEACHER_KEY"
"""Environment variable: its key."""

ATTEMPTS = 6
PAUSE_SECONDS = 1.0
"""Before a request is sent for the second time; twice as long before the third, and so on."""
_REQUESTS = 8
"""Responses that are asked about at a time."""
_PROBED = 64
"""Tokens of the vocabulary that the first request looks at."""
_MOST = 1e-3
"""Log-probability above 0 that rounding explains."""

Code = Literal["no_address", "no_log_probabilities", "other_tokenizer"]


class TeacherError(ContractError):
    """The server's model cannot teach this policy. `code` says why: there is no address, the server does not
    give log-probabilities of given tokens, or its tokens are not the policy's."""

    def __init__(self, message: str, *, code: Code) -> None:
        super().__init__(f"teacher: {message}")
        self.code = code


class ServedTeacher(Closing):
    """A model on a server that knows the policy's tokens. Close it after use."""

    def __init__(
        self,
        settings: TeacherSettings,
        tokenizer: Any,
        *,
        environment: Mapping[str, str] = os.environ,
        cancelled: Callable[[], bool] = lambda: False,
        attempts: int = ATTEMPTS,
        pause: float | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """cancelled: whether the run was asked to stop. attempts, pause: how often a request is sent, and
        seconds before the second time, then twice that and so on.

        Asks about tokens from all over the vocabulary, so that a server that is away, gives no
        log-probabilities or has other tokens is known before anything is sampled. Raises `TeacherError`, and
        `ServerError` where the server does not answer or refuses.
        """
        url = environment.get(URL_VARIABLE, "").strip()
        if not url:
            raise TeacherError(
                f"{URL_VARIABLE} is not set in the trainer's environment; set it to the server that has "
                f"{settings.model}, without /v1, and {KEY_VARIABLE} to its key",
                code="no_address",
            )
        self._model, self._tokenizer, self._cancelled = settings.model, tokenizer, cancelled
        self._texts: dict[int, frozenset[str]] = {}
        """Texts by which servers name a token; none for one that is a part of a character."""
        self._server = ModelServer(
            name=f"the server of the teacher {settings.model}",
            url=url.removesuffix("/").removesuffix("/v1"),
            key=environment.get(KEY_VARIABLE, ""),
            timeout=settings.seconds,
            attempts=attempts,
            pause=PAUSE_SECONDS if pause is None else pause,
            transport=transport,
        )
        try:
            self._each([partial(self._of_tokens, _across_vocabulary(tokenizer))])
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the connections back."""
        self._server.close()

    def log_probabilities(self, answers: Sequence[EncodedAnswer]) -> list[list[float]] | None:
        """Return log p of each drawn token of each answer, at temperature 1; None once the run is to stop.

        Raises `TeacherError` and `ServerError` as at the start.
        """
        values_of = self._each([partial(self._of_tokens, answer.ids) for answer in answers])
        result = []
        for answer, values in zip(answers, values_of, strict=True):
            if values is None:
                return None
            result.append(
                [values[place] for start, end in answer.learned_runs for place in range(start, end)]
            )
        return result

    def _each(self, tasks: Sequence[Callable[[], list[float]]]) -> list[list[float] | None]:
        return self._server.each(tasks, at_once=_REQUESTS, cancelled=self._cancelled)

    def _of_tokens(self, ids: Sequence[int]) -> list[float]:
        """Return log p of each token after those before it; of the first, which nothing predicts, NaN."""
        body = {
            "model": self._model,
            "prompt": list(ids),
            "max_tokens": 0,
            "echo": True,
            # SGLang takes 0 for none.
            "logprobs": 1,
            "temperature": 1.0,
        }
        answer = self._server.ask("POST", "/v1/completions", body)
        try:
            logprobs = answer["choices"][0]["logprobs"]
            # A server that draws a token in any case tells it after those that it was sent.
            texts, values = (list(logprobs[name])[: len(ids)] for name in ("tokens", "token_logprobs"))
        except (KeyError, IndexError, TypeError):
            raise self._without_values("gives no log-probabilities") from None
        self._compare(ids, texts)
        if len(values) != len(ids):
            raise self._without_values(f"gives {len(values)} log-probabilities for {len(ids)} tokens")
        return [math.nan, *(self._number(value) for value in values[1:])]

    def _compare(self, ids: Sequence[int], texts: Sequence[Any]) -> None:
        """Raise `TeacherError` unless the server names each token as the policy's tokenizer does."""
        if len(texts) != len(ids):
            raise self._without_values(f"tells {len(texts)} tokens of the {len(ids)} that it was sent")
        for place, (id, text) in enumerate(zip(ids, texts, strict=True)):
            names = self._names(id)
            if names and text not in names:
                raise TeacherError(
                    f"the server's token {place} is {text!r}, the policy's is {min(names)!r} (id {id}); take "
                    f"a teacher with the policy's tokenizer in place of {self._model}",
                    code="other_tokenizer",
                )

    def _names(self, id: int) -> frozenset[str]:
        """Return the texts by which a server with the policy's tokenizer may name a token."""
        if id not in self._texts:
            texts = {
                self._tokenizer.decode([id], clean_up_tokenization_spaces=tidy) for tidy in (False, True)
            }
            if any("\N{REPLACEMENT CHARACTER}" in text for text in texts):
                texts = set()
            else:
                texts.add(str(self._tokenizer.convert_ids_to_tokens(id)))
            self._texts[id] = frozenset(texts)
        return self._texts[id]

    def _number(self, value: Any) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or value > _MOST:
            raise self._without_values(f"gives {value!r} as the log-probability of a token")
        return float(value)

    def _without_values(self, what: str) -> TeacherError:
        return TeacherError(
            f"the server of {self._model} {what}; it must answer POST /v1/completions with echo, logprobs "
            "and max_tokens 0 by the log-probability of each token sent, as Rondo's model server and vLLM do",
            code="no_log_probabilities",
        )


def _across_vocabulary(tokenizer: Any) -> list[int]:
    """Return ordinary tokens at even distances, the first and the last among them."""
    special = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
    ids = sorted(set(tokenizer.get_vocab().values()) - special)
    count = min(_PROBED, len(ids))
    return [ids[number * (len(ids) - 1) // max(count - 1, 1)] for number in range(count)]

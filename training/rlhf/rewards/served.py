"""A reward model on a model server as a reward: texts go there, scores come back.

For a reward model on another base than the policy's. Its tokens are its own: a segment's reward comes with
the segment's end in code points and is paid to the policy's token there, see `training.rlhf.spans`.
"""

from __future__ import annotations

import contextlib
import copy
import queue
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import httpx

from training.contract import ContractError, Message
from training.rlhf.rewards.protocol import Chat, Reference, Score, SegmentScore, UnavailableRewardError
from training.rlhf.rollout.compatible_server import CompatibleServer, ServerError

_AT_ONCE = 64
"""Completions of one request: the server's bound."""
_REQUESTS = 4
ATTEMPTS = 6
PAUSE_SECONDS = 1.0
"""Before a request is sent for the second time; twice as long before the third, and so on."""
_LOOK_SECONDS = 0.1
_BLAMED = re.compile(r"completions\[(\d+)\]")
_PROBE = [Message(role="user", content="Hello.")]
STOPPED = "the run was asked to stop"
"""Reason of what was not scored any more."""

_Result = TypeVar("_Result")


class RewardServerError(ServerError, UnavailableRewardError):
    """The model server does not score: it is away, or refuses every request. The message is for people."""


class WrongRewardModelError(ContractError, UnavailableRewardError):
    """The model server scores with another checkpoint than the run was made for."""


class _Job(NamedTuple):
    """Completions of one chat, by their places in the batch."""

    chat: Chat
    places: list[int]


_Answered = tuple[Mapping[str, Any], int]
"""An answer of the server, and the place of a completion in it."""


class ServedReward:
    """Σ_k w_k R_k over the heads of a served reward model, as `learned.LearnedReward` makes it of an adapter.

    Every answer of the server names the digest of the checkpoint that scored; another one than the run's
    raises. A completion that the server refuses (a control token in it, too long) cannot be scored; a server
    that stays away ends the run with `RewardServerError`. Prompts are sent as they are. Close it after use.
    """

    def __init__(
        self,
        model: str,
        *,
        url: str,
        key: str,
        digest: str | None = None,
        weights: Mapping[str, float] | None = None,
        context: bool | None = None,
        timeout: float = 600.0,
        attempts: int = ATTEMPTS,
        pause: float | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """model: the checkpoint's name there. url: without `/v1`. digest: of its manifest; None takes any.
        weights: w_k by head; 0 for a head that it does not name, and 1 for all heads where it is left out.
        context: whether prompts come with their passages in them; None does not look.
        attempts, pause: how often a request is sent, and seconds before the second time, then twice that and
        so on. cancelled: whether the run was asked to stop; what is not scored by then cannot be scored.

        Scores one text, so that a server that is away or holds another checkpoint is known before anything is
        sampled. Raises `RewardServerError`, and `ContractError` for another digest, a head that is not there
        and a model that was trained with context otherwise.
        """
        self._model, self._digest, self._cancelled = model, digest, cancelled
        self._weights = None if weights is None else dict(weights)
        self._server = CompatibleServer(
            name=f"the model server of the reward model {model}",
            url=url.removesuffix("/").removesuffix("/v1"),
            key=key,
            timeout=timeout,
            attempts=attempts,
            pause=PAUSE_SECONDS if pause is None else pause,
            transport=transport,
        )
        self._last: list[Any] = []
        """The batch asked about last, its answers, and who has read them; shared by those `weighed`."""
        try:
            [self._probe] = self._done([lambda: self._ask(_PROBE, ["Hello."])])
            if self._probe is not None:
                self._refuse_unknown_heads(self._probe)
                self._refuse_other_context(self._probe, context)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the connections back."""
        self._server.close()

    def weighed(self, weights: Mapping[str, float] | None) -> ServedReward:
        """Return the same reward model with other weights of its heads; both ask once about a batch.

        Raises `ContractError` for a head that is not there.
        """
        other = copy.copy(self)
        other._weights = None if weights is None else dict(weights)
        if self._probe is not None:
            other._refuse_unknown_heads(self._probe)
        return other

    def __call__(
        self, prompts: Sequence[Chat], completions: Sequence[str], references: Sequence[Reference]
    ) -> list[Score]:
        del references
        batch = ([list(prompt) for prompt in prompts], list(completions))
        if self._last[:1] != [batch] or id(self) in self._last[2]:
            self._last[:] = [batch, self._answers(prompts, completions), set()]
        self._last[2].add(id(self))
        return [answer if isinstance(answer, Score) else self._read(*answer) for answer in self._last[1]]

    def _answers(self, prompts: Sequence[Chat], completions: Sequence[str]) -> list[_Answered | Score]:
        """Return the answer about each completion, or why it cannot be scored."""
        answers: list[_Answered | Score] = [Score.cannot("the completion is empty") for _ in completions]
        jobs = list(_jobs(prompts, completions))
        done = self._done([partial(self._answer, job, completions) for job in jobs])
        for job, results in zip(jobs, done, strict=True):
            for place in job.places:
                answers[place] = Score.cannot(STOPPED) if results is None else results[place]
        return answers

    def _done(self, tasks: Sequence[Callable[[], _Result]]) -> list[_Result | None]:
        """Return the result of each task, some of which run at a time; None for those that were called off.

        The threads are daemons: one that still waits for an answer ends with the process, not the process
        with it. Raises what the first task that fails raises.
        """
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        done: queue.SimpleQueue[tuple[int, _Result | Exception]] = queue.SimpleQueue()
        for number in range(len(tasks)):
            waiting.put(number)

        def work() -> None:
            while not self._cancelled():
                try:
                    number = waiting.get_nowait()
                except queue.Empty:
                    return
                try:
                    done.put((number, tasks[number]()))
                except Exception as error:
                    done.put((number, error))
                    return

        for _ in range(min(_REQUESTS, len(tasks))):
            threading.Thread(target=work, name="served reward", daemon=True).start()
        results: dict[int, _Result] = {}
        while len(results) < len(tasks):
            if self._cancelled():
                self._server.abort()
                break
            with contextlib.suppress(queue.Empty):
                number, result = done.get(timeout=_LOOK_SECONDS)
                if isinstance(result, Exception):
                    raise result
                results[number] = result
        return [results.get(number) for number in range(len(tasks))]

    def _answer(self, job: _Job, completions: Sequence[str]) -> dict[int, _Answered | Score]:
        """Return the answers about a job by place; the rest of what is refused is sent again."""
        answers: dict[int, _Answered | Score] = {}
        places = list(job.places)
        while places:
            try:
                answer = self._ask(job.chat, [completions[place] for place in places])
            except RewardServerError as error:
                blamed = _BLAMED.fullmatch(error.param or "")
                if blamed is None or int(blamed[1]) >= len(places):
                    raise
                answers[places.pop(int(blamed[1]))] = Score.cannot(str(error))
                continue
            return answers | {place: (answer, row) for row, place in enumerate(places)}
        return answers

    def _ask(self, chat: Chat, completions: Sequence[str]) -> Mapping[str, Any]:
        """Return the server's answer, which is by the right checkpoint."""
        body = {
            "model": self._model,
            "messages": [{"role": message.role, "content": message.content} for message in chat],
            "completions": list(completions),
            "heads": True,
        }
        try:
            answer: Mapping[str, Any] = self._server.post("/v1/score", body).json()
            digest = str(answer["digest"])
        except ServerError as error:
            raise RewardServerError(str(error), status=error.status, param=error.param) from error
        except (ValueError, KeyError, TypeError) as error:
            raise RewardServerError(
                f"the model server of the reward model {self._model} does not say which checkpoint scored; "
                "it must be Rondo's, of this version"
            ) from error
        if self._digest not in (None, digest):
            raise WrongRewardModelError(
                f"the model server's {self._model} is another checkpoint: its digest is {digest[:12]}, the "
                f"spec asks for {(self._digest or '')[:12]}; serve the reward model that the run was made for"
            )
        return answer

    def _refuse_unknown_heads(self, answer: Mapping[str, Any]) -> None:
        heads = (*answer["heads"], *answer["segments"])
        if odd := sorted(set(self._weights or ()) - set(heads)):
            raise ContractError(
                f"the reward model {self._model} has no head {', '.join(odd)}; it has {', '.join(heads)}"
            )

    def _refuse_other_context(self, answer: Mapping[str, Any], context: bool | None) -> None:
        trained = bool(answer["context"])
        if context not in (None, trained):
            with_or_without = "with" if trained else "without"
            raise ContractError(
                f"the reward model {self._model} was trained on prompts {with_or_without} their context "
                f"passages; set context to {str(trained).lower()}, or take another reward model"
            )

    def _read(self, answer: Mapping[str, Any], place: int) -> Score:
        """Return the score of a completion in an answer. Raises `RewardServerError` where none is there."""
        try:
            return self._score(answer, place)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise RewardServerError(
                f"the model server of the reward model {self._model} gave no usable score ({error!r})"
            ) from error

    def _score(self, answer: Mapping[str, Any], place: int) -> Score:
        value = 0.0
        for head, outputs in answer["heads"].items():
            values = outputs[place]
            value += self._weight(head) * sum(map(float, values)) / len(values)
        ends: dict[int, float] = defaultdict(float)
        for head, of_completions in answer["segments"].items():
            weight = self._weight(head)
            for segment in of_completions[place] if weight else ():
                if answer["granularity"][head] == "whole":
                    value += weight * float(segment["reward"])
                else:
                    ends[int(segment["end"])] += weight * float(segment["reward"])
        return Score(value, tuple(SegmentScore(end, ends[end]) for end in sorted(ends)))

    def _weight(self, head: str) -> float:
        return 1.0 if self._weights is None else self._weights.get(head, 0.0)


def _jobs(prompts: Sequence[Chat], completions: Sequence[str]) -> Iterator[_Job]:
    """Yield requests: completions of one chat that stand together, those without text left out."""
    for _, together in groupby(range(len(completions)), key=lambda place: list(prompts[place])):
        places = [place for place in together if completions[place].strip()]
        for start in range(0, len(places), _AT_ONCE):
            yield _Job(prompts[places[0]], places[start : start + _AT_ONCE])

"""Trained reward models as rewards: in this process, or on a model server."""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import httpx
import torch
from torch import Tensor

from training.contract import ContractError
from training.contract.methods.reward import RewardSettings
from training.contract.snapshot import Message
from training.contract.validation import Population
from training.model_server import ModelServer, ServerError
from training.rlhf.methods.objectives.ratings import read_heads
from training.rlhf.methods.objectives.segments import SegmentReward, segment_rewards
from training.rlhf.methods.people import check_population, population_scores
from training.rlhf.methods.reward import encode
from training.rlhf.model.backbone import SCORE, Backbone
from training.rlhf.rewards.protocol import Chat, Reference, Score, ScoredSegment, UnavailableRewardError
from training.rlhf.tokens.encoding import EncodedAnswer, Encoder, shorten
from training.rlhf.tokens.example import Example
from training.rlhf.tokens.packing import pack, passes

# ── A trained reward model as a reward: heads on answers give its value, heads on segments dense rewards ──

_ALL = Population()


class LearnedReward:
    """Σ_k w_k R_k over the heads of an adapter on a backbone (Wu et al. 2023, equation 2).

    Heads on whole answers, segment heads of granularity "whole" among them, add up to a score's `value`; the
    others' rewards stand in its `segments`, which end wherever a segment of one of them does: where several
    end in one place their rewards add up. A completion that cannot be read (a control token in it, nothing
    to read, longer than the model takes) cannot be scored. References are not looked at; prompts are taken as
    they are, so whoever trained with context passages puts them in.
    """

    def __init__(
        self,
        backbone: Backbone,
        adapter: str,
        settings: RewardSettings,
        *,
        weights: Mapping[str, float] | None = None,
        population: Population = _ALL,
        micro_batch_tokens: int = 8192,
    ) -> None:
        """`settings` are those that the adapter was trained with. `weights`: w_k by head; 0 for a head that
        it does not name, and 1 for all heads where it is left out. `population`: whose reward the head
        `score` gives. Raises `ContractError` for a head or a group that is not there."""
        self._backbone = backbone
        self._adapter = adapter
        self._settings = settings
        self._tokens = micro_batch_tokens
        self._encoder = Encoder(backbone.tokenizer, thinking=settings.thinking)
        self._population = population
        check_population(backbone, adapter, population)
        heads = settings.head_names
        self._weights = dict.fromkeys(heads, 1.0) if weights is None else dict(weights)
        if odd := sorted(set(self._weights) - set(heads)):
            raise ContractError(f"the reward model has no head {', '.join(odd)}; it has {', '.join(heads)}")

    @torch.no_grad()
    def __call__(
        self, prompts: Sequence[Chat], completions: Sequence[str], references: Sequence[Reference]
    ) -> list[Score]:
        del references
        scores: list[Score] = [Score.cannot("") for _ in completions]
        examples: list[Example] = []
        places: list[int] = []
        for _, together in groupby(range(len(completions)), key=lambda place: list(prompts[place])):
            answers: list[EncodedAnswer] = []
            for place in together:
                answered = self._encoded(prompts[place], completions[place])
                if isinstance(answered, str):
                    scores[place] = Score.cannot(answered)
                else:
                    answers.append(answered)
                    places.append(place)
            if answers:
                encoded = shorten(answers, self._settings.max_tokens, self._encoder)
                examples.append(Example("", encoded, (0,) * len(encoded)))
        read = iter(places)
        for group in passes(examples, tokens=self._tokens):
            some = [next(read) for example in group for _ in example.answers]
            for place, score in zip(some, self._scores(group, [completions[at] for at in some]), strict=True):
                scores[place] = score
        return scores

    def _encoded(self, prompt: Chat, completion: str) -> EncodedAnswer | str:
        """Return the completion as an answer, or why it cannot be one."""
        if not completion.strip():
            return "the completion is empty"
        try:
            answered = self._encoder.encode(prompt, completion, offsets=bool(self._settings.segments))
        except ContractError as error:
            return str(error)
        if len(answered.ids) - answered.answer_start >= self._settings.max_tokens:
            return (
                f"the completion is longer than the reward model takes ({self._settings.max_tokens} tokens)"
            )
        return answered

    def _scores(self, examples: list[Example], texts: Sequence[str]) -> list[Score]:
        batch = pack(examples, device=self._backbone.device)
        states = encode(self._backbone, self._adapter, batch)
        values, members = self._values(states[batch.last])
        of_segments = segment_rewards(
            self._backbone,
            self._adapter,
            self._settings.segments,
            states,
            batch,
            answers=[answer for example in examples for answer in example.answers],
            texts=texts,
        )
        return [
            self._score(value, of_members, parts)
            for value, of_members, parts in zip(values.tolist(), members, of_segments, strict=True)
        ]

    def _values(self, states: Tensor) -> tuple[Tensor, list[tuple[float, ...]]]:
        """(N,) weighted sum of the heads on whole answers, the mean of an ensemble; and N times what the
        members of an ensemble say."""
        values = torch.zeros(len(states), device=states.device)
        members: list[tuple[float, ...]] = [()] * len(states)
        for name, outputs in read_heads(self._backbone, self._adapter, states, self._settings).items():
            output = outputs.mean(-1)
            if name == SCORE and self._population.reward != "common":
                output = population_scores(self._backbone, self._adapter, states, self._population)
            elif name == SCORE and outputs.shape[-1] > 1:
                members = [tuple(row) for row in outputs.tolist()]
            values += self._weights.get(name, 0.0) * output
        return values, members

    def _score(
        self, value: float, members: tuple[float, ...], of_heads: Mapping[str, list[SegmentReward]]
    ) -> Score:
        ends: dict[int, float] = defaultdict(float)
        for head in self._settings.segments:
            weight = self._weights.get(head.name, 0.0)
            for segment in of_heads[head.name] if weight else ():
                if head.granularity == "whole":
                    value += weight * segment.reward
                else:
                    ends[segment.end] += weight * segment.reward
        return Score(value, tuple(ScoredSegment(end, ends[end]) for end in sorted(ends)), members=members)


# ── A reward model on a model server as a reward: texts go there, scores come back ──
#
# For a reward model on another base than the policy's. Its tokens are its own: a segment's reward comes
# with the segment's end in code points and is paid to the policy's token there, see `training.rlhf.spans`.

_AT_ONCE = 64
"""Completions of one request: the server's bound."""
_REQUESTS = 4
ATTEMPTS = 6
PAUSE_SECONDS = 1.0
"""Before a request is sent for the second time; twice as long before the third, and so on."""
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
        self._server = ModelServer(
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
        return self._server.each(tasks, at_once=_REQUESTS, cancelled=self._cancelled)

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
        return Score(value, tuple(ScoredSegment(end, ends[end]) for end in sorted(ends)))

    def _weight(self, head: str) -> float:
        return 1.0 if self._weights is None else self._weights.get(head, 0.0)


def _jobs(prompts: Sequence[Chat], completions: Sequence[str]) -> Iterator[_Job]:
    """Yield requests: completions of one chat that stand together, those without text left out."""
    for _, together in groupby(range(len(completions)), key=lambda place: list(prompts[place])):
        places = [place for place in together if completions[place].strip()]
        for start in range(0, len(places), _AT_ONCE):
            yield _Job(prompts[places[0]], places[start : start + _AT_ONCE])

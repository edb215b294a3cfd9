"""A trained reward model as a reward: heads on answers give its value, heads on segments dense rewards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby

import torch
from torch import Tensor

from training.contract import ContractError, Population, RewardSettings
from training.rlhf.methods.objectives.people import check_population, population_scores
from training.rlhf.methods.objectives.reading import read_heads
from training.rlhf.methods.objectives.segment_scores import SegmentReward, segment_rewards
from training.rlhf.methods.reward import encode
from training.rlhf.model.backbone import SCORE, Backbone
from training.rlhf.rewards.protocol import Chat, Reference, Score, SegmentScore
from training.rlhf.tokens.encoding import Answered, Encoder, shorten
from training.rlhf.tokens.example import Example
from training.rlhf.tokens.packing import pack, passes

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
            answers: list[Answered] = []
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

    def _encoded(self, prompt: Chat, completion: str) -> Answered | str:
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
        values = self._values(states[batch.last])
        of_segments = segment_rewards(
            self._backbone,
            self._adapter,
            self._settings.segments,
            states,
            batch,
            answers=[answer for example in examples for answer in example.answers],
            texts=texts,
        )
        return [self._score(value, parts) for value, parts in zip(values.tolist(), of_segments, strict=True)]

    def _values(self, states: Tensor) -> Tensor:
        """(N,) weighted sum of the heads on whole answers; the mean of an ensemble."""
        values = torch.zeros(len(states), device=states.device)
        for name, outputs in read_heads(self._backbone, self._adapter, states, self._settings).items():
            output = outputs.mean(-1)
            if name == SCORE and self._population.reward != "common":
                output = population_scores(self._backbone, self._adapter, states, self._population)
            values += self._weights.get(name, 0.0) * output
        return values

    def _score(self, value: float, of_heads: Mapping[str, list[SegmentReward]]) -> Score:
        ends: dict[int, float] = defaultdict(float)
        for head in self._settings.segments:
            weight = self._weights.get(head.name, 0.0)
            for segment in of_heads[head.name] if weight else ():
                if head.granularity == "whole":
                    value += weight * segment.reward
                else:
                    ends[segment.end] += weight * segment.reward
        return Score(value, tuple(SegmentScore(end, ends[end]) for end in sorted(ends)))

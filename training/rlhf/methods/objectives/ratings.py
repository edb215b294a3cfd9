"""Heads fitted to ratings, or to answers to questions: direct assessment of one response by itself.

    regression   s + b is the rating scaled to 0..1; squared error
    ordinal      P(rating ≤ k) = σ(θ_k − s), θ_1 < θ_2 < …; −log P(the rating) (McCullagh 1980)
    binary       σ(s + b) is the probability of a thumb up or of the upper half of the scale, as of "safe";
                 cross-entropy. The middle of a scale with one counts as ½: neither half, and no coin either

where s is the head's output at the answer's last token. The answers to a question are levels in the order in
which the head names them. A head begins at 0, and b and θ where the training ratings put them without it: the
first prediction is what is rated on average.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from annotation.record.judgment import Scale
from training.contract import ContractError
from training.contract.methods.reward import RatingHead, RewardSettings
from training.contract.run import RunSpec
from training.rlhf.loop.method import Outcome, Part
from training.rlhf.measures.calibration import figures_of_chances, figures_of_levels, figures_of_values
from training.rlhf.model.backbone import SCORE, Backbone
from training.rlhf.tokens.example import Example, RatingLabel
from training.rlhf.tokens.packing import Batch

LEVELS: Mapping[Scale, Sequence[int]] = {
    "five": (1, 2, 3, 4, 5),
    "seven": (1, 2, 3, 4, 5, 6, 7),
    "thumbs": (0, 1),
}
"""The ratings that each scale knows, lowest first."""


_ANSWERS = "answers"
"""The scale of a head on a question: the places of its answers, from 0 on."""


class RatingObjective:
    """One named head on the ratings of one criterion. An example costs the mean of its ratings.

    Figures, `NAME_…`: of regression `mean_absolute_error` on 0..1 and `spearman`; of ordinal `accuracy`
    (the likeliest rating is the one given), `log_loss`, `mean_absolute_error` of the expected rating on
    0..1 and `spearman`; of binary `accuracy`, `log_loss` and `auc`, ratings in the middle left out.
    """

    def __init__(self, backbone: Backbone, adapter: str, spec: RunSpec, head: RatingHead) -> None:
        self._backbone = backbone
        self._adapter = adapter
        self._head = head
        self._link = _LINKS[head.loss](backbone, adapter, head)
        self.name = head.name
        if head.name not in backbone.heads(adapter):
            backbone.add_head(adapter, head.name, seed=spec.seed, scale=0.0)

    def begin(self, train: Sequence[Example]) -> None:
        """Let thresholds and means begin where the ratings put them. Raises `ContractError` without any."""
        ratings = [rating for example in train for rating in self._ratings(example)]
        if not ratings and self._head.answers:
            raise ContractError(
                f"reward settings, ratings: no training judgment answers the question "
                f"{self._head.criterion!r} of a response by any of {', '.join(self._head.answers)}, which "
                f"head {self.name!r} is to learn; ask it of each response, name answers by their keys, or "
                "leave the head out"
            )
        if not ratings:
            raise ContractError(
                f"reward settings, ratings: no training judgment rates the criterion "
                f"{self._head.criterion!r}, which head {self.name!r} is to learn; rate answers on it or "
                "leave the head out"
            )
        self._link.begin(ratings)

    def weight(self, example: Example) -> float:
        """Return the judgment's weight where it rates an answer on the criterion."""
        return example.weight if self._ratings(example) else 0.0

    def outcome(self, states: Tensor, batch: Batch, examples: list[Example]) -> Outcome:
        """Return the mean loss of every judgment's ratings."""
        rated = [(index, rating) for index, item in enumerate(examples) for rating in self._ratings(item)]
        places = [int(batch.table[index, rating.answer]) for index, rating in rated]
        device = states.device
        scores = self._backbone.score(
            self._adapter,
            states[batch.last[torch.tensor(places, dtype=torch.long, device=device)]],
            head=self.name,
        )
        ratings = [rating for _, rating in rated]
        cost = self._link.cost(scores, ratings)
        example = torch.tensor([index for index, _ in rated], dtype=torch.long, device=device)
        counts = torch.bincount(example, minlength=batch.examples).clamp(min=1)
        whole = torch.zeros(batch.examples, device=device).index_add(0, example, cost)
        with torch.no_grad():
            observed = {
                f"{self.name}.{name}": value for name, value in self._link.observe(scores, ratings).items()
            }
        return Outcome({self.name: Part(self._head.weight, whole / counts)}, observed)

    def figures(self, observed: Mapping[str, Tensor], *, held_out: bool) -> dict[str, float]:
        """Return figures of this head, each name beginning with the head's."""
        del held_out
        prefix = f"{self.name}."
        mine = {
            name.removeprefix(prefix): value.double()
            for name, value in observed.items()
            if name.startswith(prefix)
        }
        return {f"{self.name}_{name}": value for name, value in self._link.figures(mine).items()}

    def details(self, observed: Mapping[str, Tensor]) -> dict[str, Any]:
        """Nothing beside its figures."""
        del observed
        return {}

    def _ratings(self, example: Example) -> list[RatingLabel]:
        if self._head.answers:
            return [
                RatingLabel(item.answer, item.question, _ANSWERS, self._head.answers.index(item.value))
                for item in example.labels.questions
                if item.question == self._head.criterion and item.value in self._head.answers
            ]
        return [rating for rating in example.labels.ratings if rating.criterion == self._head.criterion]


class _Link:
    """Link from a head's outputs to ratings: (N,) scores of N ratings."""

    def __init__(self, backbone: Backbone, adapter: str, head: RatingHead) -> None:
        self._backbone = backbone
        self._adapter = adapter
        self._name = head.name
        self._levels: Mapping[str, Sequence[int]] = (
            {_ANSWERS: range(len(head.answers))} if head.answers else LEVELS
        )

    def _scaled(self, ratings: Iterable[RatingLabel]) -> Tensor:
        """Return each rating between 0, its scale's lowest, and 1, its highest."""
        ends = [(rating.value, self._levels[rating.scale]) for rating in ratings]
        return torch.tensor(
            [(value - levels[0]) / (levels[-1] - levels[0]) for value, levels in ends], dtype=torch.float32
        )

    def _upper(self, ratings: Iterable[RatingLabel]) -> Tensor:
        """1 in the upper half of its scale, 0 in the lower, ½ in the middle."""
        return (self._scaled(ratings) - 0.5).sign().add(1) / 2

    def _begin_at(self, extra: str, value: Tensor) -> None:
        """A checkpoint that training continues has its own, which stays."""
        if extra not in self._backbone.extras(self._adapter):
            self._backbone.add_extra(self._adapter, extra, value)

    @property
    def _bias(self) -> Tensor:
        return self._backbone.extra(self._adapter, f"{self._name}.bias")  # noqa: S610

    def begin(self, ratings: Sequence[RatingLabel]) -> None:
        """Add what is learned beside the head."""
        raise NotImplementedError

    def cost(self, scores: Tensor, ratings: Sequence[RatingLabel]) -> Tensor:
        """(N,) with gradient."""
        raise NotImplementedError

    def observe(self, scores: Tensor, ratings: Sequence[RatingLabel]) -> dict[str, Tensor]:
        """Return the observations for the figures."""
        raise NotImplementedError

    def predict(self, scores: Tensor) -> Tensor:
        """(N,) between 0 and 1 as a rule: the expected rating on 0..1, or of a binary head the chance."""
        raise NotImplementedError

    def figures(self, observed: Mapping[str, Tensor]) -> dict[str, float]:
        """Return figures without the head's name."""
        raise NotImplementedError


class _Regression(_Link):
    def begin(self, ratings: Sequence[RatingLabel]) -> None:
        self._begin_at(f"{self._name}.bias", self._scaled(ratings).mean().reshape(1))

    def cost(self, scores: Tensor, ratings: Sequence[RatingLabel]) -> Tensor:
        return (scores + self._bias - self._scaled(ratings).to(scores)) ** 2

    def observe(self, scores: Tensor, ratings: Sequence[RatingLabel]) -> dict[str, Tensor]:
        return {"predicted": self.predict(scores), "rated": self._scaled(ratings).to(scores)}

    def predict(self, scores: Tensor) -> Tensor:
        return scores + self._bias

    def figures(self, observed: Mapping[str, Tensor]) -> dict[str, float]:
        return figures_of_values(observed["predicted"], observed["rated"])


class _Binary(_Link):
    def begin(self, ratings: Sequence[RatingLabel]) -> None:
        # Half a rating of either kind is added: with one kind alone the log odds would be infinite.
        share = (self._upper(ratings).sum() + 0.5) / (len(ratings) + 1)
        self._begin_at(f"{self._name}.bias", torch.logit(share).reshape(1))

    def cost(self, scores: Tensor, ratings: Sequence[RatingLabel]) -> Tensor:
        return F.binary_cross_entropy_with_logits(
            scores + self._bias, self._upper(ratings).to(scores), reduction="none"
        )

    def observe(self, scores: Tensor, ratings: Sequence[RatingLabel]) -> dict[str, Tensor]:
        return {"logit": scores + self._bias, "upper": self._upper(ratings).to(scores)}

    def predict(self, scores: Tensor) -> Tensor:
        return torch.sigmoid(scores + self._bias)

    def figures(self, observed: Mapping[str, Tensor]) -> dict[str, float]:
        sided = observed["upper"] != 0.5
        return figures_of_chances(observed["logit"][sided], observed["upper"][sided])


class _Ordinal(_Link):
    def begin(self, ratings: Sequence[RatingLabel]) -> None:
        for scale in sorted({rating.scale for rating in ratings}):
            frequencies = Counter(rating.value for rating in ratings if rating.scale == scale)
            counts = torch.tensor([frequencies[level] + 0.5 for level in self._levels[scale]])
            below = (counts.cumsum(0) / counts.sum())[:-1].logit()
            # The first threshold, then the logarithms of the steps up: however they are learned, they rise.
            steps = below.diff().log()
            self._begin_at(self._extra(scale), torch.cat([below[:1], steps]))

    def _extra(self, scale: str) -> str:
        return f"{self._name}.thresholds_{scale}"

    def _places(self, ratings: Sequence[RatingLabel], rows: Tensor, scale: str) -> Tensor:
        """Return the places of the ratings at `rows` among the levels of their scale."""
        return torch.tensor([self._levels[scale].index(ratings[row].value) for row in rows.tolist()])

    def _log_probabilities(self, scores: Tensor, scale: str) -> Tensor:
        """log P of every level: (N,) to (N, levels)."""
        if self._extra(scale) not in self._backbone.extras(self._adapter):
            raise ContractError(
                f"head {self._name!r}: a held-out judgment is rated on the scale {scale!r}, which no "
                "training judgment uses; rate training prompts on it too or leave these judgments out"
            )
        raw = self._backbone.extra(self._adapter, self._extra(scale))  # noqa: S610
        thresholds = torch.cat([raw[:1], raw[1:].exp()]).cumsum(0)
        return cumulative_link(scores, thresholds)

    def cost(self, scores: Tensor, ratings: Sequence[RatingLabel]) -> Tensor:
        cost = torch.zeros_like(scores)
        for scale, rows in _by_scale(ratings).items():
            log_probs = self._log_probabilities(scores[rows], scale)
            targets = self._places(ratings, rows, scale).to(scores.device)
            cost = cost.index_add(0, rows.to(scores.device), -log_probs.gather(1, targets[:, None])[:, 0])
        return cost

    def observe(self, scores: Tensor, ratings: Sequence[RatingLabel]) -> dict[str, Tensor]:
        parts: dict[str, list[Tensor]] = {
            name: [scores.new_zeros(0)] for name in ("expected", "rated", "hit", "log")
        }
        for scale, rows in _by_scale(ratings).items():
            log_probs = self._log_probabilities(scores[rows], scale)
            targets = self._places(ratings, rows, scale).to(scores.device)
            parts["expected"].append(_expected(log_probs))
            parts["rated"].append(targets / (log_probs.shape[1] - 1))
            parts["hit"].append((log_probs.argmax(1) == targets).to(scores))
            parts["log"].append(log_probs.gather(1, targets[:, None])[:, 0])
        return {name: torch.cat(values) for name, values in parts.items()}

    def predict(self, scores: Tensor) -> Tensor:
        """Return the predicted ratings, averaged over scales."""
        learned = self._backbone.extras(self._adapter)
        scales = [scale for scale in self._levels if self._extra(scale) in learned]
        return torch.stack([_expected(self._log_probabilities(scores, scale)) for scale in scales]).mean(0)

    def figures(self, observed: Mapping[str, Tensor]) -> dict[str, float]:
        return figures_of_levels(observed["expected"], observed["rated"], observed["hit"], observed["log"])


_LINKS: Mapping[str, type[_Link]] = {"regression": _Regression, "ordinal": _Ordinal, "binary": _Binary}


def cumulative_link(scores: Tensor, thresholds: Tensor) -> Tensor:
    """log P(level) of every level: scores (N,), rising thresholds (L − 1,), to (N, L).

    P(level k) = σ(θ_k − s) − σ(θ_{k−1} − s), with θ_0 = −∞ and θ_L = ∞. As a product, for precision where
    both are near 1: σ(a) − σ(b) = σ(a) σ(−b) (1 − e^{b − a}).
    """
    distance = thresholds - scores[:, None]
    never = distance.new_zeros(len(scores), 1)
    up, down = F.logsigmoid(distance), F.logsigmoid(-distance)
    between = torch.log(-torch.expm1(-thresholds.diff())).expand(len(scores), -1)
    return (
        torch.cat([up, never], dim=1)
        + torch.cat([never, down], dim=1)
        + torch.cat([never, between, never], dim=1)
    )


def predicted_ratings(backbone: Backbone, adapter: str, head: RatingHead, scores: Tensor) -> Tensor:
    """Return the expected ratings on 0..1 of a head's outputs, (N,); of a binary head the probability."""
    return _LINKS[head.loss](backbone, adapter, head).predict(scores)


def _expected(log_probabilities: Tensor) -> Tensor:
    """(N, levels) to (N,): the expected level, the lowest being 0 and the highest 1."""
    levels = torch.linspace(0, 1, log_probabilities.shape[1], device=log_probabilities.device)
    return log_probabilities.exp() @ levels


def _by_scale(ratings: Sequence[RatingLabel]) -> dict[str, Tensor]:
    """Places of the ratings on each scale."""
    by_scale: dict[str, list[int]] = {}
    for place, rating in enumerate(ratings):
        by_scale.setdefault(rating.scale, []).append(place)
    return {scale: torch.tensor(places) for scale, places in sorted(by_scale.items())}


# ── Outputs of a trained reward model's heads on whole completions ──


def read_heads(
    backbone: Backbone, adapter: str, states: Tensor, settings: RewardSettings
) -> dict[str, Tensor]:
    """By head, (N, outputs): of `score` one output for each member of the ensemble, whose mean is the score;
    of a rating head the expected rating on 0..1 or the chance; of completeness its score.

    states: (N, hidden), at the answers' last tokens, computed with the adapter active. Heads on segments say
    nothing of whole answers and are left out.
    """
    result: dict[str, Tensor] = {}
    if settings.loss != "none":
        result[SCORE] = backbone.outputs(adapter, states)
    for head in settings.ratings:
        scores = backbone.score(adapter, states, head=head.name)
        result[head.name] = predicted_ratings(backbone, adapter, head, scores).unsqueeze(-1)
    if settings.completeness is not None:
        name = settings.completeness.name
        result[name] = backbone.outputs(adapter, states, head=name)
    return result

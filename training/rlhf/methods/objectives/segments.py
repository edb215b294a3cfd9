"""Heads on segments of a completion, fitted to spans and to step labels; their outputs as rewards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from training.contract import ContractError
from training.contract.methods.reward import SegmentHead
from training.contract.run import RunSpec
from training.contract.segmentation import Granularity, Segment, segment, steps
from training.rlhf.loop.method import Outcome, Part
from training.rlhf.measures.calibration import (
    average_precision,
    cohen_kappa,
    f1_at,
    precision_recall_curve,
    roc_auc,
)
from training.rlhf.model.backbone import Backbone
from training.rlhf.runtime.run_folder import log
from training.rlhf.spans import segment_end_tokens, segment_labels, trim_spans
from training.rlhf.tokens.encoding import EncodedAnswer
from training.rlhf.tokens.example import Example
from training.rlhf.tokens.packing import Batch

# ── Outputs of a fine-grained reward model's heads on each segment of a completion ──
#
# A head's reward is the log-odds that a segment is faultless, w · h + b with the state h of the segment's
# last token and the bias b, which is learned with the head as `name.bias`. So it can be paid to a policy as
# it is (Wu et al. 2023): positive where the head takes a segment for good.

HeadGranularity = Granularity | Literal["steps"]
"""Units of text that a head may score."""
MIN_WORDS = 5
"""Words that a sub-sentence has at least, as in the code that Wu et al. published."""


class SegmentReward(NamedTuple):
    """Reward of one head for one segment."""

    start: int
    end: int
    """[start, end) of the answer's text, in code points."""
    reward: float
    """Log-odds that the segment is faultless."""


def cut(text: str, granularity: HeadGranularity, answered: EncodedAnswer) -> list[Segment]:
    """The segments that heads of a granularity score, in training and after it: none of what is masked or
    stripped of the answer. In training a head on steps has those that were labelled (`segments`)."""
    if granularity == "steps":
        return read_segments(steps(text), answered)
    return read_segments(segment(text, granularity, min_words=MIN_WORDS), answered)


def read_segments(segments: Sequence[Segment], answered: EncodedAnswer) -> list[Segment]:
    """Those of an answer's segments of which anything is read."""
    begin = answered.offsets[0][0] if answered.offsets else 0
    return [part for part in segments if part[1] > begin]


def bias_name(head: str) -> str:
    """Return the name of the parameter that holds a head's bias."""
    return f"{head}.bias"


def rewards_at(backbone: Backbone, adapter: str, head: str, states: Tensor) -> Tensor:
    """(N, hidden) states of segments' last tokens to (N,) rewards, float32."""
    bias = backbone.extra(adapter, bias_name(head))  # noqa: S610
    return backbone.score(adapter, states, head=head) + bias


def read_places(
    batch: Batch,
    answer: int,
    answered: EncodedAnswer,
    segments: Sequence[Segment],
    granularity: HeadGranularity,
) -> Tensor:
    """Places in a packed row where an answer's segments are read: (segments,) long.

    The last token of each segment; the end token where the segment is the whole answer, as for a score.
    `answer`: the answer's index in the batch. `answered` must have offsets.
    """
    if granularity == "whole":
        return batch.last[answer].expand(len(segments))
    first = int(torch.searchsorted(batch.target_answer, answer))
    ends = segment_end_tokens(answered.offsets, [end for _, end in segments])
    return batch.targets[first + ends.to(batch.targets.device)]


@torch.no_grad()
def segment_rewards(
    backbone: Backbone,
    adapter: str,
    heads: Sequence[SegmentHead],
    states: Tensor,
    batch: Batch,
    *,
    answers: Sequence[EncodedAnswer],
    texts: Sequence[str],
) -> list[Mapping[str, list[SegmentReward]]]:
    """For every answer of a batch, by head, the rewards of its segments in order.

    states: (T, hidden), of the packed row under the adapter (`methods.reward.encode`). `answers` with offsets
    and `texts` are those of the batch, in its order. An answer without a character has no segments.
    """
    rewards: list[Mapping[str, list[SegmentReward]]] = []
    for index, (answered, text) in enumerate(zip(answers, texts, strict=True)):
        of_heads: dict[str, list[SegmentReward]] = {}
        for head in heads:
            segments = cut(text, head.granularity, answered)
            places = read_places(batch, index, answered, segments, head.granularity)
            values: list[float] = rewards_at(backbone, adapter, head.name, states[places]).tolist()
            of_heads[head.name] = [
                SegmentReward(start, end, value) for (start, end), value in zip(segments, values, strict=True)
            ]
        rewards.append(of_heads)
    return rewards


# ── Heads on the segments of an answer, fitted to span flags (Wu et al. 2023, section 3.1) ──

_CURVE_POINTS = 200
"""Points of a precision-recall curve that are written down; evenly spread over more."""


class ReadAnswer(NamedTuple):
    """One answer that was read for faults, cut."""

    place: int
    """Its index in the example."""
    segments: list[Segment]
    faulty: Tensor
    """(segments,) bool: it has a fault."""


class SegmentObjective:
    """Segment classification: −log σ(r) for a faultless segment, −log σ(−r) for one that a span touches.

    r is the head's reward (`segment_rewards`). A flag's white space at its edges touches nothing. The answers
    that count are those that were read for flags. The cost of a judgment is the mean over its answers of the
    mean over their segments: a long answer says no more than a short one.

    Faults are rare, so the head begins at what is known without reading: w = 0 and b the log-odds of the
    share of faultless training segments, counted as the cost counts them. A head of the parent's goes on as
    it is.

    Figures, by the head's name: `log_loss`, over segments as the cost counts them. Held-out also
    `prior_log_loss`, that of saying the training share of every segment, which a head must beat;
    `segments` and `faulty`, counts; and where any segment is faulty `f1`, `precision`, `recall` at
    `threshold`, the probability of a fault from which a segment is marked (`likely_best_threshold`, which no
    held-out label enters), `kappa`, the agreement of those marks with people's beyond chance, and
    `average_precision`.
    """

    units = "segment of the training answers that were read"
    marked = "has a flag of"
    without = "judgment has a span flag of"
    """Words of its refusals."""

    def __init__(self, backbone: Backbone, adapter: str, spec: RunSpec, head: SegmentHead) -> None:
        self.name = head.name
        self._backbone = backbone
        self._adapter = adapter
        self.head = head
        self.prior = 0.5
        self._is_liked = False
        self._continues = head.name in backbone.heads(adapter)
        if not self._continues:
            backbone.add_head(adapter, head.name, seed=spec.seed, scale=0.0)
        elif bias_name(head.name) not in backbone.extras(adapter):
            raise ContractError(
                f"segment head {head.name!r}: the parent has a head of that name that scores no segments; "
                "choose another name"
            )

    def begin(self, train: Sequence[Example]) -> None:
        """Count the training segments, for the bias and the prior. Refuses a head that has no fault, or
        nothing but faults, to learn from."""
        teaching = [example for example in train if self.weight(example)]
        self._check_categories(teaching)
        self._is_liked = self._are_liked(teaching)
        faulty = total = 0.0
        for example in teaching:
            answers = list(self.read(example))
            total += 1
            faulty += sum(float(answer.faulty.double().mean()) for answer in answers) / len(answers)
        if faulty in (0, total):
            raise ContractError(
                f"segment head {self.name!r}: {'every' if faulty else 'no'} {self.units} {self.marked} "
                f"{self._listed(self.head.categories)}, so there is nothing to tell apart; read and mark "
                "more answers or leave the head out"
            )
        self.prior = faulty / total
        if not self._continues:
            faultless = torch.tensor([1 - self.prior], dtype=torch.float64)
            self._backbone.add_extra(self._adapter, bias_name(self.name), torch.logit(faultless))
        log.info(
            "Segment head %r: %d training judgments, %.1f %% of their segments have a fault",
            self.name,
            len(teaching),
            100 * self.prior,
        )

    def weight(self, example: Example) -> float:
        """Return the judgment's weight where any of its answers was read for flags."""
        return example.weight if example.labels.read_for_flags else 0.0

    def outcome(self, states: Tensor, batch: Batch, examples: list[Example]) -> Outcome:
        """Return the loss of every judgment's segments."""
        places, faulty, share, of_example = self._segments(batch, examples)
        rewards = rewards_at(self._backbone, self._adapter, self.name, states[places])
        costs = F.binary_cross_entropy_with_logits(rewards, 1 - faulty, reduction="none")
        loss = torch.zeros(batch.examples, device=rewards.device).index_add(0, of_example, share * costs)
        observed = {"reward": rewards.detach(), "faulty": faulty, "share": share}
        return Outcome(
            {self.name: Part(self.head.weight, loss)},
            {f"{self.name}.{name}": values for name, values in observed.items()},
        )

    def figures(self, observed: Mapping[str, Tensor], *, held_out: bool) -> dict[str, float]:
        """See the class."""
        rewards, faulty, share = self._observed(observed)
        if not len(rewards):
            return {}
        costs = F.binary_cross_entropy_with_logits(rewards, 1 - faulty, reduction="none")
        result = {"log_loss": float((share * costs).sum() / share.sum())}
        if held_out:
            result |= self.held_out_figures(rewards, faulty, share)
        return {f"{self.name}_{name}": value for name, value in result.items()}

    def details(self, observed: Mapping[str, Tensor]) -> dict[str, Any]:
        """`precision_recall`: a list of points {threshold, precision, recall}, threshold a probability of a
        fault, from the lowest to the highest; empty where no held-out segment is faulty."""
        rewards, faulty, _ = self._observed(observed)
        if not faulty.any():
            return {}
        curve = precision_recall_curve(torch.sigmoid(-rewards), faulty)
        points = zip(curve.thresholds, curve.precision, curve.recall, strict=True)
        listed = [
            {"threshold": float(threshold), "precision": float(precision), "recall": float(recall)}
            for threshold, precision, recall in points
        ]
        steps = torch.linspace(0, len(listed) - 1, min(_CURVE_POINTS, len(listed))).round().long()
        return {"precision_recall": [listed[int(step)] for step in steps]}

    def held_out_figures(self, rewards: Tensor, faulty: Tensor, share: Tensor) -> dict[str, float]:
        """Return what held-out segments have beside the loss: (S,) each, see the class."""
        bad = float((share * faulty).sum() / share.sum())
        prior = torch.tensor([self.prior, 1 - self.prior], dtype=torch.float64)
        result = {
            "prior_log_loss": float(-(torch.tensor([bad, 1 - bad]) * prior.log()).sum()),
            "segments": float(len(faulty)),
            "faulty": float(faulty.sum()),
        }
        if faulty.any():
            fault = torch.sigmoid(-rewards)
            threshold = likely_best_threshold(fault)
            marked = fault >= threshold
            hits = float(faulty[marked].sum())
            kappa = cohen_kappa(marked.long(), faulty.long())
            result |= {
                "threshold": threshold,
                "f1": f1_at(fault, faulty, threshold),
                "precision": hits / int(marked.sum()),
                "recall": hits / float(faulty.sum()),
                "average_precision": average_precision(fault, faulty),
                **({} if kappa is None else {"kappa": kappa}),
            }
        return result

    def _observed(self, observed: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        rewards, faulty, share = (
            observed[f"{self.name}.{name}"].double().cpu() for name in ("reward", "faulty", "share")
        )
        return rewards, faulty, share

    def _segments(self, batch: Batch, examples: Sequence[Example]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of all segments of a batch that count: where they are read, whether they are faulty, what they
        count in their example, and which example that is; (S,) each."""
        places, faulty, share, of_example = [batch.last[:0]], [torch.zeros(0)], [torch.zeros(0)], []
        first = 0
        for index, example in enumerate(examples):
            answers = list(self.read(example))
            for answer in answers:
                answered = example.answers[answer.place]
                places.append(
                    read_places(batch, first + answer.place, answered, answer.segments, self.head.granularity)
                )
                faulty.append(answer.faulty.float())
                count = len(answer.segments)
                share.append(torch.full((count,), 1 / (count * len(answers))))
                of_example += [index] * count
            first += len(example.answers)
        device = batch.last.device
        return (
            torch.cat(places),
            torch.cat(faulty).to(device),
            torch.cat(share).to(device),
            torch.tensor(of_example, dtype=torch.long, device=device),
        )

    def read(self, example: Example) -> Iterator[ReadAnswer]:
        """Yield the answers of an example that were read, cut and labelled."""
        labels = example.labels
        for place in labels.read_for_flags:
            text = labels.texts[place]
            flags = [
                (flag.start, flag.end, flag.category)
                for answer, flag in labels.flags
                if answer == place and {flag.category, flag.parent} & set(self.head.categories)
            ]
            segments = cut(text, self.head.granularity, example.answers[place])
            spans = [(start, end) for start, end, _ in trim_spans(text, flags)]
            marked = segment_labels(segments, spans).bool()
            # Of a merit the segments without a span are those that the head scores low.
            yield ReadAnswer(place, segments, ~marked if self._is_liked else marked)

    def marks(self, example: Example) -> list[str]:
        """Return the category of everything that was marked in an example, and the one above it."""
        return [name for _, flag in example.labels.flags for name in (flag.category, flag.parent) if name]

    def _are_liked(self, teaching: Sequence[Example]) -> bool:
        """Return whether the head's categories are merits. Refuses merits and faults in one head."""
        liked: dict[bool, set[str]] = {True: set(), False: set()}
        for example in teaching:
            for _, flag in example.labels.flags:
                liked[flag.is_liked] |= {flag.category, flag.parent} & set(self.head.categories)
        if liked[True] and liked[False]:
            raise ContractError(
                f"segment head {self.name!r}: spans of {self._listed(sorted(liked[True]))} are liked, "
                f"those of {self._listed(sorted(liked[False]))} are faults; make two heads of them"
            )
        return bool(liked[True])

    def _check_categories(self, teaching: Sequence[Example]) -> None:
        flags = Counter(category for example in teaching for category in self.marks(example))
        lacking = [category for category in self.head.categories if not flags[category]]
        there = ", ".join(f"{category!r} ({count})" for category, count in sorted(flags.items())) or "none"
        message = (
            f"segment head {self.name!r}: no training {self.without} {self._listed(lacking)}; "
            f"there are: {there}"
        )
        if len(lacking) == len(self.head.categories):
            raise ContractError(f"{message}. Mark some, name another category or leave the head out")
        if lacking:
            log.warning("%s. The head learns from its other categories alone", message)

    @staticmethod
    def _listed(categories: Sequence[str]) -> str:
        return " or ".join(map(repr, categories))


def likely_best_threshold(chances: Tensor) -> float:
    """Return the threshold from which marking gives the highest F1 that the chances themselves expect.

    chances: (N,), the probability that each is a fault, N ≥ 1. Marking the k likeliest is expected to give
    F1 ≈ 2 Σ_{i≤k} p_i / (k + Σ p_i); the best k is where p falls below half of that F1 (Lipton, Elkan &
    Naryanaswamy 2014). What people marked does not enter, so held-out labels choose nothing.
    """
    ordered = chances.double().sort(descending=True).values
    counts = torch.arange(1, len(ordered) + 1, dtype=torch.float64)
    expected = 2 * ordered.cumsum(0) / (counts + ordered.sum())
    return float(ordered[int(expected.argmax())])


# ── Heads on the steps of a trace, fitted to step labels: process reward models (Lightman et al. 2023) ──


class StepObjective(SegmentObjective):
    """Step classification: −log σ(r) for a step without a fault, −log σ(−r) for a step labelled with one.

    r is read at the step's last token. Faults are the labels that the head's categories name: wrong,
    unnecessary or both; a label that they do not name is none. Steps without a label count nowhere.

    Figures as of a `SegmentObjective`. Held-out also `accuracy`, the share of steps on the right side of
    r = 0, `baseline_accuracy`, that of calling every step what most training steps are, and where there are
    steps of both kinds `auc`, the chance that a faulty step has a lower r than a faultless one, equal ones
    counted half; a head that knows nothing has ½.
    """

    units = "labelled step of the training answers"
    marked = "is labelled"
    without = "step is labelled"

    def weight(self, example: Example) -> float:
        """Return the judgment's weight where any step is labelled."""
        return example.weight if any(True for _ in self.read(example)) else 0.0

    def read(self, example: Example) -> Iterator[ReadAnswer]:
        """Yield the answers of an example that have labelled steps."""
        for place, labelled in example.labels.steps:
            faults = {(step.start, step.end): step.label in self.head.categories for step in labelled}
            segments = read_segments(list(faults), example.answers[place])
            if segments:
                yield ReadAnswer(place, segments, torch.tensor([faults[segment] for segment in segments]))

    def marks(self, example: Example) -> list[str]:
        """Return the labels of an example's steps."""
        return [step.label for _, labelled in example.labels.steps for step in labelled]

    def held_out_figures(self, rewards: Tensor, faulty: Tensor, share: Tensor) -> dict[str, float]:
        """See the class."""
        commoner = 1.0 if self.prior > 0.5 else 0.0
        auc = roc_auc(-rewards, faulty)
        return {
            **super().held_out_figures(rewards, faulty, share),
            "accuracy": float(((rewards < 0) == faulty.bool()).double().mean()),
            "baseline_accuracy": float((faulty == commoner).double().mean()),
            **({} if auc is None else {"auc": auc}),
        }

"""KTO: a policy learns from answers that were called good or bad one by one (Ethayarajh et al. 2024)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from annotation.agreement.intervals import wilson_interval
from training.contract.checkpoint import CheckpointKind
from training.contract.methods.policy import KtoSettings
from training.contract.run import RunSpec
from training.rlhf.loop.log_probabilities import (
    Reference,
    answer_log_probabilities,
    ratio_figures,
    ratio_observations,
)
from training.rlhf.loop.method import Outcome, Part, TrainingMethod, start_adapter
from training.rlhf.losses import NOT_ORDERED, kto
from training.rlhf.measures.pairs import name_hash
from training.rlhf.model.backbone import Backbone
from training.rlhf.runtime.processes import Processes
from training.rlhf.tokens.encoding import EncodedAnswer, Encoder, shorten
from training.rlhf.tokens.example import Example, UsedLabels
from training.rlhf.tokens.packing import Batch, pack, passes

_MIDDLE = {"five": 3.0, "seven": 4.0, "thumbs": 0.5}
"""Above it a rating calls an answer good, below it bad, and on it neither."""


class KahnemanTversky(TrainingMethod):
    """Every answer that was called good or bad costs the KTO loss; a step's loss is the mean over them.

    The point of reference z estimates KL(π ‖ π_ref) from answers under prompts that they do not answer:
    those of each example under the prompt of the next example of the step, by name, that has another
    prompt, the last ones under the first's. It is one number for the whole step, over all passes and
    processes, and for an evaluation one over all its examples. Where all have the same prompt, as in a
    step of one judgment, nothing can be mismatched and z is 0, its value when policy and reference are one;
    a batch size of at least 4 makes a usable estimate.

    Null weights are set so that good and bad answers of the training split count the same in all, and
    1 on average.

    Figures, over answers: `accuracy` (share on their side of z: good ones above, bad ones below),
    `log_loss` (−log σ(±β(r − z)), where r = log π − log π_ref), `reward_good` and `reward_bad` (means of
    β(r − z)), `margin` (their difference), `share_good`, `reference_kl` (z); `log_ratio`,
    `log_ratio_per_token`, `answer_tokens`, see `ratio_figures`. Held out the accuracy has a 95 % interval,
    which takes prompts as trials: answers to one prompt are not independent.
    """

    kind: CheckpointKind = "policy"
    adapter = "policy"

    def __init__(
        self, backbone: Backbone, spec: RunSpec, settings: KtoSettings, *, cache: Path | None = None
    ) -> None:
        self._backbone = backbone
        self._settings = settings
        self._encoder = Encoder(backbone.tokenizer, thinking=settings.thinking)
        start_adapter(backbone, self.adapter, spec, settings.trained)
        self._reference = Reference(backbone, spec, settings.trained, cache=cache)
        self._base = self._reference
        if self._reference.adapter is not None:
            self._base = Reference(backbone, spec, settings.trained, cache=cache, base=True)
        self._reference_kl = 0.0
        self._weight_good, self._weight_bad = weights_of_kinds(settings, 1.0, 1.0)
        rated = not {"thumbs", "ratings"}.isdisjoint(settings.sources)
        self.wanted = UsedLabels(
            ranks="decided" if "ranks" in settings.sources else "none",
            criteria=(frozenset(settings.criteria) or None) if rated else frozenset(),
            verdicts="verdicts" in settings.sources,
            nothing=f"calls no answer good or bad ({', '.join(settings.sources)})",
            remedy="Ask for thumbs or ratings, or name other sources",
        )

    def begin(self, train: Sequence[Example]) -> None:
        """Count good and bad answers, so that neither kind drowns the other."""
        good, bad = 0.0, 0.0
        for example in train:
            verdicts = list(self._labels(example).values())
            good += example.weight * sum(verdicts)
            bad += example.weight * (len(verdicts) - sum(verdicts))
        self._weight_good, self._weight_bad = weights_of_kinds(self._settings, good, bad)

    @torch.no_grad()
    def prepare(self, examples: list[Example], processes: Processes) -> None:
        """Estimate z, with the policy as it is now; every process computes its share and has the whole."""
        total, count = 0.0, 0.0
        mismatched = list(self._mismatched(examples))
        for group in passes(
            mismatched,
            tokens=self._settings.optimiser.micro_batch_tokens,
            rank=processes.rank,
            world=processes.world,
        ):
            batch = pack(group, device=self._backbone.device)
            policy = answer_log_probabilities(self._backbone, self.adapter, batch)
            # Not remembered: another step mismatches other answers and prompts.
            reference = answer_log_probabilities(self._backbone, self._reference.adapter, batch)
            weight = batch.weight[batch.answer_example]
            total += float((weight * (policy - reference)).double().sum())
            count += float(weight.double().sum())
        total, count = processes.sum(torch.tensor([total, count], dtype=torch.float64)).tolist()
        self._reference_kl = max(0.0, total / count) if count else 0.0

    def _mismatched(self, examples: Sequence[Example]) -> Iterator[Example]:
        """The answers that were called good or bad, under another example's prompt."""
        # By name, so that the order in which a step comes changes nothing.
        ordered = sorted(examples, key=lambda example: example.judgment)
        prompts = [_prompt(example) for example in ordered]
        for index, example in enumerate(ordered):
            others = (prompts[(index + step) % len(prompts)] for step in range(1, len(prompts)))
            prompt = next((other for other in others if other != prompts[index]), None)
            if prompt is not None:
                answers = [
                    EncodedAnswer(
                        prompt + answer.ids[answer.answer_start :], len(prompt), masked=answer.masked
                    )
                    for answer in (example.answers[place] for place in self._labels(example))
                ]
                encoded = shorten(answers, self._settings.max_tokens, self._encoder)
                yield Example(example.judgment, encoded, (0,) * len(encoded), weight=example.weight)

    def _labels(self, example: Example) -> dict[int, bool]:
        return said_good(example, frozenset(self._settings.sources))

    def weights(self, example: Example) -> Mapping[str, float]:
        """Return the judgment's weight, once for each of its answers that was called good or bad."""
        return {"kto": example.weight * len(self._labels(example))}

    def outcome(self, batch: Batch, examples: list[Example], *, dropout: bool) -> Outcome:
        """Return the mean over each example's answers that were called good or bad."""
        policy = answer_log_probabilities(self._backbone, self.adapter, batch, dropout=dropout)
        reference = self._reference.log_probabilities(batch, examples)
        base = self._base.log_probabilities(batch, examples)
        device, beta = policy.device, self._settings.beta
        called = [
            (index, place, good)
            for index, example in enumerate(examples)
            for place, good in self._labels(example).items()
        ]
        owner, place, side = torch.tensor(called, device=device).reshape(-1, 3).long().unbind(1)
        answer, good = batch.table[owner, place], side.bool()
        kl = torch.tensor(self._reference_kl, device=device)
        values = kto(
            policy[answer],
            reference[answer],
            good,
            kl,
            beta=beta,
            weight_desirable=self._weight_good,
            weight_undesirable=self._weight_bad,
            reduction="none",
        )
        zeros = values.new_zeros(batch.examples)
        counts = zeros.index_add(0, owner, torch.ones_like(values))
        loss = zeros.index_add(0, owner, values) / counts.clamp(min=1)
        keys = torch.tensor([name_hash(example.prompt) for example in examples], device=device)
        observed = {
            "reward": beta * (policy - reference).detach()[answer] - beta * kl,
            "good": good.to(values.dtype),
            "prompt": keys[owner],
            "reference_kl": kl.expand(len(answer)),
        }
        return Outcome(
            {"kto": Part(1.0, loss)}, observed | ratio_observations(batch, policy, reference, base)
        )

    def figures(self, observed: Mapping[str, Tensor], *, held_out: bool) -> dict[str, float]:
        """Return figures on the answers' rewards above z."""
        reward, good = observed["reward"].double(), observed["good"].bool()
        if not len(reward):
            return {}
        right = torch.where(good, reward, -reward)
        accuracy = float(((right.sign() + 1) / 2).mean())
        figures = {
            "accuracy": accuracy,
            "log_loss": float(-F.logsigmoid(right).mean()),
            "share_good": float(good.double().mean()),
            "reference_kl": float(observed["reference_kl"].double().mean()),
        }
        for name, some in (("reward_good", good), ("reward_bad", ~good)):
            if some.any():
                figures[name] = float(reward[some].mean())
        if good.any() and not good.all():
            figures["margin"] = figures["reward_good"] - figures["reward_bad"]
        if held_out:
            prompts = len(set(observed["prompt"].tolist()))
            low, high = wilson_interval(accuracy * prompts, prompts)
            figures |= {"accuracy_low": low, "accuracy_high": high}
        return figures | ratio_figures(observed)


def said_good(example: Example, sources: frozenset[str]) -> dict[int, bool]:
    """By place among its answers: whether an answer was called good (True) or bad.

    Thumbs, ratings off the middle of their scale, a verdict on all answers, first and last place of a
    ranking: each is a vote, and the majority decides. Where votes are even the answer is neither. A partial
    ranking has no last place: of those that are not ordered nobody called one the worst.
    """
    votes: Counter[int] = Counter()
    for rating in example.labels.ratings:
        source = "thumbs" if rating.scale == "thumbs" else "ratings"
        above = rating.value - _MIDDLE[rating.scale]
        if source in sources and above:
            votes[rating.answer] += int(math.copysign(1, above))
    if "verdicts" in sources and example.labels.verdict:
        for place in range(len(example.answers)):
            votes[place] += 1 if example.labels.verdict == "both_good" else -1
    ranked = [rank for rank in example.ranks if rank]
    if "ranks" in sources and len(set(ranked)) > 1:
        best = min(rank for rank in ranked if rank > 0)
        worst = None if NOT_ORDERED in ranked else max(ranked)
        for place, rank in enumerate(example.ranks):
            votes[place] += (rank == best) - (rank == worst)
    return {place: votes[place] > 0 for place in sorted(votes) if votes[place]}


def weights_of_kinds(settings: KtoSettings, good: float, bad: float) -> tuple[float, float]:
    """λ_D and λ_U where `good` and `bad` answers, as weighted, are to be learned from.

    Where both are null λ_D·good = λ_U·bad and the mean weight of an answer is 1; where one is, it is what
    makes them equal. With one kind alone nothing is to be balanced: null is 1.
    """
    desirable, undesirable = settings.weight_desirable, settings.weight_undesirable
    if not good or not bad:
        return desirable or 1.0, undesirable or 1.0
    if desirable is None and undesirable is None:
        return (good + bad) / (2 * good), (good + bad) / (2 * bad)
    if desirable is None:
        desirable = (undesirable or 1.0) * bad / good
    return desirable, undesirable if undesirable is not None else desirable * good / bad


def _prompt(example: Example) -> tuple[int, ...]:
    """Return the tokens before the first answer's."""
    first = example.answers[0]
    return first.ids[: first.answer_start]

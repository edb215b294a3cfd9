"""Reads of the evaluations of a checkpoint against its parent."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from annotation.choices import Purpose, Split, WithholdingState
from annotation.models import Comparison, Judgment, Withholding
from training.choices import CheckpointKind, StepKind
from training.contract import canonical_json
from training.figures.evaluation_statistics import (
    LOSS,
    TIE,
    WIN,
    Figure,
    PromptMeasurements,
    prompt_outcomes,
    win_rate,
)
from training.models import Checkpoint, EvaluatedPrompt, Evaluation, Round
from training.selectors.votes import judged

_OUTCOMES = {1: WIN, 0: TIE, -1: LOSS}


@dataclass(frozen=True, kw_only=True, slots=True)
class PeopleSay:
    """People's judgments of a checkpoint against its parent."""

    outcomes: tuple[float, ...]
    """One outcome for each held-out prompt with judgments, in the order of the first judgment."""
    held_out: Figure | None
    """Win rate on held-out prompts; ties count half."""
    held_out_judgments: int
    held_out_arena_votes: int
    """Those of them that members gave in an arena."""
    everywhere: Figure | None
    """The same on all prompts, those of training among them."""
    judgments: int


NOBODY = PeopleSay(
    outcomes=(), held_out=None, held_out_judgments=0, held_out_arena_votes=0, everywhere=None, judgments=0
)
"""No judgment by anybody."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgmentProgress:
    """Progress of people's judgments on an evaluation's comparisons."""

    comparisons: int
    judgments: int
    """Current ones, by people."""
    possible: int
    """Most judgments that these comparisons can get; quarantined ones get none."""


def trained_by(round_: Round, kind: CheckpointKind, step: StepKind) -> Checkpoint | None:
    """Return the checkpoint of a kind trained by a round's step; None before it is registered."""
    return Checkpoint.objects.filter(
        kind=kind, run__round_step__round=round_, run__round_step__kind=step
    ).first()


def evaluator_of(round_: Round) -> Checkpoint | None:
    """Return the reward model that evaluates a round's new policy: its second one, else its only one."""
    kinds = (StepKind.TRAIN_EVALUATOR, StepKind.TRAIN_REWARD_MODEL)
    checkpoints = Checkpoint.objects.filter(
        kind=CheckpointKind.REWARD, run__round_step__round=round_, run__round_step__kind__in=kinds
    ).select_related("run__round_step")
    by_kind = {
        StepKind(checkpoint.run.round_step.kind): checkpoint for checkpoint in checkpoints if checkpoint.run
    }
    return next((by_kind[kind] for kind in kinds if kind in by_kind), None)


def evaluation_settings(round_: Round, reward_model: Checkpoint | None) -> dict[str, Any]:
    """Return the settings of a round's evaluation: its sampling and its judges."""
    recipe = round_.parsed_recipe
    return {
        "prompts": recipe.evaluation.prompts,
        "sampling": asdict(recipe.evaluation.sampling),
        "rules": [asdict(rule) for rule in recipe.evaluation.rules],
        "seed": recipe.seed,
        "reward_model": reward_model.name if reward_model else None,
    }


def digest_of(settings: Mapping[str, Any]) -> str:
    """Return the digest that identifies evaluation settings."""
    return hashlib.sha256(canonical_json(settings).encode()).hexdigest()


def evaluation_of(round_: Round) -> Evaluation | None:
    """Return the evaluation for a round's recipe, finished or not; None before it has begun."""
    checkpoint = trained_by(round_, CheckpointKind.POLICY, StepKind.TRAIN_POLICY)
    if checkpoint is None:
        return None
    reward_model = evaluator_of(round_)
    return (
        Evaluation.objects.filter(
            checkpoint=checkpoint,
            parent=round_.policy_id,
            digest=digest_of(evaluation_settings(round_, reward_model)),
        )
        .select_related("checkpoint", "parent", "round__project", "reward_model")
        .first()
    )


def measurements_of(row: EvaluatedPrompt) -> PromptMeasurements:
    """Return the measurements in an evaluation's row, which should have `old` and `new`."""
    figures = row.figures
    return PromptMeasurements(
        texts=(row.old.text, row.new.text),
        reward=_pair(figures.get("reward")),
        heads={name: (both[0], both[1]) for name, both in figures.get("heads", {}).items()},
        kl=figures.get("kl"),
        rules={name: (both[0], both[1]) for name, both in figures.get("rules", {}).items()},
    )


def tolerance_in(figures: Mapping[str, Any]) -> float:
    """Return the tolerance of a finished evaluation; 0 for one from before tolerances were measured."""
    return float((figures.get("tolerance") or {}).get("value", 0.0))


def _pair(values: Any) -> tuple[float, float] | None:
    return (values[0], values[1]) if values else None


def people_say(checkpoint: Checkpoint, parent: Checkpoint) -> PeopleSay:
    """Return the win rate of a checkpoint against its parent by all current judgments of people with an
    account, their votes in arenas included.

    A prompt counts once, for the policy that most of its judgments prefer. Judgments by AI annotators and by
    guests, and unblinded ones, do not count.
    """
    pair = {checkpoint.source_id, parent.source_id}
    prompts: dict[int, tuple[int, str, str]] = {
        pk: (prompt, split, purpose)
        for pk, prompt, split, purpose in Judgment.objects.current()
        .filter(
            comparison__in=_comparisons_of(checkpoint, parent),
            annotator__is_machine=False,
            # Anyone with the link may open as many windows as they like.
            annotator__is_guest=False,
            blind=True,
            assignment__retest_of__isnull=True,
        )
        .order_by("pk")
        .values_list("pk", "comparison__prompt_id", "comparison__prompt__split", "comparison__purpose")
    }
    arena_votes = 0
    by_split: dict[str, dict[int, list[float]]] = {split: defaultdict(list) for split in Split.values}
    for pk, judgment in judged(list(prompts)).items():
        outcomes = [
            _OUTCOMES[vote.outcome if vote.left == checkpoint.source_id else -vote.outcome]
            for vote in judgment.votes
            if {vote.left, vote.right} == pair
        ]
        if outcomes:
            prompt, split, purpose = prompts[pk]
            arena_votes += split == Split.HELD_OUT and purpose == Purpose.ARENA
            by_split[split][prompt].append(sum(outcomes) / len(outcomes))
    held_out = list(by_split[Split.HELD_OUT].values())
    everything = [votes for by_prompt in by_split.values() for votes in by_prompt.values()]
    outcomes = prompt_outcomes(held_out)
    return PeopleSay(
        outcomes=tuple(outcomes),
        held_out=win_rate(outcomes),
        held_out_judgments=sum(map(len, held_out)),
        held_out_arena_votes=arena_votes,
        everywhere=win_rate(prompt_outcomes(everything)),
        judgments=sum(map(len, everything)),
    )


def judgment_progress(evaluation: Evaluation) -> JudgmentProgress:
    """Return how many of an evaluation's pairs annotators got, and how many judgments they submitted."""
    pairs = evaluation.rows.values_list("old_id", "new_id")
    measured_pairs = {frozenset(pair) for pair in pairs}
    comparisons = (
        _comparisons_of(evaluation.checkpoint, evaluation.parent)
        .filter(purpose=Purpose.WORK, size=2)
        .filter(candidates__completion__in=[new for _, new in pairs])
        .prefetch_related("candidates")
        .distinct()
    )
    paired = [
        comparison
        for comparison in comparisons
        if frozenset(candidate.completion_id for candidate in comparison.candidates.all()) in measured_pairs
    ]
    withheld = set(
        Withholding.objects.filter(comparison__in=paired)
        .exclude(state=WithholdingState.RELEASED)
        .values_list("comparison_id", flat=True)
    )
    judgments = (
        Judgment.objects.current()
        .filter(
            comparison__in=paired,
            annotator__is_machine=False,
            annotator__is_guest=False,
            blind=True,
            assignment__retest_of__isnull=True,
        )
        .count()
    )
    return JudgmentProgress(
        comparisons=len(paired),
        judgments=judgments,
        possible=sum(comparison.overlap for comparison in paired if comparison.pk not in withheld),
    )


def in_words(evaluation: Evaluation) -> str:
    """Return the evaluation in one line, for the step's message."""
    figures = evaluation.figures
    if not figures.get("prompts"):
        return "no held-out prompts: nothing could be measured"
    parts = [f"{figures['prompts']} held-out prompts"]
    rate = Figure.from_json(figures["win_rate"])
    if rate is not None:
        parts.append(f"win rate {percent(rate)} by the reward model")
    return ", ".join(parts)


def percent(figure: Figure) -> str:
    """Return a share with its interval, in whole percents."""
    if figure.low is None or figure.high is None:
        return f"{figure.value:.0%}"
    return f"{figure.value:.0%} ({figure.low:.0%} to {figure.high:.0%})"


def _comparisons_of(checkpoint: Checkpoint, parent: Checkpoint) -> Any:
    """Return the comparisons of work and arenas that contain both."""
    return (
        Comparison.objects.filter(purpose__in=(Purpose.WORK, Purpose.ARENA))
        .filter(candidates__completion__source=checkpoint.source_id)
        .filter(candidates__completion__source=parent.source_id)
        .distinct()
    )

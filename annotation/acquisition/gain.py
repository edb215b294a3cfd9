"""Gain of a strategy over chance: results of its arm against the control arm. Reads only."""

from dataclasses import dataclass
from statistics import fmean

from annotation.choices import AcquisitionArm, AssignmentState, Verdict
from annotation.models import Assignment, Comparison, Project


@dataclass(frozen=True, kw_only=True, slots=True)
class ArmReport:
    """One arm: how much was judged, and how much each judgment could teach."""

    arm: AcquisitionArm
    judged: int
    uncertainty: float | None
    """Mean entropy of what reward models expected, in bits; None where none of it was scored."""
    decided: float | None
    """Share of judgments that name a winner; None before there are any."""

    @property
    def percent_decided(self) -> int | None:
        """The same in whole per cent."""
        return None if self.decided is None else round(100 * self.decided)


def gain_of_strategy(project: Project, round_number: int) -> list[ArmReport]:
    """The strategy's arm and the control arm of one round, side by side.

    Both are drawn from the same comparisons, so what differs between them is the strategy's doing.
    The rewards are those that are stored now, of models that had not seen these judgments.
    """
    # NumPy is 25 MB that a web process without a strategy need not hold.
    from annotation.acquisition import strategies
    from annotation.acquisition.values import candidates_of, rewards_of

    judgments = list(
        Assignment.objects.filter(
            comparison__project=project,
            comparison__round_number=round_number,
            state=AssignmentState.SUBMITTED,
            comparison__is_sealed=False,
            judgments__superseded_by__isnull=True,
        )
        .exclude(arm="")
        .values_list("arm", "comparison_id", "judgments__verdict")
    )
    comparisons = Comparison.objects.filter(pk__in={comparison for _, comparison, _ in judgments})
    rewards = rewards_of(comparisons, candidates_of(comparisons))
    bits = dict(zip(rewards, strategies.uncertainty(list(rewards.values())).tolist(), strict=True))
    return [
        ArmReport(
            arm=arm,
            judged=len(arm_judgments),
            uncertainty=_mean([bits[comparison] for comparison, _ in arm_judgments if comparison in bits]),
            decided=_mean([float(verdict == Verdict.RANKED) for _, verdict in arm_judgments]),
        )
        for arm in AcquisitionArm
        for arm_judgments in [
            [(comparison, verdict) for name, comparison, verdict in judgments if name == arm]
        ]
    ]


def _mean(values: list[float]) -> float | None:
    return fmean(values) if values else None

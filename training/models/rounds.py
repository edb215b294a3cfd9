"""Rounds, their states, and their steps."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q
from django.urls import reverse
from django.utils.translation import gettext, gettext_lazy
from django.utils.translation import gettext as _

from annotation.choices import Cap
from annotation.models.jobs import Job
from training.choices import (
    TRAINS,
    QuestionOutcome,
    RoundState,
    RoundVerdict,
    StepKind,
    StepState,
)
from training.contract import ContractError
from training.models.checkpoints import Checkpoint, Run, Snapshot
from training.recipe.recipe import Recipe, default_recipe

# Reasons for a decision, stored as a code with its figures and translated when shown.
#
# A round stores its reasons as JSON. Rounds decided before there were codes have English sentences, shown
# unchanged.


Reason = str | dict[str, Any]
"""`code` with the values in its sentence; or an older plain text."""

_SENTENCES = {
    "not_evaluated": gettext_lazy("The new policy is not evaluated yet."),
    "no_held_out": gettext_lazy("The project has no held-out prompts: nothing was measured on any."),
    "people_came": gettext_lazy("%(judgments)s of %(wanted)s annotations by people are in."),
    "people_asked": gettext_lazy(
        "People decide: %(asked)s of the wanted %(needed)s blind comparisons on held-out prompts can be "
        "asked. %(needed)s show a true win rate of 70%% with a probability of 80%% (power) at a confidence "
        "of 95%%."
    ),
    "win_rate_alone": gettext_lazy("%(rate)s: %(value)s."),
    "answers_expected": gettext_lazy(
        "About %(answers)s more annotations on held-out prompts are expected to decide it."
    ),
    "answers_cannot_decide": gettext_lazy(
        "The held-out prompts that are left would decide it with a probability of %(chance)s: people are "
        "asked no further."
    ),
    "not_worth_having": gettext_lazy(
        "%(rate)s: %(value)s, shown to be below %(bound)s, so the difference is not worth having."
    ),
    "larger_pool": gettext_lazy(
        "With %(prompts)s held-out prompts that the reward model scored, %(answers)s annotations in all "
        "would be expected to do."
    ),
    "people_cannot_come": gettext_lazy("People cannot decide: no pair is open for annotation."),
    "win_rate_not_measured": gettext_lazy("%(rate)s: not measured."),
    "win_rate_better": gettext_lazy("%(rate)s: %(value)s, shown to be better."),
    "win_rate_open": gettext_lazy(
        "%(rate)s: %(value)s. The interval includes one half, so nothing is shown."
    ),
    "few_differ": gettext_lazy(
        "%(rate)s: %(value)s. One response wins on %(differing)s held-out prompts, the others are ties, and "
        "the recipe asks for at least %(minimum)s."
    ),
    "no_conditions": gettext_lazy("The recipe asks for no evidence, so a person decides."),
    "reward_model_unknown": gettext_lazy(
        "The reward model is not validated: its accuracy on held-out annotations was not measured."
    ),
    "reward_model_few": gettext_lazy(
        "The reward model is not validated: %(judgments)s held-out annotations measure its "
        "accuracy, and the recipe asks for at least %(minimum)s."
    ),
    "reward_model_chance": gettext_lazy(
        "The reward model is not validated. %(rate)s: %(value)s; the interval includes one half."
    ),
    "reward_model_wrong": gettext_lazy(
        "The reward model is not validated. %(rate)s: %(value)s; it contradicts people."
    ),
    "people_contradict": gettext_lazy(
        "People show the opposite of the reward model, and people decide: the policy may have learned what "
        "the reward model likes rather than what people like (over-optimisation)."
    ),
    "same_reward_model": gettext_lazy(
        "The policy was trained for the scores of the same reward model that judges it here: its win rate is "
        "not independent evidence."
    ),
    "same_judgments": gettext_lazy(
        "The evaluating reward model was trained on the same annotations as the policy: its win"
        " rate is not independent evidence."
    ),
    "win_rate_worse": gettext_lazy("%(rate)s: %(value)s, shown to be worse."),
    "win_rate_not_worse": gettext_lazy("%(rate)s: %(value)s, not shown to be worse."),
    "win_rate_not_known": gettext_lazy("%(rate)s: not known, and at least %(bound)s is asked for."),
    "win_rate_least": gettext_lazy("%(rate)s: %(value)s; the lower end must reach %(bound)s."),
    "at_least": gettext_lazy("%(measure)s: %(value)s; at least %(bound)s is asked for."),
    "at_most": gettext_lazy("%(measure)s: %(value)s; at most %(bound)s is asked for."),
    "at_least_not_known": gettext_lazy("%(measure)s: not known, and at least %(bound)s is asked for."),
    "at_most_not_known": gettext_lazy("%(measure)s: not known, and at most %(bound)s is asked for."),
}
_RATES = {
    "people": gettext_lazy("Win rate against %(parent)s by people"),
    "people_and_model": gettext_lazy("Win rate against %(parent)s by people and the reward model"),
    "people_and_model these_prompts": gettext_lazy(
        "Win rate against %(parent)s on the held-out prompts, by people and the reward model"
    ),
    "reward_model": gettext_lazy("Win rate against %(parent)s by the reward model"),
    "accuracy": gettext_lazy("Accuracy on held-out annotations"),
}
_MEASURES = {
    "reward_gain": gettext_lazy("Mean reward gain"),
    "kl": gettext_lazy("KL divergence from the base in nats per response"),
    "length_ratio": gettext_lazy("Length against the parent's"),
    "rule": gettext_lazy("Mean of rule %(rule)s"),
}
_FORMS = {"value": ".3g", "bound": "g"}


def reason(code: str, **values: Any) -> dict[str, Any]:
    """Return a reason as stored in a round. Raises `KeyError` for an unknown code."""
    _ = _SENTENCES[code]
    return {"code": code, **values}


def reason_text(reason: Reason) -> str:
    """Return a reason as a sentence in the active language."""
    if isinstance(reason, str):
        return reason
    values = {name: value for name, value in reason.items() if name != "code"}
    if "by" in values:
        rate = " ".join(values[name] for name in ("by", "claim") if name in values)
        values["rate"] = str(_RATES[rate]) % values
        values |= {name: _share(values[name]) for name in ("value", "bound") if name in values}
    elif "measure" in values:
        values["measure"] = str(_MEASURES[values["measure"]]) % values
        values |= {name: f"{values[name]:{form}}" for name, form in _FORMS.items() if name in values}
    if "chance" in values:
        values["chance"] = _share(values["chance"])
    return str(_SENTENCES[reason["code"]]) % values


def _share(value: float | Mapping[str, float | None]) -> str:
    """Return a share in whole percents, with its interval if it has one."""
    if not isinstance(value, Mapping):
        return f"{value:.0%}"
    if value["low"] is None or value["high"] is None:
        return f"{value['value']:.0%}"
    return gettext("%(value)s (%(low)s to %(high)s)") % {
        name: f"{share:.0%}" for name, share in value.items()
    }


if TYPE_CHECKING:
    from annotation.models import User


def validate_recipe(value: Mapping[str, Any]) -> None:
    """Raise for a recipe that a trainer would refuse, naming the field."""
    try:
        Recipe.from_json(value)
    except ContractError as error:
        raise ValidationError(str(error)) from None


class Round(models.Model):
    """One pass through the loop for one project.

    Drafted by a manager, or opened by the verdict on the round before it. Its recipe may change until
    training starts, except for completions already sampled.
    """

    project = models.ForeignKey("annotation.Project", on_delete=models.PROTECT, related_name="rounds")
    number = models.PositiveIntegerField(default=1)
    state = models.CharField(max_length=24, choices=RoundState, default=RoundState.DRAFT)
    policy = models.ForeignKey(
        Checkpoint,
        on_delete=models.PROTECT,
        related_name="rounds",
        help_text="The checkpoint that answers this round's prompts and that its training continues.",
    )
    recipe = models.JSONField(default=default_recipe, validators=[validate_recipe])
    snapshot = models.ForeignKey(
        Snapshot, on_delete=models.PROTECT, null=True, blank=True, related_name="trained_rounds"
    )
    cancel_requested = models.BooleanField(default=False)
    pause_requested = models.BooleanField(default=False)
    starts_by_itself = models.BooleanField(
        default=True,
        help_text="Whether the recipe's triggers may start it; not once it was taken back to labelling.",
    )
    reasons = models.JSONField(
        default=list, blank=True, help_text="Every condition of the decision with its figure, held or not."
    )
    verdict = models.CharField(
        max_length=24,
        choices=RoundVerdict,
        blank=True,
        default="",
        db_default="",
        help_text="What the evidence supports; empty before the evaluation.",
    )
    decision_note = models.TextField(
        blank=True,
        default="",
        db_default="",
        help_text="Why a person promoted or rejected the new policy; empty without a person.",
    )
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    started_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="+",
        help_text="None where its recipe's trigger started it.",
    )
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["project", "-number"]
        constraints = [
            models.UniqueConstraint(fields=["project", "number"], name="round_number_once"),
            models.UniqueConstraint(
                fields=["project"],
                condition=Q(state__in=TRAINS),
                name="round_trains_one_at_a_time",
            ),
            models.CheckConstraint(condition=Q(number__gte=1), name="round_number_from_one"),
            models.CheckConstraint(condition=Q(state__in=RoundState.values), name="round_state_known"),
        ]

    def __str__(self) -> str:
        return f"{self.project}, round {self.number}"

    def get_absolute_url(self) -> str:
        return reverse("round", args=[self.project.slug, self.number])

    @property
    def short_name(self) -> str:
        """Return the round without its project, for a page that names the project already."""
        return _("Round %(number)s") % {"number": self.number}

    @property
    def reason_texts(self) -> list[str]:
        """Return the reasons of its decision as sentences in the active language."""
        return [reason_text(reason) for reason in self.reasons]

    @property
    def names_trl(self) -> bool:
        """Return True for a round of 1.0 whose recipe has TRL train, until that is saved again."""
        return bool(self.recipe.get("trainer") == "trl")

    @property
    def parsed_recipe(self) -> Recipe:
        """Return the recipe as a checked dataclass.

        Without the trainer of 1.0, by which TRL trained: `dry_run` refuses to start such a round.
        """
        return Recipe.from_json({**self.recipe, "trainer": "rondo"})


class RoundStep(Job):
    """A step of a round, and its worker."""

    CAP = Cap.ROUNDS
    PROJECT = "round__project"

    round = models.ForeignKey(Round, on_delete=models.CASCADE, related_name="steps")
    kind = models.CharField(max_length=24, choices=StepKind)
    position = models.PositiveSmallIntegerField(
        help_text="0 answers the round's prompts; training counts from 1."
    )
    state = models.CharField(max_length=10, choices=StepState, default=StepState.WAITING)
    run = models.OneToOneField(
        Run, on_delete=models.PROTECT, null=True, blank=True, related_name="round_step"
    )
    seconds_worked = models.FloatField(
        default=0.0,
        help_text="How long workers were busy with it; the budget of hours counts it.",
    )

    class Meta:
        ordering = ["round", "position"]
        constraints = [
            models.UniqueConstraint(fields=["round", "position"], name="step_position_once"),
            models.CheckConstraint(condition=Q(state__in=StepState.values), name="step_state_known"),
            models.CheckConstraint(condition=Q(kind__in=StepKind.values), name="step_kind_known"),
            models.CheckConstraint(
                condition=~Q(state=StepState.RUNNING) | (~Q(worker="") & Q(heartbeat_at__isnull=False)),
                name="step_running_is_claimed",
            ),
        ]
        indexes = [models.Index(fields=["state", "heartbeat_at"], name="step_by_heartbeat")]

    def __str__(self) -> str:
        return f"{self.round}: {self.get_kind_display()}"

    @property
    def requester(self) -> "User | None":
        """The person who started the round, or else who created it."""
        return self.round.started_by or self.round.created_by


# Questions that a run asks people while it trains, and the pairs by which they answer.


class RunQuestion(models.Model):
    """A question of a run's guard: is its policy worse than some steps ago?

    Written by the worker that holds the claim on the run's step, from the file that the trainer wrote. The
    outcome changes from open to its end once; where the round was stopped it is withdrawn until the run goes
    on.
    """

    # No separate index: `run_question_once` begins with it.
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="questions", db_index=False)
    number = models.PositiveSmallIntegerField(help_text="Counted from 1, in the run.")
    step = models.PositiveIntegerField(help_text="Optimiser steps that the policy of now had taken.")
    then_step = models.PositiveIntegerField(help_text="Those of the state that it is compared with.")
    signals = models.JSONField(help_text="What raised it: name, value and bound of each signal.")
    outcome = models.CharField(
        max_length=10, choices=QuestionOutcome, default=QuestionOutcome.OPEN, help_text="What became of it."
    )
    asked_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["run", "number"]
        constraints = [
            models.UniqueConstraint(fields=["run", "number"], name="run_question_once"),
            models.CheckConstraint(
                condition=models.Q(outcome__in=QuestionOutcome.values), name="run_question_outcome_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.run}: question {self.number}"


class QuestionPair(models.Model):
    """A pair that people compare for a question: responses of now and then to one training prompt."""

    # No separate index: `question_pair_once` begins with it.
    question = models.ForeignKey(RunQuestion, on_delete=models.CASCADE, related_name="pairs", db_index=False)
    position = models.PositiveSmallIntegerField(help_text="Among the pairs that the trainer sampled.")
    comparison = models.ForeignKey(
        "annotation.Comparison", on_delete=models.CASCADE, related_name="question_pairs"
    )
    now = models.ForeignKey(
        "annotation.Completion",
        on_delete=models.CASCADE,
        related_name="+",
        help_text="The response of now; the comparison's other one is the earlier policy's.",
    )

    class Meta:
        ordering = ["question", "position"]
        constraints = [
            models.UniqueConstraint(fields=["question", "position"], name="question_pair_once"),
        ]

    def __str__(self) -> str:
        return f"{self.question}, pair {self.position}"

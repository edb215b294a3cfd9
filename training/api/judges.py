"""AI annotators: judges, suggestions, rubric drafts."""

from typing import Any

from django.utils.translation import gettext as _
from rest_framework import serializers

from annotation.api import fields
from annotation.api.base import ProjectView
from annotation.api.operations import PROJECT, Resource, Values
from annotation.api.quality import EstimateSerializer
from annotation.models import HelpSettings
from annotation.selectors.rubrics import published_versions
from training.api.checkpoints import named_checkpoint
from training.forms.suggestions import sources_for
from training.models import Judge, RubricDraft, SuggestionSource
from training.selectors.projects import checkpoints_for
from training.services.judges import create_judge, set_judge
from training.services.rubric_drafts import LEAST_PAIRS, MOST_PAIRS, request_draft
from training.services.suggestions import DEFAULT_TEMPLATE, set_suggestions


@fields.of(
    Judge,
    "id name checkpoint rubric is_active state message error template max_tokens most_judgments",
    "most_tokens questions prompt_tokens completion_tokens created_at",
)
class JudgeSerializer(serializers.ModelSerializer[Judge]):
    """A model that judges beside people."""

    checkpoint = fields.text(source="checkpoint.name")
    rubric = fields.integer(
        "Id of the rubric version that it scores by.", source="rubric_id", allow_null=True
    )


class NewJudgeSerializer(serializers.Serializer[Any]):
    """A judge to be set to work."""

    name = fields.text(most=100)
    checkpoint = fields.text("What answers for it.", most=100)
    template = fields.text(
        "What it is asked; a good one else.", required=False, most=20_000, trim_whitespace=False
    )
    rubric = fields.text("Name of a published rubric to score by; else it ranks.", required=False, most=80)
    max_tokens = fields.integer(required=False, least=1, most=100_000)
    most_judgments = fields.integer(required=False, least=1, most=fields.LARGEST_INTEGER)
    most_tokens = fields.integer(required=False, least=1, most=2**62)


class CriterionAgreementSerializer(serializers.Serializer[Any]):
    """A judge's scores by one criterion against people's ratings."""

    criterion = fields.text(source="criterion.key")
    name = fields.text(source="criterion.name")
    alpha = fields.number(
        "Krippendorff's α, ordinal; null without data.", source="alpha.value", allow_null=True
    )
    low = fields.number("Of the 95 % interval.", source="alpha.low", allow_null=True)
    high = fields.number(source="alpha.high", allow_null=True)
    comparisons = fields.integer("That it rests on.", source="alpha.items")
    responses = fields.integer("Scored by the judge and by a person.")
    difference = fields.number("Mean score of the judge less people's.", allow_null=True)
    among_people = fields.number(source="among_people.value", allow_null=True)


class ActivitySerializer(serializers.Serializer[Any]):
    """The state of a judge: active or paused."""

    is_active = fields.flag(required=False)


judges = Resource(
    ProjectView,
    f"{PROJECT}judges/",
    tag="checkpoints",
    rows=lambda view: view.project.judges.select_related("checkpoint", "project", "user", "rubric__rubric"),
)


judge = judges.item("<int:pk>/")


judges.add_list(
    "judges_list",
    JudgeSerializer,
    "List the judges with what they were asked and what that cost, newest first.",
)


@judges.post(takes=NewJudgeSerializer, returns=JudgeSerializer, status=201)
def judges_create(view: ProjectView, values: Values) -> Judge:
    """Let a checkpoint judge the project's comparisons. It begins once a worker finds it."""
    values["checkpoint"] = named_checkpoint(checkpoints_for(view.user), values["checkpoint"])
    if (rubric := values.pop("rubric", None)) is not None:
        values["rubric"] = published_versions(view.project).filter(rubric__name=rubric).first()
        if values["rubric"] is None:
            raise serializers.ValidationError({"rubric": [_("There is no such published rubric.")]})
    return create_judge(project=view.project, created_by=view.user, **values)


@judge.patch(takes=ActivitySerializer, returns=JudgeSerializer)
def judges_set(view: ProjectView, judge: Judge, values: Values) -> Judge:
    """Pause a judge, or let it go on, also after a failure."""
    if values:
        set_judge(judge=judge, active=values["is_active"], by=view.user)
    judge.refresh_from_db()
    return judge


@judge.get("criteria/", returns=[CriterionAgreementSerializer])
def judges_criteria(view: ProjectView, judge: Judge) -> Any:
    """Read the agreement of a judge's scores with people's ratings, for each criterion of its rubric."""
    # NumPy is loaded when somebody asks for this, not with the web server.
    from training.selectors.judges import report_of

    return report_of(judge).criteria


# Suggestions of a project: their settings and the effect of help.

_SETTINGS = ("control_share", "planted_share", "unread_seconds", "tells_planted")


def _share(meaning: str) -> serializers.FloatField:
    return fields.number(meaning, least=0, most=1, required=False)


class SuggestionSettingsSerializer(serializers.Serializer[Any]):
    """The settings of suggestions, with the work of their source."""

    is_active = fields.flag("Whether suggestions are shown after the first pass.")
    checkpoint = fields.text("A model that writes text, or a reward model.", most=100, allow_null=True)
    control_share = _share("Share of comparisons of each annotator without help.")
    planted_share = _share("Share of suggestions that are wrong on purpose.")
    unread_seconds = fields.number(
        "What is accepted faster counts as unread.", required=False, least=0, most=60
    )
    least_confidence = _share("Less sure suggestions are left out.")
    tells_planted = fields.flag(
        "Whether annotators are told what was planted, after their final pass.", required=False
    )
    template = fields.text(
        "What an AI annotator is asked.", required=False, most=20_000, trim_whitespace=False
    )
    state = fields.text(read_only=True, allow_null=True)
    message = fields.text(read_only=True)
    error = fields.text(read_only=True)
    compared = fields.integer("Comparisons that have their suggestions.", read_only=True)
    suggested = fields.integer(read_only=True)
    planted = fields.integer(read_only=True)


class HelpEffectSerializer(serializers.Serializer[Any]):
    """A quantity with help, without it, and the difference: with minus without."""

    helped = EstimateSerializer()
    control = EstimateSerializer()
    difference = EstimateSerializer()


class HelpReportSerializer(serializers.Serializer[Any]):
    """The effect of suggestions, by the randomised experiment of the project."""

    helped = fields.integer("Annotations drawn to get help.")
    control = fields.integer("Annotations drawn to get none.")
    unfinished = fields.integer("With help, without a final pass so far.")
    decisions = fields.integer()
    planted_rejected = EstimateSerializer()
    accepted = EstimateSerializer()
    accepted_unread = EstimateSerializer()
    seconds = HelpEffectSerializer()
    agreement = HelpEffectSerializer(help_text="Share of pairs decided as others did in their first passes.")
    gold = HelpEffectSerializer(help_text="Share of gold items that are right.")
    agreement_change = EstimateSerializer(help_text="From the first to the final pass.")
    gold_change = EstimateSerializer(help_text="From the first to the final pass.")
    lowers = fields.several(fields.text(), "Accuracies that help lowers: agreement, gold.")


suggestions = Resource(ProjectView, f"{PROJECT}suggestions/", tag="quality")


@suggestions.get(returns=SuggestionSettingsSerializer)
def suggestions_read(view: ProjectView) -> Values:
    """Read the settings of suggestions, and how far their source is."""
    settings = HelpSettings.objects.filter(project=view.project).first() or HelpSettings()
    source = SuggestionSource.objects.filter(project=view.project).select_related("checkpoint").first()
    return {
        "is_active": view.project.has_help,
        **{name: getattr(settings, name) for name in _SETTINGS},
        "checkpoint": source.checkpoint.name if source else None,
        "template": source.template if source else DEFAULT_TEMPLATE,
        "state": source.state if source else None,
        "least_confidence": source.least_confidence if source else 0.5,
        "message": source.message if source else "",
        "error": source.error if source else "",
        "compared": source.compared if source else 0,
        "suggested": source.suggested if source else 0,
        "planted": source.planted if source else 0,
    }


@suggestions.put(takes=SuggestionSettingsSerializer, returns=SuggestionSettingsSerializer)
def suggestions_set(view: ProjectView, values: Values) -> Values:
    """Switch suggestions on or off and set their source. What is left out keeps its value."""
    values["checkpoint"] = named_checkpoint(sources_for(view.project), values["checkpoint"])
    source = SuggestionSource.objects.filter(project=view.project).first()
    if source is not None:
        values = {"template": source.template, "least_confidence": source.least_confidence, **values}
    set_suggestions(project=view.project, by=view.user, **values)
    return suggestions_read(view)


@suggestions.get("effect/", returns=HelpReportSerializer)
def suggestions_effect(view: ProjectView) -> Any:
    """Read the effect of help with 95 % intervals, and the decisions on suggestions."""
    # NumPy is loaded when somebody asks, not with the web server.
    from annotation.statistics.help import help_report

    return help_report(view.project)


# Drafts of rubrics that a model writes from decided pairs.


class DraftedCriterionSerializer(serializers.Serializer[Any]):
    """A drafted criterion, with its check on held-out pairs."""

    name = fields.text()
    text = fields.text()
    scale = fields.text()
    weight = fields.number()
    proposals = fields.integer("Replies that proposed it or one like it.")
    agreeing = fields.integer("Pairs on which its scores prefer what people prefer.")
    opposing = fields.integer("Pairs on which they prefer the other response.")
    tied = fields.integer("Pairs that its scores do not decide.")


@fields.of(
    RubricDraft,
    "id checkpoint pairs max_tokens state message error criteria pairs_read pairs_checked unread",
    "version created_at",
)
class RubricDraftSerializer(serializers.ModelSerializer[RubricDraft]):
    """A draft and its state. Save its criteria with `rubrics_create`, edited."""

    checkpoint = fields.text(source="checkpoint.name")
    criteria = DraftedCriterionSerializer(many=True)


class NewRubricDraftSerializer(serializers.Serializer[Any]):
    """A draft to be written."""

    checkpoint = fields.text("The model that drafts and checks.", most=100)
    pairs = fields.integer("At most.", least=LEAST_PAIRS, most=MOST_PAIRS)
    max_tokens = fields.integer("Of one reply.", default=1024, least=64, most=100_000)


rubric_drafts = Resource(
    ProjectView,
    f"{PROJECT}rubric-drafts/",
    tag="projects",
    rows=lambda view: view.project.rubric_drafts.select_related("checkpoint"),
)

rubric_drafts.add_list(
    "rubric_drafts_list", RubricDraftSerializer, "List the drafts of a project's rubrics, newest first."
)
rubric_drafts.item("<int:pk>/").add_read(
    "rubric_drafts_read", RubricDraftSerializer, "Read a draft with its criteria, once it is finished."
)


@rubric_drafts.post(takes=NewRubricDraftSerializer, returns=RubricDraftSerializer, status=201)
def rubric_drafts_request(view: ProjectView, values: Values) -> RubricDraft:
    """Have a model draft criteria. It begins once a worker finds it."""
    values["checkpoint"] = named_checkpoint(checkpoints_for(view.user), values["checkpoint"])
    return request_draft(project=view.project, requested_by=view.user, **values)

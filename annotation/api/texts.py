"""Prompts, completions, comparisons and judgments, with sources: for managers."""

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from django.db import transaction
from django.db.models import Model, Prefetch, QuerySet
from django.http import QueryDict
from django.shortcuts import get_object_or_404
from rest_framework import serializers

from annotation.api import fields
from annotation.api.answers import AnswerValueField, JudgmentSerializer, judgments_with_parts, rows_field
from annotation.api.base import Filters, ProjectView
from annotation.api.operations import PROJECT, Resource, Values
from annotation.choices import Purpose, Split, Verdict
from annotation.exchange.formats.fields import ROLES
from annotation.exchange.prompts import ImportReport, import_prompts
from annotation.models import Candidate, Comparison, Completion, Judgment, Prompt
from annotation.record.judgment import AnswerPart, JudgmentRecord
from annotation.selectors.access import judged, judgments_current, with_answer_of
from annotation.selectors.allocation import tagged
from annotation.selectors.saved_views import views_for
from annotation.selectors.tables.conditions import from_json, to_pairs
from annotation.selectors.tables.data import TABLES
from annotation.selectors.tables.table import View as TableView
from annotation.selectors.tables.table import calling
from annotation.services import bulk
from annotation.services.bulk import (
    BULK_VERDICTS,
    LONGEST_TAG,
    MOST_ANSWERED,
    MOST_OVERLAP,
    MOST_PRIORITY,
    MOST_ROWS,
    TAG,
)
from annotation.text.identity import MOST_TURNS

_MOST_PROMPTS = 1000
R = TypeVar("R", bound=Model)


class MessageSerializer(serializers.Serializer[Any]):
    """One message of a chat."""

    role = fields.choice(ROLES)
    content = fields.text(allow_blank=True, trim_whitespace=False)


class PassageSerializer(serializers.Serializer[Any]):
    """A passage of context."""

    title = fields.text(allow_blank=True, trim_whitespace=False)
    sentences = fields.several(fields.text(allow_blank=True, trim_whitespace=False))


@fields.of(Prompt, "id messages context references tags metadata split content_hash created_at")
class PromptSerializer(serializers.ModelSerializer[Prompt]):
    """A prompt."""

    messages = MessageSerializer(many=True)
    context = PassageSerializer(many=True)  # type: ignore[assignment]
    references = fields.several(fields.text())
    tags = fields.several(fields.text())
    metadata = fields.computed("Columns of its file that nothing else reads.")

    def get_metadata(self, prompt: Prompt) -> dict[str, Any]:
        return prompt.metadata or {}


class NewCompletionSerializer(serializers.Serializer[Any]):
    """A completion sent with its prompt."""

    text = fields.text(trim_whitespace=False)
    source = fields.text("Who wrote it.", required=False, most=120)  # type: ignore[assignment]


class NewPromptSerializer(serializers.Serializer[Any]):
    """A prompt to add."""

    prompt: serializers.ListSerializer[Any] = serializers.ListSerializer(
        child=MessageSerializer(), max_length=MOST_TURNS, help_text="The chat; its last turn is the user's."
    )
    context = PassageSerializer(many=True, required=False)  # type: ignore[assignment]
    reference = fields.several(fields.text(trim_whitespace=False), "Reference answers.", required=False)
    tags = fields.several(fields.text(), required=False)
    completions = NewCompletionSerializer(
        many=True, required=False, help_text="Answers to be compared, where there are some already."
    )


class NewPromptsSerializer(serializers.Serializer[Any]):
    """Prompts to add, all or none."""

    items: serializers.ListSerializer[Any] = serializers.ListSerializer(
        child=NewPromptSerializer(), max_length=_MOST_PROMPTS
    )


class AddedSerializer(serializers.Serializer[Any]):
    """The counts of added rows."""

    added = fields.integer()
    already_there = fields.integer("Prompts that the project had, and repetitions.")
    comparisons = fields.integer("Comparisons of answers that came with prompts.")


CONDITIONS = (
    "Conditions on columns of the table and metadata, as JSON: a list of alternatives, each a list of "
    "objects with `column`, `is` and `to` that all hold."
)
LONGEST_CONDITIONS = 4_000


class PromptFilters(Filters):
    """Filters of prompts."""

    split = fields.choice(Split.choices, required=False)
    conditions = fields.text(CONDITIONS, most=LONGEST_CONDITIONS, required=False)
    view = fields.key("A saved view of prompts.", required=False)


@fields.of(
    Completion, "id prompt source text text_hash sampling seed finish_reason token_count metadata created_at"
)
class CompletionSerializer(serializers.ModelSerializer[Completion]):
    """A completion with its sampling parameters."""

    source = fields.text("Who wrote it.", source="source.name")  # type: ignore[assignment]
    sampling = serializers.DictField()
    metadata = fields.computed("Columns of its file about this response that nothing else reads.")

    def get_metadata(self, completion: Completion) -> dict[str, Any]:
        return completion.metadata or {}


class CompletionFilters(Filters):
    """Filters of completions."""

    prompt = fields.key(required=False)
    source = fields.text("Who wrote it: a name.", source="source__name", required=False)  # type: ignore[assignment]


@fields.of(
    Comparison, "id prompt round purpose completions size overlap open_slots priority metadata created_at"
)
class ComparisonSerializer(serializers.ModelSerializer[Comparison]):
    """A prompt and completions that are judged together."""

    round = fields.integer(source="round_number")
    completions = fields.computed("Their numbers, as they were recorded.")
    metadata = fields.computed("Columns of its file that nothing else reads.")

    def get_metadata(self, comparison: Comparison) -> dict[str, Any]:
        return comparison.metadata or {}

    def get_completions(self, comparison: Comparison) -> list[int]:
        return [candidate.completion_id for candidate in comparison.candidates.all()]


class ComparisonFilters(Filters):
    """Filters of comparisons."""

    round = fields.integer(required=False, least=1, most=fields.LARGEST_INTEGER)
    purpose = fields.choice(Purpose.choices, required=False)
    open = fields.flag("Whether places are free.", allow_null=True, default=None)
    judged = fields.flag("Whether somebody has judged it.", allow_null=True, default=None)
    source = fields.text("Who wrote one of its answers: a name.", required=False)  # type: ignore[assignment]
    against = fields.text("Who wrote another of them: a name.", required=False)
    tag = fields.text("A tag of its prompt.", required=False)
    tool = fields.text("A tool that was called in one of its answers.", required=False)
    conditions = fields.text(CONDITIONS, most=LONGEST_CONDITIONS, required=False)
    view = fields.key("A saved view of comparisons.", required=False)


class JudgmentFilters(Filters):
    """Filters of judgments."""

    round = fields.integer(required=False, least=1, most=fields.LARGEST_INTEGER)
    annotator = fields.text("A username.", required=False)
    machines = fields.flag("Whether those of programs that judge are listed too.", default=False)


prompts = Resource(
    ProjectView, f"{PROJECT}prompts/", tag="texts", rows=lambda view: view.project.prompts.all()
)
completions = Resource(
    ProjectView,
    f"{PROJECT}completions/",
    tag="texts",
    rows=lambda view: Completion.objects.filter(
        prompt__project=view.project, deleted_at__isnull=True, prompt__deleted_at__isnull=True
    ).select_related("source"),
)
comparisons = Resource(ProjectView, f"{PROJECT}comparisons/", tag="texts")
comparison = comparisons.item("<int:pk>/", rows=lambda view: view.project.comparisons.all())
judgments = Resource(ProjectView, f"{PROJECT}judgments/", tag="texts")


@prompts.get_list(PromptSerializer, filters=PromptFilters)
def prompts_list(view: ProjectView, query: Values) -> QuerySet[Prompt]:
    """List prompts with references and split, newest first."""
    prompts = view.project.prompts.all()
    if "split" in query:
        prompts = prompts.filter(split=query["split"])
    return _narrowed(view, "prompts", prompts, query)


def _narrowed(view: ProjectView, table: str, rows: QuerySet[R], query: Values) -> QuerySet[R]:
    """Return the rows that conditions and a saved view leave."""
    if "view" in query:
        saved = get_object_or_404(views_for(view.user, view.project), pk=query["view"], table=table)
        rows = rows.filter(pk__in=_matching(view, table, QueryDict(saved.query)))
    if "conditions" in query:
        fields_of_address = QueryDict(mutable=True)
        for name, value in to_pairs(from_json(query["conditions"])):
            fields_of_address.appendlist(name, value)
        rows = rows.filter(pk__in=_matching(view, table, fields_of_address))
    return rows


def _matching(view: ProjectView, table: str, query: QueryDict) -> QuerySet[Any]:
    shown = TableView(TABLES[table], view.project, query)
    if shown.fault is not None:
        raise shown.fault
    return shown.matching.order_by().values("pk")


prompts.item("<int:pk>/").add_read("prompts_read", PromptSerializer, "Read one prompt.")
completions.add_list(
    "completions_list",
    CompletionSerializer,
    "List completions with their source, sampling parameters and seed, newest first.",
    filters=CompletionFilters,
)
comparison.add_read("comparisons_read", ComparisonSerializer, "Read one comparison.")


@prompts.post(takes=NewPromptsSerializer, returns=AddedSerializer, status=201)
def prompts_add(view: ProjectView, values: Values) -> ImportReport:
    """Add up to 1,000 prompts, all or none. A prompt that the project has is not added again; completions
    sent with a prompt become comparisons of the newest round."""
    lines = (json.dumps(item, ensure_ascii=False) for item in values["items"])
    return import_prompts(project=view.project, lines=lines, name="items")


@comparisons.get_list(ComparisonSerializer, filters=ComparisonFilters)
def comparisons_list(view: ProjectView, query: Values) -> QuerySet[Comparison]:
    """List the comparisons, newest first."""
    comparisons = view.project.comparisons.prefetch_related(
        Prefetch("candidates", queryset=Candidate.objects.order_by("index"))
    )
    if "round" in query:
        comparisons = comparisons.filter(round_number=query["round"])
    if "purpose" in query:
        comparisons = comparisons.filter(purpose=query["purpose"])
    else:
        comparisons = comparisons.exclude(purpose=Purpose.DELETED)
    if "open" in query:
        comparisons = comparisons.filter(**{"open_slots__gt" if query["open"] else "open_slots": 0})
    if "judged" in query:
        comparisons = comparisons.filter(judged() if query["judged"] else ~judged())
    for name in {"source", "against"} & set(query):
        comparisons = comparisons.filter(with_answer_of(name=query[name]))
    if "tag" in query:
        comparisons = comparisons.filter(tagged("prompt__tags", query["tag"]))
    if "tool" in query:
        comparisons = calling(comparisons, view.project, query["tool"])
    return _narrowed(view, "comparisons", comparisons, query)


@comparison.get_list(JudgmentSerializer, "judgments/", model=Judgment)
def comparisons_judgments(view: ProjectView, comparison: Comparison) -> QuerySet[Judgment]:
    """List all judgments of a comparison, including superseded ones, newest first."""
    return judgments_with_parts(Judgment.objects.filter(comparison=comparison))


@judgments.get_list(JudgmentSerializer, filters=JudgmentFilters, model=Judgment)
def judgments_list(view: ProjectView, query: Values) -> QuerySet[Judgment]:
    """List current judgments, newest first, without gold, qualification and retest items."""
    rounds = [query["round"]] if "round" in query else None
    current = judgments_current(view.project, rounds, machines=query["machines"], unblinded=True)
    if "annotator" in query:
        current = current.filter(annotator__username=query["annotator"])
    return judgments_with_parts(current)


# Bulk actions on comparisons and prompts, with a preview of their effect.


def _keys(most: int = MOST_ROWS) -> serializers.ListField:
    """Return a field of primary keys."""
    key = fields.integer(least=1, most=2**53)
    return fields.several(key, most=most)


class ComparisonsActionSerializer(serializers.Serializer[Any]):
    """Bulk actions on comparisons; each that is sent is done."""

    comparisons = _keys()
    requeue = fields.flag("Ask one more annotator where all annotations are submitted.", default=False)
    overlap = fields.integer("Raise the overlap to this.", required=False, least=1, most=MOST_OVERLAP)
    priority = fields.integer(
        "Within a round higher ones are handed out first.",
        required=False,
        least=-MOST_PRIORITY,
        most=MOST_PRIORITY,
    )
    close = fields.flag("Ask nobody else; annotations stay.", default=False)
    review = fields.flag("Open a review where there is none.", default=False)
    release = fields.flag("Release from quarantine.", default=False)
    quarantine = fields.flag("Keep from annotators until a manager decides; annotations stay.", default=False)
    assign = fields.several(
        serializers.RegexField(r"^[^,]+$", max_length=150),
        "Usernames of the members who alone get them; an empty list for everybody.",
        required=False,
        most=50,
    )
    delete = fields.flag("Delete them with their annotations; can be undone for a day.", default=False)
    dry_run = fields.flag("Return the effects and change nothing.", default=False)


class PromptsActionSerializer(serializers.Serializer[Any]):
    """Bulk actions on prompts: tags to add and to remove."""

    prompts = _keys()
    tag = serializers.RegexField(
        rf"^{TAG}$", required=False, max_length=LONGEST_TAG, trim_whitespace=False, help_text="Add this tag."
    )
    untag = serializers.RegexField(
        rf"^{TAG}$",
        required=False,
        max_length=LONGEST_TAG,
        trim_whitespace=False,
        help_text="Remove this tag.",
    )
    delete = fields.flag(
        "Delete them with responses, comparisons and annotations; can be undone for a day.", default=False
    )
    dry_run = fields.flag("Return the effects and change nothing.", default=False)


class CompletionsActionSerializer(serializers.Serializer[Any]):
    """Bulk actions on completions."""

    completions = _keys()
    delete = fields.flag(
        "Delete them with the comparisons that hold them and their annotations; can be undone for a day.",
        default=False,
    )
    dry_run = fields.flag("Return the effects and change nothing.", default=False)


class EffectSerializer(serializers.Serializer[Any]):
    """The effect of one bulk action."""

    action = fields.text()
    changed = fields.integer("Rows.")
    skipped = serializers.DictField(child=fields.integer(), help_text="Reason → rows.")
    lost = serializers.DictField(child=fields.integer(), help_text="What goes with the rows → its number.")


_Action = tuple[str, Callable[..., bulk.Effect], Values]
_PLAIN: dict[str, Callable[..., bulk.Effect]] = {
    "release": bulk.release,
    "requeue": bulk.requeue,
    "close": bulk.close,
    "review": bulk.send_to_review,
    "quarantine": bulk.quarantine,
}
_NUMBERED: dict[str, Callable[..., bulk.Effect]] = {
    "overlap": bulk.raise_overlap,
    "priority": bulk.set_priority,
}


comparison_actions = Resource(ProjectView, f"{PROJECT}comparisons/act/", tag="texts")
completion_actions = Resource(ProjectView, f"{PROJECT}completions/act/", tag="texts")
prompt_actions = Resource(ProjectView, f"{PROJECT}prompts/act/", tag="texts")


@comparison_actions.post(takes=ComparisonsActionSerializer, returns=[EffectSerializer])
def comparisons_act(view: ProjectView, values: Values) -> list[Values]:
    """Release, re-queue, close, review, quarantine, assign or delete comparisons; set overlap or priority.

    All or nothing, in the order of the document.
    """
    chosen: list[_Action] = [(name, action, {}) for name, action in _PLAIN.items() if values[name]]
    chosen += [
        (name, action, {"value": str(values[name])}) for name, action in _NUMBERED.items() if name in values
    ]
    if "assign" in values:
        chosen.append(("assign", bulk.reserve, {"value": ",".join(values["assign"])}))
    if values["delete"]:
        chosen.append(("delete", bulk.delete_comparisons, {}))
    return _act(view, values["comparisons"], chosen, dry_run=values["dry_run"])


class ComparisonAnswerSerializer(serializers.Serializer[Any]):
    """The answer to a question about each of several comparisons."""

    question = fields.text("Its key.", most=60)
    value = AnswerValueField()


class BulkAnswerSerializer(serializers.Serializer[Any]):
    """One judgment for several comparisons."""

    comparisons = _keys(MOST_ANSWERED)
    verdict = fields.choice(
        [(value.value, value.label) for value in (*BULK_VERDICTS, Verdict.NOT_ASKED)],
        default=Verdict.NOT_ASKED.value,
    )
    answers = rows_field(ComparisonAnswerSerializer())
    dry_run = fields.flag("Return the effect and store nothing.", default=False)


comparison_answers = Resource(ProjectView, f"{PROJECT}comparisons/answer/", tag="texts")


@comparison_answers.post(takes=BulkAnswerSerializer, returns=EffectSerializer)
def comparisons_answer(view: ProjectView, values: Values) -> Values:
    """Store one judgment of yours for each comparison that is open to you, marked as given in bulk.

    Others are skipped, with the reason. `changes_undo` takes all back for a day. Where the judgment fits none
    of them, it is refused.
    """
    answers = tuple(AnswerPart(**row) for row in values["answers"])
    effect = bulk.answer(
        project=view.project,
        actor=view.user,
        chosen=values["comparisons"],
        answer=JudgmentRecord(verdict=values["verdict"], answers=answers),
        dry_run=values["dry_run"],
    )
    return _effect("answer", effect)


@prompt_actions.post(takes=PromptsActionSerializer, returns=[EffectSerializer])
def prompts_act(view: ProjectView, values: Values) -> list[Values]:
    """Add a tag to prompts, remove one, or delete them, all or nothing."""
    actions = {"tag": bulk.add_tag, "untag": bulk.remove_tag}
    chosen: list[_Action] = [
        (name, action, {"value": values[name]}) for name, action in actions.items() if name in values
    ]
    if values["delete"]:
        chosen.append(("delete", bulk.delete_prompts, {}))
    return _act(view, values["prompts"], chosen, dry_run=values["dry_run"])


@completion_actions.post(takes=CompletionsActionSerializer, returns=[EffectSerializer])
def completions_act(view: ProjectView, values: Values) -> list[Values]:
    """Delete completions, all or nothing."""
    chosen: list[_Action] = [("delete", bulk.delete_responses, {})] if values["delete"] else []
    return _act(view, values["completions"], chosen, dry_run=values["dry_run"])


@transaction.atomic
def _act(
    view: ProjectView,
    rows: Sequence[int],
    actions: Sequence[_Action],
    *,
    dry_run: bool,
) -> list[Values]:
    """Execute actions, each with a value where it takes one, and return their effects."""
    effects = []
    for name, action, value in actions:
        effect = action(project=view.project, actor=view.user, chosen=rows, dry_run=dry_run, **value)
        effects.append(_effect(name, effect))
    return effects


def _effect(name: str, effect: bulk.Effect) -> Values:
    skipped = {str(why): number for why, number in effect.skipped.items()}
    lost = {str(what): number for what, number in effect.lost.items()}
    return {"action": name, "changed": effect.changed, "skipped": skipped, "lost": lost}

"""Labelling: the next assignment, drafts, judgments, skips and reports.

Nothing here reveals the source of an answer, other judgments or a known answer: an answer has a name that
holds in one assignment only.
"""

import uuid
from typing import Any

from django.db.models import QuerySet
from django.http import Http404
from django.utils.translation import gettext as _
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from annotation.api import fields
from annotation.api.answers import (
    JudgmentSerializer,
    NewJudgmentSerializer,
    answer_of,
    judgments_with_parts,
)
from annotation.api.base import Filters, OldestFirst, ProjectView
from annotation.api.operations import PROJECT, Resource, Values
from annotation.api.texts import MessageSerializer, PassageSerializer
from annotation.choices import (
    AssignmentState,
    Purpose,
    Role,
    SuggestionDecision,
    SuggestionKind,
    TokenScope,
    Verdict,
    WhyNothing,
    WrittenIn,
)
from annotation.errors import InvalidAnswer
from annotation.models import (
    Assignment,
    Completion,
    Continuation,
    Draft,
    Guideline,
    HelpReveal,
    Judgment,
    Project,
    ReviewReturn,
    RubricVersion,
    Suggestion,
    TraceStep,
)
from annotation.models.pastes import LONGEST_PASTE
from annotation.selectors import access
from annotation.selectors.eligibility import why_nothing
from annotation.selectors.known_answers import feedback_for
from annotation.selectors.rubrics import published_version
from annotation.selectors.suggestions import open_reveal_of, planted_suggestions, suggestions_for
from annotation.selectors.traces import steps_by_completion
from annotation.services.assignments.display_order import candidate_token, tokens_of
from annotation.services.assignments.leases import release_assignment, renew_lease, skip_assignment
from annotation.services.assignments.next import assign_next
from annotation.services.judgments.drafts import LONGEST_PREFIX, continue_response, is_offered, save_draft
from annotation.services.judgments.submission import flag_item, submit_judgment
from annotation.services.pastes import record_paste
from annotation.services.reviews import LONGEST_REASON, object_to_return
from annotation.services.suggestions import DecisionInput, finish_help, ranks_of

IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    OpenApiTypes.UUID,
    OpenApiParameter.HEADER,
    required=True,
    description="Drawn for this judgment: sent twice, it is one judgment.",
)


class DraftSerializer(serializers.ModelSerializer[Draft]):
    """The saved state of a form before its submission."""

    fields_saved = serializers.DictField(child=serializers.ListField(child=fields.text()), source="fields")

    class Meta:
        model = Draft
        fields = ("version", "fields_saved", "saved_from", "saved_at")


class StepSerializer(serializers.ModelSerializer[TraceStep]):
    """A step of an answer that is a trace or a session: its place in the text, in code points."""

    class Meta:
        model = TraceStep
        fields = ("index", "kind", "role", "tool", "is_error", "start", "body", "end")


class AssignmentSerializer(serializers.ModelSerializer[Assignment]):
    """A comparison that the annotator holds or has judged."""

    round = fields.computed()
    messages = MessageSerializer(many=True, source="comparison.prompt.messages")
    context = PassageSerializer(many=True, source="comparison.prompt.context")  # type: ignore[assignment]
    answers = fields.computed("In the order in which they are shown.")
    draft = fields.computed("What was saved; null where nothing was.")
    judgment = fields.computed("What one submitted and stands; else null.")

    class Meta:
        model = Assignment
        fields = (
            *("id", "state", "round", "messages", "context", "answers"),
            *("leased_at", "lease_expires_at", "closed_at", "draft", "judgment"),
        )

    def get_round(self, assignment: Assignment) -> int:
        return access.round_shown(assignment)

    def get_answers(self, assignment: Assignment) -> list[dict[str, Any]]:
        completions = Completion.objects.only("text", "text_hash", "step_count").in_bulk(
            assignment.display_order
        )
        steps = steps_by_completion(list(completions.values()))
        return [
            {
                "answer": candidate_token(assignment, pk),
                "text": completions[pk].text,
                "text_hash": completions[pk].text_hash,
                **({"steps": StepSerializer(steps[pk], many=True).data} if pk in steps else {}),
            }
            for pk in assignment.display_order
        ]

    def get_draft(self, assignment: Assignment) -> dict[str, Any] | None:
        draft = Draft.objects.filter(assignment=assignment).first()
        return DraftSerializer(draft).data if draft else None

    def get_judgment(self, assignment: Assignment) -> dict[str, Any] | None:
        # Of the user alone, so nothing is hidden.
        standing = Judgment.everything.current().filter(assignment=assignment)
        judgment = judgments_with_parts(standing).first()
        if judgment is None:
            return None
        return JudgmentSerializer(judgment, context={"assignment": assignment}).data


class AssignmentFilters(Filters):
    """Filters of the user's assignments."""

    state = fields.choice(AssignmentState.choices, required=False)


class NextSerializer(serializers.Serializer[Any]):
    """The next assignment, or why there is none."""

    assignment = AssignmentSerializer(allow_null=True)
    why_nothing = fields.choice(WhyNothing.choices, "Why there is no assignment.", allow_null=True)


class FeedbackSerializer(serializers.Serializer[Any]):
    """The known answer of a gold item, where the project reveals it afterwards."""

    right = fields.flag()
    verdict = fields.text()
    ranking = fields.text("In letters of the order shown: A is the first answer.")
    explanation = fields.text()


class SubmittedSerializer(serializers.Serializer[Any]):
    """The result of a submission."""

    judgment = JudgmentSerializer()
    feedback = FeedbackSerializer(allow_null=True)
    suggestions_open = fields.flag("Whether suggestions wait for decisions: this was the first pass.")


class NewDraftSerializer(serializers.Serializer[Any]):
    """The current state of a form."""

    fields_saved = serializers.DictField(
        child=serializers.ListField(child=fields.text(allow_blank=True, trim_whitespace=False)),
        help_text="Name of a field → its values, as the page would send them.",
    )
    base_version = fields.integer("The version that it follows; 0 for the first.", least=0, most=2**31 - 1)
    saved_from = serializers.UUIDField(help_text="The program or page that saves it.")
    is_revision = fields.flag("Whether a submitted answer is being changed.", default=False)


class ReasonSerializer(serializers.Serializer[Any]):
    """A reason with details."""

    reason = fields.text(most=200)
    details = fields.text(most=2000, default="")


class NewPasteSerializer(serializers.Serializer[Any]):
    """A paste into a text."""

    key = serializers.UUIDField(help_text="Drawn by the program: sent twice it is one paste.")
    field = fields.choice(WrittenIn.choices, "The text into which was pasted.")
    completion = fields.text("Name of the response that the text is about.", most=40, default="")
    characters = fields.integer(least=1, most=LONGEST_PASTE)
    is_on_screen = fields.flag("Whether the prompt or a response held the text.", default=False)


class LabellingView(ProjectView):
    """An operation of the annotator's work. For annotators."""

    role = Role.ANNOTATOR
    changes = TokenScope.LABEL

    def assignment(self, pk: int) -> Assignment:
        """Return the user's assignment in the address; 404 for anyone else's."""
        assignment = self.assignments().filter(pk=pk).first()
        if assignment is None:
            raise Http404
        assignment.comparison.project = self.project
        return assignment

    def assignments(self) -> QuerySet[Assignment]:
        """Return the user's assignments without arena comparisons, whose sources have been revealed."""
        return (
            Assignment.objects.filter(annotator=self.user, comparison__project=self.project)
            .exclude(comparison__purpose=Purpose.ARENA)
            .select_related("comparison__prompt", "comparison__project")
        )


@fields.of(ReviewReturn, "id assignment comment state objection returned_at closed_at")
class ReturnedSerializer(serializers.ModelSerializer[ReviewReturn]):
    """A return of one's own annotation, and the answer."""


class ObjectionSerializer(serializers.Serializer[Any]):
    """Why an annotation is right as it is."""

    objection = fields.text(most=LONGEST_REASON)


assignments = Resource(
    LabellingView, f"{PROJECT}assignments/", tag="labelling", rows=LabellingView.assignments
)
assignment = assignments.item("<int:pk>/", find=LabellingView.assignment)

assignments.add_list(
    "assignments_list",
    AssignmentSerializer,
    "List the assignments that the user holds or has judged, newest first.",
    filters=AssignmentFilters,
)
assignment.add_read(
    "assignments_read", AssignmentSerializer, "Read an assignment with its draft and its submitted judgment."
)


# Repeating the request returns the held lease; expired leases are released in separate transactions.
@assignments.post("next/", returns=NextSerializer, keeps_answers=False)
def assignments_next(view: LabellingView) -> Values:
    """Lease the next comparison, or return the one held longest. Without one, the response says why."""
    found = assign_next(project=view.project, annotator=view.user)
    return {"assignment": found, "why_nothing": None if found else why_nothing(view.project, view.user)}


@assignment.post(
    "judgment/",
    takes=NewJudgmentSerializer,
    schema={"parameters": [IDEMPOTENCY_KEY], "responses": {201: SubmittedSerializer}},
)
def assignments_judge(view: LabellingView, assignment: Assignment, values: Values) -> Response:
    """Submit a judgment completely or not at all. A second one supersedes the first. 409 if the
    comparison was reassigned, a span refers to another text, or the current judgment is not
    `stands_on`."""
    judgment = submit_judgment(
        assignment=assignment,
        annotator=view.user,
        answer=answer_of(values, assignment),
        idempotency_key=key_of(view.request),
        guideline=guideline_of(view.project, values["guideline"]),
        rubric=rubric_of(view.project, values["rubric"]),
        stands_on=values["stands_on"],
    )
    written = judgments_with_parts(type(judgment).objects.filter(pk=judgment.pk)).get()
    assignment.refresh_from_db(fields=["state"])
    feedback = feedback_for(assignment)
    return Response(
        {
            "judgment": JudgmentSerializer(written, context={"assignment": assignment}).data,
            "feedback": FeedbackSerializer(feedback).data if feedback else None,
            "suggestions_open": view.project.has_help and open_reveal_of(assignment) is not None,
        },
        status=201,
    )


@assignment.put("draft/", takes=NewDraftSerializer, returns=DraftSerializer)
def assignments_draft(view: LabellingView, assignment: Assignment, values: Values) -> Draft:
    """Save the state of the form. 409 if another page has saved since, or after submission."""
    saved = values.pop("fields_saved")
    return save_draft(assignment=assignment, annotator=view.user, fields=saved, **values)


@assignment.post("skip/", takes=ReasonSerializer)
def assignments_skip(view: LabellingView, assignment: Assignment, values: Values) -> None:
    """Return a comparison permanently, with a reason; others get it."""
    reason = f"{values['reason']}: {values['details']}" if values["details"] else values["reason"]
    skip_assignment(assignment=assignment, annotator=view.user, reason=reason)


@assignment.post("flag/", takes=ReasonSerializer)
def assignments_flag(view: LabellingView, assignment: Assignment, values: Values) -> None:
    """Report a comparison to reviewers and keep it. A repeated report counts once."""
    flag_item(assignment=assignment, annotator=view.user, **values)


@assignment.post("object/", takes=ObjectionSerializer)
def assignments_object(view: LabellingView, assignment: Assignment, values: Values) -> None:
    """Object to the return of an annotation, which stays as it is. A new judgment corrects it instead."""
    object_to_return(assignment=assignment, annotator=view.user, text=values["objection"])


@assignment.get_list(ReturnedSerializer, "returns/", pages=OldestFirst)
def assignments_returns(view: LabellingView, assignment: Assignment) -> QuerySet[ReviewReturn]:
    """List the returns of an annotation with the answers, oldest first. Reviewers are not named."""
    return ReviewReturn.objects.filter(assignment=assignment)


@assignment.post("renew/", keeps_answers=False)
def assignments_renew(view: LabellingView, assignment: Assignment) -> None:
    """Renew the lease of an assignment."""
    renew_lease(assignment=assignment, annotator=view.user)


@assignment.post("release/")
def assignments_release(view: LabellingView, assignment: Assignment) -> None:
    """Return a comparison without judging it; anyone may get it again."""
    release_assignment(assignment=assignment, annotator=view.user)


def guideline_of(project: Project, version: int | None) -> Guideline | None:
    """Return the named version of the rules; None for none. Refuses a version that there is not."""
    if version is None:
        return None
    guideline = project.guidelines.filter(version=version).first()
    if guideline is None:
        raise InvalidAnswer(
            "unknown_guideline_version", _("The rules have no such version."), field="guideline"
        )
    return guideline


def rubric_of(project: Project, pk: int | None) -> RubricVersion | None:
    """Return the named version of a rubric; None for none. Refuses a version that is not in use."""
    version = None if pk is None else published_version(project, pk)
    if pk is not None and version is None:
        raise InvalidAnswer(
            "unknown_rubric_version", _("The project has no such rubric version in use."), field="rubric"
        )
    return version


def key_of(request: Request) -> uuid.UUID:
    """Return the required key of a judgment; without one a retry could submit twice."""
    try:
        return uuid.UUID(request.headers.get("Idempotency-Key", ""))
    except ValueError:
        raise InvalidAnswer(
            "idempotency_key_missing",
            _("Send an Idempotency-Key: a UUID, unique to this judgment."),
            field="Idempotency-Key",
        ) from None


# Continuations of rewritten responses by the model that wrote them.


class OfferedSerializer(serializers.Serializer[Any]):
    """State of continuation: offered, or not."""

    offered = fields.flag("Of all responses of the comparison, or of none.")


class NewContinuationSerializer(serializers.Serializer[Any]):
    """A response to be continued."""

    answer = fields.text("Which answer: its name in the assignment.")
    prefix = fields.text(
        "The response up to the end of the rewrite.", trim_whitespace=False, most=LONGEST_PREFIX
    )


class ContinuationSerializer(serializers.Serializer[Any]):
    """The text of a model after the prefix. An edit of a correction names it by its id."""

    id = fields.integer()
    text = fields.text(allow_blank=True, trim_whitespace=False)


@assignment.get("continuation/", returns=OfferedSerializer)
def assignments_continuation(view: LabellingView, assignment: Assignment) -> Values:
    """Read whether a model can continue responses now."""
    return {"offered": is_offered(assignment)}


# A model is asked, which no transaction waits for; a repeated request writes another continuation.
@assignment.post(
    "continuation/",
    takes=NewContinuationSerializer,
    returns=ContinuationSerializer,
    status=201,
    keeps_answers=False,
)
def assignments_continue(view: LabellingView, assignment: Assignment, values: Values) -> Continuation:
    """Have the model that wrote a response continue from a prefix, with a new seed. 422 where no model
    is served."""
    completion = tokens_of(assignment).get(values["answer"])
    if completion is None:
        message = _("There is no response %(name)r in this assignment.")
        raise InvalidAnswer("unknown_response", message, field="answer", name=values["answer"][:60])
    return continue_response(
        assignment=assignment, annotator=view.user, completion_id=completion, prefix=values["prefix"]
    )


# The final pass: suggestions after one's own judgment, and the decisions on them.


class SuggestionSerializer(serializers.Serializer[Any]):
    """A suggestion of a model. Its kind decides which fields are set. It may be wrong on purpose."""

    id = fields.integer()
    kind = fields.choice(SuggestionKind.choices)
    answer = fields.text("Which answer: its name in the assignment.", allow_null=True)
    category = fields.text("The category's key.", allow_null=True)
    start = fields.integer("In code points.", allow_null=True)
    end = fields.integer(allow_null=True)
    quote = fields.text()
    severity = fields.integer(allow_null=True)
    text = fields.text()
    verdict = fields.choice(Verdict.choices, allow_null=True)
    ranks = serializers.DictField(child=fields.integer())
    confidence = fields.number(allow_null=True)


class FinalPassSerializer(serializers.Serializer[Any]):
    """The suggestions for a submitted assignment, while they wait for decisions."""

    open = fields.flag("Whether a final pass is expected.")
    suggestions = SuggestionSerializer(many=True)


class SuggestionDecisionSerializer(serializers.Serializer[Any]):
    """A decision on one suggestion."""

    suggestion = fields.key()
    decision = fields.choice(SuggestionDecision.choices)
    seconds = fields.number("Time it took.", allow_null=True, default=None, least=0, most=1e9)


class NewFinalPassSerializer(serializers.Serializer[Any]):
    """A judgment with a decision on every suggestion."""

    judgment = NewJudgmentSerializer()
    decisions = fields.several(SuggestionDecisionSerializer(), most=1000)
    applied = fields.flag(
        "Whether the judgment contains the accepted suggestions; else they are added.", default=False
    )


class FinishedSerializer(serializers.Serializer[Any]):
    """The stored final pass."""

    judgment = JudgmentSerializer()
    planted = fields.several(
        fields.integer(), "Suggestions that were wrong on purpose, where the project tells them."
    )


@assignment.get("suggestions/", returns=FinalPassSerializer)
def assignments_suggestions(view: LabellingView, assignment: Assignment) -> Values:
    """Read the suggestions of an assignment after its first judgment."""
    reveal = open_reveal_of(assignment) if view.project.has_help else None
    rows = suggestions_for(reveal.assignment.comparison) if reveal else []
    shown = [_shown(row, reveal.assignment) for row in rows] if reveal else []
    return {"open": reveal is not None, "suggestions": shown}


@assignment.post(
    "suggestions/",
    takes=NewFinalPassSerializer,
    schema={"parameters": [IDEMPOTENCY_KEY], "responses": {201: FinishedSerializer}},
)
def assignments_finish(view: LabellingView, assignment: Assignment, values: Values) -> Response:
    """Submit the final pass with a decision on every suggestion, completely or not at all. 404 where the
    assignment has no suggestions."""
    key = key_of(view.request)
    reveal = HelpReveal.objects.filter(assignment=assignment, arm="helped").first()
    if reveal is None:
        raise Http404
    reveal.assignment = assignment
    judgment = finish_help(
        reveal=reveal,
        annotator=view.user,
        answer=answer_of(values["judgment"], assignment),
        decisions=[
            DecisionInput(
                suggestion_id=decision["suggestion"],
                decision=decision["decision"],
                seconds=decision["seconds"],
            )
            for decision in values["decisions"]
        ],
        idempotency_key=key,
        guideline=guideline_of(view.project, values["judgment"]["guideline"]),
        rubric=rubric_of(view.project, values["judgment"]["rubric"]),
        is_applied=values["applied"],
    )
    written = judgments_with_parts(Judgment.everything.filter(pk=judgment.pk)).get()
    return Response(
        {
            "judgment": JudgmentSerializer(written, context={"assignment": assignment}).data,
            "planted": [suggestion.pk for suggestion, _decision in planted_suggestions(reveal)],
        },
        status=201,
    )


def _shown(row: Suggestion, assignment: Assignment) -> dict[str, Any]:
    return {
        "id": row.pk,
        "kind": row.kind,
        "answer": candidate_token(assignment, row.completion_id) if row.completion_id else None,
        "category": row.category.key if row.category else None,
        "start": row.start,
        "end": row.end,
        "quote": row.quote,
        "severity": row.severity,
        "text": row.text,
        "verdict": row.verdict or None,
        "ranks": {candidate_token(assignment, pk): rank for pk, rank in ranks_of(row).items()},
        "confidence": row.confidence,
    }


@assignment.post("pastes/", takes=NewPasteSerializer, status=204, keeps_answers=False)
def assignments_paste(view: LabellingView, assignment: Assignment, values: Values) -> None:
    """Record a paste into a text. 422 where the project does not record them."""
    record_paste(
        assignment=assignment,
        annotator=view.user,
        key=values["key"],
        field=WrittenIn(values["field"]),
        completion_id=tokens_of(assignment).get(values["completion"]),
        characters=values["characters"],
        is_on_screen=values["is_on_screen"],
    )

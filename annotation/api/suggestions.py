"""The final pass: suggestions after one's own judgment, and the decisions on them."""

from typing import Any

from django.http import Http404
from rest_framework import serializers
from rest_framework.response import Response

from annotation.api import fields
from annotation.api.answers import JudgmentSerializer, NewJudgmentSerializer, answer_of, judgments_with_parts
from annotation.api.labelling import IDEMPOTENCY_KEY, LabellingView, guideline_of, key_of, rubric_of
from annotation.api.operations import PROJECT, Resource, Values
from annotation.choices import SuggestionDecision, SuggestionKind, Verdict
from annotation.models import Assignment, HelpReveal, Judgment, Suggestion
from annotation.selectors.suggestions import open_reveal_of, planted_suggestions, suggestions_for
from annotation.services.assignments.display_order import candidate_token
from annotation.services.suggestions import DecisionInput, finish_help, ranks_of


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


final_pass = Resource(
    LabellingView,
    f"{PROJECT}assignments/<int:pk>/suggestions/",
    tag="labelling",
    find=LabellingView.assignment,
)


@final_pass.get(returns=FinalPassSerializer)
def assignments_suggestions(view: LabellingView, assignment: Assignment) -> Values:
    """Read the suggestions of an assignment after its first judgment."""
    reveal = open_reveal_of(assignment) if view.project.has_help else None
    rows = suggestions_for(reveal.assignment.comparison) if reveal else []
    shown = [_shown(row, reveal.assignment) for row in rows] if reveal else []
    return {"open": reveal is not None, "suggestions": shown}


@final_pass.post(
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
    written = judgments_with_parts(Judgment.objects.filter(pk=judgment.pk)).get()
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

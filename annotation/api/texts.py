"""Prompts, completions, comparisons and judgments, with sources: for managers."""

import json
from collections.abc import Mapping
from typing import Any

from django.db.models import Prefetch, QuerySet
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from annotation.api.answers import JudgmentSerializer, judgments_with_parts
from annotation.api.base import Filters, ListView, ProjectView, read_body
from annotation.choices import Purpose, Split
from annotation.exchange.formats.fields import ROLES
from annotation.exchange.prompts import import_prompts
from annotation.models import Candidate, Comparison, Completion, Judgment, Prompt
from annotation.selectors.access import judged, judgments_current, with_answer_of
from annotation.selectors.allocation import tagged
from annotation.selectors.tables.filters import calling
from annotation.text.chat import MOST_TURNS

_MOST_PROMPTS = 1000


class MessageSerializer(serializers.Serializer[Any]):
    """One message of a chat."""

    role = serializers.ChoiceField(choices=ROLES)
    content = serializers.CharField(allow_blank=True, trim_whitespace=False)


class PassageSerializer(serializers.Serializer[Any]):
    """A passage of context."""

    title = serializers.CharField(allow_blank=True, trim_whitespace=False)
    sentences = serializers.ListField(child=serializers.CharField(allow_blank=True, trim_whitespace=False))


class PromptSerializer(serializers.ModelSerializer[Prompt]):
    """A prompt."""

    messages = MessageSerializer(many=True)
    context = PassageSerializer(many=True)  # type: ignore[assignment]
    references = serializers.ListField(child=serializers.CharField())
    tags = serializers.ListField(child=serializers.CharField())
    metadata = serializers.SerializerMethodField(help_text="Columns of its file that nothing else reads.")

    class Meta:
        model = Prompt
        fields = (
            *("id", "messages", "context", "references", "tags", "metadata", "split", "content_hash"),
            "created_at",
        )

    def get_metadata(self, prompt: Prompt) -> dict[str, Any]:
        return prompt.metadata or {}


class NewCompletionSerializer(serializers.Serializer[Any]):
    """A completion sent with its prompt."""

    text = serializers.CharField(trim_whitespace=False)
    source = serializers.CharField(required=False, max_length=120, help_text="Who wrote it.")  # type: ignore[assignment]


class NewPromptSerializer(serializers.Serializer[Any]):
    """A prompt to add."""

    prompt: serializers.ListSerializer[Any] = serializers.ListSerializer(
        child=MessageSerializer(), max_length=MOST_TURNS, help_text="The chat; its last turn is the user's."
    )
    context = PassageSerializer(many=True, required=False)  # type: ignore[assignment]
    reference = serializers.ListField(
        child=serializers.CharField(trim_whitespace=False), required=False, help_text="Reference answers."
    )
    tags = serializers.ListField(child=serializers.CharField(), required=False)
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

    added = serializers.IntegerField()
    already_there = serializers.IntegerField(help_text="Prompts that the project had, and repetitions.")
    comparisons = serializers.IntegerField(help_text="Comparisons of answers that came with prompts.")


class PromptFilters(Filters):
    """Filters of prompts."""

    split = serializers.ChoiceField(choices=Split.choices, required=False)


class CompletionSerializer(serializers.ModelSerializer[Completion]):
    """A completion with its sampling parameters."""

    source = serializers.CharField(source="source.name", help_text="Who wrote it.")  # type: ignore[assignment]
    sampling = serializers.DictField()

    class Meta:
        model = Completion
        fields = (
            *("id", "prompt", "source", "text", "text_hash", "sampling", "seed"),
            *("finish_reason", "token_count", "created_at"),
        )


class CompletionFilters(Filters):
    """Filters of completions."""

    prompt = serializers.IntegerField(required=False, min_value=1, max_value=2**63 - 1)
    source = serializers.CharField(required=False, help_text="Who wrote it: a name.")  # type: ignore[assignment]


class ComparisonSerializer(serializers.ModelSerializer[Comparison]):
    """A prompt and completions that are judged together."""

    round = serializers.IntegerField(source="round_number")
    completions = serializers.SerializerMethodField(help_text="Their numbers, as they were recorded.")
    metadata = serializers.SerializerMethodField(help_text="Columns of its file that nothing else reads.")

    class Meta:
        model = Comparison
        fields = (
            *("id", "prompt", "round", "purpose", "completions", "size"),
            *("overlap", "open_slots", "priority", "metadata", "created_at"),
        )

    def get_metadata(self, comparison: Comparison) -> dict[str, Any]:
        return comparison.metadata or {}

    def get_completions(self, comparison: Comparison) -> list[int]:
        return [candidate.completion_id for candidate in comparison.candidates.all()]


class ComparisonFilters(Filters):
    """Filters of comparisons."""

    round = serializers.IntegerField(required=False, min_value=1, max_value=2**31 - 1)
    purpose = serializers.ChoiceField(choices=Purpose.choices, required=False)
    open = serializers.BooleanField(
        required=False, allow_null=True, default=None, help_text="Whether places are free."
    )
    judged = serializers.BooleanField(
        required=False, allow_null=True, default=None, help_text="Whether somebody has judged it."
    )
    source = serializers.CharField(required=False, help_text="Who wrote one of its answers: a name.")  # type: ignore[assignment]
    against = serializers.CharField(required=False, help_text="Who wrote another of them: a name.")
    tag = serializers.CharField(required=False, help_text="A tag of its prompt.")
    tool = serializers.CharField(required=False, help_text="A tool that was called in one of its answers.")


class JudgmentFilters(Filters):
    """Filters of judgments."""

    round = serializers.IntegerField(required=False, min_value=1, max_value=2**31 - 1)
    annotator = serializers.CharField(required=False, help_text="A username.")
    machines = serializers.BooleanField(
        required=False, default=False, help_text="Whether those of programs that judge are listed too."
    )


class PromptsView(ListView, ProjectView):
    """The prompts of a project. For managers."""

    serializer_class = PromptSerializer
    queryset = Prompt.objects.none()
    filters = PromptFilters

    def rows(self, query: Mapping[str, Any]) -> QuerySet[Any]:
        return self.project.prompts.filter(**query)

    @extend_schema(
        operation_id="prompts_list",
        tags=["texts"],
        parameters=[PromptFilters],
        responses=PromptSerializer(many=True),
    )
    def get(self, request: Request, slug: str) -> Response:
        """List prompts with references and split, newest first."""
        return self.listed()

    @extend_schema(
        operation_id="prompts_add",
        tags=["texts"],
        request=NewPromptsSerializer,
        responses={201: AddedSerializer},
    )
    def post(self, request: Request, slug: str) -> Response:
        """Add up to 1,000 prompts, all or none. A prompt that the project has is not added again; completions
        sent with a prompt become comparisons of the newest round."""
        values = read_body(NewPromptsSerializer, request)
        lines = (json.dumps(item, ensure_ascii=False) for item in values["items"])
        report = import_prompts(project=self.project, lines=lines, name="items")
        return Response(AddedSerializer(report).data, status=201)


class PromptView(ProjectView):
    """One prompt. For managers."""

    @extend_schema(operation_id="prompts_read", tags=["texts"], responses=PromptSerializer)
    def get(self, request: Request, slug: str, pk: int) -> Response:
        """Read one prompt."""
        return Response(PromptSerializer(get_object_or_404(self.project.prompts, pk=pk)).data)


class CompletionsView(ListView, ProjectView):
    """The completions of a project. For managers."""

    serializer_class = CompletionSerializer
    queryset = Completion.objects.none()
    filters = CompletionFilters

    def rows(self, query: Mapping[str, Any]) -> QuerySet[Any]:
        completions = Completion.objects.filter(prompt__project=self.project).select_related("source")
        if "prompt" in query:
            completions = completions.filter(prompt=query["prompt"])
        if "source" in query:
            completions = completions.filter(source__name=query["source"])
        return completions

    @extend_schema(
        operation_id="completions_list",
        tags=["texts"],
        parameters=[CompletionFilters],
        responses=CompletionSerializer(many=True),
    )
    def get(self, request: Request, slug: str) -> Response:
        """List completions with their source, sampling parameters and seed, newest first."""
        return self.listed()


class ComparisonsView(ListView, ProjectView):
    """The comparisons of a project. For managers."""

    serializer_class = ComparisonSerializer
    queryset = Comparison.objects.none()
    filters = ComparisonFilters

    def rows(self, query: Mapping[str, Any]) -> QuerySet[Any]:
        comparisons = self.project.comparisons.prefetch_related(
            Prefetch("candidates", queryset=Candidate.objects.order_by("index"))
        )
        if "round" in query:
            comparisons = comparisons.filter(round_number=query["round"])
        if "purpose" in query:
            comparisons = comparisons.filter(purpose=query["purpose"])
        if "open" in query:
            comparisons = comparisons.filter(**{"open_slots__gt" if query["open"] else "open_slots": 0})
        if "judged" in query:
            comparisons = comparisons.filter(judged() if query["judged"] else ~judged())
        for name in {"source", "against"} & set(query):
            comparisons = comparisons.filter(with_answer_of(name=query[name]))
        if "tag" in query:
            comparisons = comparisons.filter(tagged("prompt__tags", query["tag"]))
        if "tool" in query:
            comparisons = calling(comparisons, self.project, query["tool"])
        return comparisons

    @extend_schema(
        operation_id="comparisons_list",
        tags=["texts"],
        parameters=[ComparisonFilters],
        responses=ComparisonSerializer(many=True),
    )
    def get(self, request: Request, slug: str) -> Response:
        """List the comparisons, newest first."""
        return self.listed()


class ComparisonView(ProjectView):
    """One comparison. For managers."""

    @extend_schema(operation_id="comparisons_read", tags=["texts"], responses=ComparisonSerializer)
    def get(self, request: Request, slug: str, pk: int) -> Response:
        """Read one comparison."""
        return Response(ComparisonSerializer(get_object_or_404(self.project.comparisons, pk=pk)).data)


class ComparisonJudgmentsView(ListView, ProjectView):
    """The judgments of one comparison. For managers."""

    serializer_class = JudgmentSerializer
    queryset = Judgment.objects.none()

    def rows(self, query: Mapping[str, Any]) -> QuerySet[Any]:
        comparison = get_object_or_404(self.project.comparisons, pk=self.kwargs["pk"])
        return judgments_with_parts(Judgment.objects.filter(comparison=comparison))

    @extend_schema(
        operation_id="comparisons_judgments", tags=["texts"], responses=JudgmentSerializer(many=True)
    )
    def get(self, request: Request, slug: str, pk: int) -> Response:
        """List all judgments of a comparison, including superseded ones, newest first."""
        return self.listed()


class JudgmentsView(ListView, ProjectView):
    """The judgments of a project. For managers."""

    serializer_class = JudgmentSerializer
    queryset = Judgment.objects.none()
    filters = JudgmentFilters

    def rows(self, query: Mapping[str, Any]) -> QuerySet[Any]:
        rounds = [query["round"]] if "round" in query else None
        current = judgments_current(
            self.project, rounds, machines=bool(query.get("machines")), unblinded=True
        )
        if "annotator" in query:
            current = current.filter(annotator__username=query["annotator"])
        return judgments_with_parts(current)

    @extend_schema(
        operation_id="judgments_list",
        tags=["texts"],
        parameters=[JudgmentFilters],
        responses=JudgmentSerializer(many=True),
    )
    def get(self, request: Request, slug: str) -> Response:
        """List current judgments, newest first, without gold, qualification and retest items."""
        return self.listed()

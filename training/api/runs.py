"""Runs with their metrics, log and samples; snapshots, which they learn from."""

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.http import Http404
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from annotation.api.answers import JudgmentSerializer, judgments_with_parts
from annotation.api.base import ApiView, Filters, ListView, ProjectView, read_body
from annotation.models import Judgment
from annotation.selectors.access import projects_for
from training.choices import CheckpointKind, Method, RunState
from training.contract import read_samples
from training.figures.folded_metrics import standing_rows
from training.files.run_folders import folder_of
from training.models import Run, Snapshot
from training.selectors import run_table
from training.selectors.lists import run_evaluation
from training.selectors.runs import folded_of, is_interrupted, log_lines_of, machine_of
from training.selectors.validation import run_baselines, run_people
from training.services.registry.descriptions import LONGEST_NOTE, MOST_TAGS, TAG, describe_run
from training.views.access import require_manager

_MOST_ROWS = 1000


class RunSerializer(serializers.ModelSerializer[Run]):
    """One training job."""

    snapshot = serializers.CharField(source="snapshot.digest", help_text="Digest of what it learns from.")
    parent = serializers.CharField(  # type: ignore[assignment]
        source="parent.name", default=None, allow_null=True, help_text="The checkpoint that it trains on."
    )
    checkpoint = serializers.CharField(
        source="checkpoint.name", default=None, allow_null=True, help_text="What came of it."
    )

    base_model = serializers.CharField(help_text="Name of the base model that it trains.")
    interrupted = serializers.SerializerMethodField(
        help_text="True for a run that has begun and not ended, and on which no worker reports any more; the "
        "next worker resumes it from the last saved step."
    )

    summary = serializers.DictField(
        child=serializers.FloatField(),
        allow_null=True,
        help_text="The last number of each metric; null before it was read.",
    )
    tags = serializers.ListField(child=serializers.CharField())

    class Meta:
        model = Run
        fields: tuple[str, ...] = (
            *("id", "name", "method", "state", "interrupted", "step", "total_steps", "seconds_left"),
            *("message", "error"),
            *("snapshot", "base_model", "parent", "checkpoint", "summary", "tags", "notes"),
            *("created_at", "started_at", "finished_at"),
        )

    def get_interrupted(self, run: Run) -> bool:
        """By the last report of its worker."""
        return is_interrupted(run)


class WholeRunSerializer(RunSerializer):
    """A run with what the trainer was told, and what it uses of its machine."""

    spec = serializers.DictField(help_text="What the trainer was told, every default written out.")
    machine = serializers.SerializerMethodField(help_text="What it last said that it uses; null before.")
    baselines = serializers.SerializerMethodField(
        help_text="A reward model and its baselines on the same held-out judgments, with 95 % intervals, the "
        "agreement of people as ceilings, and a summary; null for another method and before the evaluation."
    )
    people = serializers.SerializerMethodField(
        help_text="Agreement of each group of annotators with the common and its own score, and on what "
        "groups disagree; the test for drift; the effect of reliability weights. Null without any."
    )

    class Meta(RunSerializer.Meta):
        fields = (*RunSerializer.Meta.fields, "spec", "machine", "baselines", "people")

    def to_representation(self, instance: Run) -> dict[str, Any]:
        """Read the run's evaluation once for all fields."""
        self._evaluation = run_evaluation(instance)
        values: dict[str, Any] = super().to_representation(instance)
        return values

    def get_baselines(self, run: Run) -> dict[str, Any] | None:
        """As the trainer compared them."""
        baselines = run_baselines(run, self._evaluation)
        if baselines is None:
            return None
        ceilings = {ceiling.key: dataclasses.asdict(ceiling.estimate) for ceiling in baselines.ceilings}
        values = {**dataclasses.asdict(baselines.report), "summary": baselines.summary, "ceilings": ceilings}
        for baseline, row in zip(values["baselines"], baselines.rows, strict=True):
            baseline["comparison"] = row.comparison
        report: dict[str, Any] = _finite(values)
        return report

    def get_people(self, run: Run) -> dict[str, Any] | None:
        """As the trainer reported them, with a sentence for each group."""
        people = run_people(run, self._evaluation)
        if people is None:
            return None
        values = {**dataclasses.asdict(people.report), "drift_summary": people.drift}
        values["reliability_summary"] = people.reliability
        for group, figures, summary in zip(
            values["groups"], people.report.groups, people.summaries, strict=True
        ):
            group |= {"disagreement": figures.disagreement, "summary": summary}
        report: dict[str, Any] = _finite(values)
        return report

    def get_machine(self, run: Run) -> dict[str, Any] | None:
        """As it said itself."""
        use = machine_of(run)
        return dataclasses.asdict(use) if use else None


class RunFilters(Filters):
    """Filters of runs."""

    state = serializers.ChoiceField(choices=RunState.choices, required=False)
    method = serializers.ChoiceField(choices=Method.choices, required=False)
    kind = serializers.ChoiceField(
        choices=[CheckpointKind.POLICY.value, CheckpointKind.REWARD.value], required=False
    )
    round = serializers.IntegerField(required=False, min_value=1, max_value=2**31 - 1)
    tag = serializers.CharField(required=False, max_length=200)
    text = serializers.CharField(required=False, max_length=200, help_text="Part of the name or the notes.")


class MetricsFilters(Filters):
    """Which rows."""

    after = serializers.IntegerField(
        required=False, min_value=0, max_value=2**31 - 1, default=0, help_text="Steps after this one."
    )


class MetricsSerializer(serializers.Serializer[Any]):
    """Metrics of a run, step by step."""

    rows = serializers.ListField(
        child=serializers.DictField(), help_text=f"At most {_MOST_ROWS}; every row has `step`."
    )
    next_after = serializers.IntegerField(
        allow_null=True, help_text="`after` of the next rows; null at the end."
    )


class RunDescriptionSerializer(serializers.Serializer[Any]):
    """Tags and notes of a run."""

    tags = serializers.ListField(
        child=serializers.RegexField(rf"^{TAG.pattern}$"), max_length=MOST_TAGS, required=False
    )
    notes = serializers.CharField(
        required=False,
        allow_blank=True,
        max_length=LONGEST_NOTE,
        trim_whitespace=False,
        help_text="Markdown.",
    )


class LogFilters(Filters):
    """Which lines."""

    text = serializers.CharField(
        required=False, max_length=200, help_text="Only the last lines that contain this text, in any case."
    )


class LogSerializer(serializers.Serializer[Any]):
    """The end of a run's log."""

    lines = serializers.ListField(child=serializers.CharField())


class SamplesFilters(Filters):
    """Of which step."""

    step = serializers.IntegerField(required=False, min_value=1, max_value=2**31 - 1)


class SamplesSerializer(serializers.Serializer[Any]):
    """Completions of the policy at one step."""

    step = serializers.IntegerField()
    last_step = serializers.IntegerField()
    answers = serializers.ListField(child=serializers.DictField())


class SnapshotSerializer(serializers.ModelSerializer[Snapshot]):
    """An immutable export of judgments: all that a run may learn from."""

    rounds = serializers.ListField(child=serializers.IntegerField())
    counts = serializers.DictField()

    class Meta:
        model = Snapshot
        fields = ("digest", "rounds", "counts", "created_at")


class RunsView(ListView, ProjectView):
    """The runs of a project. For managers."""

    serializer_class = RunSerializer
    queryset = Run.objects.none()
    filters = RunFilters

    def rows(self, query: Mapping[str, Any]) -> QuerySet[Any]:
        """By state, method, kind, round, tag and text."""
        runs = run_table.runs_of_project(self.project, run_table.RunFilters(**query))
        return runs.select_related("snapshot", "parent", "checkpoint", "round_step")

    @extend_schema(
        operation_id="runs_list", tags=["runs"], parameters=[RunFilters], responses=RunSerializer(many=True)
    )
    def get(self, request: Request, slug: str) -> Response:
        """List training jobs, newest first."""
        return self.listed()


class OfRun(ApiView):
    """Something of the run in the address. For managers."""

    def run(self, pk: int) -> Run:
        """The run in the address; 404 for outsiders, 403 for members who do not manage its project."""
        related = ("snapshot__project", "parent", "checkpoint")
        run = get_object_or_404(Run.objects.select_related(*related), pk=pk)
        require_manager(self.user, run.snapshot.project)
        return run


class RunView(OfRun):
    """One run. For managers."""

    @extend_schema(operation_id="runs_read", tags=["runs"], responses=WholeRunSerializer)
    def get(self, request: Request, pk: int) -> Response:
        """Read where a run is and what it was told."""
        return Response(WholeRunSerializer(self.run(pk)).data)

    @extend_schema(
        operation_id="runs_describe",
        tags=["runs"],
        request=RunDescriptionSerializer,
        responses=WholeRunSerializer,
    )
    def patch(self, request: Request, pk: int) -> Response:
        """Change the tags and notes of a run. What is not sent stays."""
        self.run(pk)
        values = read_body(RunDescriptionSerializer, request)
        with transaction.atomic():
            Run.objects.select_for_update(of=("self",)).get(pk=pk)
            run = self.run(pk)
            self.require_match(WholeRunSerializer(run).data)
            describe_run(
                run=run,
                tags=values.get("tags", run.tags),
                notes=values.get("notes", run.notes),
                described_by=self.user,
            )
        return Response(WholeRunSerializer(run).data)


class MetricsView(OfRun):
    """The metrics of a run. For managers."""

    @extend_schema(
        operation_id="runs_metrics", tags=["runs"], parameters=[MetricsFilters], responses=MetricsSerializer
    )
    def get(self, request: Request, pk: int) -> Response:
        """Read what the trainer noted after a step: losses, rewards, KL. What a resumed run took again
        stands once. A number that is none is null."""
        run = self.run(pk)
        after = _read_query(MetricsFilters, request)["after"]
        standing = standing_rows(folder_of(run), folded_of(run, most_seconds=math.inf))
        rows = list(itertools.islice((row for row in standing if row["step"] > after), _MOST_ROWS))
        more = rows[-1]["step"] if len(rows) == _MOST_ROWS else None
        return Response({"rows": [_finite(row) for row in rows], "next_after": more})


class LogView(OfRun):
    """The log of a run. For managers."""

    @extend_schema(operation_id="runs_log", tags=["runs"], parameters=[LogFilters], responses=LogSerializer)
    def get(self, request: Request, pk: int) -> Response:
        """Read the last 200 lines of a run's log, or the last 200 that contain a text."""
        run = self.run(pk)
        return Response({"lines": log_lines_of(run, _read_query(LogFilters, request).get("text", "")).lines})


class SamplesView(OfRun):
    """Completions that a policy sampled during training. For managers."""

    @extend_schema(
        operation_id="runs_samples", tags=["runs"], parameters=[SamplesFilters], responses=SamplesSerializer
    )
    def get(self, request: Request, pk: int) -> Response:
        """Read the answers of one step with their tokens, rewards and advantages; of the last step unless
        another is named. 404 where there are none."""
        run = self.run(pk)
        last = folded_of(run).last_step
        step = _read_query(SamplesFilters, request).get("step") or last
        answers = read_samples(folder_of(run), step) if 1 <= step <= last else []
        if not answers:
            raise Http404
        rows = [_finite(dataclasses.asdict(answer)) for answer in answers]
        return Response({"step": step, "last_step": last, "answers": rows})


class SnapshotsView(ListView, ProjectView):
    """The snapshots of a project. For managers."""

    serializer_class = SnapshotSerializer
    queryset = Snapshot.objects.none()

    def rows(self, query: Mapping[str, Any]) -> QuerySet[Any]:
        """All of them."""
        return self.project.snapshots.all()

    @extend_schema(operation_id="snapshots_list", tags=["runs"], responses=SnapshotSerializer(many=True))
    def get(self, request: Request, slug: str) -> Response:
        """List what runs learned from, newest first."""
        return self.listed()


class SnapshotJudgmentsView(ListView, ApiView):
    """The judgments of a snapshot. For managers."""

    serializer_class = JudgmentSerializer
    queryset = Judgment.objects.none()

    def rows(self, query: Mapping[str, Any]) -> QuerySet[Any]:
        """As they were frozen."""
        snapshots = Snapshot.objects.filter(digest=self.kwargs["digest"], project__in=projects_for(self.user))
        snapshot = snapshots.select_related("project").first()
        if snapshot is None:
            raise Http404
        require_manager(self.user, snapshot.project)
        return judgments_with_parts(snapshot.judgments.all())

    @extend_schema(operation_id="snapshots_judgments", tags=["runs"], responses=JudgmentSerializer(many=True))
    def get(self, request: Request, digest: str) -> Response:
        """List the judgments in a snapshot, newest first."""
        return self.listed()


def _read_query(kind: type[Filters], request: Request) -> dict[str, Any]:
    read = kind(data=request.query_params.dict())
    read.is_valid(raise_exception=True)
    return dict(read.validated_data)


def _finite(value: Any) -> Any:
    """JSON has no word for what is no number."""
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

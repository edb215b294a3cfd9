"""Runs with their metrics, log and samples; snapshots, which they learn from."""

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Any

from django.db.models import QuerySet
from django.http import Http404, StreamingHttpResponse
from django.shortcuts import get_object_or_404
from drf_spectacular.types import OpenApiTypes
from rest_framework import serializers

from annotation.api import fields
from annotation.api.answers import JudgmentSerializer, judgments_with_parts
from annotation.api.base import ApiView, Filters, ProjectView, attachment
from annotation.api.operations import PROJECT, Resource, Values
from annotation.models import Judgment
from annotation.selectors.access import projects_for
from training.api.checkpoints import DescriptionSerializer
from training.choices import CheckpointKind, Method, RunState
from training.contract.run import read_samples
from training.figures.curves import standing_rows
from training.files.shared import folder_of
from training.models import Run, Snapshot
from training.selectors import run_table
from training.selectors.evaluations import run_baselines, run_people
from training.selectors.lists import run_evaluation
from training.selectors.projects import require_manager
from training.selectors.runs import folded_of, is_interrupted, log_lines_of, machine_of
from training.services.checkpoints import describe_run
from training.services.runs.files import archive_of, events_of

_MOST_ROWS = 1000


@fields.of(
    Run,
    "id name method state interrupted step total_steps seconds_left message error snapshot base_model",
    "parent checkpoint summary tags notes created_at started_at finished_at",
)
class RunSerializer(serializers.ModelSerializer[Run]):
    """One training job."""

    snapshot = fields.text("Digest of what it learns from.", source="snapshot.digest")
    parent = fields.text(
        "The checkpoint that it trains on.", source="parent.name", default=None, allow_null=True
    )  # type: ignore[assignment]
    checkpoint = fields.text("What came of it.", source="checkpoint.name", default=None, allow_null=True)

    base_model = fields.text("Name of the base model that it trains.")
    interrupted = fields.computed(
        "True for a run that has begun and not ended, and on which no worker reports any more; the "
        "next worker resumes it from the last saved step."
    )

    summary = serializers.DictField(
        child=fields.number(),
        allow_null=True,
        help_text="The last number of each metric; null before it was read.",
    )
    tags = fields.several(fields.text())

    def get_interrupted(self, run: Run) -> bool:
        """By the last report of its worker."""
        return is_interrupted(run)


@fields.more("spec machine baselines people")
class WholeRunSerializer(RunSerializer):
    """A run with what the trainer was told, and what it uses of its machine."""

    spec = serializers.DictField(help_text="What the trainer was told, every default written out.")
    machine = fields.computed("What it last said that it uses; null before.")
    baselines = fields.computed(
        "A reward model and its baselines on the same held-out judgments, with 95 % intervals, the "
        "agreement of people as ceilings, and a summary; null for another method and before the evaluation."
    )
    people = fields.computed(
        "Agreement of each group of annotators with the common and its own score, and on what "
        "groups disagree; the test for drift; the effect of reliability weights. Null without any."
    )

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


class RunListFilters(Filters):
    """Filters of runs."""

    state = fields.choice(RunState.choices, required=False)
    method = fields.choice(Method.choices, required=False)
    kind = fields.choice([CheckpointKind.POLICY.value, CheckpointKind.REWARD.value], required=False)
    round = fields.integer(required=False, least=1, most=fields.LARGEST_INTEGER)
    tag = fields.text(required=False, most=200)
    text = fields.text("Part of the name or the notes.", required=False, most=200)


class MetricsFilters(Filters):
    """Which rows."""

    after = fields.integer("Steps after this one.", least=0, most=fields.LARGEST_INTEGER, default=0)


class MetricsSerializer(serializers.Serializer[Any]):
    """Metrics of a run, step by step."""

    rows = fields.several(serializers.DictField(), f"At most {_MOST_ROWS}; every row has `step`.")
    next_after = fields.integer("`after` of the next rows; null at the end.", allow_null=True)


class RunDescriptionSerializer(DescriptionSerializer):
    """Tags and notes of a run."""


class LogFilters(Filters):
    """Which lines."""

    text = fields.text("Only the last lines that contain this text, in any case.", required=False, most=200)


class LogSerializer(serializers.Serializer[Any]):
    """The end of a run's log."""

    lines = fields.several(fields.text())


class SamplesFilters(Filters):
    """Of which step."""

    step = fields.integer(required=False, least=1, most=fields.LARGEST_INTEGER)


class SamplesSerializer(serializers.Serializer[Any]):
    """Completions of the policy at one step."""

    step = fields.integer()
    last_step = fields.integer()
    answers = fields.several(serializers.DictField())


@fields.of(Snapshot, "digest rounds counts created_at")
class SnapshotSerializer(serializers.ModelSerializer[Snapshot]):
    """An immutable export of judgments: all that a run may learn from."""

    rounds = fields.several(fields.integer())
    counts = serializers.DictField()


def _run(view: ApiView, pk: int) -> Run:
    """Return a run; 404 for outsiders, 403 for members who do not manage its project."""
    run = get_object_or_404(Run.objects.select_related("snapshot__project", "parent", "checkpoint"), pk=pk)
    require_manager(view.user, run.snapshot.project)
    return run


def _snapshot(view: ApiView, digest: str) -> Snapshot:
    snapshots = Snapshot.objects.filter(project__in=projects_for(view.user)).select_related("project")
    snapshot = get_object_or_404(snapshots, digest=digest)
    require_manager(view.user, snapshot.project)
    return snapshot


runs = Resource(ProjectView, f"{PROJECT}runs/", tag="runs")
run = Resource(ApiView, "runs/<int:pk>/", tag="runs", find=_run)
snapshots = Resource(
    ProjectView, f"{PROJECT}snapshots/", tag="runs", rows=lambda view: view.project.snapshots.all()
)
snapshot = Resource(ApiView, "snapshots/<slug:digest>/", tag="runs", find=_snapshot)

run.add_read("runs_read", WholeRunSerializer, "Read where a run is and what it was told.")
snapshots.add_list("snapshots_list", SnapshotSerializer, "List what runs learned from, newest first.")


@runs.get_list(RunSerializer, filters=RunListFilters)
def runs_list(view: ProjectView, query: Values) -> QuerySet[Run]:
    """List training jobs, newest first."""
    runs = run_table.runs_of_project(view.project, run_table.RunFilters(**query))
    return runs.select_related("snapshot", "parent", "checkpoint", "round_step")


@run.patch(takes=RunDescriptionSerializer, returns=WholeRunSerializer, locks=True)
def runs_describe(view: ApiView, run: Run, values: Values) -> Run:
    """Change the tags and notes of a run. What is not sent stays."""
    describe_run(run=run, described_by=view.user, **{"tags": run.tags, "notes": run.notes, **values})
    return run


@run.get("metrics/", filters=MetricsFilters, returns=MetricsSerializer)
def runs_metrics(view: ApiView, run: Run, query: Values) -> Values:
    """Read what the trainer noted after a step: losses, rewards, KL. What a resumed run took again
    stands once. A number that is none is null."""
    standing = standing_rows(folder_of(run), folded_of(run, most_seconds=math.inf))
    rows = list(itertools.islice((row for row in standing if row["step"] > query["after"]), _MOST_ROWS))
    more = rows[-1]["step"] if len(rows) == _MOST_ROWS else None
    return {"rows": [_finite(row) for row in rows], "next_after": more}


@run.get("log/", filters=LogFilters, returns=LogSerializer)
def runs_log(view: ApiView, run: Run, query: Values) -> Values:
    """Read the last 200 lines of a run's log, or the last 200 that contain a text."""
    return {"lines": log_lines_of(run, query.get("text", "")).lines}


@run.get("archive/", files={(200, "application/zip"): OpenApiTypes.BINARY})
def runs_archive(view: ApiView, run: Run) -> StreamingHttpResponse:
    """Download everything in a run's folder as a ZIP archive, without secrets."""
    name, pieces = archive_of(run)
    return attachment(pieces, name=name, content_type="application/zip")


@run.get("events/", files={(200, "application/octet-stream"): OpenApiTypes.BINARY})
def runs_events(view: ApiView, run: Run) -> StreamingHttpResponse:
    """Download a run's metrics as an event file."""
    name, pieces = events_of(run)
    return attachment(pieces, name=name, content_type="application/octet-stream")


@run.get("samples/", filters=SamplesFilters, returns=SamplesSerializer)
def runs_samples(view: ApiView, run: Run, query: Values) -> Values:
    """Read the answers of one step with their tokens, rewards and advantages; of the last step unless
    another is named. 404 where there are none."""
    last = folded_of(run).last_step
    step = query.get("step") or last
    answers = read_samples(folder_of(run), step) if 1 <= step <= last else []
    if not answers:
        raise Http404
    return {
        "step": step,
        "last_step": last,
        "answers": [_finite(dataclasses.asdict(answer)) for answer in answers],
    }


@snapshot.get_list(JudgmentSerializer, "judgments/", model=Judgment)
def snapshots_judgments(view: ApiView, snapshot: Snapshot) -> QuerySet[Judgment]:
    """List the judgments in a snapshot, newest first."""
    return judgments_with_parts(snapshot.judgments.all())


def _finite(value: Any) -> Any:
    """JSON has no word for what is no number."""
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

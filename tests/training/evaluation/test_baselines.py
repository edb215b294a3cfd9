"""A reward model beside its baselines: the sentence, the table on a run's page, and the ceiling of people."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client

from annotation.agreement.records import Selection
from annotation.models import Project, User
from annotation.statistics.cached import report_of
from tests import factories
from training.contract.run import EvaluationReport, write_evaluation
from training.contract.validation import (
    BaselineFigures,
    BaselineName,
    BaselineReport,
    Interval,
    baselines_from_details,
)
from training.figures.held_out import baselines_of, held_out_of
from training.models import Run, Snapshot


def baseline(name: BaselineName, low: float, high: float, **more: Any) -> BaselineFigures:
    """A baseline over which the model's gain in log-loss has this interval."""
    return BaselineFigures(
        name=name,
        accuracy=Interval(value=0.55, low=0.45, high=0.65),
        log_loss=Interval(value=0.68, low=0.65, high=0.71),
        accuracy_gain=Interval(value=0.1, low=0.0, high=0.2),
        log_loss_gain=Interval(value=(low + high) / 2, low=low, high=high),
        **more,
    )


def report(**more: Any) -> BaselineReport:
    values: dict[str, Any] = {
        "judgments": 60,
        "prompts": 40,
        "trained": 1200,
        "trained_on_features": 1000,
        "accuracy": Interval(value=0.65, low=0.55, high=0.75),
        "log_loss": Interval(value=0.63, low=0.6, high=0.66),
        "baselines": (
            baseline("position", 0.01, 0.09),
            baseline("length", -0.01, 0.03),
            baseline("surface", 0.0, 0.04),
            baseline("frozen", -0.06, -0.02, layer=12, mean=True, strength=0.3),
        ),
        "length_controlled_accuracy": 0.585,
        "correlations": {"log_words": -0.62, "refusal": 0.2},
        **more,
    }
    return BaselineReport(**values)


def evaluation(baselines: BaselineReport) -> EvaluationReport:
    figures = {
        "held_out_decided": 60.0,
        "held_out_accuracy": 0.65,
        "held_out_log_loss": 0.63,
        "held_out_surface_log_loss": 0.68,
        "held_out_frozen_log_loss": 0.59,
        "held_out_frozen_accuracy": 0.7,
    }
    return EvaluationReport(step=12, figures=figures, details={"baselines": asdict(baselines)})


def test_a_comparison_comes_back_from_an_evaluation_as_it_was_written(tmp_path: Path):
    written = evaluation(report())
    assert baselines_from_details(written.details) == report()
    assert baselines_from_details({"score": {}}) is None


def test_an_interval_that_holds_0_is_level_also_where_0_is_its_end():
    names = {rival.name: report().compared_with(rival) for rival in report().baselines}
    assert names == {"position": "better", "length": "level", "surface": "level", "frozen": "worse"}


def test_under_twenty_held_out_prompts_nothing_is_compared():
    few = report(prompts=19)
    assert {few.compared_with(rival) for rival in few.baselines} == {"unknown"}


def test_one_sentence_says_what_the_model_beats_and_what_it_leans_on():
    baselines = baselines_of(evaluation(report()))
    assert baselines is not None
    assert baselines.summary == (
        "By log-loss the model is: better than position alone; level with length alone, surface features; "
        "worse than a head on frozen features; scores follow logarithm of the number of words most "
        "(correlation -0.62); accuracy with length controlled 58.5 %."
    )


def test_figures_in_the_table_of_baselines_are_not_listed_again():
    held_out = held_out_of(evaluation(report()))
    assert held_out is not None
    assert [figure.title for figure in held_out.figures] == ["accuracy", "decided", "log loss"]


@pytest.fixture
def run(project: Project, rondo_home: Path) -> Run:
    snapshot = Snapshot.objects.create(
        project=project, digest="d" * 64, folder="snapshots/tea", rounds=[1], counts={"judgments": 1}
    )
    made = Run.objects.create(
        name="tea-reward", method="reward", snapshot=snapshot, spec={}, folder="runs/tea"
    )
    made.path.mkdir(parents=True)
    write_evaluation(made.path, evaluation(report()))
    return made


@pytest.mark.django_db
def test_the_page_of_a_run_shows_baselines_with_intervals_and_the_sentence(
    run: Run, carol: User, client: Client
):
    client.force_login(carol)
    page = client.get(run.get_absolute_url()).content.decode()
    assert "better than position alone; level with length alone, surface features" in page
    assert "A head on frozen features" in page
    assert "(mean of layer 12)" in page
    assert "-0.040" in page
    assert "(-0.060 – -0.020)" in page
    assert "On 60 held-out annotations of 40 prompts; baselines are fitted to 1200" in page
    assert "Frozen features were read of 1000 of them." in page
    assert "Worse than a head on frozen features: held-out log-loss 0.630 against 0.590." in page
    assert "Worse than surface features" not in page


@pytest.mark.django_db
def test_the_ceiling_of_people_is_shown_once_the_statistics_were_computed(
    run: Run, carol: User, client: Client
):
    cache.clear()
    client.force_login(carol)
    before = client.get(run.get_absolute_url()).content.decode()
    assert "Open the statistics to compute it" in before
    report_of(run.snapshot.project, Selection())
    baselines = baselines_of(evaluation(report()), report_of(run.snapshot.project, Selection()))
    # Nobody has judged: there is no agreement to show, and no invented one.
    assert baselines is not None
    assert baselines.ceilings == ()


@pytest.mark.django_db
def test_people_who_agree_on_half_of_the_pairs_are_a_ceiling_of_one_half(
    run: Run, project: Project, alice: User, bob: User, carol: User, client: Client
):
    Project.objects.update(overlap=2)
    project.refresh_from_db()
    for number, ranks in enumerate([(1, 2), (2, 1)]):
        comparison = factories.make_comparison(project, [f"a{number}", f"b{number}"])
        factories.make_judgment(comparison, alice, ranks=(1, 2))
        factories.make_judgment(comparison, bob, ranks=ranks)
    baselines = baselines_of(evaluation(report()), report_of(project, Selection()))
    assert baselines is not None
    (ceiling,) = baselines.ceilings
    assert (ceiling.name, ceiling.estimate.value) == ("Percent agreement on pairs", 0.5)
    client.force_login(carol)
    page = client.get(run.get_absolute_url()).content.decode()
    assert "Percent agreement on pairs" in page
    assert "Open the statistics to compute it" not in page


@pytest.mark.django_db
def test_the_api_of_a_run_gives_its_baselines_with_comparisons(run: Run, carol: User, client: Client):
    client.force_login(carol)
    body = client.get(f"/api/v1/runs/{run.pk}/").json()
    comparisons = {rival["name"]: rival["comparison"] for rival in body["baselines"]["baselines"]}
    assert comparisons == {"position": "better", "length": "level", "surface": "level", "frozen": "worse"}
    assert body["baselines"]["summary"].startswith("By log-loss the model is: better than position alone")
    assert body["baselines"]["ceilings"] == {}
    assert body["people"] is None

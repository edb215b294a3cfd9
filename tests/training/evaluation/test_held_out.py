"""The results of a run's last evaluation, as its page shows them."""

from pathlib import Path

import pytest
from django.test import Client

from annotation.models import Project, User
from training.contract.run import EvaluationReport, write_evaluation
from training.figures.held_out import figures_of, held_out_of
from training.models import Run, Snapshot


def bin_of(probability: float, seen: float, *, count: int = 10) -> dict[str, float]:
    return {
        "low": 0.5,
        "high": 1.0,
        "count": count,
        "mean_probability": probability,
        "observed": seen,
        "observed_low": seen - 0.1,
        "observed_high": seen + 0.1,
    }


REPORT = EvaluationReport(
    step=12,
    figures={
        "held_out_accuracy": 0.75,
        "held_out_accuracy_low": 0.6,
        "held_out_accuracy_high": 0.875,
        "held_out_log_loss": 0.5,
    },
    details={"score": {"reliability": [bin_of(0.75, 0.6)], "length": {"pairs": 10}}},
)


def test_a_figure_stands_with_its_interval_and_bounds_do_not_stand_alone():
    accuracy, log_loss = figures_of(REPORT.figures)
    assert (accuracy.title, accuracy.value, accuracy.low, accuracy.high) == ("accuracy", 0.75, 0.6, 0.875)
    assert (log_loss.title, log_loss.value, log_loss.low) == ("log loss", 0.5, None)


def test_a_figure_that_merely_ends_in_low_is_shown():
    assert [figure.title for figure in figures_of({"held_out_glow_low": 1.0})] == ["glow low"]


def test_a_dot_is_drawn_where_its_probabilities_are():
    # A square of 200: 0.75 is half way from 0.5 to 1, and a share of 0.6 is 0.4 · 200 from the top.
    held_out = held_out_of(REPORT)
    (diagram,) = held_out.diagrams
    (dot,) = diagram.bins
    assert (diagram.head, diagram.calibrated) == ("score", False)
    assert (dot.x, dot.y, dot.y_low, dot.y_high) == (100.0, 80.0, 100.0, 60.0)


def test_a_run_without_an_evaluation_or_without_held_out_prompts_shows_nothing():
    assert held_out_of(None) is None
    assert held_out_of(EvaluationReport(step=3, figures={}, details={})) is None


@pytest.mark.django_db
def test_the_page_of_a_run_shows_figures_interval_and_the_table_behind_the_diagram(
    project: Project, carol: User, client: Client, rondo_home: Path
):
    snapshot = Snapshot.objects.create(
        project=project, digest="d" * 64, folder="snapshots/tea", rounds=[1], counts={"judgments": 1}
    )
    run = Run.objects.create(
        name="tea-reward", method="reward", snapshot=snapshot, spec={}, folder="runs/tea"
    )
    run.path.mkdir(parents=True)
    client.force_login(carol)
    assert "On held-out prompts" not in client.get(run.get_absolute_url()).content.decode()
    write_evaluation(run.path, REPORT)
    page = client.get(run.get_absolute_url()).content.decode()
    assert "On held-out prompts" in page
    assert "(0.6 – 0.875)" in page
    assert "M100.0,80.0h0" in page
    assert '<td class="number">0.5 – 0.7</td>' in page


@pytest.mark.django_db
def test_the_page_of_a_reward_models_run_names_the_baselines_that_it_does_not_beat(
    project: Project, carol: User, client: Client, rondo_home: Path
):
    snapshot = Snapshot.objects.create(
        project=project, digest="d" * 64, folder="snapshots/tea", rounds=[1], counts={"judgments": 1}
    )
    run = Run.objects.create(
        name="tea-reward", method="reward", snapshot=snapshot, spec={}, folder="runs/tea"
    )
    run.path.mkdir(parents=True)
    figures = {
        "held_out_decided": 24.0,
        "held_out_accuracy": 0.5,
        "held_out_log_loss": 0.712,
        "held_out_constant_log_loss": 0.693147,
        "held_out_length_log_loss": 0.72,
    }
    write_evaluation(run.path, EvaluationReport(step=12, figures=figures, details={}))
    client.force_login(carol)
    page = client.get(run.get_absolute_url()).content.decode()
    assert "Worse than a constant: held-out log-loss 0.712 against 0.693." in page
    assert "Worse than length alone" not in page
    assert "Decided held-out annotations" in page

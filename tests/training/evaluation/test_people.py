"""Groups, drift and reliability of a reward model: sentences, the run's page and its API."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest
from django.test import Client

from annotation.models import Project, User
from training.contract.run import EvaluationReport, write_evaluation
from training.contract.validation import (
    DriftFigures,
    GroupDifference,
    GroupFigures,
    Interval,
    PeopleReport,
    ReliabilityFigures,
)
from training.figures.held_out import held_out_of, people_of
from training.models import Run, Snapshot

NURSES = GroupFigures(
    name="nurses",
    annotators=4,
    trained=200,
    judgments=80,
    prompts=40,
    accuracy=Interval(value=0.55, low=0.45, high=0.65),
    own_accuracy=Interval(value=0.75, low=0.66, high=0.83),
    gain=Interval(value=0.1, low=0.04, high=0.16),
    differences=(
        GroupDifference(feature="log_words", difference=-0.8, low=-1.1, high=-0.5, p_value=0.001),
        GroupDifference(feature="list_items", difference=0.4, low=0.2, high=0.6, p_value=0.01),
    ),
)
REPORT = PeopleReport(
    groups=(NURSES,),
    drift=DriftFigures(
        round=3,
        judgments=120,
        p_value=0.004,
        half_life=1.0,
        gain=Interval(value=0.05, low=0.02, high=0.08),
        applied=True,
    ),
    half_life=1.0,
    reliability_weights=ReliabilityFigures(
        judgments=60,
        log_loss=Interval(value=0.61, low=0.58, high=0.64),
        unweighted_log_loss=Interval(value=0.63, low=0.6, high=0.66),
        gain=Interval(value=0.02, low=-0.01, high=0.05),
    ),
)


def evaluation(report: PeopleReport) -> EvaluationReport:
    figures = {"held_out_accuracy": 0.6, "held_out_log_loss": 0.65, "held_out_decided": 80.0}
    return EvaluationReport(step=12, figures=figures, details={"people": asdict(report)})


def sentence(group: GroupFigures) -> str:
    people = people_of(evaluation(replace(REPORT, groups=(group,))))
    assert people is not None
    return people.summaries[0]


def test_a_sentence_says_which_group_disagrees_and_on_what():
    assert sentence(NURSES) == (
        "nurses disagrees with the other annotators. It values: logarithm of the number of words less, "
        "list items more."
    )


def test_a_group_without_different_features_disagrees_only_where_its_own_score_is_clearly_better():
    plain = replace(NURSES, differences=())
    assert sentence(plain) == "nurses disagrees with the common score, on no surface feature alone."
    level = replace(plain, gain=Interval(value=0.1, low=-0.01, high=0.2))
    assert sentence(level) == "nurses agrees with the common score."
    few = replace(plain, prompts=19)
    assert sentence(few).startswith("nurses: too few held-out annotations")


def test_drift_and_reliability_are_said_with_their_evidence():
    people = people_of(evaluation(REPORT))
    assert people is not None
    assert people.drift.startswith(
        "Preferences drift (p = 0.004): an annotation counts half after 1.0 rounds. To switch this off"
    )
    assert people.reliability == (
        "Reliability weights make no clear difference: held-out log-loss 0.610 with them, 0.630 without."
    )
    without_drift = people_of(evaluation(replace(REPORT, half_life=None)))
    assert without_drift is not None
    assert without_drift.drift == "No significant drift (p = 0.004): all annotations count alike."


def test_the_report_is_no_diagram():
    held_out = held_out_of(evaluation(REPORT))
    assert held_out is not None
    assert held_out.diagrams == ()


@pytest.fixture
def run(project: Project, rondo_home: Path) -> Run:
    snapshot = Snapshot.objects.create(
        project=project, digest="e" * 64, folder="snapshots/tea", rounds=[1], counts={"judgments": 1}
    )
    made = Run.objects.create(
        name="tea-reward", method="reward", snapshot=snapshot, spec={}, folder="runs/tea"
    )
    made.path.mkdir(parents=True)
    write_evaluation(made.path, evaluation(REPORT))
    return made


@pytest.mark.django_db
def test_the_page_of_a_run_shows_groups_with_intervals(run: Run, carol: User, client: Client):
    client.force_login(carol)
    page = client.get(run.get_absolute_url()).content.decode()
    assert "nurses disagrees with the other annotators" in page
    assert "(45.0 % – 65.0 %)" in page or "(45 % – 65 %)" in page
    assert "(0.040 – 0.160)" in page
    assert "Preferences drift (p = 0.004)" in page


@pytest.mark.django_db
def test_the_api_of_a_run_gives_them_too(run: Run, carol: User, client: Client):
    client.force_login(carol)
    people = client.get(f"/api/v1/runs/{run.pk}/").json()["people"]
    (group,) = people["groups"]
    assert (group["disagreement"], group["own_accuracy"]["value"]) == ("disagrees", 0.75)
    assert group["summary"].startswith("nurses disagrees")
    assert [difference["feature"] for difference in group["differences"]] == ["log_words", "list_items"]
    assert people["drift"]["p_value"] == 0.004
    assert people["reliability_weights"]["gain"]["value"] == 0.02

"""Validation of a reward model: read from its checkpoint, compared with predictors that read no text."""

import math

import pytest
from django.test import Client

from annotation.models import Project, User
from tests.training.evaluation.evaluation_scene import trained_round
from tests.training.registry.registry_rows import make_trained
from training.choices import CheckpointKind
from training.contract.validation import validation_from_figures
from training.models import Checkpoint
from training.selectors.evaluations import reward_model_validation

FIGURES = {
    "held_out_judgments": 30.0,
    "held_out_decided": 24.0,
    "held_out_accuracy": 0.75,
    "held_out_accuracy_low": 0.55,
    "held_out_accuracy_high": 0.88,
    "held_out_log_loss": 0.712,
    "held_out_constant_log_loss": math.log(2),
    "held_out_length_log_loss": 0.677,
    "held_out_temperature": 1.8,
    "held_out_scaled_log_loss": 0.66,
}


@pytest.mark.django_db
def test_a_reward_model_has_the_validation_that_its_run_measured(project: Project) -> None:
    validation = reward_model_validation(
        make_trained("scores", project, kind=CheckpointKind.REWARD, metrics=FIGURES)
    )

    assert validation is not None
    assert (validation.decided, validation.accuracy, validation.low, validation.high) == (
        24,
        0.75,
        0.55,
        0.88,
    )
    assert (validation.log_loss, validation.length_log_loss, validation.temperature) == (0.712, 0.677, 1.8)


@pytest.mark.django_db
def test_a_policy_has_no_validation_though_its_run_measured_pairs(project: Project) -> None:
    assert reward_model_validation(make_trained("writes", project, metrics=FIGURES)) is None


def test_a_run_without_a_held_out_pair_is_not_validated() -> None:
    assert validation_from_figures({"held_out_judgments": 3.0}) is None


def test_a_checkpoint_of_an_older_release_is_compared_with_nothing() -> None:
    old = {"held_out_judgments": 7.0, "held_out_accuracy": 0.5, "held_out_log_loss": 0.8}

    validation = validation_from_figures(old)

    assert validation is not None
    assert (validation.decided, validation.low, validation.high) == (7, 0.0, 1.0)
    assert validation.temperature is None
    assert validation.worse_than() == []


def test_a_log_loss_above_both_baselines_is_worse_than_both() -> None:
    validation = validation_from_figures(FIGURES)

    assert validation is not None
    # 0.712 against log 2 = 0.693 and against 0.677.
    assert validation.worse_than() == [("constant", pytest.approx(0.6931, abs=1e-4)), ("length", 0.677)]


def test_a_temperature_is_named_only_with_enough_held_out_judgments() -> None:
    validation = validation_from_figures(
        {name: value for name, value in FIGURES.items() if "scaled" not in name}
    )

    assert validation is not None
    assert validation.temperature is None


@pytest.mark.django_db
def test_the_page_of_a_round_names_the_baselines_that_its_reward_model_does_not_beat(
    project: Project, carol: User, client: Client
) -> None:
    round_ = trained_round(project)
    Checkpoint.objects.filter(name="tea-reward").update(manifest={"metrics": FIGURES})
    client.force_login(carol)

    page = client.get(round_.get_absolute_url()).content.decode()

    assert "Worse than a constant: held-out log-loss 0.712 against 0.693." in page
    assert "Worse than length alone: held-out log-loss 0.712 against 0.677." in page
    assert "(temperature 1.8)" in page

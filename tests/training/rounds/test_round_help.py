"""Did a round help? The word, the numbers, and where each number leads."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from annotation.choices import Purpose
from annotation.models import AcquisitionFigures, Comparison, Project, User
from annotation.services.texts import create_comparison
from tests import factories
from tests.training.evaluation.evaluation_scene import trained_round
from training.choices import RoundState
from training.models import Checkpoint, EvaluatedPrompt, Evaluation, Round
from training.selectors.dashboard import outlook_of
from training.selectors.evaluations import digest_of, evaluation_of, evaluation_settings, summary_of
from training.selectors.round_help import help_of
from training.services.rounds.deciding import decision_of

pytestmark = pytest.mark.django_db


def evaluated(project: Project, verdict: str, rewards: list[tuple[float, float]], rate: float) -> Round:
    """A decided round whose reward model gave these rewards to (old, new) on as many held-out prompts."""
    round_ = trained_round(project)
    round_.state, round_.verdict = RoundState.NOT_ENOUGH_EVIDENCE, verdict
    policy, model = (Checkpoint.objects.get(kind=kind) for kind in ("policy", "reward"))
    round_.snapshot = policy.run.snapshot
    round_.snapshot.counts = {"judgments": 57}
    round_.snapshot.save()
    round_.save()
    evaluation = Evaluation.objects.create(
        round=round_,
        checkpoint=policy,
        parent=round_.policy,
        reward_model=model,
        digest=digest_of(evaluation_settings(round_, model)),
        settings={},
        prompts=[],
        finished_at=timezone.now(),
        figures={
            "prompts": len(rewards),
            "same": 0,
            "win_rate": {"value": rate, "low": rate - 0.1, "high": rate + 0.1, "prompts": len(rewards)},
            "length_controlled": None,
            "length_ratio": None,
            "kl": None,
            "rules": {},
            "tolerance": {"value": 0.1},
        },
    )
    for number, both in enumerate(rewards):
        prompt = factories.make_prompt(project, f"Held out {number}?", split="held-out")
        [old] = factories.make_completions(prompt, [f"Old {number}."], source=round_.policy.source)
        [new] = factories.make_completions(prompt, [f"New {number}."], source=policy.source)
        EvaluatedPrompt.objects.create(
            evaluation=evaluation, prompt=prompt, old=old, new=new, figures={"reward": list(both)}
        )
    return round_


@pytest.mark.parametrize(
    ("verdict", "answer"), [("promote", "yes"), ("reject", "no"), ("not_enough_evidence", "open")]
)
def test_the_answer_is_the_verdict_in_a_word(project: Project, verdict: str, answer: str):
    round_ = evaluated(project, verdict, [(0, 1), (0, 2), (1, 0), (1, 1.05)], 0.6)
    round_help = help_of(round_)
    assert round_help.answer == answer
    # Two wins, one loss; rewards that differ by less than the tolerance tie.
    assert round_help.facts[0].number == "2 to 1"
    assert round_help.facts[0].address == reverse("evaluation", args=["tea-policy"])


def test_every_number_leads_to_its_judgments(project: Project):
    round_ = evaluated(project, "promote", [(0, 1)], 0.9)
    round_help = help_of(round_)
    assert [fact.number for fact in round_help.facts] == ["1 to 0", "57", "70%"]
    assert round_help.facts[1].address == round_.snapshot.get_absolute_url()
    assert round_help.facts[2].address == f"{reverse('data-annotations', args=['tea'])}?split=held-out"


def test_a_round_that_was_not_evaluated_is_not_spoken_of(project: Project):
    assert help_of(trained_round(project)) is None


def test_the_panel_is_on_the_rounds_page_and_on_the_overview(project: Project, carol: User, client_of):
    round_ = evaluated(project, "promote", [(0, 1), (0, 1)], 0.9)
    client: Client = client_of(carol)
    for address in (round_.get_absolute_url(), reverse("dashboard", args=["tea"])):
        page = client.get(address).content.decode()
        assert "Did round 1 help?" in page
        assert "2 to 0" in page


def test_the_outlook_speaks_of_a_hundred_more_annotations(project: Project, carol: User, client_of):
    assert outlook_of(project) is None
    AcquisitionFigures.objects.create(
        project=project,
        judgments=80,
        comparisons=100,
        figures={
            "outlook": {
                "rankings": 80,
                "points": [[20, 0.6], [40, 0.7], [60, 0.72]],
                "now": [0.74, 0.7, 0.78],
                "next_100": [0.012, 0.004, 0.02],
            }
        },
    )
    outlook = outlook_of(project)
    assert outlook.next_100[0] == pytest.approx(1.2)
    assert not outlook.hardly
    # 20 of 60 is a third of 300; 0.6 of 0.5 to 0.74 is 30 of 72 from the bottom.
    assert outlook.line.startswith("M100.0,42.0L")
    page = client_of(carol).get(reverse("dashboard", args=["tea"])).content.decode()
    assert "+1.2 points" in page


def test_stopping_is_suggested_where_even_the_upper_end_adds_next_to_nothing(project: Project):
    AcquisitionFigures.objects.create(
        project=project,
        judgments=900,
        comparisons=900,
        figures={
            "outlook": {
                "rankings": 900,
                "points": [[100, 0.8], [600, 0.81]],
                "now": [0.81, 0.8, 0.82],
                "next_100": [0.001, 0.0, 0.004],
            }
        },
    )
    assert outlook_of(project).hardly


def test_with_fewer_differing_prompts_than_a_decision_needs_it_says_so(project: Project):
    round_ = evaluated(project, "not_enough_evidence", [(0, 1)] * 9, 0.6)
    text = summary_of(evaluation_of(round_))
    # The recipe's default asks for 20.
    assert "9 prompts have different responses; a decision by people needs 20" in text
    assert "the decision follows" not in text
    reasons: list[Any] = list(decision_of(round_=round_).reasons)
    assert "people_asked" not in [reason["code"] for reason in reasons]


def test_votes_of_members_in_an_arena_are_named_on_the_decision(project: Project, alice: User):
    round_ = evaluated(project, "not_enough_evidence", [(0, 1)] * 2, 0.6)
    row = EvaluatedPrompt.objects.first()
    comparison = create_comparison(prompt=row.prompt, completions=[row.old, row.new], round_number=1)
    factories.make_judgment(comparison, alice, ranks=[1, 2])
    Comparison.objects.filter(pk=comparison.pk).update(purpose=Purpose.ARENA, open_slots=0)
    assert "1 of these annotations is a vote of a member in an arena" in summary_of(evaluation_of(round_))


def test_a_decided_round_is_told_in_one_paragraph_with_one_figure(project: Project, carol: User, client_of):
    round_ = evaluated(project, "promote", [(0, 1), (0, 1)], 0.9)
    Round.objects.update(state=RoundState.PROMOTED, reasons=["Shown to be better."])
    page = client_of(carol).get(round_.get_absolute_url()).content.decode()
    assert page.count("Did round 1 help?") == 1
    assert page.count("every condition of the recipe holds") == 1
    assert page.count('class="shares"') == 1
    assert "data-curves" not in page
    assert "Against its parent" not in page

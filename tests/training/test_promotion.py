"""What must hold for a new policy to be promoted: each condition alone, and what is waited for."""

from typing import Any

import pytest

from annotation.models import Comparison, Project, Prompt, User
from tests import factories
from tests.training.evaluation_scene import evaluate, trained_round
from tests.training.fake_server import FakeServer
from training.models import Round
from training.services.promotion import Decision, decision_of

pytestmark = pytest.mark.django_db

BETTER, WORSE = "much longer", "no"


@pytest.fixture
def held_out(project: Project) -> list[Prompt]:
    """Five held-out prompts."""
    return [factories.make_prompt(project, f"What is {n} and {n}?", split="held-out") for n in range(5)]


@pytest.fixture
def server() -> FakeServer:
    """The reward model likes what is longer; the parent's answers have six characters."""
    fake = FakeServer()
    fake.kl = [0.5, 0.25]
    return fake


def decided(project: Project, server: FakeServer, *, says: str, **recipe: Any) -> Decision:
    return decision_of(round_=evaluated(project, server, says=says, **recipe))


def evaluated(project: Project, server: FakeServer, *, says: str, **recipe: Any) -> Round:
    server.text = lambda body: says if body["model"] == "tea-policy" else "parent"
    round_ = trained_round(project, **recipe)
    evaluate(round_, server)
    return round_


def test_before_the_evaluation_nothing_is_decided(project: Project):
    decision = decision_of(round_=trained_round(project))
    assert decision == Decision(ready=False, promote=False, reasons=({"code": "not_evaluated"},))
    assert decision.said == ("The new policy is not evaluated yet.",)


@pytest.mark.parametrize(("says", "promote"), [(BETTER, True), (WORSE, False)])
@pytest.mark.usefixtures("held_out")
def test_a_policy_that_is_shown_to_be_worse_is_not_promoted(
    project: Project, server: FakeServer, says: str, promote: bool
):
    decision = decided(project, server, says=says, evaluation={"prompts": 5})
    assert decision.ready
    assert decision.promote is promote


@pytest.mark.usefixtures("held_out")
def test_two_losses_show_nothing(project: Project, server: FakeServer):
    decision = decided(project, server, says=WORSE, evaluation={"prompts": 2})
    assert decision.promote
    # Wilson's upper end of 0 of 2 is z² / (2 + z²) = 0.658.
    assert decision.said == (
        "Win rate against SmolLM2-135M-Instruct by the reward model: 0% (0% to 66%), not shown to be worse.",
    )


CONDITIONS = [
    # Five wins of five: the lower end is 5 / (5 + 3.8415) = 0.566.
    ({"least_win_rate": 0.56}, True),
    ({"least_win_rate": 0.57}, False),
    # "much longer" has eleven characters, "parent" six.
    ({"least_reward_gain": 5}, True),
    ({"least_reward_gain": 5.1}, False),
    ({"most_kl": 0.75}, True),
    ({"most_kl": 0.7}, False),
    ({"most_length_ratio": 1.84}, True),
    ({"most_length_ratio": 1.83}, False),
    ({"rules": {"brief": 1}}, True),
    ({"rules": {"brief": 1.1}}, False),
]


@pytest.mark.parametrize(("promotion", "promote"), CONDITIONS)
@pytest.mark.usefixtures("held_out")
def test_each_condition_holds_at_its_bound_and_not_beyond(
    project: Project, server: FakeServer, promotion: dict[str, Any], promote: bool
):
    rules = [{"name": "brief", "kind": "length", "options": {"most": 2}}]
    decision = decided(
        project, server, says=BETTER, evaluation={"prompts": 5, "rules": rules}, promotion=promotion
    )
    assert decision.ready
    assert decision.promote is promote
    assert len(decision.reasons) == 2


@pytest.mark.usefixtures("held_out")
def test_a_condition_on_what_could_not_be_measured_leaves_it_to_a_manager(
    project: Project, server: FakeServer
):
    server.kl = None
    decision = decided(project, server, says=BETTER, promotion={"most_kl": 1})
    assert not decision.ready
    assert "Divergence from the base in nats per answer: not known, and at most 1 is asked for." in (
        decision.said
    )


def test_without_held_out_prompts_only_conditions_on_figures_wait(project: Project, server: FakeServer):
    assert decided(project, server, says=BETTER).promote
    Round.objects.update(recipe={"promotion": {"least_win_rate": 0.5}, "evaluation": {"prompts": 4}})
    assert not decision_of(round_=Round.objects.get()).ready


@pytest.mark.usefixtures("held_out")
def test_people_are_waited_for_and_then_decide(project: Project, server: FakeServer, alice: User, bob: User):
    round_ = evaluated(
        project,
        server,
        says=BETTER,
        evaluation={"people": True, "people_judgments": 5, "prompts": 5},
        promotion={"judged_by": "people"},
    )
    waiting = decision_of(round_=round_)
    assert not waiting.ready
    assert waiting.said[0] == "0 of 5 judgments by people are in."
    for comparison in Comparison.objects.all():
        texts = list(comparison.candidates.order_by("index").values_list("completion__text", flat=True))
        factories.make_judgment(comparison, alice, ranks=[1 if text == "parent" else 2 for text in texts])
    decision = decision_of(round_=round_)
    assert decision.ready
    assert not decision.promote
    assert decision.said == (
        "5 of 5 judgments by people are in.",
        "Win rate against SmolLM2-135M-Instruct by people: 0% (0% to 43%), shown to be worse.",
    )


@pytest.mark.usefixtures("held_out")
def test_pairs_that_nobody_can_be_asked_about_are_not_waited_for(project: Project, server: FakeServer):
    decision = decided(project, server, says="parent", evaluation={"people": True})
    assert decision.ready
    assert decision.said[0] == "No judgment by people can be had: no pair is open to them."

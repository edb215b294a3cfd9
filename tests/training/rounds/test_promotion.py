"""Decisions that the evidence on a new policy supports: each condition alone, and what is waited for."""

from typing import Any

import pytest

from annotation.models import Comparison, Project, Prompt, User
from tests import factories
from tests.training.engine.fake_server import FakeServer
from tests.training.evaluation.evaluation_scene import VALIDATED, evaluate, trained_round
from training.choices import RoundVerdict
from training.models import Checkpoint, Round
from training.services.rounds.deciding import RoundDecision, decision_of

pytestmark = pytest.mark.django_db

BETTER, WORSE = "much longer", "no"
PROMPTS = 24
BY_MODEL = {"judged_by": "reward_model"}


@pytest.fixture
def held_out(project: Project) -> list[Prompt]:
    """More held-out prompts than the 20 that a decision needs."""
    return [factories.make_prompt(project, f"What is {n} and {n}?", split="held-out") for n in range(PROMPTS)]


@pytest.fixture
def server() -> FakeServer:
    """The reward model likes what is longer; the parent's answers have six characters."""
    fake = FakeServer()
    fake.kl = [0.5, 0.25]
    return fake


def decided(project: Project, server: FakeServer, *, says: str, **scene: Any) -> RoundDecision:
    return decision_of(round_=evaluated(project, server, says=says, **scene))


def evaluated(project: Project, server: FakeServer, *, says: str, **scene: Any) -> Round:
    server.text = lambda body: says if body["model"] == "tea-policy" else "parent"
    scene["promotion"] = {**BY_MODEL, **scene.get("promotion", {})}
    round_ = trained_round(project, **{"evaluation": {"prompts": PROMPTS}, **scene})
    evaluate(round_, server)
    return round_


def codes(decision: RoundDecision) -> list[str]:
    return [reason["code"] for reason in decision.reasons if isinstance(reason, dict)]


def test_before_the_evaluation_nothing_is_decided(project: Project):
    decision = decision_of(round_=trained_round(project))
    assert (decision.verdict, decision.waits) == (RoundVerdict.NOT_ENOUGH_EVIDENCE, True)
    assert decision.sentences == ("The new policy is not evaluated yet.",)


@pytest.mark.parametrize(("says", "verdict"), [(BETTER, RoundVerdict.PROMOTE), (WORSE, RoundVerdict.REJECT)])
@pytest.mark.usefixtures("held_out")
def test_a_validated_reward_model_decides_on_enough_prompts(
    project: Project, server: FakeServer, says: str, verdict: RoundVerdict
):
    decision = decided(project, server, says=says)
    assert (decision.verdict, decision.waits) == (verdict, False)
    assert codes(decision)[0] == ("win_rate_better" if verdict == RoundVerdict.PROMOTE else "win_rate_worse")


@pytest.mark.usefixtures("held_out")
def test_a_promotion_by_the_reward_model_of_the_same_round_says_so(project: Project, server: FakeServer):
    assert codes(decided(project, server, says=BETTER))[1:] == ["same_judgments"]
    gradient = {"policy": {"method": "policy_gradient", "context": True}}
    Round.objects.update(recipe={"evaluation": {"prompts": PROMPTS}, "promotion": BY_MODEL, **gradient})
    assert codes(decision_of(round_=Round.objects.get()))[1:] == ["same_reward_model"]


@pytest.mark.parametrize("says", [BETTER, WORSE])
@pytest.mark.usefixtures("held_out")
def test_fewer_differing_prompts_than_the_recipe_asks_for_decide_nothing(
    project: Project, server: FakeServer, says: str
):
    decision = decided(project, server, says=says, evaluation={"prompts": 19})
    assert decision.verdict == RoundVerdict.NOT_ENOUGH_EVIDENCE
    assert (
        "One response wins on 19 held-out prompts, the others are ties, and the recipe asks for at least 20."
        in str(decision.sentences)
    )
    lower = {"promotion": {**BY_MODEL, "least_differing_prompts": 19}, "evaluation": {"prompts": 19}}
    Round.objects.update(recipe=lower)
    assert decision_of(round_=Round.objects.get()).verdict != RoundVerdict.NOT_ENOUGH_EVIDENCE


@pytest.mark.usefixtures("held_out")
def test_an_interval_that_includes_one_half_decides_nothing(project: Project, server: FakeServer):
    # 12 of 24 prompts are won.
    def text(body: dict[str, Any]) -> str:
        number = int(body["messages"][-1]["content"].split()[2])
        return (BETTER if number % 2 else WORSE) if body["model"] == "tea-policy" else "parent"

    round_ = trained_round(project, evaluation={"prompts": PROMPTS}, promotion=BY_MODEL)
    server.text = text
    evaluate(round_, server)
    decision = decision_of(round_=round_)
    assert decision.verdict == RoundVerdict.NOT_ENOUGH_EVIDENCE
    # 94 prompts show a win rate of 70 %; 24 can be asked about.
    assert codes(decision) == ["win_rate_open", "people_asked"]
    assert "24 of the wanted 94 blind comparisons" in decision.sentences[1]


DOUBTS = [
    ({}, "reward_model_unknown"),
    ({**VALIDATED, "held_out_decided": 29.0}, "reward_model_few"),
    ({**VALIDATED, "held_out_accuracy_low": 0.5}, "reward_model_chance"),
    (
        {
            **VALIDATED,
            "held_out_accuracy": 0.3,
            "held_out_accuracy_low": 0.2,
            "held_out_accuracy_high": 0.4,
        },
        "reward_model_wrong",
    ),
]


@pytest.mark.usefixtures("held_out")
def test_a_reward_model_that_is_not_validated_decides_nothing(project: Project, server: FakeServer):
    evaluated(project, server, says=BETTER)
    for figures, code in DOUBTS:
        Checkpoint.objects.filter(kind="reward").update(manifest={"metrics": figures})
        decision = decision_of(round_=Round.objects.get())
        assert decision.verdict == RoundVerdict.NOT_ENOUGH_EVIDENCE, code
        assert code in codes(decision)


CONDITIONS: list[tuple[dict[str, Any], RoundVerdict]] = [
    # 24 wins of 24: the lower end of the interval is 0.7.
    ({"least_win_rate": 0.69}, RoundVerdict.PROMOTE),
    ({"least_win_rate": 0.75}, RoundVerdict.NOT_ENOUGH_EVIDENCE),
    # "much longer" has eleven characters, "parent" six.
    ({"least_reward_gain": 5}, RoundVerdict.PROMOTE),
    ({"least_reward_gain": 5.1}, RoundVerdict.REJECT),
    ({"most_kl": 0.75}, RoundVerdict.PROMOTE),
    ({"most_kl": 0.7}, RoundVerdict.REJECT),
    ({"most_length_ratio": 1.84}, RoundVerdict.PROMOTE),
    ({"most_length_ratio": 1.83}, RoundVerdict.REJECT),
    ({"rules": {"brief": 1}}, RoundVerdict.PROMOTE),
    ({"rules": {"brief": 1.1}}, RoundVerdict.REJECT),
]


@pytest.mark.usefixtures("held_out")
def test_each_condition_holds_at_its_bound_and_not_beyond(project: Project, server: FakeServer):
    rules = [{"name": "brief", "kind": "length", "options": {"most": 2}}]
    evaluation = {"prompts": PROMPTS, "rules": rules}
    evaluated(project, server, says=BETTER, evaluation=evaluation)
    for condition, verdict in CONDITIONS:
        Round.objects.update(recipe={"evaluation": evaluation, "promotion": {**BY_MODEL, **condition}})
        decision = decision_of(round_=Round.objects.get())
        assert (decision.verdict, decision.waits) == (verdict, False), condition


@pytest.mark.usefixtures("held_out")
def test_a_recipe_without_the_win_rate_decides_by_its_other_conditions(project: Project, server: FakeServer):
    alone = {"not_worse": False, "most_length_ratio": 2}
    decision = decided(project, server, says=BETTER, figures={}, promotion=alone)
    assert (decision.verdict, codes(decision)) == (RoundVerdict.PROMOTE, ["at_most"])
    Round.objects.update(recipe={"promotion": {"not_worse": False}, "evaluation": {"prompts": PROMPTS}})
    decision = decision_of(round_=Round.objects.get())
    assert decision.verdict == RoundVerdict.NOT_ENOUGH_EVIDENCE
    assert "no_conditions" in codes(decision)


@pytest.mark.usefixtures("held_out")
def test_a_condition_on_what_could_not_be_measured_leaves_it_to_people(project: Project, server: FakeServer):
    server.kl = None
    decision = decided(project, server, says=BETTER, promotion={"most_kl": 1})
    assert decision.verdict == RoundVerdict.NOT_ENOUGH_EVIDENCE
    assert "KL divergence from the base in nats per response: not known, and at most 1 is asked for." in (
        decision.sentences
    )


def test_without_held_out_prompts_nothing_is_promoted(project: Project, server: FakeServer):
    decision = decided(project, server, says=BETTER)
    assert (decision.verdict, decision.waits) == (RoundVerdict.NOT_ENOUGH_EVIDENCE, False)
    assert codes(decision) == ["no_held_out", "win_rate_not_measured"]


def judge_held_out(judges: list[User], *, prefer: str, most: int = PROMPTS) -> None:
    for comparison in Comparison.objects.order_by("pk")[:most]:
        texts = list(comparison.candidates.order_by("index").values_list("completion__text", flat=True))
        for judge in judges:
            ranks = [1 if text == prefer else 2 for text in texts]
            factories.make_judgment(comparison, judge, ranks=ranks)


@pytest.mark.usefixtures("held_out")
def test_people_are_waited_for_and_then_decide(project: Project, server: FakeServer, alice: User):
    round_ = evaluated(
        project,
        server,
        says=BETTER,
        evaluation={"people": True, "people_judgments": PROMPTS, "prompts": PROMPTS},
        promotion={"judged_by": "people"},
    )
    waiting = decision_of(round_=round_)
    assert (waiting.verdict, waiting.waits) == (RoundVerdict.NOT_ENOUGH_EVIDENCE, True)
    assert waiting.sentences[0] == "0 of 24 annotations by people are in."
    judge_held_out([alice], prefer="parent")
    decision = decision_of(round_=round_)
    assert (decision.verdict, decision.waits) == (RoundVerdict.REJECT, False)
    assert decision.sentences[0] == "24 of 24 annotations by people are in."
    assert codes(decision) == ["people_came", "win_rate_worse"]


@pytest.mark.usefixtures("held_out")
def test_peoples_judgments_decide_where_the_reward_model_may_not(
    project: Project, server: FakeServer, alice: User
):
    evaluation = {"people": True, "people_judgments": 1, "prompts": PROMPTS}
    round_ = evaluated(project, server, says=BETTER, figures={}, evaluation=evaluation)
    judge_held_out([alice], prefer=BETTER, most=19)
    assert decision_of(round_=round_).verdict == RoundVerdict.NOT_ENOUGH_EVIDENCE
    last = Comparison.objects.order_by("pk").last()
    texts = list(last.candidates.order_by("index").values_list("completion__text", flat=True))
    factories.make_judgment(last, alice, ranks=[1 if text == BETTER else 2 for text in texts])
    decision = decision_of(round_=round_)
    assert decision.verdict == RoundVerdict.PROMOTE
    assert codes(decision)[-2:] == ["reward_model_unknown", "win_rate_better"]


@pytest.mark.usefixtures("held_out")
def test_people_who_show_the_opposite_overrule_a_validated_reward_model(
    project: Project, server: FakeServer, alice: User
):
    evaluation = {"people": True, "people_judgments": 1, "prompts": PROMPTS}
    round_ = evaluated(project, server, says=BETTER, evaluation=evaluation)
    # Of 19 that differ nothing is shown; from 20 on it is.
    judge_held_out([alice], prefer="parent", most=19)
    assert decision_of(round_=round_).verdict == RoundVerdict.PROMOTE
    last = Comparison.objects.order_by("pk").last()
    texts = list(last.candidates.order_by("index").values_list("completion__text", flat=True))
    factories.make_judgment(last, alice, ranks=[1 if text == "parent" else 2 for text in texts])
    decision = decision_of(round_=round_)
    assert (decision.verdict, decision.waits) == (RoundVerdict.REJECT, False)
    assert codes(decision) == ["people_came", "win_rate_better", "people_contradict", "win_rate_worse"]


@pytest.mark.usefixtures("held_out")
def test_pairs_that_nobody_can_be_asked_about_are_not_waited_for(project: Project, server: FakeServer):
    decision = decided(project, server, says="parent", evaluation={"people": True})
    assert (decision.verdict, decision.waits) == (RoundVerdict.NOT_ENOUGH_EVIDENCE, False)
    assert decision.sentences[0] == "People cannot decide: no pair is open for annotation."


def test_the_round_of_the_issue_replayed_ends_without_enough_evidence(project: Project):
    """Seven held-out prompts, five identical responses, rewards that differ by 1e-7 on four of these, and a
    reward model with accuracy 0 on one held-out judgment."""
    for number in range(7):
        factories.make_prompt(project, f"Question {number}", split="held-out")
    server = FakeServer()
    drift = iter(range(10_000))

    def text(body: dict[str, Any]) -> str:
        number = int(body["messages"][-1]["content"].split()[1])
        return "the same" if number < 5 or body["model"] != "tea-policy" else f"the same, and {number} more"

    server.text = text
    server.score = lambda text: len(text) + next(drift) % 2 * 1e-7
    one_wrong = {
        "held_out_judgments": 1.0,
        "held_out_accuracy": 0.0,
        "held_out_accuracy_low": 0.0,
        "held_out_accuracy_high": 0.79,
        "held_out_log_loss": 0.7,
    }
    round_ = trained_round(project, figures=one_wrong, evaluation={}, promotion=BY_MODEL)
    evaluate(round_, server)
    figures = round_.evaluations.get().figures
    assert (figures["prompts"], figures["same"]) == (7, 5)
    # Two wins, five ties.
    assert figures["win_rate"]["value"] == pytest.approx(4.5 / 7)
    assert figures["reward"]["gain"]["low"] <= 0 < figures["reward"]["gain"]["high"]
    decision = decision_of(round_=round_)
    assert decision.verdict == RoundVerdict.NOT_ENOUGH_EVIDENCE
    assert codes(decision) == ["few_differ", "reward_model_few", "reward_model_chance"]

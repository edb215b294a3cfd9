"""A round decided by people and its reward model together: what it says, whom it asks, and when it stops."""

import itertools
from typing import Any

import pytest

from annotation.models import Comparison, Project, Prompt, User
from tests import factories
from tests.training.engine.fake_server import FakeServer
from tests.training.evaluation.evaluation_scene import evaluate, trained_round
from training.choices import RoundState, RoundVerdict
from training.models import Round
from training.models.rounds import reason_text
from training.services.evaluation.evaluating import ask_people, asked_of
from training.services.rounds.deciding import decision_of, reject_round, settle_decision
from training.services.rounds.dry_run import dry_run

pytestmark = pytest.mark.django_db

NEW, OLD = "a longer response", "short"
PROMPTS = 60


@pytest.fixture
def held_out(project: Project) -> list[Prompt]:
    return [factories.make_prompt(project, f"What is {n} and {n}?", split="held-out") for n in range(PROMPTS)]


@pytest.fixture
def server() -> FakeServer:
    """The reward model likes what is longer."""
    return FakeServer()


def evaluated(project: Project, server: FakeServer, *, new: Any = NEW, **promotion: Any) -> Round:
    def text(body: dict[str, Any]) -> str:
        if body["model"] != "tea-policy":
            return OLD
        return str(new(int(body["messages"][-1]["content"].split()[2])) if callable(new) else new)

    server.text = text
    round_ = trained_round(project, evaluation={"prompts": PROMPTS}, promotion=promotion)
    evaluate(round_, server)
    Round.objects.filter(pk=round_.pk).update(state=RoundState.DECIDING)
    round_.steps.update(state="finished")
    round_.refresh_from_db()
    return round_


def end_without_evidence(round_: Round) -> None:
    settle_decision(round_)
    round_.refresh_from_db()
    assert round_.state == RoundState.NOT_ENOUGH_EVIDENCE


def answer(round_: Round, judge: User, outcomes: Any) -> None:
    """Judge the open pairs in the order of the queue: True where the new response wins."""
    evaluation = round_.evaluations.get()
    judged = set(judge.judgments.values_list("comparison_id", flat=True))
    open_pairs = asked_of(evaluation).exclude(pk__in=judged).filter(open_slots__gt=0).order_by("-priority")
    for comparison, wins in zip(open_pairs, outcomes, strict=False):
        policies = comparison.candidates.order_by("index").values_list("completion__source", flat=True)
        new = evaluation.checkpoint.source_id
        factories.make_judgment(
            comparison, judge, ranks=[1 if (policy == new) == wins else 2 for policy in policies]
        )
        Comparison.objects.filter(pk=comparison.pk).update(open_slots=0)


def reasons(round_: Round) -> list[dict[str, Any]]:
    return [reason for reason in decision_of(round_=round_).reasons if isinstance(reason, dict)]


def codes(round_: Round) -> list[str]:
    return [reason["code"] for reason in reasons(round_)]


@pytest.mark.usefixtures("held_out")
def test_a_reward_model_alone_decides_nothing_and_people_are_asked(project: Project, server: FakeServer):
    round_ = evaluated(project, server)
    assert decision_of(round_=round_).verdict == RoundVerdict.NOT_ENOUGH_EVIDENCE
    end_without_evidence(round_)
    assert asked_of(round_.evaluations.get()).filter(open_slots__gt=0).exists()


@pytest.mark.usefixtures("held_out")
def test_few_answers_promote_where_people_agree_and_nobody_is_asked_further(
    project: Project, server: FakeServer, alice: User
):
    round_ = evaluated(project, server)
    end_without_evidence(round_)
    answer(round_, alice, [True] * 9)
    settle_decision(round_)
    round_.refresh_from_db()
    assert round_.state == RoundState.NOT_ENOUGH_EVIDENCE
    answer(round_, alice, [True] * 9)
    settle_decision(round_)
    round_.refresh_from_db()
    assert (round_.state, round_.verdict) == (RoundState.PROMOTED, RoundVerdict.PROMOTE)
    assert [reason["code"] for reason in round_.reasons] == ["win_rate_better", "win_rate_alone"]
    assert [reason["by"] for reason in round_.reasons] == ["people_and_model", "people"]
    pairs = asked_of(round_.evaluations.get())
    assert not pairs.filter(open_slots__gt=0).exists()
    # What was annotated stays.
    assert pairs.filter(judgments__isnull=False).count() == 18


@pytest.mark.usefixtures("held_out")
def test_people_who_prefer_the_parent_reject_it_whatever_the_reward_model_says(
    project: Project, server: FakeServer, alice: User
):
    round_ = evaluated(project, server)
    end_without_evidence(round_)
    answer(round_, alice, [False] * 25)
    settle_decision(round_)
    round_.refresh_from_db()
    assert round_.state == RoundState.REJECTED


@pytest.mark.usefixtures("held_out")
def test_an_open_decision_says_how_many_more_answers_are_expected(
    project: Project, server: FakeServer, alice: User
):
    round_ = evaluated(project, server)
    end_without_evidence(round_)
    answer(round_, alice, itertools.islice(itertools.cycle([True, True, True, False]), 16))
    assert codes(round_)[:3] == ["win_rate_open", "win_rate_alone", "answers_expected"]
    expected = reasons(round_)[2]
    assert 1 <= expected["answers"] <= PROMPTS - 16


@pytest.mark.usefixtures("held_out")
def test_prompts_that_can_hardly_decide_any_more_are_asked_no_further(
    project: Project, server: FakeServer, alice: User
):
    round_ = evaluated(project, server)
    end_without_evidence(round_)
    ask_people(round_.evaluations.get(), round_number=2)
    answer(round_, alice, itertools.islice(itertools.cycle([True, False]), 50))
    assert "answers_cannot_decide" in codes(round_)
    settle_decision(round_)
    round_.refresh_from_db()
    assert round_.state == RoundState.NOT_ENOUGH_EVIDENCE
    assert not asked_of(round_.evaluations.get()).filter(open_slots__gt=0).exists()


@pytest.mark.usefixtures("held_out")
def test_a_difference_that_is_none_worth_having_keeps_the_parent(
    project: Project, server: FakeServer, alice: User
):
    round_ = evaluated(project, server, worth_having=0.95)
    end_without_evidence(round_)
    ask_people(round_.evaluations.get(), round_number=2)
    answer(round_, alice, itertools.islice(itertools.cycle([True, False]), 40))
    settle_decision(round_)
    round_.refresh_from_db()
    assert round_.state == RoundState.REJECTED
    assert round_.reasons[0]["code"] == "not_worth_having"
    assert round_.reasons[0]["bound"] == 0.95


@pytest.mark.usefixtures("held_out")
def test_the_next_pairs_are_asked_while_the_answers_may_still_decide(
    project: Project, server: FakeServer, alice: User
):
    round_ = evaluated(project, server)
    end_without_evidence(round_)
    evaluation = round_.evaluations.get()
    asked_of(evaluation).order_by("priority")[:1].get()
    keep = list(asked_of(evaluation).order_by("-priority").values_list("pk", flat=True)[:12])
    asked_of(evaluation).exclude(pk__in=keep).delete()
    answer(round_, alice, [True, True, False] * 4)
    settle_decision(round_)
    assert asked_of(evaluation).filter(open_slots__gt=0).count() == 25


@pytest.mark.usefixtures("held_out")
def test_pairs_come_in_a_random_order_that_no_strategy_changes(project: Project, server: FakeServer):
    round_ = evaluated(project, server)
    end_without_evidence(round_)
    pairs = list(asked_of(round_.evaluations.get()).order_by("-priority").select_related("prompt"))
    assert len({pair.priority for pair in pairs}) == len(pairs)
    numbers = [int(pair.prompt.messages[-1]["content"].split()[2]) for pair in pairs]
    assert numbers not in (sorted(numbers), sorted(numbers, reverse=True))
    written = sorted(pairs, key=lambda pair: pair.prompt_id)
    assert pairs != written


@pytest.mark.usefixtures("held_out")
def test_identical_responses_are_asked_of_nobody_and_stay_out_of_the_pool(
    project: Project, server: FakeServer, alice: User
):
    round_ = evaluated(project, server, new=lambda number: OLD if number < 30 else NEW)
    end_without_evidence(round_)
    ask_people(round_.evaluations.get(), round_number=2)
    assert asked_of(round_.evaluations.get()).count() == 30
    answer(round_, alice, [True] * 18)
    settle_decision(round_)
    round_.refresh_from_db()
    assert round_.state == RoundState.PROMOTED


@pytest.mark.usefixtures("held_out")
def test_a_decision_by_a_manager_ends_the_questions(project: Project, server: FakeServer, carol: User):
    round_ = evaluated(project, server)
    end_without_evidence(round_)
    reject_round(round_=round_, actor=carol, note="Seen enough.")
    assert not asked_of(round_.evaluations.get()).filter(open_slots__gt=0).exists()


@pytest.mark.usefixtures("held_out")
def test_without_scores_people_alone_decide(project: Project, server: FakeServer, alice: User):
    round_ = evaluated(project, server)
    for row in round_.evaluations.get().rows.all():
        row.figures = {**row.figures, "reward": None}
        row.save()
    end_without_evidence(round_)
    answer(round_, alice, [True] * 19)
    assert codes(round_)[0] == "few_differ"
    answer(round_, alice, [True])
    assert codes(round_)[0] == "win_rate_better"
    assert reasons(round_)[0]["by"] == "people"


@pytest.mark.usefixtures("held_out")
@pytest.mark.parametrize(
    ("claim", "verdict", "needed"),
    [("new_prompts", RoundVerdict.NOT_ENOUGH_EVIDENCE, 94), ("these_prompts", RoundVerdict.PROMOTE, 10)],
)
def test_a_decision_about_the_held_out_prompts_alone_takes_fewer_answers_and_says_so(
    project: Project, server: FakeServer, alice: User, claim: str, verdict: RoundVerdict, needed: int
):
    round_ = evaluated(project, server, claim=claim)
    end_without_evidence(round_)
    # Seventeen of twenty.
    answer(round_, alice, [True] * 5 + [False, True, True, True, True] * 3)
    assert decision_of(round_=round_).verdict == verdict
    [together, alone, *_] = reasons(round_)
    assert together.get("claim", "new_prompts") == claim
    assert ("held-out prompts" in reason_text(together)) == (claim == "these_prompts")
    assert "held-out prompts" not in reason_text(alone)
    assert dry_run(round_=round_).prompts_for_decision == needed

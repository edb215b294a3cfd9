"""A round decided by people and its reward model together: what it says, whom it asks, and when it stops."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from pytest_django import DjangoDbBlocker

from annotation.models import Comparison, Project, User
from tests import factories
from tests.shared_rows import made_in, shared_rows
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


@pytest.fixture(scope="module")
def scene(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Round 1 of a project with sixty held-out prompts, evaluated; all tests begin with these rows."""
    with shared_rows(django_db_blocker):
        with made_in(tmp_path_factory.mktemp("decided")):
            alice, bob, carol = (factories.make_user(name) for name in ("alice", "bob", "carol"))
            project = factories.make_project(annotators=[alice, bob], managers=[carol])
            respond(trained_round_with_prompts(project))
        yield


@pytest.fixture
def project(scene: None, db: None) -> Project:
    """The project of the scene."""
    return Project.objects.get()


@pytest.fixture
def alice(scene: None, db: None) -> User:
    """Annotates in the project of the scene."""
    return User.objects.get(username="alice")


@pytest.fixture
def carol(scene: None, db: None) -> User:
    """Manages the project of the scene."""
    return User.objects.get(username="carol")


def trained_round_with_prompts(project: Project) -> Round:
    """Return a round that is to be evaluated on sixty held-out prompts."""
    for number in range(PROMPTS):
        factories.make_prompt(project, f"What is {number} and {number}?", split="held-out")
    return trained_round(project, evaluation={"prompts": PROMPTS})


def evaluated(project: Project, **promotion: Any) -> Round:
    """Return the round of the scene, which promotes by these rules."""
    Round.objects.update(recipe={"evaluation": {"prompts": PROMPTS}, "promotion": promotion})
    round_ = project.rounds.get()
    return round_


def respond(round_: Round, *, new: Any = NEW) -> None:
    """Evaluate a round whose policy responds so. The reward model likes what is longer."""
    server = FakeServer()

    def text(body: dict[str, Any]) -> str:
        if not body["model"].endswith("-policy"):
            return OLD
        return str(new(int(body["messages"][-1]["content"].split()[2])) if callable(new) else new)

    server.text = text
    evaluate(round_, server)
    Round.objects.filter(pk=round_.pk).update(state=RoundState.DECIDING)
    round_.steps.update(state="finished")
    round_.refresh_from_db()


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


def test_a_reward_model_alone_decides_nothing_and_people_are_asked(project: Project):
    round_ = evaluated(project)
    assert decision_of(round_=round_).verdict == RoundVerdict.NOT_ENOUGH_EVIDENCE
    end_without_evidence(round_)
    assert asked_of(round_.evaluations.get()).filter(open_slots__gt=0).exists()


def test_few_answers_promote_where_people_agree_and_nobody_is_asked_further(project: Project, alice: User):
    round_ = evaluated(project)
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


def test_people_who_prefer_the_parent_reject_it_whatever_the_reward_model_says(project: Project, alice: User):
    round_ = evaluated(project)
    end_without_evidence(round_)
    answer(round_, alice, [False] * 25)
    settle_decision(round_)
    round_.refresh_from_db()
    assert round_.state == RoundState.REJECTED


def test_an_open_decision_says_how_many_more_answers_are_expected(project: Project, alice: User):
    round_ = evaluated(project)
    end_without_evidence(round_)
    answer(round_, alice, itertools.islice(itertools.cycle([True, True, True, False]), 16))
    assert codes(round_)[:3] == ["win_rate_open", "win_rate_alone", "answers_expected"]
    expected = reasons(round_)[2]
    assert 1 <= expected["answers"] <= PROMPTS - 16


def test_prompts_that_can_hardly_decide_any_more_are_asked_no_further(project: Project, alice: User):
    round_ = evaluated(project)
    end_without_evidence(round_)
    ask_people(round_.evaluations.get(), round_number=2)
    answer(round_, alice, itertools.islice(itertools.cycle([True, False]), 50))
    assert "answers_cannot_decide" in codes(round_)
    settle_decision(round_)
    round_.refresh_from_db()
    assert round_.state == RoundState.NOT_ENOUGH_EVIDENCE
    assert not asked_of(round_.evaluations.get()).filter(open_slots__gt=0).exists()


def test_a_difference_that_is_none_worth_having_keeps_the_parent(project: Project, alice: User):
    round_ = evaluated(project, worth_having=0.95)
    end_without_evidence(round_)
    ask_people(round_.evaluations.get(), round_number=2)
    answer(round_, alice, itertools.islice(itertools.cycle([True, False]), 40))
    settle_decision(round_)
    round_.refresh_from_db()
    assert round_.state == RoundState.REJECTED
    assert round_.reasons[0]["code"] == "not_worth_having"
    assert round_.reasons[0]["bound"] == 0.95


def test_the_next_pairs_are_asked_while_the_answers_may_still_decide(project: Project, alice: User):
    round_ = evaluated(project)
    end_without_evidence(round_)
    evaluation = round_.evaluations.get()
    asked_of(evaluation).order_by("priority")[:1].get()
    keep = list(asked_of(evaluation).order_by("-priority").values_list("pk", flat=True)[:12])
    asked_of(evaluation).exclude(pk__in=keep).delete()
    answer(round_, alice, [True, True, False] * 4)
    settle_decision(round_)
    assert asked_of(evaluation).filter(open_slots__gt=0).count() == 25


def test_pairs_come_in_a_random_order_that_no_strategy_changes(project: Project):
    round_ = evaluated(project)
    end_without_evidence(round_)
    pairs = list(asked_of(round_.evaluations.get()).order_by("-priority").select_related("prompt"))
    assert len({pair.priority for pair in pairs}) == len(pairs)
    numbers = [int(pair.prompt.messages[-1]["content"].split()[2]) for pair in pairs]
    assert numbers not in (sorted(numbers), sorted(numbers, reverse=True))
    written = sorted(pairs, key=lambda pair: pair.prompt_id)
    assert pairs != written


def test_identical_responses_are_asked_of_nobody_and_stay_out_of_the_pool(alice: User):
    milk = factories.make_project(slug="milk", annotators=[alice])
    round_ = trained_round_with_prompts(milk)
    respond(round_, new=lambda number: OLD if number < 30 else NEW)
    end_without_evidence(round_)
    ask_people(round_.evaluations.get(), round_number=2)
    assert asked_of(round_.evaluations.get()).count() == 30
    answer(round_, alice, [True] * 18)
    settle_decision(round_)
    round_.refresh_from_db()
    assert round_.state == RoundState.PROMOTED


def test_a_decision_by_a_manager_ends_the_questions(project: Project, carol: User):
    round_ = evaluated(project)
    end_without_evidence(round_)
    reject_round(round_=round_, actor=carol, note="Seen enough.")
    assert not asked_of(round_.evaluations.get()).filter(open_slots__gt=0).exists()


def test_without_scores_people_alone_decide(project: Project, alice: User):
    round_ = evaluated(project)
    for row in round_.evaluations.get().rows.all():
        row.figures = {**row.figures, "reward": None}
        row.save()
    end_without_evidence(round_)
    answer(round_, alice, [True] * 19)
    assert codes(round_)[0] == "few_differ"
    answer(round_, alice, [True])
    assert codes(round_)[0] == "win_rate_better"
    assert reasons(round_)[0]["by"] == "people"


@pytest.mark.parametrize(
    ("claim", "verdict", "needed"),
    [("new_prompts", RoundVerdict.NOT_ENOUGH_EVIDENCE, 94), ("these_prompts", RoundVerdict.PROMOTE, 10)],
)
def test_a_decision_about_the_held_out_prompts_alone_takes_fewer_answers_and_says_so(
    project: Project, alice: User, claim: str, verdict: RoundVerdict, needed: int
):
    round_ = evaluated(project, claim=claim)
    end_without_evidence(round_)
    # Seventeen of twenty.
    answer(round_, alice, [True] * 5 + [False, True, True, True, True] * 3)
    assert decision_of(round_=round_).verdict == verdict
    [together, alone, *_] = reasons(round_)
    assert together.get("claim", "new_prompts") == claim
    assert ("held-out prompts" in reason_text(together)) == (claim == "these_prompts")
    assert "held-out prompts" not in reason_text(alone)
    assert dry_run(round_=round_).prompts_for_decision == needed

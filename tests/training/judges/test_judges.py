"""Judges: what they take, what they ask, what is stored, and that people are left as they were."""

from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from annotation.choices import AssignmentState, JobState, Verdict
from annotation.errors import NotAllowed, Refusal
from annotation.models import Assignment, AuditEntry, Comparison, Judgment, Project, Review, User
from annotation.selectors.access import judgments_current
from annotation.selectors.judged import judged_in
from annotation.services import jobs
from annotation.services.assignments.next import assign_next
from annotation.services.judgments.submission import judge_as_machine, lease_to_machine
from tests import factories
from tests.records import judgment_record
from tests.refusals import refused
from tests.training.conftest import judge as judge_as_person
from tests.training.judges.judge_scene import (
    FakeJudge,
    first_shown,
    install,
    longest,
    make_pairs,
    prompt,
    ranking,
    work,
)
from training.contract.snapshot import read_snapshot, read_snapshot_header
from training.judging import DEFAULT_TEMPLATE, read_ranking, template_digest
from training.models import Judge, JudgeVerdict
from training.services import judges
from training.services.checkpoints import register_starter
from training.services.judges import create_judge, set_judge, sweep_judges
from training.services.snapshots import freeze_snapshot

pytestmark = pytest.mark.django_db


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeJudge:
    return install(monkeypatch)


@pytest.fixture
def pairs(project: Project) -> list[Comparison]:
    return make_pairs(project)


@pytest.fixture
def machine(project: Project, carol: User, server: FakeJudge) -> Judge:
    return create_judge(
        project=project, name="Judge", checkpoint=register_starter(name="starter"), created_by=carol
    )


# ── What it does ──────────────────────────────────────────────────────────────────────


def test_a_judge_asks_in_both_orders_and_its_judgment_tells_where_it_comes_from(
    machine: Judge, pairs: list[Comparison], server: FakeJudge, project: Project
):
    assert work(machine).state == JobState.FINISHED
    judged = Judgment.objects.filter(annotator=machine.user).order_by("pk")
    assert [row.comparison for row in judged] == pairs
    for judgment in judged:
        long = max(judgment.comparison.completions.all(), key=lambda completion: len(completion.text))
        assert judgment.verdict == Verdict.RANKED
        assert judgment.ranks.get(rank=1).completion == long
        assert judgment.comment == "It says more."
        assert judgment.guideline.version == 1
        verdict = judgment.judge_verdict
        assert (verdict.judge, verdict.model, verdict.orders_agree) == (machine, "starter", True)
        assert verdict.template_digest == template_digest(DEFAULT_TEMPLATE)
        ids = judgment.assignment.display_order
        assert [reply["order"] for reply in verdict.replies] == [ids, ids[::-1]]
        assert (verdict.prompt_tokens, verdict.completion_tokens) == (200, 20)
    assert (machine.questions, machine.prompt_tokens, machine.completion_tokens) == (4, 400, 40)
    request = server.asked[0]
    assert (request["temperature"], request["model"], request["n"]) == (0.0, "starter", 1)
    assert "Prefer the answer that is right and to the point." in request["messages"][0]["content"]
    # Nothing is left: asking again asks nobody.
    Judge.objects.update(state=JobState.WAITING)
    work(machine)
    assert len(server.asked) == 4


def test_orders_that_disagree_are_a_tie(machine: Judge, pairs: list[Comparison], server: FakeJudge):
    server.says = first_shown
    work(machine)
    for judgment in Judgment.objects.filter(annotator=machine.user):
        assert (judgment.verdict, judgment.judge_verdict.orders_agree) == (Verdict.EQUAL, False)
        assert set(judgment.ranks.values_list("rank", flat=True)) == {1}


def test_a_ranking_is_asked_for_in_every_rotation(machine: Judge, project: Project, server: FakeJudge):
    comparison = factories.make_comparison(project, ["aaa", "a", "aaaa", "aa"], prompt=prompt(project, "4?"))
    work(machine)
    assert len(server.asked) == 4
    [judgment] = comparison.judgments.all()
    by_length = sorted(comparison.completions.all(), key=lambda completion: -len(completion.text))
    assert [place.completion for place in judgment.ranks.order_by("rank")] == by_length


def test_a_reply_that_cannot_be_read_is_asked_for_again_and_told_why(
    machine: Judge, pairs: list[Comparison], server: FakeJudge
):
    replies: list[str] = []

    def learns(answers: list[str], body: dict[str, Any]) -> str:
        replies.append(body["messages"][-1]["content"])
        return longest(answers, body) if len(body["messages"]) == 3 else "I like both."

    server.says = learns
    work(machine)
    assert "The last line is not of the form" in replies[1]
    assert Judgment.objects.filter(annotator=machine.user, verdict=Verdict.RANKED).count() == 2


def test_a_judge_that_is_never_understood_cannot_judge_and_costs_no_more_than_three_questions(
    machine: Judge, pairs: list[Comparison], server: FakeJudge
):
    server.says = lambda *_: "I like both."
    work(machine)
    judgments = Judgment.objects.filter(annotator=machine.user)
    assert {judgment.verdict for judgment in judgments} == {Verdict.CANNOT_JUDGE}
    assert judgments[0].comment.startswith("Cannot judge: The last line is not of the form")
    # Three questions in each of two orders of two comparisons.
    assert len(server.asked) == 12


def test_a_text_that_the_server_refuses_is_skipped_and_the_rest_goes_on(
    machine: Judge, pairs: list[Comparison], server: FakeJudge
):
    too_long = httpx.Response(400, json={"error": {"message": "too long"}})
    server.trouble = lambda: too_long if len(server.asked) == 1 else None
    assert work(machine).state == JobState.FINISHED
    [skipped] = Assignment.objects.filter(annotator=machine.user, state=AssignmentState.SKIPPED)
    assert (skipped.comparison, skipped.reason) == (pairs[0], "too long")
    assert Judgment.objects.filter(annotator=machine.user).count() == 1


def test_a_server_that_refuses_the_key_fails_the_judge_with_its_words(
    machine: Judge, pairs: list[Comparison], server: FakeJudge, carol: User
):
    server.trouble = lambda: httpx.Response(401, json={"error": {"message": "wrong key"}})
    assert work(machine).state == JobState.FAILED
    assert machine.error == "wrong key"
    server.trouble = lambda: None
    sweep_judges()
    machine.refresh_from_db()
    assert machine.state == JobState.FAILED, "a person looks first"
    set_judge(judge=machine, active=True, by=carol)
    assert work(machine).state == JobState.FINISHED
    assert Judgment.objects.filter(annotator=machine.user).count() == 2


def test_a_judge_whose_worker_ends_goes_on_where_it_was(
    machine: Judge, pairs: list[Comparison], server: FakeJudge
):
    def ends(answers: list[str], body: dict[str, Any]) -> str:
        if len(server.asked) == 3:
            jobs.worker_is_stopping.set()
        return longest(answers, body)

    server.says = ends
    assert work(machine).state == JobState.WAITING
    assert Judgment.objects.filter(annotator=machine.user).count() == 1
    jobs.worker_is_stopping.clear()
    server.says = longest
    assert work(machine).state == JobState.FINISHED
    assert Judgment.objects.filter(annotator=machine.user).count() == 2
    assert JudgeVerdict.objects.count() == 2


def test_a_paused_judge_stops_before_its_next_question(
    machine: Judge,
    pairs: list[Comparison],
    server: FakeJudge,
    carol: User,
    monkeypatch: pytest.MonkeyPatch,
):
    def read_and_pause(text: str, order: Sequence[int]) -> dict[int, int] | None:
        set_judge(judge=machine, active=False, by=carol)
        return read_ranking(text, order)

    monkeypatch.setattr(judges, "read_ranking", read_and_pause)
    work(machine)
    assert len(server.asked) == 1
    assert not Judgment.objects.filter(annotator=machine.user).exists()
    assert not Assignment.objects.filter(annotator=machine.user, state=AssignmentState.LEASED).exists()
    sweep_judges()
    machine.refresh_from_db()
    assert machine.state == JobState.FINISHED
    written = list(AuditEntry.objects.values_list("action", flat=True))
    assert written == ["annotator.pause", "annotator.create"]


@pytest.mark.parametrize("limit", [{"most_judgments": 1}, {"most_tokens": 200}])
def test_a_budget_ends_the_work(
    limit: dict[str, int], machine: Judge, pairs: list[Comparison], server: FakeJudge
):
    # One pair costs two questions of 110 tokens.
    Judge.objects.update(**limit)
    work(machine)
    assert Judgment.objects.filter(annotator=machine.user).count() == 1
    sweep_judges()
    machine.refresh_from_db()
    assert machine.state == JobState.FINISHED


def test_the_sweep_wakes_a_judge_that_has_new_work(
    machine: Judge, pairs: list[Comparison], server: FakeJudge, project: Project
):
    work(machine)
    sweep_judges()
    machine.refresh_from_db()
    assert machine.state == JobState.FINISHED
    factories.make_comparison(project, ["x", "yy"], prompt=prompt(project, "New?"), round_number=2)
    sweep_judges()
    machine.refresh_from_db()
    assert machine.state == JobState.WAITING


def test_the_sweep_wakes_no_judge_that_is_paused_or_failed(
    machine: Judge, pairs: list[Comparison], sent: list[object]
):
    for state, is_active, wakes in (
        (JobState.WAITING, True, 1),
        (JobState.FINISHED, True, 1),
        (JobState.WAITING, False, 0),
        (JobState.FAILED, True, 0),
    ):
        Judge.objects.update(state=state, is_active=is_active)
        sent.clear()
        sweep_judges()
        assert len(sent) == wakes


# ── People are left as they were ──────────────────────────────────────────────────────


def test_a_judge_takes_nobodys_place(
    machine: Judge, pairs: list[Comparison], project: Project, alice: User, server: FakeJudge
):
    before = list(Comparison.objects.order_by("pk").values_list("open_slots", flat=True))
    work(machine)
    assert list(Comparison.objects.order_by("pk").values_list("open_slots", flat=True)) == before
    leased = assign_next(project=project, annotator=alice)
    assert leased.comparison == pairs[0]
    assert (leased.slot, machine.user.assignments.first().slot) == (0, None)


def test_what_a_judge_says_is_in_no_figure_about_people(
    machine: Judge, pairs: list[Comparison], project: Project, alice: User, server: FakeJudge
):
    project.review_disagreements = True
    project.save()
    server.says = lambda answers, body: ranking(sorted(range(2), key=lambda place: len(answers[place])))
    work(machine)
    assign_next(project=project, annotator=alice)
    judge_as_person(pairs[0], alice)
    assert [judgment.annotator for judgment in judgments_current(project)] == [alice]
    assert [judgment.annotator for judgment in judged_in(project)] == [alice.pk]
    assert not Review.objects.exists()


def test_a_machine_gets_nothing_that_is_withheld_and_people_cannot_pose_as_one(
    machine: Judge, project: Project, alice: User
):
    factories.make_comparison(project, ["As SmolLM, I think so.", "Yes."], prompt=prompt(project, "Who?"))
    kept_back = Comparison.objects.filter(withholding__isnull=False)
    assert lease_to_machine(project=project, machine=machine.user) is None or not kept_back.exists()
    with refused("people_use_the_screen", NotAllowed):
        lease_to_machine(project=project, machine=alice)


def test_a_machine_judges_once(machine: Judge, pairs: list[Comparison], project: Project):
    leased = lease_to_machine(project=project, machine=machine.user)
    answer = judgment_record(verdict=Verdict.EQUAL, ranks=dict.fromkeys(leased.display_order, 1))
    first = judge_as_machine(assignment=leased, machine=machine.user, answer=answer, guideline=None)
    again = judge_as_machine(assignment=leased, machine=machine.user, answer=answer, guideline=None)
    assert first == again
    assert Judgment.objects.count() == 1


# ── Who lets it in ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": " "}, "name"),
        ({"name": "Judge"}, "name"),
        ({"template": "{answers}"}, "template"),
    ],
)
def test_what_makes_no_judge_is_refused_by_its_field(
    machine: Judge, project: Project, carol: User, changes: dict[str, Any], field: str
):
    fields = {"project": project, "name": "Other", "checkpoint": machine.checkpoint, "created_by": carol}
    with pytest.raises(Refusal) as caught:
        create_judge(**{**fields, **changes})
    assert caught.value.field == field
    assert User.objects.filter(is_machine=True).count() == 1


def test_only_a_manager_decides_who_judges(machine: Judge, project: Project, alice: User):
    with refused("manager_changes_judges", NotAllowed):
        create_judge(project=project, name="B", checkpoint=machine.checkpoint, created_by=alice)
    with refused("manager_changes_judges", NotAllowed):
        set_judge(judge=machine, active=False, by=alice)


def test_a_judge_of_a_round_judges_that_one_alone(
    machine: Judge, pairs: list[Comparison], project: Project, carol: User, server: FakeJudge
):
    of_the_first = create_judge(
        project=project,
        name="Of the first",
        checkpoint=machine.checkpoint,
        created_by=carol,
        round_number=1,
    )
    assert "1 judgments; nothing is left" in work(of_the_first).message
    [judgment] = Judgment.objects.filter(annotator=of_the_first.user)
    assert judgment.comparison.round_number == 1
    # What comes to the newest round wakes the one that goes along with it, and not the other.
    work(machine)
    factories.make_comparison(project, ["a", "b"], prompt=prompt(project, "New?"), round_number=2)
    sweep_judges()
    states = dict(Judge.objects.values_list("name", "state"))
    assert states == {"Of the first": JobState.FINISHED, machine.name: JobState.WAITING}
    factories.make_comparison(project, ["c", "d"], prompt=prompt(project, "Late?"), round_number=1)
    sweep_judges()
    of_the_first.refresh_from_db()
    assert of_the_first.state == JobState.WAITING
    with refused("round_without_comparisons", number=7):
        create_judge(
            project=project, name="7", checkpoint=machine.checkpoint, created_by=carol, round_number=7
        )


# ── Snapshots ─────────────────────────────────────────────────────────────────────────


def test_a_snapshot_holds_a_judges_labels_only_where_asked_and_says_how_many(
    machine: Judge, pairs: list[Comparison], project: Project, alice: User, server: FakeJudge
):
    work(machine)
    assign_next(project=project, annotator=alice)
    judge_as_person(pairs[0], alice)
    people = freeze_snapshot(project=project, rounds=[2])
    both = freeze_snapshot(project=project, rounds=[2], ai_feedback=True)
    assert [judgment.annotator for judgment in people.judgments.all()] == [alice]
    assert people.counts["ai_judgments"] == read_snapshot_header(people.path).ai_judgments == 0
    assert both.counts["ai_judgments"] == read_snapshot_header(both.path).ai_judgments == 2
    rows = list(read_snapshot(both.path))
    assert len(rows) == both.counts["judgments"] == 3
    assert sum(row.annotator == str(machine.user.pseudonym) for row in rows) == 2
    assert people.digest != both.digest


def test_where_only_judges_have_judged_learning_begins_only_with_their_labels(
    machine: Judge, pairs: list[Comparison], project: Project, server: FakeJudge
):
    work(machine)
    with refused("no_judgments"):
        freeze_snapshot(project=project, rounds=[2])
    assert freeze_snapshot(project=project, rounds=[2], ai_feedback=True).counts["ai_judgments"] == 2

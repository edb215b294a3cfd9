"""AI annotators that score by a rubric: what decides, what is stored, and agreement worked out by hand."""

import re
import uuid
from collections.abc import Callable
from typing import Any

import krippendorff
import pytest
from django.test import Client

from annotation.choices import Verdict
from annotation.errors import Refusal
from annotation.exchange.records import records
from annotation.models import Comparison, Judgment, Project, RubricScore, RubricVersion, User
from annotation.record.judgment import RatingPart
from annotation.selectors.configuration import configuration_of
from annotation.services.assignments.next import assign_next
from annotation.services.judgments.submission import submit_judgment
from annotation.services.projects.rubrics import (
    RubricCriterionInput,
    ask_rubric,
    publish_rubric,
    save_rubric,
)
from tests.records import judgment_record
from tests.refusals import refused
from tests.training.judges.judge_scene import FakeJudge, install, make_pairs, work
from training.judging import RUBRIC_TEMPLATE
from training.models import Judge
from training.selectors.judges import report_of
from training.services.checkpoints import register_starter
from training.services.judges import create_judge

pytestmark = pytest.mark.django_db

Score = Callable[[str, int], tuple[int, int]]
"""An answer and its place → its scores for accuracy and tone."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeJudge:
    return install(monkeypatch)


@pytest.fixture
def version(project: Project, carol: User) -> RubricVersion:
    """A published rubric that annotators answer: accuracy weighs 3 and tone 1, both from 1 to 5."""
    saved = save_rubric(
        project=project,
        name="Tea",
        criteria=[
            RubricCriterionInput(name="Accuracy", text="Is it true?", weight=3),
            RubricCriterionInput(name="Tone", text="Is it kind?"),
        ],
        saved_by=carol,
    )
    ask_rubric(rubric=publish_rubric(version=saved, published_by=carol), is_asked=True, by=carol)
    project.refresh_from_db()
    return saved


@pytest.fixture
def machine(project: Project, carol: User, server: FakeJudge, version: RubricVersion) -> Judge:
    return create_judge(
        project=project,
        name="Judge",
        checkpoint=register_starter(name="starter"),
        created_by=carol,
        rubric=version,
    )


def scoring(score: Score) -> Callable[[list[str], dict[str, Any]], str]:
    def says(answers: list[str], body: dict[str, Any]) -> str:
        lines = ["Let me see."]
        for place, answer in enumerate(answers):
            accuracy, tone = score(answer, place)
            letter = "AB"[place]
            lines += [f"{letter}1: {accuracy} | Checked {answer}.", f"{letter}2: {tone} | Friendly."]
        return "\n".join(lines)

    return says


def longer_is_truer(answer: str, place: int) -> tuple[int, int]:
    """Accuracy speaks for the longer answer and tone for the shorter one."""
    return (4, 1) if "longer" in answer else (2, 5)


def test_the_weighted_sum_decides_and_scores_with_reasons_are_stored(
    machine: Judge, project: Project, server: FakeJudge, version: RubricVersion
):
    [comparison] = make_pairs(project, 1)
    server.says = scoring(longer_is_truer)
    work(machine)
    assert machine.template == RUBRIC_TEMPLATE
    question = server.asked[0]["messages"][0]["content"]
    assert "1. Accuracy (1 to 5, 5 is best)\nIs it true?" in question
    judgment = Judgment.objects.get(annotator=machine.user)
    # (3 · ¾ + 1 · 0) / 4 = 0.5625 for the longer one, (3 · ¼ + 1 · 1) / 4 = 0.4375 for the other.
    short, long = sorted(comparison.completions.all(), key=lambda completion: len(completion.text))
    assert (judgment.verdict, judgment.rubric) == (Verdict.RANKED, version)
    assert judgment.ranks.get(rank=1).completion == long
    scores = {
        (row.completion_id, row.criterion.key): (row.value, row.reason)
        for row in judgment.rubric_scores.select_related("criterion")
    }
    assert scores == {
        (long.pk, "accuracy"): (4.0, f"Checked {long.text}."),
        (long.pk, "tone"): (1.0, "Friendly."),
        (short.pk, "accuracy"): (2.0, f"Checked {short.text}."),
        (short.pk, "tone"): (5.0, "Friendly."),
    }
    verdict = judgment.judge_verdict
    assert verdict.orders_agree
    assert [reply["scores"][str(long.pk)]["tone"] for reply in verdict.replies] == [[1, "Friendly."]] * 2
    [record] = records(Judgment.objects.filter(pk=judgment.pk))
    assert record["rubric"] == {"name": "Tea", "version": 1}
    assert record["rubric_scores"][0] == {
        "completion": str(short.pk),
        "criterion": "accuracy",
        "scale": "five",
        "weight": 3.0,
        "value": 2.0,
        "reason": f"Checked {short.text}.",
    }


def test_orders_that_contradict_each_other_make_a_tie_and_the_score_is_their_mean(
    machine: Judge, project: Project, server: FakeJudge
):
    make_pairs(project, 1)
    # It leans to the first place.
    server.says = scoring(lambda answer, place: (5, 3) if place == 0 else (2, 3))
    work(machine)
    judgment = Judgment.objects.get(annotator=machine.user)
    assert (judgment.verdict, judgment.judge_verdict.orders_agree) == (Verdict.EQUAL, False)
    values = judgment.rubric_scores.filter(criterion__key="accuracy").values_list("value", flat=True)
    assert list(values) == [3.5, 3.5]
    report = report_of(machine)
    assert report.position.estimate.value == 1.0


def test_an_unreadable_reply_is_asked_for_again_and_else_nothing_is_judged(
    machine: Judge, project: Project, server: FakeJudge
):
    make_pairs(project, 2)
    good = scoring(longer_is_truer)

    def says(answers: list[str], body: dict[str, Any]) -> str:
        if "1" in answers[0]:
            return good(answers, body).replace("B2: ", "B2 is ")
        return good(answers, body) if len(body["messages"]) > 1 else "Ranking: A > B"

    server.says = says
    work(machine)
    first, second = Judgment.objects.filter(annotator=machine.user).order_by("pk")
    assert first.verdict == Verdict.RANKED
    assert (second.verdict, second.rubric_scores.count()) == (Verdict.CANNOT_JUDGE, 0)
    assert second.comment.startswith("Cannot judge: The score B2 is missing.")
    assert any("The score A1 is missing." in body["messages"][-1]["content"] for body in server.asked)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"template": "{conversation}{answers}{example}"}, "template"),
        ({"max_tokens": 95}, "max_tokens"),
    ],
)
def test_a_template_without_the_rubric_and_a_reply_too_short_are_refused(
    machine: Judge, project: Project, carol: User, version: RubricVersion, changes: dict[str, Any], field: str
):
    values = {"project": project, "name": "B", "checkpoint": machine.checkpoint, "created_by": carol}
    with pytest.raises(Refusal) as caught:
        create_judge(**{**values, "rubric": version, **changes})
    assert caught.value.field == field


def test_a_rubric_that_is_not_published_is_refused(machine: Judge, project: Project, carol: User):
    draft = save_rubric(
        project=project, name="Draft", criteria=[RubricCriterionInput(name="X")], saved_by=carol
    )
    with refused("unknown_rubric"):
        create_judge(project=project, name="B", checkpoint=machine.checkpoint, created_by=carol, rubric=draft)


# ── Agreement ─────────────────────────────────────────────────────────────────────────


def rate(project: Project, person: User, values: dict[str, dict[str, int]]) -> None:
    """The person rates what comes next; `values` by the first word of the answer and by criterion."""
    leased = assign_next(project=project, annotator=person)
    assert leased is not None
    completions = list(leased.comparison.completions.all())
    criteria = {row.key: row for row in configuration_of(project).asked_criteria}
    answer = judgment_record(
        verdict="ranked",
        ranks={completion.pk: place for place, completion in enumerate(completions, start=1)},
        ratings=tuple(
            RatingPart(completion=str(completion.pk), criterion=key, scale=criteria[key].scale, value=value)
            for completion in completions
            for key, value in values[completion.text.split()[0]].items()
        ),
    )
    submit_judgment(assignment=leased, annotator=person, answer=answer, idempotency_key=uuid.uuid4())


def test_agreement_by_criterion_is_that_of_the_judge_with_each_person(
    machine: Judge, project: Project, server: FakeJudge, alice: User, bob: User
):
    project.overlap = 2
    project.save()
    make_pairs(project, 2)
    server.says = scoring(longer_is_truer)
    work(machine)
    for person, (low, high) in ((alice, (2, 4)), (alice, (1, 5)), (bob, (2, 4))):
        rate(
            project,
            person,
            {"short": {"accuracy": low, "tone": 5}, "a": {"accuracy": high, "tone": 5}},
        )
    report = report_of(machine)
    accuracy, tone = report.criteria
    # The judge gives 2 and 4. Pairs with a person: (2, 2), (4, 4) twice, and (2, 1), (4, 5).
    pairs = [(2, 2), (4, 4), (2, 1), (4, 5), (2, 2), (4, 4)]
    oracle = krippendorff.alpha(
        [[a for a, _ in pairs], [b for _, b in pairs]], level_of_measurement="ordinal"
    )
    assert accuracy.alpha.value == pytest.approx(oracle)
    assert (accuracy.alpha.items, accuracy.responses) == (2, 4)
    assert accuracy.alpha.low is not None
    # Differences: 0, 0, 1, −1, 0, 0.
    assert accuracy.difference == pytest.approx(0.0)
    # The judge gives tone 5 and 1, people 5 always: (0 − 4) / 2 on average.
    assert tone.difference == pytest.approx(-2.0)
    # Alice and Bob both rated the first pair, alike.
    assert accuracy.among_people.value == pytest.approx(1.0)
    assert tone.among_people.value is None


def test_the_judges_page_the_comparison_and_the_api_show_scores_reasons_and_agreement(
    machine: Judge,
    project: Project,
    server: FakeJudge,
    alice: User,
    carol: User,
    client_of: Callable[[User], Client],
):
    [comparison] = make_pairs(project, 1)
    server.says = scoring(longer_is_truer)
    work(machine)
    rate(project, alice, {"short": {"accuracy": 1, "tone": 4}, "a": {"accuracy": 5, "tone": 2}})
    client = client_of(carol)
    page = client.get(machine.get_absolute_url()).content.decode()
    for words in ("Agreement by criterion", "Accuracy", "Checked a longer one 0.", "Tea, version 1"):
        assert words in page
    item = client.get(f"/projects/{project.slug}/items/{comparison.pk}/").content.decode()
    assert re.search(r"4 of 5: Checked a longer one 0\.", item)
    assert "rubric Tea, version 1" in item
    criteria = client.get(f"/api/v1/projects/{project.slug}/judges/{machine.pk}/criteria/").json()
    assert [(row["criterion"], row["responses"], row["difference"]) for row in criteria] == [
        ("accuracy", 2, 0.0),
        ("tone", 2, 0.0),
    ]
    listed = client.get(f"/api/v1/projects/{project.slug}/comparisons/{comparison.pk}/judgments/").json()
    rows = listed["results"] if isinstance(listed, dict) else listed
    scored = next(row for row in rows if row.get("rubric_scores"))
    assert scored["rubric"]["version"] == 1
    assert {row["criterion"] for row in scored["rubric_scores"]} == {"accuracy", "tone"}


def test_a_manager_sets_a_judge_to_a_rubric_on_the_page_and_by_the_api(
    project: Project,
    carol: User,
    server: FakeJudge,
    version: RubricVersion,
    client_of: Callable[[User], Client],
):
    checkpoint = register_starter(name="starter")
    client = client_of(carol)
    page = f"/projects/{project.slug}/judges/"
    form = client.get(page)
    sent = {
        "name": "By rubric",
        "checkpoint": checkpoint.pk,
        "max_tokens": 512,
        "template": form.context["form"].fields["template"].initial,
        "rubric": version.pk,
    }
    assert client.post(page, sent).status_code == 302
    address = f"/api/v1/projects/{project.slug}/judges/"
    body = {"name": "By API", "checkpoint": "starter", "rubric": "Tea"}
    assert client.post(address, body, content_type="application/json").status_code == 201
    unknown = client.post(address, {**body, "name": "C", "rubric": "X"}, content_type="application/json")
    assert unknown.status_code == 422
    assert {(row.name, row.rubric, row.template) for row in Judge.objects.all()} == {
        ("By rubric", version, RUBRIC_TEMPLATE),
        ("By API", version, RUBRIC_TEMPLATE),
    }


def test_scores_outside_the_rubric_are_refused_by_the_service(
    machine: Judge, project: Project, version: RubricVersion, server: FakeJudge
):
    from annotation.errors import InvalidAnswer
    from annotation.record.judgment import RubricScorePart
    from annotation.services.judgments.submission import judge_as_machine, lease_to_machine

    make_pairs(project, 1)
    leased = lease_to_machine(project=project, machine=machine.user)
    assert leased is not None
    first = version.criteria.all()[0]

    def scores(*values: float) -> tuple[RubricScorePart, ...]:
        pairs = [(pk, row.key) for pk in leased.display_order for row in version.criteria.all()]
        return tuple(
            RubricScorePart(completion=str(pk), criterion=criterion, value=value)
            for (pk, criterion), value in zip(pairs, values, strict=False)
        )

    ranks = dict.fromkeys(leased.display_order, 1)
    for wrong in (scores(1, 2, 3), scores(1, 2, 3, 6), (scores(1)[0], scores(1)[0])):
        with pytest.raises(InvalidAnswer):
            judge_as_machine(
                assignment=leased,
                machine=machine.user,
                answer=judgment_record(verdict="equal", ranks=ranks, rubric_scores=wrong),
                guideline=None,
                rubric=version,
            )
    assert first.scores.count() == RubricScore.objects.count() == 0
    assert Comparison.objects.filter(judgments__isnull=False).count() == 0

"""Contents of a snapshot beside rankings: every kind of answer, reviews, and weights."""

import json
from pathlib import Path
from typing import Any

import pytest

from annotation.choices import ReviewReason, Verdict
from annotation.models import (
    Category,
    Comparison,
    Correction,
    CorrectionEdit,
    Criterion,
    Critique,
    Demonstration,
    Membership,
    MissingInfo,
    Project,
    Rating,
    SpanFlag,
    User,
)
from annotation.record import judgment as record
from annotation.record.judgment import Edit
from annotation.services.reviews import decide_review, open_review
from tests import factories
from tests.refusals import refused
from tests.training.snapshots.test_contract import row, write
from training.contract import ContractError
from training.contract.snapshot import SNAPSHOT_ROWS_FILE, SnapshotReview, read_snapshot
from training.recipe.recipe import Recipe
from training.services import snapshots
from training.services.snapshots import freeze_snapshot

pytestmark = pytest.mark.django_db


@pytest.fixture
def comparison(project: Project) -> Comparison:
    prompt = factories.make_prompt(project, "How long?", split="train")
    return factories.make_comparison(project, ["Ten hours.", "Two minutes."], prompt=prompt)


def decide(comparison: Comparison, reviewer: User, verdict: str, *ranks: int) -> None:
    ids = comparison.candidates.order_by("index").values_list("completion_id", flat=True)
    review = open_review(comparison=comparison, reason=ReviewReason.DISAGREEMENT)
    decide_review(
        review=review, reviewer=reviewer, verdict=verdict, ranks=dict(zip(ids, ranks, strict=bool(ranks)))
    )


def test_every_kind_of_answer_is_in_the_row(project: Project, comparison: Comparison, alice: User):
    judgment = factories.make_judgment(comparison, alice, (2, 1))
    worse = comparison.candidates.get(index=0).completion
    mine = {"judgment": judgment, "completion": worse}
    categories = {category.key: category for category in Category.objects.filter(project=project)}
    helpful = Criterion.objects.create(project=project, key="helpful", label="Helpful", scale="seven")
    kind = Criterion.objects.create(project=project, key="kind", label="Kind", scale="thumbs", position=1)
    SpanFlag.objects.create(
        **mine, category=categories["untruthful"], start=0, end=9, quote="Ten hours", severity=2, note="no"
    )
    MissingInfo.objects.create(**mine, category=categories["missing"], text="heat", insert_at=10)
    Rating.objects.create(**mine, criterion=helpful, value=6)
    Rating.objects.create(**mine, criterion=kind, value=0)
    Critique.objects.create(**mine, text="absurd")
    Demonstration.objects.create(judgment=judgment, text="Three minutes.")
    correction = Correction.objects.create(**mine, text="Two hours!")
    for index, (start, end, quote, new) in enumerate([(0, 3, "Ten", "Two"), (9, 10, ".", "!")]):
        CorrectionEdit.objects.create(
            correction=correction, index=index, start=start, end=end, quote=quote, replacement=new
        )

    snapshot = freeze_snapshot(project=project, rounds=[1])

    [snapshot_row] = read_snapshot(snapshot.path)
    pk = str(worse.pk)
    [span], [missing], [corrected] = snapshot_row.spans, snapshot_row.missing, snapshot_row.corrections
    assert (span.severity, span.note) == (2, "no")
    assert missing.insert_at == 10
    assert corrected.edits == (
        Edit(start=0, end=3, quote="Ten", replacement="Two"),
        Edit(start=9, end=10, quote=".", replacement="!"),
    )
    assert {
        (rating.completion, rating.criterion, rating.scale, rating.value) for rating in snapshot_row.ratings
    } == {
        (pk, "helpful", "seven", 6),
        (pk, "kind", "thumbs", 0),
    }
    assert [(critique.completion, critique.text) for critique in snapshot_row.critiques] == [(pk, "absurd")]
    assert snapshot_row.demonstration == "Three minutes."
    assert (snapshot_row.review, snapshot_row.weight) == (None, 1.0)
    assert snapshot.counts["corrections"] == 1


def test_a_decision_is_in_the_row_and_the_vote_stays(
    project: Project, comparison: Comparison, alice: User, rita: User
):
    factories.make_judgment(comparison, alice, (1, 2))
    decide(comparison, rita, Verdict.RANKED, 2, 1)
    snapshot = freeze_snapshot(project=project, rounds=[1])
    [snapshot_row] = read_snapshot(snapshot.path)
    first, second = (completion.id for completion in snapshot_row.completions)
    assert snapshot_row.ranks == {first: 1, second: 2}
    assert snapshot_row.review is not None
    assert (snapshot_row.review.verdict, snapshot_row.review.ranks) == ("ranked", {first: 2, second: 1})
    assert snapshot.counts["reviewed"] == 1
    assert "rita" not in (snapshot.path / "judgments.jsonl").read_text()


def test_decided_spans_and_ratings_are_in_one_row_of_the_comparison_in_place_of_the_votes(
    project: Project, alice: User, bob: User, carol: User
):
    project.overlap = 2
    project.save()
    Criterion.objects.create(project=project, key="helpful", label="Helpful", scale="five")
    project.refresh_from_db()
    comparison = factories.make_comparison(project, ["Ten hours.", "Two minutes."])
    first, second = comparison.completions.order_by("pk")

    def said(value: int, *quotes: str) -> dict[str, Any]:
        spans = tuple(
            record.SpanPart(
                completion=str(first.pk),
                category="untruthful",
                start=first.text.index(quote),
                end=first.text.index(quote) + len(quote),
                quote=quote,
                text_hash=first.text_hash,
            )
            for quote in quotes
        )
        ratings = tuple(
            record.RatingPart(completion=str(pk), criterion="helpful", scale="five", value=value)
            for pk in (first.pk, second.pk)
        )
        return {"spans": spans, "ratings": ratings}

    factories.make_judgment(comparison, alice, (2, 1), **said(1, "Ten"))
    factories.make_judgment(comparison, bob, (2, 1), **said(5, "Ten hours", "."))
    decided = record.JudgmentRecord(
        verdict="ranked", ranks={str(first.pk): 2, str(second.pk): 1}, **said(3, "Ten hours")
    )
    review = open_review(comparison=comparison, reason=ReviewReason.REQUESTED)
    decide_review(review=review, reviewer=carol, answer=decided)
    rows = list(read_snapshot(freeze_snapshot(project=project, rounds=[1]).path))
    assert [[span.quote for span in judged.spans] for judged in rows] == [["Ten hours"], []]
    assert [[rating.value for rating in judged.ratings] for judged in rows] == [[3, 3], []]
    assert [judged.read_for_spans for judged in rows] == [(str(first.pk), str(second.pk)), ()]


def test_a_review_that_nobody_decided_yet_is_not_in_the_row(
    project: Project, comparison: Comparison, alice: User
):
    factories.make_judgment(comparison, alice, (1, 2))
    open_review(comparison=comparison, reason=ReviewReason.FLAGGED)
    [judged_row] = read_snapshot(freeze_snapshot(project=project, rounds=[1]).path)
    assert judged_row.review is None


def test_where_the_only_preference_was_overruled_there_is_nothing_to_learn(
    project: Project, comparison: Comparison, alice: User, rita: User
):
    factories.make_judgment(comparison, alice, (1, 2))
    decide(comparison, rita, Verdict.BOTH_BAD)
    with refused("no_preferences"):
        freeze_snapshot(project=project, rounds=[1])


def test_a_decision_makes_votes_that_tied_learnable(
    project: Project, comparison: Comparison, alice: User, rita: User
):
    factories.make_judgment(comparison, alice, (), verdict=Verdict.EQUAL)
    with refused("no_preferences"):
        freeze_snapshot(project=project, rounds=[1])
    decide(comparison, rita, Verdict.RANKED, 1, 2)
    assert freeze_snapshot(project=project, rounds=[1]).counts["judgments"] == 1


# ── Weights ───────────────────────────────────────────────────────────────────────────


def test_rows_weigh_what_their_annotators_do_only_when_asked_for(
    project: Project, alice: User, bob: User, monkeypatch: pytest.MonkeyPatch
):
    project.overlap = 2
    prompt = factories.make_prompt(project, "How long?", split="train")
    comparison = factories.make_comparison(project, prompt=prompt)
    for user in (alice, bob):
        factories.make_judgment(comparison, user)
    calls: list[tuple[Project, list[int]]] = []

    def weights(weighed_project: Project, rounds: list[int]) -> dict[int, float]:
        calls.append((weighed_project, list(rounds)))
        return {alice.pk: 0.25}

    monkeypatch.setattr(snapshots, "reliability_weights", weights)
    plain = freeze_snapshot(project=project, rounds=[1])
    assert [snapshot_row.weight for snapshot_row in read_snapshot(plain.path)] == [1.0, 1.0]
    assert calls == []
    weighed = freeze_snapshot(project=project, rounds=[1], weigh_by_reliability=True)
    assert calls == [(project, [1])]
    by_annotator = {
        snapshot_row.annotator: snapshot_row.weight for snapshot_row in read_snapshot(weighed.path)
    }
    assert by_annotator == {str(alice.pseudonym): 0.25, str(bob.pseudonym): 1.0}
    assert weighed.digest != plain.digest


def test_who_answers_against_everyone_weighs_less(project: Project, alice: User, bob: User):
    carl, dora = (factories.make_user(name) for name in ("carl", "dora"))
    for user in (carl, dora):
        Membership.objects.create(project=project, user=user)
    project.overlap = 4
    project.save()
    for number in range(12):
        prompt = factories.make_prompt(project, f"Question {number}?", split="train")
        comparison = factories.make_comparison(project, prompt=prompt)
        for user in (alice, bob, carl):
            factories.make_judgment(comparison, user, (1, 2))
        factories.make_judgment(comparison, dora, (2, 1))
    snapshot = freeze_snapshot(project=project, rounds=[1], weigh_by_reliability=True)
    weights = {snapshot_row.annotator: snapshot_row.weight for snapshot_row in read_snapshot(snapshot.path)}
    honest = [weights[str(user.pseudonym)] for user in (alice, bob, carl)]
    assert min(honest) > 0.5 > weights[str(dora.pseudonym)]


def test_the_recipe_says_whether_annotators_are_weighed():
    assert Recipe.from_json({}).reliability_weights is False
    assert Recipe.from_json({"reliability_weights": True}).reliability_weights is True
    with pytest.raises(ContractError, match="reliability_weights: must be true or false"):
        Recipe.from_json({"reliability_weights": 1})


def test_a_new_rounds_recipe_learns_from_corrections_and_an_old_one_does_not():
    assert Recipe().reward.use_corrections
    assert Recipe().policy.use_corrections
    old = Recipe().to_json()
    for part in ("reward", "policy"):
        del old[part]["use_corrections"]
    assert not Recipe.from_json(old).reward.use_corrections
    assert not Recipe.from_json(old).policy.use_corrections


# ── The contract ──────────────────────────────────────────────────────────────────────


def test_a_snapshot_of_before_these_fields_still_reads(tmp_path: Path):
    header = write(tmp_path, row())
    path = tmp_path / SNAPSHOT_ROWS_FILE
    values = json.loads(path.read_text())
    for name in ("ratings", "critiques", "demonstration", "review", "weight"):
        del values[name]
    path.write_text(json.dumps(values) + "\n")
    assert header.rows == 1
    assert list(read_snapshot(tmp_path, verify=False)) == [row()]


def test_a_row_with_everything_comes_back_as_it_was_written(tmp_path: Path):
    full = row(
        corrections=(
            record.CorrectionPart(
                completion="3",
                text="An idea!",
                edits=(
                    Edit(start=0, end=2, quote="No", replacement="An"),
                    Edit(start=7, end=8, quote=".", replacement="!"),
                ),
            ),
        ),
        ratings=(record.RatingPart(completion="1", criterion="kind", scale="thumbs", value=1),),
        critiques=(record.CritiquePart(completion="2", text="false"),),
        missing=(record.MissingPart(completion="2", category="omits", text="air", insert_at=3),),
        demonstration="Because of the air.",
        review=SnapshotReview(verdict="ranked", ranks={"1": 1, "2": 3, "3": 2}),
        weight=0.5,
    )
    write(tmp_path, full)
    assert list(read_snapshot(tmp_path)) == [full]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": -0.5}, "weight: must not be negative"),
        ({"weight": float("nan")}, "weight: must be a finite number"),
        (
            {"review": SnapshotReview(verdict="ranked", ranks={"9": 1})},
            "field 'review', ranks: names a completion that is not in the row",
        ),
        (
            {"critiques": (record.CritiquePart(completion="9", text="x"),)},
            "field 'critiques' has a completion that is not in the row",
        ),
        (
            {
                "corrections": (
                    record.CorrectionPart(
                        completion="3",
                        text="An idea.",
                        edits=(Edit(start=0, end=2, quote="XX", replacement="An"),),
                    ),
                )
            },
            "the edits of completion 3 do not give its corrected text",
        ),
    ],
)
def test_a_row_that_contradicts_itself_is_refused(change, message: str):
    with pytest.raises(ContractError, match=message):
        row(**change)

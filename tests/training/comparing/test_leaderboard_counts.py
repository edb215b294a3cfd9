"""Votes are counted as they come; whatever was counted in whatever portions, it is what a recount gives."""

import io
import random
import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management import call_command

from annotation.choices import Purpose, Role, SourceKind, Verdict
from annotation.models import Completion, CompletionSource, Judgment, Membership, Project, Prompt, User
from annotation.record.judgment import JudgmentRecord
from annotation.services.calibration import create_session, delete_session, reveal_session
from annotation.services.judgments.submission import record_vote, submit_judgment, voted_comparison
from annotation.services.texts import create_comparison
from annotation.text.identity import text_hash
from tests import factories
from tests.records import judgment_record
from training.models import EloPoints, Slice, VoteCount, VoteLedger, Voters
from training.selectors import votes
from training.services import leaderboard
from training.services.leaderboard import count_votes, rebuild_votes, waiting

pytestmark = pytest.mark.django_db


@pytest.fixture
def sources(db: None) -> list[CompletionSource]:
    return [
        CompletionSource.objects.create(name=name, kind=SourceKind.CHECKPOINT)
        for name in ("old", "new", "odd")
    ]


def written(prompt: Prompt, source: CompletionSource, text: str) -> Completion:
    return Completion.objects.create(prompt=prompt, source=source, text=text, text_hash=text_hash(text))


def compared(project: Project, sources: list[CompletionSource], texts=("aaaa", "bb"), **prompt: Any):
    compared_prompt = factories.make_prompt(project, f"Which? {uuid.uuid4()}", **prompt)
    answers = [written(compared_prompt, source, text) for source, text in zip(sources, texts, strict=False)]
    return create_comparison(prompt=compared_prompt, completions=answers, round_number=1)


def counts_of(part: str = Slice.ALL, value: str = "") -> dict[tuple[str, str], list[int]]:
    """Wins, losses, ties and both bad by names, the lower id first."""
    counts_by_pair: dict[tuple[str, str], list[int]] = {}
    for row in VoteCount.objects.filter(slice=part, value=value).select_related("left", "right"):
        counts = counts_by_pair.setdefault((row.left.name, row.right.name), [0, 0, 0, 0])
        for place, name in enumerate(("wins", "losses", "ties", "both_bad")):
            counts[place] += getattr(row, name)
    return {pair: counts for pair, counts in counts_by_pair.items() if any(counts)}


def test_what_waits_is_counted_up_to_one_beyond_a_bound(project, alice, sources, monkeypatch):
    for _ in range(3):
        factories.make_judgment(compared(project, sources), alice, (2, 1))
    assert waiting(project) == 3
    monkeypatch.setattr("training.services.leaderboard.MOST_WAITING", 1)
    assert waiting(project) == 2


def test_a_pair_is_one_vote_with_its_lengths_and_its_places(project, alice, sources):
    judgment = factories.make_judgment(compared(project, sources), alice, (2, 1))
    assert waiting(project) == 1
    assert count_votes() == 1
    assert waiting(project) == 0
    (row,) = VoteCount.objects.filter(slice=Slice.ALL)
    shown = judgment.assignment.display_order
    first = Completion.objects.get(pk=shown[0]).source.name == "old"
    # (4 − 2) / (4 + 2) is a third: three tenths.
    assert (row.left.name, row.wins, row.losses, row.length_difference) == ("old", 0, 1, 3)
    assert row.left_first == first
    assert row.voters == Voters.PEOPLE


def test_a_ranking_gives_a_vote_for_each_pair_of_different_sources(project, alice, sources):
    old, new, odd = sources
    comparison = compared(project, [old, new, odd, odd], ("a", "b", "c", "d"))
    factories.make_judgment(comparison, alice, (1, 2, 2, 3))
    count_votes()
    assert counts_of() == {
        ("old", "new"): [1, 0, 0, 0],
        ("old", "odd"): [2, 0, 0, 0],
        # Equal ranks with the first of odd's answers, a win over the second.
        ("new", "odd"): [1, 0, 1, 0],
    }


def test_a_partial_ranking_gives_no_vote_between_what_it_does_not_order(project, alice, sources):
    old, new, odd = sources
    comparison = compared(project, [old, new, odd, odd], ("a", "b", "c", "d"))
    factories.make_judgment(comparison, alice, (0, 1, 0, 0))
    count_votes()
    # Of old and of odd's two answers nobody said which is better.
    assert counts_of() == {("old", "new"): [0, 1, 0, 0], ("new", "odd"): [2, 0, 0, 0]}


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (Verdict.EQUAL, {("old", "new"): [0, 0, 1, 0]}),
        (Verdict.BOTH_GOOD, {("old", "new"): [0, 0, 1, 0]}),
        (Verdict.BOTH_BAD, {("old", "new"): [0, 0, 0, 1]}),
        (Verdict.CANNOT_JUDGE, {}),
    ],
)
def test_what_names_no_winner_is_a_tie_and_both_bad_one_of_its_own_kind(
    project, alice, sources, verdict, expected
):
    factories.make_judgment(compared(project, sources), alice, (), verdict=verdict)
    count_votes()
    assert counts_of() == expected


def test_a_change_of_mind_takes_the_first_vote_away(project, alice, sources):
    first = factories.make_judgment(compared(project, sources), alice, (1, 2))
    count_votes()
    assert counts_of() == {("old", "new"): [1, 0, 0, 0]}
    reversed_ranks = {rank.completion_id: 3 - rank.rank for rank in first.ranks.all()}
    submit_judgment(
        assignment=first.assignment,
        annotator=alice,
        answer=judgment_record(verdict=Verdict.RANKED, ranks=reversed_ranks),
        idempotency_key=uuid.uuid4(),
    )
    count_votes()
    assert counts_of() == {("old", "new"): [0, 1, 0, 0]}


def test_counting_again_changes_nothing(project, alice, sources):
    factories.make_judgment(compared(project, sources), alice)
    count_votes()
    before = list(VoteCount.objects.order_by("pk").values())
    assert count_votes() == 0
    assert list(VoteCount.objects.order_by("pk").values()) == before


def test_rounds_tags_and_arenas_are_counted_apart(project, alice, sources):
    factories.make_judgment(compared(project, sources, tags=["tea", "hot"]), alice)
    prompt = factories.make_prompt(project, "Held out?")
    answers = [written(prompt, source, source.name) for source in sources[:2]]
    arena = voted_comparison(prompt=prompt, completions=answers, round_number=2, purpose=Purpose.ARENA)
    guest = factories.make_user("guest", is_guest=True, is_active=False)
    record_vote(
        comparison=arena,
        voter=guest,
        shown=[answer.pk for answer in answers],
        answer=judgment_record(verdict=Verdict.RANKED, ranks={answers[0].pk: 2, answers[1].pk: 1}),
        idempotency_key=uuid.uuid4(),
    )
    count_votes()
    assert counts_of(Slice.ROUND, "1") == counts_of(Slice.TAG, "tea") == counts_of(Slice.TAG, "hot")
    assert counts_of(Slice.ROUND, "1") == {("old", "new"): [1, 0, 0, 0]}
    assert counts_of(Slice.ROUND, "2") == counts_of(Slice.ARENA) == {("old", "new"): [0, 1, 0, 0]}
    assert VoteCount.objects.get(slice=Slice.ARENA).voters == Voters.GUESTS


def test_gold_and_what_is_asked_again_are_no_votes(project, alice, sources):
    project.retest_share = 0.0
    gold = factories.make_gold_item(project)
    assert gold.purpose == Purpose.GOLD
    first = factories.make_judgment(compared(project, sources), alice)
    from annotation.services.assignments.leases import lease

    again = lease(first.comparison, alice, slot=None, retest_of=first.assignment)
    submit_judgment(
        assignment=again,
        annotator=alice,
        answer=judgment_record(
            verdict=Verdict.RANKED, ranks={rank.completion_id: rank.rank for rank in first.ranks.all()}
        ),
        idempotency_key=uuid.uuid4(),
    )
    count_votes()
    assert counts_of() == {("old", "new"): [1, 0, 0, 0]}


def test_a_judgment_that_becomes_visible_late_is_counted_when_it_does(
    project, alice, bob, sources, monkeypatch
):
    """On PostgreSQL a transaction may draw a lower id and commit after one with a higher id."""
    count_votes()
    late = factories.make_judgment(compared(project, sources), alice, (2, 1))
    factories.make_judgment(compared(project, sources), bob)
    not_committed = SimpleNamespace(
        objects=SimpleNamespace(filter=lambda *a, **k: Judgment.objects.filter(*a, **k).exclude(pk=late.pk))
    )
    with monkeypatch.context() as patch:
        patch.setattr(leaderboard, "Judgment", not_committed)
        count_votes()
    assert counts_of() == {("old", "new"): [1, 0, 0, 0]}
    first, last, _ = VoteLedger.objects.get().holes[-1]
    assert first <= late.pk <= last
    count_votes()
    assert counts_of() == {("old", "new"): [1, 1, 0, 0]}
    count_votes()
    assert counts_of() == {("old", "new"): [1, 1, 0, 0]}


def test_corrected_tags_move_the_votes_of_their_prompt(project, alice, sources):
    comparison = compared(project, sources, tags=["tee"])
    factories.make_judgment(comparison, alice)
    count_votes()
    comparison.prompt.tags = ["tea"]
    comparison.prompt.save()
    count_votes()
    assert counts_of(Slice.TAG, "tee") == {}
    assert counts_of(Slice.TAG, "tea") == {("old", "new"): [1, 0, 0, 0]}


def test_votes_of_a_calibration_session_count_from_its_reveal_on_and_not_before(
    project, alice, bob, carol, sources, monkeypatch
):
    # A gap in the keys is looked back at for so long only; a talk may come days later.
    monkeypatch.setattr(leaderboard, "_HOLE_SECONDS", 0)
    counted, hidden = compared(project, sources), compared(project, sources, ("cccc", "dd"))
    factories.make_judgment(counted, alice)
    factories.make_judgment(hidden, alice)
    count_votes()
    assert counts_of() == {("old", "new"): [2, 0, 0, 0]}
    session = create_session(
        project=project,
        created_by=carol,
        name="Spring",
        participants=[alice.pk, bob.pk],
        comparisons=[hidden.pk],
    ).session
    count_votes()
    assert counts_of() == {("old", "new"): [1, 0, 0, 0]}
    reveal_session(session=session, revealed_by=carol)
    count_votes()
    assert counts_of() == {("old", "new"): [2, 0, 0, 0]}


def test_a_deleted_calibration_session_hides_no_vote_from_the_counts(project, alice, bob, carol, sources):
    comparison = compared(project, sources)
    factories.make_judgment(comparison, alice)
    session = create_session(
        project=project,
        created_by=carol,
        name="Spring",
        participants=[alice.pk, bob.pk],
        comparisons=[comparison.pk],
    ).session
    count_votes()
    assert counts_of() == {}
    delete_session(session=session, deleted_by=carol)
    count_votes()
    assert counts_of() == {("old", "new"): [1, 0, 0, 0]}


@pytest.mark.parametrize("seed", range(6))
def test_votes_counted_in_portions_are_those_of_a_count_from_the_beginning(
    project, sources, seed, monkeypatch
):
    """Rankings, ties, changes of mind, several people and projects, counted at random moments."""
    chance = random.Random(seed)
    monkeypatch.setattr(leaderboard, "BATCH", chance.choice((1, 3, 50)))
    monkeypatch.setattr(leaderboard, "_CHUNK", chance.choice((1, 2, 50)))
    other = factories.make_project(slug="coffee")
    people = [factories.make_user(f"voter{number}") for number in range(3)]
    Membership.objects.bulk_create(
        Membership(project=joined_project, user=person, role=Role.ANNOTATOR)
        for joined_project in (project, other)
        for person in people
    )
    votes_cast: list[tuple[Judgment, User]] = []
    for _ in range(25):
        if votes_cast and chance.random() < 0.4:
            judgment, person = chance.choice(votes_cast)
            submit_judgment(
                assignment=judgment.assignment,
                annotator=person,
                answer=random_answer(judgment.comparison, chance),
                idempotency_key=uuid.uuid4(),
            )
        else:
            drawn = chance.choices(sources, k=chance.choice((2, 2, 3, 4)))
            tags = chance.sample(["a", "b", "c"], k=chance.randint(0, 3))
            texts = [chance.choice("xyz") * chance.randint(0, 9) + str(n) for n in range(4)]
            comparison = compared(chance.choice((project, other)), drawn, texts, tags=tags)
            person = chance.choice(people)
            assignment = factories.lease_to(comparison, person)
            judgment = submit_judgment(
                assignment=assignment,
                annotator=person,
                answer=random_answer(comparison, chance),
                idempotency_key=uuid.uuid4(),
            )
            votes_cast.append((judgment, person))
        if chance.random() < 0.3:
            count_votes()
    count_votes()
    before = state()
    assert any(any(counts) for counts in before[0].values())
    for counted_project in (project, other):
        rebuild_votes(project=counted_project, batch=chance.choice((1, 4, 1000)))
    after = state()
    assert before[0] == after[0]
    assert before[1] == pytest.approx(after[1])
    output = io.StringIO()
    call_command("count_votes", project.slug, "--rebuild", stdout=output)
    assert state()[0] == before[0]
    assert "judgments counted anew" in output.getvalue()


def random_answer(comparison, chance: random.Random) -> JudgmentRecord:
    ids = list(comparison.candidates.values_list("completion_id", flat=True))
    verdict = chance.choice([Verdict.RANKED] * 4 + [Verdict.EQUAL, Verdict.BOTH_BAD, Verdict.CANNOT_JUDGE])
    if verdict != Verdict.RANKED:
        return judgment_record(verdict=verdict)
    ranks = list(range(1, len(ids) + 1))
    chance.shuffle(ranks)
    if len(ids) > 2 and chance.random() < 0.5:
        ranks[0] = ranks[1]
    return judgment_record(verdict=verdict, ranks=dict(zip(ids, ranks, strict=True)))


def state():
    names = leaderboard._KEY
    counts = {
        tuple(getattr(row, name) for name in names): (row.wins, row.losses, row.ties, row.both_bad)
        for row in VoteCount.objects.all()
    }
    points = {(row.project_id, row.source_id): row.points for row in EloPoints.objects.all()}
    return {key: counted for key, counted in counts.items() if any(counted)}, points


def test_models_that_judge_are_told_apart_and_move_no_elo(project, sources):
    machine = User.objects.create_user(username="machine", is_machine=True, is_active=False)
    comparison = compared(project, sources)
    ids = [completion.pk for completion in comparison.completions.order_by("pk")]
    record_vote(
        comparison=comparison,
        voter=machine,
        shown=ids,
        answer=judgment_record(verdict=Verdict.RANKED, ranks={ids[0]: 1, ids[1]: 2}),
        idempotency_key=uuid.uuid4(),
    )
    count_votes()
    assert set(VoteCount.objects.values_list("voters", flat=True)) == {Voters.MODELS}
    assert not EloPoints.objects.exists()


def test_two_who_count_at_once_count_once(project, alice, sources, monkeypatch):
    factories.make_judgment(compared(project, sources), alice, (1, 2))
    read = votes.judged
    others: list[int] = []

    def read_while_another_counts(ids):
        rows = read(ids)
        if not others:
            others.append(0)
            others[0] = leaderboard._count_batch()
        return rows

    monkeypatch.setattr(leaderboard, "judged", read_while_another_counts)
    assert leaderboard._count_batch() == 0
    assert others == [1]
    assert counts_of() == {("old", "new"): [1, 0, 0, 0]}

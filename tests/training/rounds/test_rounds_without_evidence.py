"""A round that nothing decides: the loop goes on with its parent, and people's judgments decide."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from pytest_django import DjangoDbBlocker

from annotation.errors import Refusal
from annotation.models import AuditEntry, Comparison, Project, User
from tests import factories
from tests.stored_rows import StoredRows
from tests.training.conftest import judge_all, make_cast, make_prompts, store_rows
from tests.training.engine.fake_server import FakeServer
from tests.training.rounds.round_scenes import deeds
from training.choices import RoundState, RoundVerdict
from training.models import Checkpoint, Round
from training.services.rounds.controls import open_first_round, start_round
from training.services.rounds.deciding import promote_round, reject_round
from training.services.rounds.executor import advance_round, sweep

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_trainer")]

HELD_OUT = 22
NEW = "tea-round-1-policy"


def text_of(body: dict[str, Any]) -> str:
    """Return what the model server answers: as long as the model's name, and of the seed."""
    return f"{len(body['model'])} and {body['seed']}"


@pytest.fixture(scope="module")
def undecided_rows(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker, tmp_path_factory: pytest.TempPathFactory
) -> StoredRows:
    """Rows and runs of `undecided`."""
    server = FakeServer()

    def make() -> None:
        project = make_cast()
        make_prompts(project)
        round_ = open_first_round(project=project)
        advance_round(round_.pk)
        judge_all(project, User.objects.get(username="alice"))
        # They come after round 1 was answered, so that its own answers are not in the way.
        for number in range(HELD_OUT):
            factories.make_prompt(project, f"Held out {number}", split="held-out")
        server.text = text_of
        start_round(round_=round_, started_by=User.objects.get(username="carol"))
        advance_round(round_.pk)

    return store_rows(make, django_db_blocker, tmp_path_factory.mktemp("undecided") / "home", server)


@pytest.fixture
def undecided(undecided_rows: StoredRows, project: Project, fake_server: FakeServer) -> Round:
    """Round 1, trained by the default recipe on few judgments: nothing shows that it is better or worse."""
    fake_server.text = text_of
    return Round.objects.get(number=1)


def test_the_default_recipe_ends_a_small_round_without_enough_evidence(undecided: Round):
    assert undecided.state == RoundState.NOT_ENOUGH_EVIDENCE
    assert undecided.verdict == RoundVerdict.NOT_ENOUGH_EVIDENCE
    assert deeds(undecided)[-1] == ("round.not_enough_evidence", None)
    # 94 comparisons would show a win rate of 70 %; there are only 22 held-out prompts.
    assert "22 of the wanted 94 blind comparisons" in undecided.reason_texts[-1]


def test_the_next_round_goes_on_with_the_parent_and_asks_people_about_both(undecided: Round):
    second = Round.objects.get(number=2)
    assert (second.state, second.policy) == (RoundState.SAMPLING, undecided.policy)
    comparisons = Comparison.objects.filter(round_number=2)
    assert comparisons.count() == HELD_OUT
    assert {pair.prompt.split for pair in comparisons} == {"held-out"}
    advance_round(second.pk)
    for comparison in Comparison.objects.filter(round_number=2):
        writers = {completion.source.name for completion in comparison.completions.all()}
        assert writers == {undecided.policy.name, NEW}


def test_held_out_pairs_are_what_annotators_get_first(undecided: Round, bob: User):
    advance_round(Round.objects.get(number=2).pk)
    first = judge_all(undecided.project, bob)[:HELD_OUT]
    assert {assignment.comparison.prompt.split for assignment in first} == {"held-out"}


@pytest.mark.parametrize(("prefers_new", "end"), [(True, "promoted"), (False, "rejected")])
def test_peoples_judgments_decide_once_they_show_something(
    undecided: Round, alice: User, prefers_new: bool, end: str
):
    second = Round.objects.get(number=2)
    judged = list(Comparison.objects.filter(round_number=2).order_by("pk"))
    for count, comparison in enumerate(judged, start=1):
        if count == 10:
            # Nine answers are too few for people and model.
            sweep()
            undecided.refresh_from_db()
            assert undecided.state == RoundState.NOT_ENOUGH_EVIDENCE
        writers = comparison.candidates.order_by("index").values_list("completion__source__name", flat=True)
        ranks = [1 if (name == NEW) == prefers_new else 2 for name in writers]
        factories.make_judgment(comparison, alice, ranks=ranks)
    sweep()
    undecided.refresh_from_db()
    second.refresh_from_db()
    assert undecided.state == end
    assert second.policy.name == (NEW if prefers_new else undecided.policy.name)
    # It takes no new answers: both have answered its prompts.
    assert Round.objects.count() == 2


def test_once_the_next_round_trains_the_round_before_stays_as_it_is(
    undecided: Round, alice: User, carol: User
):
    second = Round.objects.get(number=2)
    advance_round(second.pk)
    judge_all(undecided.project, alice)
    start_round(round_=second, started_by=carol)
    sweep()
    with pytest.raises(Refusal, match="trains or has trained"):
        promote_round(round_=undecided, actor=carol, note="After all.")
    undecided.refresh_from_db()
    assert undecided.state == RoundState.NOT_ENOUGH_EVIDENCE


def test_the_new_policy_is_not_lost_by_the_next_round_that_trains_the_parent(
    undecided: Round, alice: User, carol: User
):
    second = Round.objects.get(number=2)
    advance_round(second.pk)
    judge_all(undecided.project, alice)
    start_round(round_=second, started_by=carol)
    advance_round(second.pk)
    second.refresh_from_db()
    assert second.finished_at is not None
    assert Checkpoint.objects.filter(name=NEW).exists()


@pytest.mark.parametrize("decide_by_hand", [promote_round, reject_round])
def test_a_person_decides_only_with_a_reason_which_is_kept(
    undecided: Round, carol: User, decide_by_hand: Callable[..., None]
):
    for empty in ("", "  "):
        with pytest.raises(Refusal, match="write down why"):
            decide_by_hand(round_=undecided, actor=carol, note=empty)
    decide_by_hand(round_=undecided, actor=carol, note=" I read all 22 pairs. ")
    assert undecided.decision_note == "I read all 22 pairs."
    entry = AuditEntry.objects.filter(subject_id=undecided.pk, action__startswith="round.").latest("pk")
    assert (entry.actor, entry.details["note"]) == (carol, "I read all 22 pairs.")


def test_page_and_api_say_in_a_paragraph_what_was_compared_and_what_would_change_it(
    undecided: Round, carol: User, client_of: Callable[[User], Client]
):
    client = client_of(carol)
    sentences = [
        f"{NEW} was compared with its parent {undecided.policy.name}. Held-out prompts: 22; identical "
        "responses on 0 of them",
        "The reward model tea-round-1-reward scored all of them, and people submitted 0 annotations",
        "There is not enough evidence",
        "at least 20 prompts with different responses",
        "the next round continues from the parent",
    ]
    page = client.get("/projects/tea/rounds/1/").content.decode()
    fragment = client.get("/projects/tea/rounds/1/progress/").content.decode()
    report = client.get(f"/checkpoints/{NEW}/evaluation/").content.decode()
    body = client.get("/api/v1/projects/tea/rounds/1/").json()
    for text in (page, fragment, report, body["summary"]):
        assert [sentence for sentence in sentences if sentence not in text] == []
    assert (body["verdict"], body["decision_note"]) == ("not_enough_evidence", "")
    assert {"promote", "reject"} <= set(body["offered"])


def test_the_page_asks_for_the_reason_and_shows_it(
    undecided: Round, carol: User, client_of: Callable[[User], Client]
):
    client = client_of(carol)
    assert 'name="reason"' in client.get("/projects/tea/rounds/1/promote/").content.decode()
    client.post("/projects/tea/rounds/1/promote/", {"reason": ""})
    undecided.refresh_from_db()
    assert undecided.state == RoundState.NOT_ENOUGH_EVIDENCE
    client.post("/projects/tea/rounds/1/promote/", {"reason": "I read all 22 pairs."})
    undecided.refresh_from_db()
    assert undecided.state == RoundState.PROMOTED
    assert Round.objects.get(number=2).policy.name == NEW
    assert "I read all 22 pairs." in client.get("/projects/tea/rounds/1/").content.decode()

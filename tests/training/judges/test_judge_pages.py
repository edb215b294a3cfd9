"""Pages about a judge for managers: figures worked out by hand, replies, the form; and other servers."""

import uuid
from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse

from annotation.choices import JobState
from annotation.errors import NotAllowed, Refusal
from annotation.models import AuditEntry, Project, User
from annotation.services.assignments.next import assign_next
from annotation.services.judgments.submission import submit_judgment
from tests import factories
from tests.records import judgment_record
from tests.refusals import refused
from tests.training.judges.judge_scene import FakeJudge, first_shown, install, longest, make_pairs, work
from training.judging import DEFAULT_TEMPLATE
from training.models import Checkpoint, Judge
from training.selectors.judges import report_of
from training.services.checkpoints import register_served_model, register_starter
from training.services.judges import create_judge

pytestmark = pytest.mark.django_db

SignIn = Callable[[User], Client]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeJudge:
    return install(monkeypatch)


@pytest.fixture
def machine(project: Project, carol: User, server: FakeJudge) -> Judge:
    return create_judge(
        project=project, name="Judge", checkpoint=register_starter(name="starter"), created_by=carol
    )


def label(project: Project, person: User, *, long_wins: list[bool]) -> None:
    """The person judges what comes next: the longer answer wins, or the shorter one."""
    for wins in long_wins:
        leased = assign_next(project=project, annotator=person)
        assert leased is not None
        texts = sorted(
            leased.comparison.completions.all(), key=lambda completion: len(completion.text), reverse=wins
        )
        answer = judgment_record(
            verdict="ranked", ranks={completion.pk: rank for rank, completion in enumerate(texts, start=1)}
        )
        submit_judgment(assignment=leased, annotator=person, answer=answer, idempotency_key=uuid.uuid4())


def test_agreement_with_people_is_counted_over_pairs_of_answers(
    machine: Judge, project: Project, alice: User, bob: User
):
    project.overlap = 2
    project.save()
    make_pairs(project, 4)
    work(machine)
    # The judge prefers the longer answer of all four pairs; recorded is the shorter one first, so it says
    # "second" each time. Alice agrees on three of four, Bob on one of the two that he judges.
    label(project, alice, long_wins=[True, True, True, False])
    label(project, bob, long_wins=[True, False])
    report = report_of(machine)
    assert (report.judged, report.shared, report.skipped) == (4, 4, 0)
    assert report.verdicts == {"ranked": 4}
    # Units: Alice 4, Bob 2; agreeing 3 + 1 of 6.
    assert report.agreement.value == pytest.approx(4 / 6)
    # The judge says one and the same always, so chance agrees as often as it does: kappa is 0.
    assert report.kappa.value == pytest.approx(0.0)
    # Both people judged the first two pairs: they agree on the first and not on the second.
    assert report.among_people.value == pytest.approx(0.5)
    # In both orders the longer one won: once shown first, once second.
    assert report.position.estimate.value == pytest.approx(0.5)
    assert (report.position.wins, report.position.decided) == (4, 8)
    assert report.same_in_all_orders.value == 1.0


def test_kappa_is_what_two_by_two_tables_give(
    machine: Judge, project: Project, alice: User, server: FakeJudge
):
    comparisons = make_pairs(project, 4)
    texts = [completion.text for comparison in comparisons[:2] for completion in comparison.completions.all()]

    def says(answers: list[str], body: dict[str, object]) -> str:
        long_first = len(answers[0]) > len(answers[1])
        # The longer one of the first two pairs, the shorter one of the others.
        best_is_first = long_first if answers[0] in texts else not long_first
        return f"So.\nRanking: {'A > B' if best_is_first else 'B > A'}"

    server.says = says
    work(machine)
    label(project, alice, long_wins=[True, False, False, False])
    report = report_of(machine)
    # Judge: long, long, short, short. Alice: long, short, short, short. They agree on 3 of 4; by chance
    # ½ · ¼ + ½ · ¾ = ½, so kappa = (¾ − ½) / (1 − ½) = ½.
    assert report.agreement.value == pytest.approx(0.75)
    assert report.kappa.value == pytest.approx(0.5)


def test_agreement_with_a_partial_ranking_counts_the_pairs_that_it_orders(
    machine: Judge, project: Project, alice: User, server: FakeJudge
):
    comparison = factories.make_comparison(project, ["a", "bbb", "cc"])
    server.says = longest
    work(machine)
    # The judge: bbb > cc > a. Alice puts cc above the others: alike on cc-a, not on cc-bbb; of a-bbb she says
    # nothing.
    factories.make_judgment(comparison, alice, (0, 0, 1))
    assert report_of(machine).agreement.value == pytest.approx(1 / 2)


def test_a_judge_that_leans_to_the_first_place_is_seen_to(
    machine: Judge, project: Project, server: FakeJudge
):
    make_pairs(project, 3)
    server.says = first_shown
    work(machine)
    report = report_of(machine)
    assert report.position.estimate.value == 1.0
    assert report.same_in_all_orders.value == 0.0
    assert report.verdicts == {"equal": 3}
    assert report.agreement.value is None


def test_a_manager_adds_watches_and_pauses_a_judge(
    project: Project, carol: User, client_of: SignIn, server: FakeJudge
):
    register_starter(name="starter")
    make_pairs(project)
    client = client_of(carol)
    address = reverse("judges", args=[project.slug])
    assert "No model judges in this project." in client.get(address).content.decode()
    checkpoint = Checkpoint.objects.get()
    sent = {"name": "Sonnet", "checkpoint": checkpoint.pk, "max_tokens": 256, "template": DEFAULT_TEMPLATE}
    refused = client.post(address, {**sent, "template": "{answers}"})
    assert refused.status_code == 422
    assert "lacks {conversation}" in refused.content.decode()
    page = client.get(address).content.decode()
    assert page.index("The newest, whichever that is") < page.index("Round 2") < page.index("Round 1")
    assert client.post(address, {**sent, "round_number": "3"}).status_code == 422
    first = {**sent, "name": "Of the first", "round_number": "1"}
    assert client.post(address, first).status_code == 302
    assert Judge.objects.get(name="Of the first").round_number == 1
    assert client.post(address, sent).status_code == 302
    judge = Judge.objects.get(name="Sonnet")
    assert judge.round_number is None
    assert (judge.max_tokens, judge.most_tokens, judge.template) == (256, None, DEFAULT_TEMPLATE)
    work(judge)
    page = client.get(judge.get_absolute_url()).content.decode()
    for phrase in ("It says more.", "nothing left to judge", "starter", "2 ranked"):
        assert phrase in page
    client.post(reverse("judge-set", args=[project.slug, judge.pk]), {"pause": "1"})
    judge.refresh_from_db()
    assert not judge.is_active
    assert "paused" in client.get(address).content.decode()
    client.post(reverse("judge-set", args=[project.slug, judge.pk]), {"resume": "1"})
    judge.refresh_from_db()
    assert (judge.is_active, judge.state) == (True, JobState.FINISHED)


def test_a_judge_is_not_found_through_another_project(
    machine: Judge, project: Project, admin: User, client_of: SignIn
):
    other = Project.objects.create(name="Coffee", slug="coffee")
    assert client_of(admin).get(reverse("judge", args=[other.slug, machine.pk])).status_code == 404


# ── Models of other servers ───────────────────────────────────────────────────────────


def test_an_administrator_writes_down_a_model_of_another_server(
    project: Project, admin: User, client_of: SignIn, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RONDO_SERVER_KEY_LAB", "very-secret")
    sent = {
        "name": "judge-70b",
        "url": "https://models.example/v1",
        "model": "org/judge-70b",
        "key": "RONDO_SERVER_KEY_LAB",
    }
    response = client_of(admin).post(reverse("served-model"), sent, follow=True)
    checkpoint = Checkpoint.objects.get(name="judge-70b")
    assert (checkpoint.kind, checkpoint.server_model, checkpoint.server_key) == (
        "starter",
        "org/judge-70b",
        "RONDO_SERVER_KEY_LAB",
    )
    assert "very-secret" not in response.content.decode()
    assert "very-secret" not in str(AuditEntry.objects.values())
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": "a/b"}, "name"),
        ({"name": "taken"}, "name"),
        ({"url": "http://127.0.0.1:8001"}, "url"),
        ({"url": "file:///etc/passwd"}, "url"),
        ({"key": "RONDO_SECRET_KEY"}, "key"),
        ({"key": "RONDO_SERVER_KEY_UNSET"}, "key"),
    ],
)
def test_what_is_no_server_is_refused_by_its_field(changes: dict[str, str], field: str, admin: User):
    register_starter(name="taken")
    fields = {"name": "judge", "url": "https://models.example", "model": "", "key": "", **changes}
    with pytest.raises(Refusal) as caught:
        register_served_model(
            name=fields["name"], url=fields["url"], model=fields["model"], key=fields["key"], by=admin
        )
    assert caught.value.field == field
    assert Checkpoint.objects.count() == 1


def test_only_an_administrator_may_choose_an_address_and_a_key(carol: User, project: Project):
    with refused("administrator_changes_served_models", NotAllowed):
        register_served_model(name="judge", url="https://models.example", by=carol)

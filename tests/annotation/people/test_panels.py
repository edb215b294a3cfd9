"""Panels: consent, a fixed number of annotations, attention checks, codes, and nothing else in reach."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client
from django.urls import NoReverseMatch, reverse
from django.utils import timezone

from annotation.choices import ParticipantState, Purpose, Role
from annotation.errors import Refusal
from annotation.models import AuditEntry, Membership, Panel, PanelParticipant, Project, User
from annotation.services import panels
from annotation.services.assignments.leases import skip_assignment
from annotation.services.panels import begin, finish
from annotation.services.people.accounts import erase_account
from tests import factories
from tests.api.scene import Asker
from webapp.security.middleware import FOR_PARTICIPANTS

pytestmark = pytest.mark.django_db
ClientOf = Callable[[User], Client]
IDS = {"PROLIFIC_PID": "p1", "STUDY_ID": "s1", "SESSION_ID": "x1"}


def address_of(secret: str) -> str:
    return reverse("panel", kwargs={"secret": secret})


def joined(secret: str, **ids: str) -> Client:
    client = Client()
    answer = client.post(address_of(secret), {**IDS, **ids, "agreed": "1"})
    assert answer.status_code == 302, answer.content.decode()
    return client


def refusal_of(call: Callable[[], object]) -> str:
    with pytest.raises(Refusal) as raised:
        call()
    return raised.value.code


def judge(project: Project, person: User, *, right: bool = True) -> None:
    """One more annotation of a gold item."""
    from tests.annotation.statistics.statistics_scene import item, say

    gold = item(project, purpose=Purpose.GOLD, known=[1, 2])
    say(gold, person, [1, 2] if right else [2, 1])


# ── Beginning ─────────────────────────────────────────────────────────────────────────


def test_a_participant_reads_agrees_and_labels_as_an_annotator_of_this_project_alone(
    project: Project, carol: User
):
    factories.make_comparison(project)
    _panel, secret = factories.make_panel(project, carol)
    visitor = Client()
    page = visitor.get(address_of(secret), IDS).content.decode()
    assert "<strong>annotations</strong>" in page
    assert 'value="p1"' in page
    assert visitor.post(address_of(secret), IDS).status_code == 422
    assert not PanelParticipant.objects.exists()
    client = joined(secret)
    participant = PanelParticipant.objects.get()
    assert (participant.participant, participant.study, participant.session) == ("p1", "s1", "x1")
    membership = Membership.objects.get(user=participant.user)
    assert (membership.project, membership.role, membership.total_limit) == (project, Role.ANNOTATOR, 2)
    assert client.get(reverse("label", args=[project.slug])).status_code == 200
    assert not participant.user.has_usable_password()
    assert AuditEntry.objects.filter(action="panel.join", actor=participant.user).exists()


def test_who_comes_back_is_the_same_person_and_goes_on(project: Project, carol: User):
    _panel, secret = factories.make_panel(project, carol)
    joined(secret)
    joined(secret)
    assert User.objects.filter(is_participant=True).count() == 1
    joined(secret, PROLIFIC_PID="p2")
    assert User.objects.filter(is_participant=True).count() == 2


def test_a_member_who_follows_the_link_stays_who_they_are(
    project: Project, alice: User, carol: User, client_of: ClientOf
):
    _panel, secret = factories.make_panel(project, carol)
    client = client_of(alice)
    client.post(address_of(secret), {**IDS, "agreed": "1"})
    assert not PanelParticipant.objects.exists()
    assert client.session["_auth_user_id"] == str(alice.pk)


def test_a_closed_revoked_full_or_unknown_link_opens_nothing(project: Project, carol: User):
    panel, secret = factories.make_panel(project, carol, most_participants=1)
    assert Client().get(address_of(secret[:-1] + "_")).status_code == 410
    begin(panel=panel, participant="p1")
    assert refusal_of(lambda: begin(panel=panel, participant="p2")) == "panel_full"
    Panel.objects.update(closes_at=timezone.now() - timedelta(seconds=1))
    assert Client().get(address_of(secret), IDS).status_code == 410
    assert refusal_of(lambda: begin(panel=panel, participant="p1")) == "panel_closed"
    Panel.objects.update(closes_at=timezone.now() + timedelta(days=1))
    panels.revoke_panel(panel=panel, revoked_by=carol)
    panels.revoke_panel(panel=panel, revoked_by=carol)
    assert Client().get(address_of(secret), IDS).status_code == 410
    assert AuditEntry.objects.filter(action="panel.revoke").count() == 1


def test_the_secret_is_stored_nowhere(project: Project, carol: User):
    panel, secret = factories.make_panel(project, carol)
    assert secret not in str(Panel.objects.values().get(pk=panel.pk))
    assert len(secret) >= 43


@pytest.mark.parametrize("participant", ["", "p" * 101])
def test_an_id_that_is_none_is_refused(project: Project, carol: User, participant: str):
    panel, _secret = factories.make_panel(project, carol)
    assert refusal_of(lambda: begin(panel=panel, participant=participant)) == "participant_id_invalid"


def test_one_address_begins_only_so_often(project: Project, carol: User, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(panels, "BEGUN_OF_ADDRESS", {1: 2})
    panel, secret = factories.make_panel(project, carol)
    for number in range(2):
        begin(panel=panel, participant=f"p{number}", address="192.0.2.1")
    late = lambda: begin(panel=panel, participant="p9", address="192.0.2.1")  # noqa: E731
    assert refusal_of(late) == "too_many_participants"
    begin(panel=panel, participant="p9", address="192.0.2.2")
    monkeypatch.setattr(panels, "BEGUN_A_MINUTE", 3)
    assert Client().post(address_of(secret), {**IDS, "participant": "p10", "agreed": "1"}).status_code == 429


# ── Nothing else in reach ─────────────────────────────────────────────────────────────


def test_a_participant_reaches_no_other_page_and_no_operation_of_the_api(project: Project, carol: User):
    from tests.architecture.address_table import TABLE

    factories.make_comparison(project)
    _panel, secret = factories.make_panel(project, carol)
    client = joined(secret)
    values = {"slug": project.slug, "pk": 1, "name": "x", "key": "x", "secret": "x", "kind": "how-to"}
    walked = 0
    for name, (method, _expected) in TABLE.items():
        if name in FOR_PARTICIPANTS:
            continue
        for names in ((), ("slug",), ("pk",), ("slug", "pk"), ("name",), ("slug", "key"), ("kind", "name")):
            try:
                address = reverse(name, kwargs={part: values[part] for part in names})
            except NoReverseMatch:
                continue
            answer = client.get(address) if method == "GET" else client.post(address)
            assert answer.status_code == 404 or address.startswith("/health"), (name, answer.status_code)
            walked += 1
            break
    assert walked > 100
    for address in ("/api/v1/projects/", f"/api/v1/projects/{project.slug}/", "/api/v1/me/", "/admin/"):
        assert client.get(address).status_code == 404


def test_another_project_does_not_exist_for_a_participant(project: Project, carol: User):
    other = factories.make_project(slug="other", managers=[carol])
    factories.make_comparison(other)
    _panel, secret = factories.make_panel(project, carol)
    assert joined(secret).get(reverse("label", args=["other"])).status_code == 404


def test_the_labelling_page_of_a_participant_links_to_no_page_that_is_closed_to_them(
    project: Project, carol: User
):
    factories.make_comparison(project)
    _panel, secret = factories.make_panel(project, carol)
    client = joined(secret)
    import re

    for name in ("label", "guidelines"):
        text = client.get(reverse(name, args=[project.slug])).content.decode()
        for address in set(re.findall(r'(?:href|hx-get)="(/(?!static)[^"#?]*)', text)):
            assert client.get(address).status_code != 404, (name, address)


# ── The end ───────────────────────────────────────────────────────────────────────────


def test_the_code_comes_at_the_end_once_and_stays(project: Project, carol: User):
    factories.make_comparison(project)
    Project.objects.update(panel_hosts=["app.prolific.com"])
    project.refresh_from_db()
    _panel, secret = factories.make_panel(
        project, carol, return_address="https://app.prolific.com/submissions/complete?cc=OLD&x=1"
    )
    client = joined(secret)
    participant = PanelParticipant.objects.get()
    early = client.post(reverse("panel-done"))
    assert early.status_code == 422
    assert "DONE" not in early.content.decode()
    for _ in range(2):
        judge(project, participant.user)
    assert "DONE" not in client.get(reverse("panel-done")).content.decode()
    text = client.post(reverse("panel-done")).content.decode()
    assert "DONE" in text
    assert "https://app.prolific.com/submissions/complete?x=1&amp;cc=DONE" in text
    participant.refresh_from_db()
    assert participant.state == ParticipantState.COMPLETED
    # The link leads to the code from now on, and a host that is allowed no more gets none.
    assert client.post(address_of(secret), {**IDS, "agreed": "1"})["Location"] == reverse("panel-done")
    Project.objects.update(panel_hosts=[])
    assert "prolific" not in client.get(reverse("panel-done")).content.decode()


def test_too_many_wrong_gold_items_give_the_other_code(project: Project, carol: User):
    panel, _secret = factories.make_panel(project, carol, items=3, most_wrong=1, failed_code="FAIL")
    states = {}
    for name, wrong in (("p1", 1), ("p2", 2)):
        participant = begin(panel=panel, participant=name)
        for number in range(3):
            judge(project, participant.user, right=number >= wrong)
        states[name] = finish(participant=participant).state
    assert states == {"p1": ParticipantState.COMPLETED, "p2": ParticipantState.FAILED}
    paid = Asker(carol).get(f"/projects/{project.slug}/panels/{panel.pk}/participants/").json()
    rows = {row["participant"]: row for row in paid["participants"]}
    assert (rows["p1"]["gold_right"], rows["p1"]["gold_wrong"], rows["p1"]["code"]) == (2, 1, "DONE")
    assert (rows["p2"]["annotations"], rows["p2"]["gold_wrong"], rows["p2"]["code"]) == (3, 2, "FAIL")


def test_who_finds_nothing_left_may_finish_with_fewer_and_gets_nothing_more(project: Project, carol: User):
    panel, _secret = factories.make_panel(project, carol)
    participant = begin(panel=panel, participant="p1")
    judge(project, participant.user)
    assert finish(participant=participant).state == ParticipantState.COMPLETED
    assert Membership.objects.get(user=participant.user).total_limit == 1


def test_who_did_nothing_or_skipped_gets_no_code(project: Project, carol: User):
    panel, _secret = factories.make_panel(project, carol)
    participant = begin(panel=panel, participant="p1")
    assert refusal_of(lambda: finish(participant=participant)) == "panel_too_few"
    comparison = factories.make_comparison(project)
    assert refusal_of(lambda: finish(participant=participant)) == "panel_work_left"
    skip_assignment(
        assignment=comparison.assignments.get(), annotator=participant.user, reason="lacks knowledge"
    )
    judge(project, participant.user)
    assert refusal_of(lambda: finish(participant=participant)) == "panel_too_few"
    participant.refresh_from_db()
    assert participant.state == ParticipantState.WORKING


def test_a_closed_panel_ends_the_work_of_who_is_signed_in(project: Project, carol: User):
    factories.make_comparison(project)
    panel, secret = factories.make_panel(project, carol)
    client = joined(secret)
    panels.revoke_panel(panel=panel, revoked_by=carol)
    for name in ("label", "guidelines", "my-work"):
        answer = client.get(reverse(name, args=[project.slug]))
        assert (answer.status_code, answer["Location"]) == (302, reverse("panel-done"))
    assert client.post(reverse("panel-done")).status_code == 422


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"items": 0}, "invalid_panel_number", "items"),
        ({"days": 91}, "invalid_panel_number", "days"),
        ({"consent": " "}, "panel_field_empty", "consent"),
        ({"most_wrong": 1}, "panel_failed_code_missing", "failed_code"),
        ({"most_wrong": 1, "failed_code": "DONE"}, "panel_failed_code_missing", "failed_code"),
        ({"return_address": "https://evil.example/"}, "return_host_not_allowed", "return_address"),
        ({"return_address": "http://app.prolific.com/"}, "return_host_not_allowed", "return_address"),
        (
            {"return_address": "https://app.prolific.com@evil.example/"},
            "return_host_not_allowed",
            "return_address",
        ),
    ],
)
def test_a_panel_that_cannot_work_is_refused(
    project: Project, carol: User, fields: dict[str, object], code: str, field: str
):
    project.panel_hosts = ["app.prolific.com"]
    with pytest.raises(Refusal) as raised:
        factories.make_panel(project, carol, **fields)
    assert (raised.value.code, raised.value.field) == (code, field)


# ── The manager's side ────────────────────────────────────────────────────────────────


def test_a_manager_makes_a_link_that_is_shown_once_and_sees_and_downloads_who_came(
    project: Project, carol: User, client_of: ClientOf
):
    client = client_of(carol)
    address = reverse("panels", args=[project.slug])
    form = {
        "name": "Tea study",
        "consent": "Yes?",
        "items": 2,
        "most_participants": 5,
        "days": 3,
        "code": "DONE",
    }
    made = client.post(address, form)
    link = made.context["link"]
    secret = link.rstrip("/").rsplit("/", 1)[1]
    assert f"{link}?PROLIFIC_PID={{{{%PROLIFIC_PID%}}}}" in made.content.decode()
    assert secret not in client.get(address).content.decode()
    panel = Panel.objects.get()
    participant = begin(panel=panel, participant="=p1", study="s1")
    judge(project, participant.user)
    page = client.get(reverse("panel-participants", args=[project.slug, panel.pk]))
    (row,) = page.context["rows"]
    assert (row.annotations, row.right, row.code) == (1, 1, "")
    text = client.get(reverse("panel-file", args=[project.slug, panel.pk])).content.decode()
    assert f"'=p1,s1,,{participant.user.pseudonym},working,1,1,0,," in text
    client.post(reverse("panel-revoke", args=[project.slug, panel.pk]))
    panel.refresh_from_db()
    assert panel.revoked_at is not None


@pytest.mark.parametrize(
    ("text", "kept"),
    [("app.prolific.com\nAPP.prolific.com", ["app.prolific.com"]), ("https://x.org", []), ("localhost", [])],
)
def test_allowed_hosts_are_names_of_hosts_and_their_change_is_logged(
    project: Project, carol: User, client_of: ClientOf, text: str, kept: list[str]
):
    client_of(carol).post(reverse("panel-hosts", args=[project.slug]), {"hosts": text})
    project.refresh_from_db()
    assert project.panel_hosts == kept
    assert AuditEntry.objects.filter(action="project.settings").exists() == bool(kept)


def test_a_deleted_account_takes_the_ids_of_the_service_with_it(project: Project, carol: User):
    panel, _secret = factories.make_panel(project, carol)
    participant = begin(panel=panel, participant="p1")
    erase_account(user=participant.user)
    assert not PanelParticipant.objects.exists()


def test_the_list_of_participants_costs_as_many_queries_with_many(
    project: Project, carol: User, client_of: ClientOf, django_assert_max_num_queries
):
    panel, _secret = factories.make_panel(project, carol, most_participants=50)
    for number in range(8):
        judge(project, begin(panel=panel, participant=f"p{number}").user)
    client = client_of(carol)
    client.get(reverse("panel-participants", args=[project.slug, panel.pk]))
    with django_assert_max_num_queries(10):
        client.get(reverse("panel-participants", args=[project.slug, panel.pk]))

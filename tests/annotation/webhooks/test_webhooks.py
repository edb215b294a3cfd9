"""Webhooks as managers keep them: permissions, addresses, secrets that are shown once, and their pages."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries, Settings

from annotation.choices import DeliveryState, WebhookEvent, WhyDisabled
from annotation.errors import NotAllowed, Refusal
from annotation.models import AuditEntry, Project, User, WebhookAttempt, WebhookDelivery, WebhookEndpoint
from annotation.services import webhooks
from annotation.services.webhooks import PREFIX, resend
from tests.annotation.webhooks.webhook_scene import SUBMITTED, make_webhook
from tests.refusals import refused

pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]


@pytest.fixture
def hook(project: Project, carol: User) -> webhooks.NewSecret:
    return make_webhook(project, carol, "https://example.org/hook?key=theirs")


def change(endpoint: WebhookEndpoint, user: User, **values: Any) -> None:
    names = ("url", "description", "events", "is_enabled")
    fields: dict[str, Any] = {name: values.get(name, getattr(endpoint, name)) for name in names}
    webhooks.change_webhook(endpoint=endpoint, changed_by=user, **fields)


# ── Keeping them ──────────────────────────────────────────────────────────────────────


def test_the_secret_is_told_once_and_stands_sealed_in_the_database(hook: webhooks.NewSecret):
    stored = str(WebhookEndpoint.objects.values().get())
    assert hook.secret.startswith("whsec_")
    assert hook.secret not in stored
    assert hook.secret.removeprefix(PREFIX) not in stored
    assert hook.endpoint.open_secrets(timezone.now()) == [hook.secret]


def test_what_was_done_is_written_down_without_what_opens_the_receiver(hook: webhooks.NewSecret, carol: User):
    webhooks.rotate_secret(endpoint=hook.endpoint, rotated_by=carol)
    change(hook.endpoint, carol, is_enabled=False)
    webhooks.delete_webhook(endpoint=hook.endpoint, deleted_by=carol)
    entries = AuditEntry.objects.order_by("pk")
    assert [(entry.action, entry.actor) for entry in entries] == [
        (f"webhook.{action}", carol) for action in ("create", "rotate", "change", "delete")
    ]
    assert entries[0].details == {"host": "example.org", "events": ["judgment.submitted"]}
    assert "theirs" not in str(list(entries.values()))


@pytest.mark.parametrize("who", ["alice", "oscar"])
def test_only_managers_have_to_do_with_webhooks(
    project: Project, hook: webhooks.NewSecret, carol: User, alice: User, oscar: User, who: str
):
    user = {"alice": alice, "oscar": oscar}[who]
    delivery = webhooks.send_test(endpoint=hook.endpoint, sent_by=carol)
    for action in (
        lambda: make_webhook(project, user),
        lambda: change(hook.endpoint, user),
        lambda: webhooks.rotate_secret(endpoint=hook.endpoint, rotated_by=user),
        lambda: webhooks.delete_webhook(endpoint=hook.endpoint, deleted_by=user),
        lambda: webhooks.send_test(endpoint=hook.endpoint, sent_by=user),
        lambda: resend(delivery=delivery, sent_by=user),
    ):
        with refused("manager_changes_webhooks", NotAllowed):
            action()


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/in-the-clear",
        "ftp://example.org/",
        "https://127.0.0.1/",
        "https://[::1]/",
        "https://169.254.169.254/latest/meta-data",
        "https://10.0.0.7/hook",
        "https://me:secret@example.org/",
        "https://example.org/#part",
        "https://example.org/a b",
        f"https://example.org/{'x' * 500}",
        "example.org",
        "",
    ],
)
def test_an_address_that_rondo_does_not_ask_is_refused(project: Project, carol: User, url: str):
    with pytest.raises(Refusal) as refusal:
        make_webhook(project, carol, url)
    assert refusal.value.field == "url"


def test_a_host_that_an_administrator_lists_may_be_inside_and_without_tls(
    project: Project, carol: User, settings: Settings
):
    settings.RONDO_WEBHOOK_HOSTS = ["builder:8080"]
    make_webhook(project, carol, "http://builder:8080/hook")
    with refused("webhook_address_refused"):
        make_webhook(project, carol, "http://builder:9090/hook")


@pytest.mark.parametrize("events", [[], ["judgment.submitted", "judgment.everything"]])
def test_no_event_and_an_unknown_one_are_refused(project: Project, carol: User, events: list[str]):
    with refused("webhook_events_missing") as refusal:
        webhooks.create_webhook(project=project, url="https://example.org", events=events, created_by=carol)
    assert refusal.value.field == "events"


def test_a_project_has_only_so_many(project: Project, carol: User, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(webhooks, "MOST_WEBHOOKS", 2)
    make_webhook(project, carol)
    make_webhook(project, carol)
    with refused("too_many_webhooks", most=2):
        make_webhook(project, carol)


def test_the_flag_of_the_project_follows_its_webhooks(project: Project, carol: User):
    assert not project.has_webhooks
    first = make_webhook(project, carol).endpoint
    second = make_webhook(project, carol).endpoint
    change(first, carol, is_enabled=False)
    project.refresh_from_db()
    assert project.has_webhooks
    webhooks.delete_webhook(endpoint=second, deleted_by=carol)
    project.refresh_from_db()
    assert not project.has_webhooks
    change(first, carol, is_enabled=True)
    project.refresh_from_db()
    assert project.has_webhooks


def test_what_waits_of_a_webhook_that_is_switched_off_is_given_up_and_nothing_more_is_sent_to_it(
    hook: webhooks.NewSecret, carol: User
):
    delivery = webhooks.send_test(endpoint=hook.endpoint, sent_by=carol)
    change(hook.endpoint, carol, is_enabled=False)
    delivery.refresh_from_db()
    assert delivery.state == DeliveryState.GIVEN_UP
    for action in (
        lambda: resend(delivery=delivery, sent_by=carol),
        lambda: webhooks.send_test(endpoint=hook.endpoint, sent_by=carol),
    ):
        with refused("webhook_off"):
            action()


def test_one_that_rondo_switched_off_begins_afresh_when_it_is_switched_on(
    hook: webhooks.NewSecret, carol: User
):
    WebhookEndpoint.objects.update(
        is_enabled=False, why_disabled=WhyDisabled.FAILING, failures=9, failing_since=timezone.now()
    )
    hook.endpoint.refresh_from_db()
    change(hook.endpoint, carol, is_enabled=True)
    endpoint = hook.endpoint
    assert (endpoint.why_disabled, endpoint.failures, endpoint.failing_since) == ("", 0, None)


# ── Pages ─────────────────────────────────────────────────────────────────────────────


def test_a_manager_makes_one_and_sees_its_secret_once(project: Project, carol: User, client_of: SignIn):
    browser = client_of(carol)
    address = reverse("webhooks", args=["tea"])
    made = browser.post(
        address,
        {"url": "https://example.org/hook", "description": "Chat", "events": [SUBMITTED, "round.promoted"]},
    )
    endpoint = WebhookEndpoint.objects.get()
    [secret] = endpoint.open_secrets(timezone.now())
    assert secret in made.content.decode()
    assert secret not in browser.get(address).content.decode()
    assert secret not in browser.get(reverse("webhook", args=["tea", endpoint.pk])).content.decode()
    assert endpoint.events == [SUBMITTED, WebhookEvent.ROUND_PROMOTED]


def test_a_form_that_is_wrong_says_where(project: Project, carol: User, client_of: SignIn):
    answer = client_of(carol).post(reverse("webhooks", args=["tea"]), {"url": "https://10.0.0.1/"})
    assert answer.status_code == 422
    assert "This field is required" in answer.content.decode()
    answer = client_of(carol).post(
        reverse("webhooks", args=["tea"]), {"url": "https://10.0.0.1/", "events": [SUBMITTED]}
    )
    assert answer.status_code == 422
    assert "RONDO_WEBHOOK_HOSTS" in answer.content.decode()


def test_a_secret_is_rotated_on_the_page(hook: webhooks.NewSecret, carol: User, client_of: SignIn):
    answer = client_of(carol).post(reverse("webhook-rotate", args=["tea", hook.endpoint.pk]))
    hook.endpoint.refresh_from_db()
    new, before = hook.endpoint.open_secrets(timezone.now())
    assert before == hook.secret
    assert new in answer.content.decode()
    assert hook.endpoint.open_secrets(timezone.now() + timedelta(hours=25)) == [new]


def test_settings_are_changed_on_the_page(hook: webhooks.NewSecret, carol: User, client_of: SignIn):
    address = reverse("webhook", args=["tea", hook.endpoint.pk])
    values = {"url": "https://example.org/other", "description": "Other", "events": ["run.failed"]}
    assert client_of(carol).post(address, values).status_code == 302
    hook.endpoint.refresh_from_db()
    assert (hook.endpoint.events, hook.endpoint.is_enabled) == (["run.failed"], False)
    assert client_of(carol).post(address, {**values, "url": "no"}).status_code == 422


def test_what_a_receiver_answers_is_shown_as_text(hook: webhooks.NewSecret, carol: User, client_of: SignIn):
    delivery = webhooks.send_test(endpoint=hook.endpoint, sent_by=carol)
    WebhookAttempt.objects.create(
        delivery=delivery,
        started_at=timezone.now(),
        milliseconds=12,
        status=500,
        error="It answered 500, which is no success.",
        answer="<script>alert(1)</script>",
    )
    page = client_of(carol).get(reverse("webhook-delivery", args=["tea", delivery.pk])).content.decode()
    assert "&lt;script&gt;alert(1)" in page
    assert "<script>alert" not in page
    assert delivery.message.key in page


def test_a_message_is_sent_again_from_its_page(hook: webhooks.NewSecret, carol: User, client_of: SignIn):
    browser = client_of(carol)
    browser.post(reverse("webhook-test", args=["tea", hook.endpoint.pk]))
    delivery = WebhookDelivery.objects.get()
    WebhookDelivery.objects.update(state=DeliveryState.GIVEN_UP, next_attempt_at=None, tries_left=0)
    address = reverse("webhook-delivery", args=["tea", delivery.pk])
    assert browser.post(address, follow=True).context["delivery"].state == DeliveryState.WAITING
    again = browser.post(address, follow=True)
    assert "on its way already" in again.content.decode()


def test_managers_are_told_of_one_that_rondo_switched_off(
    hook: webhooks.NewSecret, carol: User, alice: User, client_of: SignIn
):
    home = reverse("project", args=["tea"])
    assert "A webhook was disabled" not in client_of(carol).get(home).content.decode()
    WebhookEndpoint.objects.update(is_enabled=False, why_disabled=WhyDisabled.GONE)
    assert "A webhook was disabled" in client_of(carol).get(home).content.decode()
    assert "webhook was disabled" not in client_of(alice).get(home).content.decode()
    page = client_of(carol).get(reverse("webhook", args=["tea", hook.endpoint.pk])).content.decode()
    assert "it is gone (410)" in page


def test_one_that_is_deleted_takes_along_what_was_to_be_sent(
    hook: webhooks.NewSecret, carol: User, client_of: SignIn
):
    webhooks.send_test(endpoint=hook.endpoint, sent_by=carol)
    client_of(carol).post(reverse("webhook-delete", args=["tea", hook.endpoint.pk]))
    assert not WebhookEndpoint.objects.exists()
    assert not WebhookDelivery.objects.exists()


def test_pages_cost_the_same_few_queries_for_many_rows(
    project: Project,
    hook: webhooks.NewSecret,
    carol: User,
    client_of: SignIn,
    django_assert_max_num_queries: DjangoAssertNumQueries,
):
    for _ in range(7):
        make_webhook(project, carol)
        webhooks.send_test(endpoint=hook.endpoint, sent_by=carol)
    browser = client_of(carol)
    for address in (
        reverse("webhooks", args=["tea"]),
        reverse("webhook", args=["tea", hook.endpoint.pk]),
        reverse("webhook-delivery", args=["tea", WebhookDelivery.objects.first().pk]),
    ):
        with django_assert_max_num_queries(8):
            assert browser.get(address).status_code == 200

"""The pages of webhooks, in both themes and on a phone: made, looked at, sent again."""

from django.utils import timezone
from playwright.sync_api import expect

from annotation.models import Project, User, WebhookAttempt, WebhookEndpoint
from annotation.services.webhooks import send_test
from tests.annotation.webhooks.webhook_scene import make_webhook
from tests.browser.conftest import Axe, Open


def test_the_pages_of_webhooks_have_no_barrier_and_fit_a_phone(
    project: Project, carol: User, open_as: Open, barriers: Axe
):
    hook = make_webhook(project, carol, "https://example.org/hook").endpoint
    delivery = send_test(endpoint=hook, sent_by=carol)
    WebhookAttempt.objects.create(
        delivery=delivery,
        started_at=timezone.now(),
        milliseconds=8,
        status=500,
        error="It answered 500, which is no success.",
        answer="down " * 100,
    )
    WebhookEndpoint.objects.update(is_enabled=False, why_disabled="failing", failures=3)
    page = open_as(carol, "/projects/tea/webhooks/")
    for heading in ("Webhooks", "Tests switched off", "webhook.test"):
        expect(page.get_by_role("heading", level=1)).to_have_text(heading)
        assert barriers(page) == []
        if heading != "webhook.test":
            page.locator("tbody th a").click()

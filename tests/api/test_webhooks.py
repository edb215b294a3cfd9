"""Webhooks by way of the API: made, changed, tried out, followed, and their secrets shown once."""

from annotation.models import KeptAnswer, Project, WebhookDelivery, WebhookEndpoint
from tests.api.scene import Asker

HOOKS = "/projects/tea/webhooks/"
NEW = {"url": "https://example.org/hook", "events": ["round.promoted"], "description": "Deploys"}


def test_a_program_makes_a_webhook_and_its_secret_is_kept_nowhere_in_the_clear(
    project: Project, as_carol: Asker
):
    made = as_carol.post(HOOKS, NEW, **{"Idempotency-Key": "one"})
    assert made.status_code == 201
    webhook = made.json()
    assert webhook["secret"].startswith("whsec_")
    read = as_carol.get(f"{HOOKS}{webhook['id']}/").json()
    assert read == {name: value for name, value in webhook.items() if name != "secret"}
    assert webhook["secret"] not in str(list(KeptAnswer.objects.values()))
    rotated = as_carol.post(f"{HOOKS}{webhook['id']}/secret/").json()
    assert rotated["secret"] != webhook["secret"]
    assert rotated["previous_secret_until"] is not None
    assert [row["id"] for row in as_carol.get(HOOKS).json()["results"]] == [webhook["id"]]


def test_what_is_not_sent_stays_and_what_was_changed_since_is_not_overwritten(
    project: Project, as_carol: Asker
):
    address = f"{HOOKS}{as_carol.post(HOOKS, NEW).json()['id']}/"
    tag = as_carol.get(address)["ETag"]
    changed = as_carol("PATCH", address, {"is_enabled": False}, headers={"If-Match": tag})
    assert changed.status_code == 200
    assert (changed.json()["is_enabled"], changed.json()["events"]) == (False, ["round.promoted"])
    assert (
        as_carol("PATCH", address, {"events": ["run.failed"]}, headers={"If-Match": tag}).status_code == 412
    )
    assert as_carol("PATCH", address, {"events": ["nothing"]}).status_code == 422
    assert as_carol("DELETE", address).status_code == 204
    assert not WebhookEndpoint.objects.exists()


def test_an_address_inside_is_refused_with_its_field(project: Project, as_carol: Asker):
    refused = as_carol.post(HOOKS, {**NEW, "url": "https://192.168.0.1/"})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] == "url"


def test_deliveries_are_followed_and_sent_again(project: Project, as_carol: Asker):
    hook = as_carol.post(HOOKS, NEW).json()["id"]
    sent = as_carol.post(f"{HOOKS}{hook}/test/")
    assert (sent.status_code, sent.json()["event"]) == (202, "webhook.test")
    other = as_carol.post(HOOKS, NEW).json()["id"]
    [listed] = as_carol.get(f"/projects/tea/deliveries/?webhook={hook}").json()["results"]
    assert listed == sent.json()
    assert as_carol.get(f"/projects/tea/deliveries/?webhook={other}").json()["results"] == []
    address = f"/projects/tea/deliveries/{listed['id']}/"
    assert as_carol.post(f"{address}resend/").status_code == 422
    WebhookDelivery.objects.update(state="given_up", next_attempt_at=None, tries_left=0)
    assert as_carol.get("/projects/tea/deliveries/?state=waiting").json()["results"] == []
    again = as_carol.post(f"{address}resend/")
    assert (again.status_code, again.json()["state"], again.json()["tries_left"]) == (202, "waiting", 10)
    whole = as_carol.get(address).json()
    assert whole["attempts"] == []
    assert '"type":"webhook.test"' in whole["body"]

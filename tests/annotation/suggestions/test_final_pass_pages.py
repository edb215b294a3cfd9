"""The pages of the final pass: who gets there, what they show and store, with and without a script."""

import json
import uuid
from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse

from annotation.models import Comparison, DecidedSuggestion, HelpReveal, Judgment, Project, User
from annotation.services.assignments.display_order import candidate_token
from tests import factories
from tests.annotation.suggestions.help_scene import compare, prefers, span, suggest, switch_on

pytestmark = pytest.mark.django_db

SignIn = Callable[[User], Client]
LABEL = "/projects/tea/label/"


@pytest.fixture
def comparison(project: Project, carol: User) -> Comparison:
    """One comparison with a span and a preference suggested, before Alice."""
    switch_on(project, carol)
    made = compare(project)
    suggest(
        made, span(made, "Never boil it.", text="Nobody says so."), prefers(made, (2, 1), confidence=0.75)
    )
    return made


def posted(comparison: Comparison, **more: str) -> dict[str, str]:
    """A submit in which the first candidate wins."""
    assignment = comparison.assignments.get()
    ids = list(comparison.candidates.order_by("index").values_list("completion_id", flat=True))
    return {
        "idempotency_key": str(uuid.uuid4()),
        "choice": f"win:{candidate_token(assignment, ids[0])}:2",
        "active_seconds": "20",
        **more,
    }


def first_pass(client: Client, comparison: Comparison, *, htmx: bool = True) -> str:
    """Open and submit; the text of what comes next."""
    client.get(LABEL)
    assignment = comparison.assignments.get()
    headers = {"HX-Request": "true"} if htmx else {}
    response = client.post(
        reverse("submit", args=["tea", assignment.pk]), posted(comparison), headers=headers, follow=True
    )
    assert response.status_code == 200
    return response.content.decode()


def test_suggestions_come_after_the_first_pass_and_not_before(
    comparison: Comparison, alice: User, client_of: SignIn
):
    client = client_of(alice)
    before = client.get(LABEL).content.decode()
    assert "Nobody says so." not in before
    assert 'id="help"' not in before
    # Nothing is fetched ahead: what comes next hangs on the first pass.
    assert "data-next=" not in before
    after = first_pass(client, comparison)
    assert "Nobody says so." in after
    assert "final pass" in after
    assert "75 %" in after
    # The order in letters hangs on how the two are shown.
    assert ("A &gt; B" in after) != ("B &gt; A" in after)
    assert "planted" not in after
    # Whoever comes back finds it again.
    assert 'id="help"' in client.get(LABEL).content.decode()
    revise = client.get(reverse("revise", args=["tea", comparison.assignments.get().pk]))
    assert revise.status_code == 302
    assert revise["Location"].endswith("/final/")


def test_without_a_script_accepted_suggestions_are_added(
    comparison: Comparison, alice: User, client_of: SignIn
):
    client = client_of(alice)
    assert 'id="help"' in first_pass(client, comparison, htmx=False)
    assignment, reveal = comparison.assignments.get(), HelpReveal.objects.get()
    wrong, better = comparison.suggestion_set.suggestions.order_by("pk")
    address = reverse("final-pass-submit", args=["tea", assignment.pk])
    refused = client.post(address, posted(comparison, **{f"suggestion-{wrong.pk}": "accepted"}))
    assert refused.status_code == 422
    page = refused.content.decode()
    assert "1 is left" in page
    assert page.count("checked") >= 2
    sent = {f"suggestion-{wrong.pk}": "accepted", f"suggestion-{better.pk}": "rejected"}
    assert client.post(address, posted(comparison, **sent)).status_code == 302
    final = Judgment.objects.current().get()
    assert final == HelpReveal.objects.get().final_judgment
    assert final.supersedes == reveal.first_judgment
    assert [flag.quote for flag in final.span_flags.all()] == ["Never boil it."]
    assert list(DecidedSuggestion.objects.values_list("seconds", flat=True)) == [None, None]
    # It is over: the address leads back to work.
    assert client.get(reverse("final-pass", args=["tea", assignment.pk])).status_code == 302


def test_times_are_kept_within_what_the_server_knows(comparison: Comparison, alice: User, client_of: SignIn):
    client = client_of(alice)
    first_pass(client, comparison)
    assignment, reveal = comparison.assignments.get(), HelpReveal.objects.get()
    wrong, better = comparison.suggestion_set.suggestions.order_by("pk")
    times = {wrong.pk: [10_000.0, 0], better.pk: [-5, 4_000_000_000_000], "x": "y", "1": [1]}
    sent = {
        f"suggestion-{wrong.pk}": "rejected",
        f"suggestion-{better.pk}": "rejected",
        "suggestion_times": json.dumps({key: value for key, value in times.items() if key not in ("x", "1")}),
    }
    address = reverse("final-pass-submit", args=["tea", assignment.pk])
    client.post(address, posted(comparison, **sent), headers={"HX-Request": "true"})
    first, second = DecidedSuggestion.objects.order_by("pk")
    assert first.decided_at == reveal.revealed_at
    assert first.seconds is not None
    assert 0 <= first.seconds < 60
    assert second.seconds == 0.0
    assert second.decided_at == HelpReveal.objects.get().finished_at


@pytest.mark.parametrize("times", ["[1]", "{", '{"1": 2}', '{"1": ["a", 0]}', '{"1": [1, 1e400]}'])
def test_times_that_are_none_cost_no_annotation(
    times: str, comparison: Comparison, alice: User, client_of: SignIn
):
    client = client_of(alice)
    first_pass(client, comparison)
    sent = {
        f"suggestion-{suggestion.pk}": "rejected"
        for suggestion in comparison.suggestion_set.suggestions.all()
    }
    address = reverse("final-pass-submit", args=["tea", comparison.assignments.get().pk])
    response = client.post(address, posted(comparison, **sent, suggestion_times=times))
    assert response.status_code == 302
    assert HelpReveal.objects.get().finished_at is not None


def test_a_draft_keeps_the_decisions(comparison: Comparison, alice: User, client_of: SignIn):
    client = client_of(alice)
    first_pass(client, comparison)
    wrong, _better = comparison.suggestion_set.suggestions.order_by("pk")
    saved = client.post(
        reverse("draft", args=["tea", comparison.assignments.get().pk]),
        json.dumps(
            {
                "fields": {f"suggestion-{wrong.pk}": ["changed"], "suggestion_times": ['{"7": [1, 2]}']},
                "base_version": 0,
                "saved_from": str(uuid.uuid4()),
                "is_revision": True,
            }
        ),
        content_type="application/json",
    )
    assert saved.status_code == 200
    page = client.get(LABEL).content.decode()
    assert f'name="suggestion-{wrong.pk}" value="changed" checked' in page
    assert "{&quot;7&quot;: [1, 2]}" in page


def test_the_control_arm_goes_straight_on(project: Project, carol: User, alice: User, client_of: SignIn):
    switch_on(project, carol, control_share=1.0)
    comparison = compare(project)
    suggest(comparison, span(comparison, "Never boil it."))
    after = first_pass(client_of(alice), comparison)
    assert 'id="help"' not in after
    assert "All done for now" in after
    assert HelpReveal.objects.get().arm == "control"


def test_what_was_planted_is_told_once_where_the_project_says_so(
    project: Project, carol: User, alice: User, client_of: SignIn
):
    switch_on(project, carol, tells_planted=True)
    comparison = compare(project)
    [planted] = suggest(comparison, span(comparison, "Ten hours.", original={"quote": "Never boil it."}))
    client = client_of(alice)
    assert "wrong on purpose" not in first_pass(client, comparison)
    address = reverse("final-pass-submit", args=["tea", comparison.assignments.get().pk])
    sent = posted(comparison, **{f"suggestion-{planted.pk}": "rejected"})
    after = client.post(address, sent, headers={"HX-Request": "true"}).content.decode()
    assert "1 suggestion for the previous comparison was wrong on purpose:" in after
    assert "you rejected it" in after


def test_two_open_final_passes_come_one_after_the_other(
    project: Project, carol: User, alice: User, client_of: SignIn
):
    switch_on(project, carol)
    pairs = [compare(project) for _ in range(2)]
    for pair in pairs:
        suggest(pair, span(pair, "Never boil it."))
        factories.make_judgment(pair, alice)
    client = client_of(alice)
    for pair in pairs:
        page = client.get(LABEL).content.decode()
        assert f'data-assignment="{pair.assignments.get().pk}"' in page
        sent = posted(pair, **{f"suggestion-{pair.suggestion_set.suggestions.get().pk}": "rejected"})
        client.post(reverse("final-pass-submit", args=["tea", pair.assignments.get().pk]), sent)
    assert 'id="help"' not in client.get(LABEL).content.decode()

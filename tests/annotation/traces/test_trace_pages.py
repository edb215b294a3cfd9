"""Traces on pages and in the API: folded, bounded, labelled, searched by tool."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from annotation.choices import ReviewReason, TraceStepKind
from annotation.models import Assignment, Comparison, Completion, Judgment, Project, User
from annotation.services.assignments.display_order import candidate_token, tokens_of
from annotation.services.assignments.next import assign_next
from annotation.services.reviews import open_review
from annotation.services.texts import create_comparison
from annotation.text.traces import UnwrittenStep
from tests import factories
from tests.annotation.traces.test_step_labels import label_steps

pytestmark = pytest.mark.django_db

ClientOf = Callable[[User], Client]
LONG = "".join(f"line {number} 🍵\n" for number in range(4_000))


@pytest.fixture
def pair(project: Project) -> Comparison:
    project.ask_step_labels = True
    project.save()
    prompt = factories.make_prompt(project, split="train")
    traces = [
        factories.make_trace(prompt, factories.search_steps(result=LONG)),
        factories.make_trace(prompt, factories.search_steps("<script>pwned()</script>", tool="guess")),
    ]
    return create_comparison(prompt=prompt, completions=traces, round_number=1)


@pytest.fixture
def held(pair: Comparison, project: Project, alice: User) -> Assignment:
    assignment = assign_next(project=project, annotator=alice)
    assert assignment is not None
    return assignment


def page(client: Client, name: str, *args: Any, **query: Any) -> str:
    answer = client.get(reverse(name, args=args), query)
    assert answer.status_code == 200
    return answer.content.decode()


def first_trace(comparison: Comparison) -> Completion:
    return comparison.candidates.order_by("index")[0].completion


def test_the_screen_shows_two_traces_in_rows_and_no_long_text(
    project: Project, held: Assignment, alice: User, client_of: ClientOf
):
    html = page(client_of(alice), "label", project.slug)
    # Alike are both messages; the call and the result have another tool: 2 rows of both, 4 of one.
    assert html.count('class="trace-pair__row"') == 6
    assert html.count("data-step ") == 8
    assert html.count("step step--none") == 4
    # Three steps of each are the agent's.
    assert html.count("data-step-label>") == 6
    assert "&quot;query&quot;: &quot;tea&quot;" in html
    assert "line 40 " in html
    assert "line 400 " not in html
    assert "&lt;script&gt;pwned()" in html
    assert "<script>pwned()" not in html


def test_a_text_comes_in_parts_that_make_the_whole(held: Assignment, alice: User, client_of: ClientOf):
    trace = first_trace(held.comparison)
    place = held.comparison.project.slug, held.pk, candidate_token(held, trace.pk), 2
    client, address, read = client_of(alice), reverse("label-step", args=place), ""
    while address:
        answer = client.get(address, headers={"Accept": "application/json"})
        assert answer["Content-Type"] == "application/json"
        part = answer.json()
        assert len(part["text"]) <= 20_000
        read += part["text"]
        assert part["left"] == len(LONG) - len(read)
        address = part["next"]
    assert read == LONG
    assert "line 3 " in page(client, "label-step", *place)
    for wrong in ({"from": len(LONG)}, {"from": "-1"}, {"from": "x"}):
        assert client.get(reverse("label-step", args=place), wrong).status_code == 404
    assert client.get(reverse("label-step", args=(*place[:2], "0" * 20, 2))).status_code == 404
    assert client.get(reverse("label-step", args=(*place[:3], 4))).status_code == 404


def test_labels_are_sent_with_the_form_come_back_with_it_and_stand_in_a_revision(
    project: Project, held: Assignment, alice: User, client_of: ClientOf
):
    client = client_of(alice)
    names = {pk: token for token, pk in tokens_of(held).items()}
    token = names[first_trace(held.comparison).pk]
    field = f"step-{token}-1"
    sent = {
        "idempotency_key": "7d7c6a0e-62a2-4f6d-9a5c-111111111111",
        "active_seconds": "3",
        field: "wrong",
        f"step-{token}-0": "",
    }
    refused = client.post(reverse("submit", args=[project.slug, held.pk]), sent)
    assert refused.status_code == 422
    assert f'name="{field}" value="wrong" data-label="wrong" checked' in refused.content.decode()
    sent["choice"] = f"win:{token}:4"
    assert client.post(reverse("submit", args=[project.slug, held.pk]), sent).status_code == 302
    judgment = Judgment.objects.get()
    assert [(labelled.step.index, labelled.label) for labelled in judgment.labelled_steps.all()] == [
        (1, "wrong")
    ]
    revision = page(client, "revise", project.slug, held.pk)
    assert f'name="{field}" value="wrong" data-label="wrong" checked' in revision
    for name in ("step-x-1", f"step-{token}-x", f"step-{token}-{'9' * 40}"):
        again = client.post(reverse("submit", args=[project.slug, held.pk]), {**sent, name: "wrong"})
        assert again.status_code == 422
    assert Judgment.objects.count() == 1


def test_a_project_that_does_not_ask_for_labels_shows_steps_without_fields(
    project: Project, held: Assignment, alice: User, client_of: ClientOf
):
    Project.objects.filter(pk=project.pk).update(ask_step_labels=False)
    html = page(client_of(alice), "label", project.slug)
    assert html.count("data-step ") == 8
    assert "data-step-label" not in html


def test_one_trace_stands_alone_and_a_plain_response_beside_a_trace_keeps_its_text(
    project: Project, alice: User, client_of: ClientOf
):
    prompt = factories.make_prompt(project)
    trace = factories.make_trace(prompt, factories.search_steps())
    (plain,) = factories.make_completions(prompt, ["**Two** minutes."])
    create_comparison(prompt=prompt, completions=[trace, plain], round_number=1)
    html = page(client_of(alice), "label", project.slug)
    assert html.count("data-step ") == 4
    assert "trace-pair" not in html
    assert "<strong" in html


def test_the_page_of_the_comparison_shows_steps_with_everybodys_labels(
    project: Project, alice: User, carol: User, client_of: ClientOf
):
    judgment = label_steps(project, alice)
    client = client_of(carol)
    html = page(client, "statistics-item", project.slug, judgment.comparison_id)
    assert html.count('class="trace-pair__row"') == 6
    assert 'data-value="wrong" title="alice"' in html
    view = page(client, "statistics-item", project.slug, judgment.comparison_id, view=f"a{alice.pk}")
    assert "trace-pair" not in view
    assert view.count("data-step ") == 8
    assert view.count('<span class="badge" data-value=') == 2


def test_a_reviewer_reads_the_steps_without_names(
    project: Project, alice: User, carol: User, client_of: ClientOf
):
    judgment = label_steps(project, alice)
    review = open_review(comparison=judgment.comparison, reason=ReviewReason.FLAGGED)
    html = page(client_of(carol), "review", project.slug, review.pk)
    assert html.count("data-step ") == 8
    assert 'title="alice"' not in html


def test_comparisons_are_found_by_the_tool_that_was_called(
    project: Project, pair: Comparison, carol: User, client_of: ClientOf
):
    prompt = factories.make_prompt(project, "Coffee?")
    other = factories.make_comparison(project, ["a", "b"], prompt=prompt)
    client = client_of(carol)
    everything = page(client, "data-comparisons", project.slug)
    assert f"/items/{other.pk}/" in everything
    assert '<option value="guess"' in everything
    listing = page(client, "data-comparisons", project.slug, tool="guess")
    assert f"/items/{pair.pk}/" in listing
    assert f"/items/{other.pk}/" not in listing
    answer = client.get(f"/api/v1/projects/{project.slug}/comparisons/", {"tool": "search"})
    assert [row["id"] for row in answer.json()["results"]] == [pair.pk]


def test_steps_and_their_labels_are_read_and_sent_by_the_api(
    project: Project, held: Assignment, alice: User, client_of: ClientOf
):
    client = client_of(alice)
    address = f"/api/v1/projects/{project.slug}/assignments/{held.pk}/"
    answers = client.get(address).json()["answers"]
    steps = answers[0]["steps"]
    assert [step["kind"] for step in steps] == ["message", "tool_call", "tool_result", "message"]
    call = steps[1]
    assert json.loads(answers[0]["text"][call["body"] : call["end"]]) == {"query": "tea"}
    names = [answer["answer"] for answer in answers]
    label = {"answer": names[1], "step": 3, "label": "unnecessary"}
    sent = {
        "verdict": "ranked",
        "ranks": {names[0]: 1, names[1]: 2},
        "step_labels": [label],
    }
    stored = client.post(
        f"{address}judgment/",
        sent,
        content_type="application/json",
        headers={"Idempotency-Key": "7d7c6a0e-62a2-4f6d-9a5c-222222222222"},
    )
    assert stored.status_code in (200, 201), stored.content
    assert client.get(address).json()["judgment"]["step_labels"] == [label]


def test_hostile_text_in_every_place_of_a_trace_is_only_text(
    project: Project, alice: User, carol: User, client_of: ClientOf
):
    evil = '"><img src=x onerror=pwned()>'
    prompt = factories.make_prompt(project)
    steps = [
        UnwrittenStep(kind=TraceStepKind.MESSAGE, content=evil),
        UnwrittenStep(kind=TraceStepKind.REASONING, content=evil),
        UnwrittenStep(kind=TraceStepKind.TOOL_CALL, tool=evil, call=evil, arguments={evil: evil}),
        UnwrittenStep(kind=TraceStepKind.TOOL_RESULT, role="tool", tool=evil, content=evil, is_error=True),
    ]
    trace = factories.make_trace(prompt, steps)
    comparison = create_comparison(prompt=prompt, completions=[trace], round_number=1)
    for html in (
        page(client_of(alice), "label", project.slug),
        page(client_of(carol), "statistics-item", project.slug, comparison.pk),
        page(client_of(carol), "data-comparisons", project.slug),
    ):
        assert "<img" not in html
        assert "&lt;img src=x onerror" in html

"""Rewrites through submission: edits with who wrote them, and the model that continues."""

import json
import uuid
from dataclasses import replace
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from annotation.errors import InvalidAnswer, LeaseLost, NotAllowed, StaleAnswer, Unavailable
from annotation.forms.judgment import Entered
from annotation.models import Assignment, Comparison, Completion, Continuation, Correction, Judgment, User
from annotation.record.judgment import CorrectionPart, Edit, Origin
from annotation.services.assignments.display_order import candidate_token
from annotation.services.assignments.leases import skip_assignment
from annotation.services.judgments import drafts
from annotation.services.judgments.drafts import Written, continue_response, is_offered
from tests.annotation.judgments.answers import completions_of, nothing_was_written, prefer_first, span, submit
from tests.refusals import refused

pytestmark = pytest.mark.django_db

PREFIX = "Grün 🍵 war"
REST = "\r\n  gut.\tשלום e\u0301!"


class Stub:
    """A model that always writes the same."""

    def can_continue(self, completions: object) -> bool:
        return True

    def continue_response(self, completion: Completion, prefix: str, *, seed: int) -> Written:
        return Written(text=" gestern 👍🏽.", seed=seed, sampling={"top_p": 0.9}, finish_reason="length")


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafts, "_registered", [Stub()])


@pytest.fixture
def continued(served: None, assignment: Assignment, pair: Comparison) -> Continuation:
    first, _second = completions_of(pair)
    return continue_response(
        assignment=assignment, annotator=assignment.annotator, completion_id=first.pk, prefix=PREFIX
    )


def rewrite(pair: Comparison, continuation: int, *, mended: bool = True) -> CorrectionPart:
    """«ist» rewritten, and the rest by the model."""
    first, _second = completions_of(pair)
    marked = span(pair, "ist")
    place = (marked.category, marked.start, marked.end) if mended else None
    start, end = marked.start, marked.end
    edits = (
        Edit(start=start, end=end, quote="ist", replacement="war", origin=Origin(span=place)),
        Edit(
            start=end,
            end=len(first.text),
            quote=REST,
            replacement=" gestern 👍🏽.",
            origin=Origin(continuation=continuation),
        ),
    )
    return CorrectionPart(completion=str(first.pk), text=f"{PREFIX} gestern 👍🏽.", edits=edits)


def test_each_edit_is_stored_with_who_wrote_it_and_its_span(
    pair: Comparison, assignment: Assignment, continued: Continuation
):
    answer = prefer_first(pair, spans=(span(pair, "ist"),), corrections=(rewrite(pair, continued.pk),))
    judgment = submit(assignment, answer)
    correction = Correction.objects.get()
    assert correction.text == "Grün 🍵 war gestern 👍🏽."
    by_hand, by_model = correction.edits.all()
    assert (by_hand.quote, by_hand.continuation, by_hand.span_flag) == (
        "ist",
        None,
        judgment.span_flags.get(),
    )
    assert (by_model.quote, by_model.continuation, by_model.span_flag) == (REST, continued, None)
    assert (continued.prefix, continued.sampling, continued.finish_reason) == (
        PREFIX,
        {"top_p": 0.9},
        "length",
    )
    assert continued.seed is not None


def test_edits_that_are_not_what_they_say_are_refused(
    pair: Comparison, assignment: Assignment, continued: Continuation
):
    good = rewrite(pair, continued.pk)
    first, second = good.edits
    forged = replace(second, replacement=" heute.")
    elsewhere = Continuation.objects.create(
        assignment=assignment, completion=completions_of(pair)[1], prefix="x", text=second.replacement
    )
    for edits, text, error in (
        ((first,), good.text, StaleAnswer),
        ((replace(first, quote="isT"), second), good.text, StaleAnswer),
        ((second, first), good.text, StaleAnswer),
        ((first, forged), f"{PREFIX} heute.", InvalidAnswer),
        ((first, replace(second, origin=Origin(continuation=elsewhere.pk))), good.text, InvalidAnswer),
        ((first, replace(second, origin=Origin(continuation=10**6))), good.text, InvalidAnswer),
    ):
        bad = replace(good, edits=edits, text=text)
        with pytest.raises(error):
            submit(assignment, prefer_first(pair, spans=(span(pair, "ist"),), corrections=(bad,)))
    with refused("unknown_span", InvalidAnswer):
        submit(assignment, prefer_first(pair, corrections=(good,)))
    assert nothing_was_written(assignment)


def test_a_revision_opens_with_the_rewrites_and_stores_them_again(
    pair: Comparison, assignment: Assignment, continued: Continuation, alice: User, client_of: Any
):
    answer = prefer_first(pair, spans=(span(pair, "ist"),), corrections=(rewrite(pair, continued.pk),))
    judgment = submit(assignment, answer)
    shown = Entered.from_judgment(judgment)
    data = {
        "choice": "equal",
        "span_flags": shown.span_flags,
        "rewrites": shown.rewrites,
        "idempotency_key": str(uuid.uuid4()),
        **{f"correction-{token}": text for token, text in shown.corrections.items()},
    }
    page = client_of(alice)
    assert page.post(address("submit", assignment), data).status_code == 302
    revised = Judgment.objects.current().get()
    assert revised.supersedes == judgment
    edits = [
        [
            (e.start, e.end, e.replacement, e.continuation_id, e.span_flag and e.span_flag.quote)
            for e in c.edits.all()
        ]
        for c in Correction.objects.order_by("pk")
    ]
    assert edits[0] == edits[1]


@pytest.mark.parametrize(
    "rewrites",
    [
        "[]",
        '{"x": 1}',
        "not JSON",
        '{"TOKEN": [{"start": 1}]}',
        '{"TOKEN": [{"start": 9, "end": 3, "text": ""}]}',
    ],
)
def test_rewrites_of_another_form_are_refused_with_the_page(
    rewrites: str, pair: Comparison, assignment: Assignment, alice: User, client_of: Any
):
    token = candidate_token(assignment, completions_of(pair)[0].pk)
    data = {
        "choice": "equal",
        "rewrites": rewrites.replace("TOKEN", token),
        "idempotency_key": str(uuid.uuid4()),
        f"correction-{token}": "x",
    }
    assert client_of(alice).post(address("submit", assignment), data).status_code == 422
    assert nothing_was_written(assignment)


# ── The model continues ───────────────────────────────────────────────────────────────


def address(name: str, assignment: Assignment) -> str:
    return reverse(name, args=[assignment.comparison.project.slug, assignment.pk])


def test_the_page_gets_the_text_and_nothing_that_tells_the_model(
    served: None, pair: Comparison, assignment: Assignment, alice: User, client_of: Any
):
    page: Client = client_of(alice)
    assert page.get(address("continuation", assignment)).json() == {"offered": True, "message": ""}
    token = candidate_token(assignment, completions_of(pair)[0].pk)
    sent = {"candidate": token, "prefix": PREFIX}
    continuation = page.post(address("continuation", assignment), sent).json()
    assert continuation == {"id": Continuation.objects.get().pk, "text": " gestern 👍🏽."}
    again = page.post(address("continuation", assignment), sent).json()
    first, second = Continuation.objects.order_by("pk")
    assert (again["id"], first.seed == second.seed) == (second.pk, False)
    assert page.post(address("continuation", assignment), {**sent, "candidate": "x"}).status_code == 422
    assert page.post(address("continuation", assignment), {**sent, "prefix": " "}).status_code == 422


def test_who_may_not_or_asks_too_much_is_refused(
    continued: Continuation, assignment: Assignment, bob: User, monkeypatch: pytest.MonkeyPatch
):
    def ask(annotator: User) -> Continuation:
        return continue_response(
            annotator=annotator,
            assignment=assignment,
            completion_id=continued.completion_id,
            prefix=PREFIX,
        )

    with refused("assigned_to_another", NotAllowed):
        ask(bob)
    monkeypatch.setattr(drafts, "MOST_OF_ONE", 1)
    with refused("too_many_continuations", InvalidAnswer, most=1):
        ask(assignment.annotator)
    skip_assignment(assignment=assignment, annotator=assignment.annotator, reason="Too long")
    assignment.refresh_from_db()
    with refused("lease_lost", LeaseLost):
        ask(assignment.annotator)


def test_without_a_model_or_corrections_nothing_is_offered(
    assignment: Assignment, pair: Comparison, monkeypatch: pytest.MonkeyPatch, alice: User
):
    monkeypatch.setattr(drafts, "_registered", [])
    with refused("no_model_continues", Unavailable):
        continue_response(
            assignment=assignment, annotator=alice, completion_id=completions_of(pair)[0].pk, prefix="Tea"
        )
    monkeypatch.setattr(drafts, "_registered", [Stub()])
    assert is_offered(assignment)
    assignment.comparison.project.ask_correction = False
    assert not is_offered(assignment)


def test_the_api_takes_edits_and_tells_managers_how_the_model_was_sampled(
    pair: Comparison,
    assignment: Assignment,
    continued: Continuation,
    alice: User,
    carol: User,
    client_of: Any,
):
    first, _second = completions_of(pair)
    good = rewrite(pair, continued.pk)
    token = candidate_token(assignment, first.pk)
    place = {"category": "untruthful", "start": good.edits[0].start, "end": good.edits[0].end}
    edits = [
        {
            "start": edit.start,
            "end": edit.end,
            "replacement": edit.replacement,
            "continuation": edit.origin.continuation,
            "span": place if edit.origin.span else None,
        }
        for edit in good.edits
    ]
    body = {
        "verdict": "equal",
        "span_flags": [{"answer": token, "quote": "ist", "text_hash": first.text_hash, **place}],
        "corrections": [{"answer": token, "text": good.text, "edits": edits}],
    }
    response = client_of(alice).post(
        f"/api/v1/projects/tea/assignments/{assignment.pk}/judgment/",
        json.dumps(body),
        content_type="application/json",
        headers={"Idempotency-Key": str(uuid.uuid4())},
    )
    assert response.status_code == 201
    [correction] = response.json()["judgment"]["corrections"]
    assert [{name: edit[name] for name in edits[0]} for edit in correction["edits"]] == edits
    assert not any({"seed", "sampling"} & edit.keys() for edit in correction["edits"])
    [listed] = client_of(carol).get("/api/v1/projects/tea/judgments/").json()["results"]
    by_model = listed["corrections"][0]["edits"][1]
    assert (by_model["quote"], by_model["seed"], by_model["sampling"]) == (
        REST,
        continued.seed,
        {"top_p": 0.9},
    )

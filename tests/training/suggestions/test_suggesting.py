"""Suggestions computed ahead: by an AI annotator, by a reward model, some planted wrong, each once."""

import json
import uuid
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from django.test import Client
from django.urls import reverse
from hypothesis import given
from hypothesis import strategies as st

from annotation.choices import JobState, SuggestionKind
from annotation.errors import NotAllowed, Refusal, StaleAnswer
from annotation.models import Category, Comparison, HelpReveal, Project, Suggestion, SuggestionSet, User
from annotation.services.suggestions import SuggestionInput
from tests import factories
from tests.api.scene import Asker
from tests.refusals import refused
from tests.training.registry.registry_rows import make_trained
from training.choices import CheckpointKind
from training.engine import Engine, Scores, SegmentScore
from training.judging import UnreadableError
from training.models import SuggestionSource
from training.services import suggestions
from training.services.checkpoints import register_starter
from training.services.suggestions import (
    SuggestionQuestion,
    do_suggestions,
    plant,
    read_suggestions,
    set_suggestions,
    suggestions_of,
    sweep_suggestions,
    without_suggestions,
)

SignIn = Callable[[User], Client]
TEXTS = {11: "Two minutes. Never boil it. Then pour.", 12: "Ten hours."}
ALL_KINDS = frozenset(SuggestionKind)


def categories() -> list[Category]:
    """Two categories of spans and one of missing information, in no database."""
    return [
        Category(pk=1, key="untruthful", label="Untruthful", scope="span"),
        Category(pk=2, key="irrelevant", label="Irrelevant", scope="span"),
        Category(pk=3, key="missing", label="Missing", scope="missing"),
    ]


def question(
    texts: dict[int, str] | None = None, kinds: frozenset[SuggestionKind] = ALL_KINDS
) -> SuggestionQuestion:
    return SuggestionQuestion(texts=texts or TEXTS, categories=categories(), kinds=kinds)


REPLY: dict[str, Any] = {
    "spans": [
        {"answer": "A", "category": "untruthful", "quote": " Never boil it. ", "confidence": 0.9},
        {"answer": "B", "category": "untruthful", "quote": "Never boil it."},
        {"answer": "A", "category": "missing", "quote": "Never"},
        {"answer": "C", "category": "untruthful", "quote": "Never"},
        "nonsense",
    ],
    "missing": [{"answer": "B", "category": "missing", "text": "The temperature", "confidence": 7}],
    "critiques": [{"answer": "A", "text": "Short."}, {"answer": "A", "text": " "}],
    "ranking": "B > A",
}


# ── What an AI annotator replies ──────────────────────────────────────────────────────


def test_a_reply_is_read_by_its_quotes_and_what_names_nothing_is_left_out():
    span, missing, critique, preference = read_suggestions(f"Sure:\n{json.dumps(REPLY)}\n", question())
    assert (span.completion_id, span.category_id, span.quote) == (11, 1, "Never boil it.")
    assert TEXTS[11][span.start : span.end] == "Never boil it."
    assert span.confidence == 0.9
    assert (missing.completion_id, missing.category_id, missing.text) == (12, 3, "The temperature")
    assert missing.confidence is None
    assert (critique.completion_id, critique.text) == (11, "Short.")
    assert (preference.verdict, preference.ranks) == ("ranked", {12: 1, 11: 2})


def test_only_what_the_project_asks_is_read():
    read = read_suggestions(json.dumps(REPLY), question(kinds=frozenset({SuggestionKind.CRITIQUE})))
    assert [suggestion.kind for suggestion in read] == ["critique"]


@pytest.mark.parametrize("reply", ["", "no", "{", "[1]", '{"spans": ', "{" * 5000])
def test_a_reply_that_is_no_object_is_unreadable(reply: str):
    with pytest.raises(UnreadableError):
        read_suggestions(reply, question())


@given(st.data())
def test_spans_stand_on_their_quotes_in_any_script(data: st.DataObject):
    """Emoji of several code points, right-to-left letters, combining marks: offsets are code points."""
    piece = st.sampled_from(
        ["a", " ", "é", "e\u0301", "👩‍🏫", "🏳️‍🌈", "ש", "\u202b", "م", "x\u0308", "\r\n", "𝒳"]
    )
    text = "".join(data.draw(st.lists(piece, min_size=1, max_size=30)))
    start = data.draw(st.integers(0, len(text) - 1))
    quote = text[start : data.draw(st.integers(start + 1, len(text)))]
    reply = {"spans": [{"answer": "A", "category": "untruthful", "quote": quote}]}
    read = read_suggestions(json.dumps(reply), question({5: text}, frozenset({SuggestionKind.SPAN})))
    if not quote.strip():
        assert read == []
        return
    [span] = read
    assert text[span.start : span.end] == span.quote == quote.strip()
    planted = plant(read, question=question({5: text}), share=1.0, comparison_id=1)
    assert all(text[suggestion.start : suggestion.end] == suggestion.quote for suggestion in planted)


# ── What a reward model scores ────────────────────────────────────────────────────────


def test_segments_that_a_reward_model_thinks_faulty_become_spans():
    segments = {
        "facts": (
            # log-odds of being faultless: −ln 3 is a fault with 0.75, ln 3 with 0.25
            (
                SegmentScore(start=0, end=12, reward=1.0986122886681098),
                SegmentScore(start=12, end=27, reward=-1.0986122886681098),
            ),
            (),
        ),
        "unknown": ((SegmentScore(start=0, end=3, reward=-9.0),), ()),
    }
    scores = Scores(scores=(0.0, 1.0986122886681098), heads={}, segments=segments)
    sure, faulty, preference = suggestions_of(scores, question(), {"facts": ["other", "untruthful"]})
    assert sure.quote == "Two minutes."
    assert sure.confidence == pytest.approx(0.25)
    # The white space that opens the segment is no part of the fault.
    assert (faulty.start, faulty.end, faulty.quote) == (13, 27, "Never boil it.")
    assert faulty.confidence == pytest.approx(0.75)
    # Bradley-Terry: a difference of ln 3 wins three of four.
    assert preference.ranks == {12: 1, 11: 2}
    assert preference.confidence == pytest.approx(0.75)


# ── Planted errors ────────────────────────────────────────────────────────────────────


def test_planted_suggestions_are_wrong_and_keep_what_they_were():
    read = read_suggestions(json.dumps(REPLY), question())
    span, missing, critique, preference = plant(read, question=question(), share=1.0, comparison_id=7)
    assert span.original == read[0].as_json()
    assert (span.quote, span.category_id) != ("Never boil it.", 1)
    assert TEXTS[11][span.start : span.end] == span.quote
    assert (missing.completion_id, critique.completion_id) == (11, 12)
    assert preference.ranks == {11: 1, 12: 2}
    assert plant(read, question=question(), share=0.0, comparison_id=7) == read
    assert plant(read, question=question(), share=1.0, comparison_id=7) == [
        *(span, missing, critique, preference)
    ]


def test_the_share_of_planted_suggestions_is_the_one_that_was_set():
    read = read_suggestions(json.dumps(REPLY), question())
    planted = [
        suggestion.original is not None
        for comparison in range(500)
        for suggestion in plant(read, question=question(), share=0.2, comparison_id=comparison)
    ]
    # Binomial: 0.2 of 2000 with a deviation of 0.009; five of them on either side.
    assert 0.155 < sum(planted) / len(planted) < 0.245


def test_what_cannot_be_made_wrong_stays_as_it_is():
    alone = SuggestionQuestion(texts={5: "Yes."}, categories=categories()[:1], kinds=ALL_KINDS)
    whole = SuggestionInput(
        kind=SuggestionKind.SPAN, completion_id=5, category_id=1, start=0, end=4, quote="Yes."
    )
    critique = SuggestionInput(kind=SuggestionKind.CRITIQUE, completion_id=5, text="Short.")
    assert plant([whole, critique], question=alone, share=1.0, comparison_id=1) == [whole, critique]


# ── The job ───────────────────────────────────────────────────────────────────────────


class FakeModel:
    """Answers chats and scores as a model server does."""

    def __init__(self) -> None:
        self.replies: list[str] = []
        self.asked: list[dict[str, Any]] = []
        self.status = 200

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.asked.append(body)
        if self.status != 200:
            return httpx.Response(self.status, json={"error": {"message": "too long"}})
        if request.url.path.endswith("/score"):
            segments = [[{"start": 0, "end": len(text), "reward": -2.0}] for text in body["completions"]]
            scores = [float(len(text)) for text in body["completions"]]
            scored = {"scores": scores, "heads": {}, "segments": {"facts": segments}}
            return httpx.Response(200, json=scored)
        reply = self.replies.pop(0) if self.replies else json.dumps(REPLY)
        choice = {"index": 0, "message": {"content": reply}, "finish_reason": "stop"}
        return httpx.Response(200, json={"choices": [choice], "usage": {}})


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> FakeModel:
    fake_model = FakeModel()
    monkeypatch.setattr(
        suggestions, "engine_for", lambda _: Engine(transport=httpx.MockTransport(fake_model))
    )
    return fake_model


def pair(project: Project, round_number: int = 1) -> Comparison:
    return factories.make_comparison(project, list(TEXTS.values()), round_number=round_number)


def switched_on(project: Project, carol: User, **values: Any) -> SuggestionSource:
    return set_suggestions(
        project=project,
        by=carol,
        **{
            "is_active": True,
            "checkpoint": register_starter(name="starter"),
            "control_share": 0.0,
            "planted_share": 0.0,
            **values,
        },
    )


def work(source: SuggestionSource) -> SuggestionSource:
    do_suggestions(source.pk)
    source.refresh_from_db()
    return source


@pytest.mark.django_db
def test_suggestions_are_computed_once_for_the_newest_round(project: Project, carol: User, model: FakeModel):
    project.ask_critique = True
    project.save()
    pair(project)
    new = [pair(project, 2) for _ in range(2)]
    source = work(switched_on(project, carol))
    assert (source.state, source.error) == (JobState.FINISHED, "")
    assert (source.compared, source.suggested, source.planted) == (2, 8, 0)
    assert set(SuggestionSet.objects.values_list("comparison_id", flat=True)) == {
        comparison.pk for comparison in new
    }
    span = Suggestion.objects.filter(kind="span").first()
    assert span is not None
    assert span.completion is not None
    assert span.completion.text[span.start : span.end] == span.quote == "Never boil it."
    text = model.asked[0]["messages"][0]["content"]
    for phrase in ("<answer A>\nTwo minutes.", "untruthful (", "missing (", '"ranking": "B > A"'):
        assert phrase in text
    # Nothing is left; a new comparison wakes it again.
    assert not without_suggestions(project).exists()
    pair(project, 2)
    sweep_suggestions()
    source.refresh_from_db()
    assert source.state == JobState.WAITING
    assert work(source).compared == 3


@pytest.mark.django_db
def test_a_reply_that_cannot_be_read_is_asked_for_again_and_then_left(
    project: Project, carol: User, model: FakeModel
):
    pair(project)
    model.replies = ["I think", "really", "no"]
    source = work(switched_on(project, carol))
    assert len(model.asked) == 3
    assert "not one JSON object" in model.asked[1]["messages"][-1]["content"]
    assert (source.compared, source.suggested) == (1, 0)


@pytest.mark.django_db
def test_a_text_that_the_server_refuses_has_no_suggestions_and_another_error_fails_the_work(
    project: Project, carol: User, model: FakeModel
):
    pair(project)
    model.status = 413
    source = work(switched_on(project, carol))
    assert (source.state, source.compared, source.suggested) == (JobState.FINISHED, 1, 0)
    pair(project)
    model.status = 401
    sweep_suggestions()
    assert work(source).state == JobState.FAILED
    # Stored again by a manager, it goes on.
    model.status = 200
    assert work(switched_on(project, carol)).compared == 2


@pytest.mark.django_db
def test_a_reward_model_suggests_what_it_is_sure_of(project: Project, carol: User, model: FakeModel):
    spec = {"settings": {"segments": [{"name": "facts", "categories": ["untruthful"]}]}}
    reward = make_trained("reward-1", project, kind=CheckpointKind.REWARD, spec=spec)
    comparison = pair(project)
    # A reward of −2 is a fault with 0.88.
    source = work(switched_on(project, carol, checkpoint=reward, least_confidence=0.85))
    assert source.suggested == 3
    kinds = list(comparison.suggestion_set.suggestions.order_by("pk").values_list("kind", flat=True))
    assert kinds == ["span", "span", "preference"]
    pair(project)
    # Unsure of spans from then on, not of the preference: a difference of 28 is beyond doubt.
    sweep_suggestions()
    assert work(switched_on(project, carol, checkpoint=reward, least_confidence=0.9)).suggested == 4


@pytest.mark.django_db
def test_switched_off_nothing_is_computed_and_nothing_shown(
    project: Project, alice: User, carol: User, model: FakeModel
):
    comparison = pair(project)
    source = work(switched_on(project, carol))
    source = switched_on(project, carol, is_active=False)
    pair(project)
    assert work(source).compared == 1
    project.refresh_from_db()
    assert not project.has_help
    factories.make_judgment(comparison, alice)
    assert not HelpReveal.objects.exists()


@pytest.mark.django_db
def test_settings_that_cannot_work_are_refused_by_their_field(project: Project, alice: User, carol: User):
    with refused("manager_changes_suggestions", NotAllowed):
        switched_on(project, alice)
    wrong: dict[str, Any] = {"template": "{answers}", "control_share": 1.5, "unread_seconds": -1.0}
    for field, value in wrong.items():
        with pytest.raises(Refusal) as caught:
            switched_on(project, carol, **{field: value})
        assert caught.value.field == field
    other = factories.make_project(slug="coffee", managers=[carol])
    foreign = make_trained("foreign", other)
    with refused("unknown_checkpoint") as caught:
        switched_on(project, carol, checkpoint=foreign)
    assert caught.value.field == "checkpoint"
    assert not SuggestionSource.objects.exists()


@pytest.mark.django_db
def test_a_suggestion_whose_quote_is_not_at_its_place_fails_the_work(
    project: Project, carol: User, model: FakeModel, monkeypatch: pytest.MonkeyPatch
):
    comparison = pair(project)
    wrong = SuggestionInput(
        kind=SuggestionKind.SPAN,
        completion_id=comparison.completions.order_by("pk")[0].pk,
        category_id=project.categories.get(key="untruthful").pk,
        start=1,
        end=4,
        quote="Two",
    )
    monkeypatch.setattr(suggestions, "read_suggestions", lambda text, _question: [wrong])
    source = work(switched_on(project, carol))
    assert source.state == JobState.FAILED
    assert "does not stand on its quote" in source.error
    assert not SuggestionSet.objects.exists()
    assert issubclass(StaleAnswer, Refusal)


# ── What managers see ─────────────────────────────────────────────────────────────────


@pytest.mark.django_db
def test_a_manager_switches_suggestions_on_and_sees_how_far_they_are(
    project: Project, carol: User, client_of: SignIn, model: FakeModel
):
    starter = register_starter(name="starter")
    pair(project)
    client, address = client_of(carol), reverse("suggestions", args=[project.slug])
    first = client.get(address).content.decode()
    assert "Effect of help" not in first
    sent = {
        "is_active": "on",
        "checkpoint": starter.pk,
        "control_share": "0.25",
        "planted_share": "0.5",
        "unread_seconds": "3",
        "least_confidence": "0.1",
        "template": "{conversation} {answers} {form}",
    }
    refused = client.post(address, {**sent, "control_share": "2"})
    assert refused.status_code == 422
    assert client.post(address, sent).status_code == 302
    source = SuggestionSource.objects.get()
    assert (source.least_confidence, source.template) == (0.1, "{conversation} {answers} {form}")
    assert (project.help_settings.control_share, project.help_settings.unread_seconds) == (0.25, 3.0)
    work(source)
    page = client.get(address).content.decode()
    for phrase in ("Effect of help", "nothing is left to suggest", "No data yet", "0 annotations with help"):
        assert phrase in page


@pytest.mark.django_db
def test_the_api_sets_what_the_page_sets_and_tells_the_effect(
    project: Project, alice: User, carol: User, model: FakeModel
):
    register_starter(name="starter")
    comparison = pair(project)
    manager = Asker(carol)
    read = manager.get("/projects/tea/suggestions/").json()
    assert (read["is_active"], read["checkpoint"], read["state"]) == (False, None, None)
    put = manager("PUT", "/api/v1/projects/tea/suggestions/", {"is_active": True, "checkpoint": "nobody"})
    assert put.status_code == 422
    sent = {"is_active": True, "checkpoint": "starter", "control_share": 0.0, "planted_share": 0.0}
    put = manager("PUT", "/api/v1/projects/tea/suggestions/", {**sent, "least_confidence": 0.2})
    assert (put.status_code, put.json()["checkpoint"]) == (200, "starter")
    # What is left out keeps its value.
    assert manager("PUT", "/api/v1/projects/tea/suggestions/", sent).json()["least_confidence"] == 0.2
    work(SuggestionSource.objects.get())
    first = factories.make_judgment(Comparison.objects.get(pk=comparison.pk), alice)
    labels = Asker(alice)
    address = f"/projects/tea/assignments/{first.assignment_id}/suggestions/"
    body = labels.get(address).json()
    assert body["open"] is True
    assert [suggestion["kind"] for suggestion in body["suggestions"]] == ["span", "missing", "preference"]
    assert not any("planted" in key for suggestion in body["suggestions"] for key in suggestion)
    decisions = [
        {"suggestion": suggestion["id"], "decision": "accepted"} for suggestion in body["suggestions"]
    ]
    ranks = body["suggestions"][2]["ranks"]
    judgment = {"verdict": "ranked", "ranks": {name: 3 - rank for name, rank in ranks.items()}}
    key = {"Idempotency-Key": str(uuid.uuid4())}
    finished = labels.post(address, {"judgment": judgment, "decisions": decisions}, **key)
    assert finished.status_code == 201, finished.content
    stored = finished.json()["judgment"]
    # The accepted ones were added, and the preference turned.
    assert [flag["quote"] for flag in stored["span_flags"]] == ["Never boil it."]
    assert stored["ranks"] == ranks
    assert finished.json()["planted"] == []
    assert labels.get(address).json() == {"open": False, "suggestions": []}
    effect = manager.get("/projects/tea/suggestions/effect/").json()
    assert (effect["helped"], effect["control"], effect["decisions"]) == (1, 0, 3)
    assert effect["gold"]["difference"]["missing"] == "no-data"

"""Drafts of rubrics: reading and merging proposals, the check on held-out pairs, and the way to a rubric."""

import json
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from annotation.choices import JobState
from annotation.errors import NotAllowed
from annotation.models import Project, Rubric, RubricVersion, User
from tests import factories
from tests.refusals import refused
from training.engine import Engine
from training.judging import LONGEST_REPLY, UnreadableError
from training.models import RubricDraft
from training.selectors.rubrics import checked_criteria
from training.services import rubric_drafts
from training.services.checkpoints import register_starter
from training.services.rubric_drafts import (
    MOST_MERGED,
    MOST_OF_A_REPLY,
    Pair,
    Proposal,
    decided_pairs,
    do_draft,
    merged,
    proposal_question,
    read_proposals,
    request_draft,
    split_by_prompt,
    sweep_drafts,
)

# ── Proposals ─────────────────────────────────────────────────────────────────────────


def test_criteria_are_read_from_lines_of_the_form_and_all_else_is_ignored():
    reply = """Here they are:
1. **Criterion: Accuracy | Are the claims true?**
- criterion 2: Length | Is it   long
Criterion: Short name | Does the response …?
Criterion: No question |
Criterion: Sources|Does it name sources?|
That is all."""
    assert [(proposal.name, proposal.text) for proposal in read_proposals(reply)] == [
        ("Accuracy", "Are the claims true?"),
        ("Length", "Is it long"),
        ("Sources", "Does it name sources?"),
    ]


@pytest.mark.parametrize(
    "reply", ["", "Accuracy | Is it true?", "Criterion: " + "x" * 90 + " | Is it?", "x" * (LONGEST_REPLY + 1)]
)
def test_a_reply_without_a_criterion_is_refused(reply: str):
    with pytest.raises(UnreadableError):
        read_proposals(reply)


@given(st.text(max_size=400) | st.text(st.sampled_from("Criterion: |ab\n*-1"), max_size=400))
def test_any_reply_is_read_within_bounds_or_refused(text: str):
    try:
        read = read_proposals(text)
    except UnreadableError:
        return
    assert 0 < len(read) <= MOST_OF_A_REPLY
    assert all(0 < len(proposal.name) <= 80 and 0 < len(proposal.text) <= 500 for proposal in read)
    assert all("\n" not in proposal.name + proposal.text for proposal in read)


def proposals(*lines: str) -> list[Proposal]:
    return read_proposals("\n".join(f"Criterion: {line}" for line in lines))


def test_near_duplicates_become_one_and_the_most_frequent_come_first():
    criteria = merged(
        [
            *proposals("Tone | Is it kind?", "Accuracy | Are the claims true?"),
            # The same name in another spelling, and the same words in another order.
            *proposals("ACCURACY | Nothing false?", "Truth | Are the claims of the response true, accuracy?"),
            *proposals("Sources | Does it name its sources?"),
        ]
    )
    # {accuracy, claim, true} and {truth, claim, true, accuracy} share 3 of 4 words.
    assert [(criterion.name, criterion.times) for criterion in criteria] == [
        ("Accuracy", 3),
        ("Tone", 1),
        ("Sources", 1),
    ]
    many = [proposal for n in range(30) for proposal in proposals(f"Name{n} | Word{n} other{n}?")]
    assert len(merged(many)) == MOST_MERGED


def test_texts_of_pairs_are_bounded_and_never_searched_for_placeholders():
    pair = Pair(
        prompt=1, conversation=[{"role": "user", "content": "{winner}"}], winner="x" * 9000, loser="{pairs}"
    )
    [turn] = proposal_question([pair])
    assert "user: {winner}" in turn["content"]
    assert "<rejected>\n{pairs}\n</rejected>" in turn["content"]
    assert turn["content"].count("x" * 100) == 40


# ── The job ───────────────────────────────────────────────────────────────────────────


class FakeModel:
    """A server that proposes two criteria, and scores length truly and sound at random."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.status = 200
        self.proposal = "Criterion: Length | Is it long?\nCriterion: Brevity | Is it short and terse?"

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.asked.append(body)
        if self.status != 200:
            return httpx.Response(self.status, json={"error": {"message": "too long"}})
        text = body["messages"][0]["content"]
        content = self.proposal if "<comparison 1>" in text else self.scores(text)
        choice = {"index": 0, "message": {"content": content}, "finish_reason": "stop"}
        return httpx.Response(200, json={"choices": [choice], "usage": {}})

    def scores(self, text: str) -> str:
        answers = re.findall(r"<answer \w>\n(.*?)\n</answer", text, re.S)
        lines = []
        for letter, answer in zip("AB", answers, strict=True):
            long = "longer" in answer
            lines += [f"{letter}1: {5 if long else 2} | So.", f"{letter}2: {1 if long else 4} | So."]
        return "\n".join(lines)

    @property
    def checks(self) -> list[str]:
        return [
            body["messages"][0]["content"] for body in self.asked if "<criteria>" in str(body["messages"])
        ]


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> FakeModel:
    fake_model = FakeModel()
    monkeypatch.setattr(
        rubric_drafts, "engine_for", lambda _: Engine(transport=httpx.MockTransport(fake_model))
    )
    return fake_model


def decide(project: Project, person: User, count: int, *, split: str = "train") -> None:
    """Pairs of which the first recorded, longer response is preferred."""
    for number in range(count):
        prompt = factories.make_prompt(project, f"{split} {number}?", split=split)
        comparison = factories.make_comparison(
            project, [f"a longer one {number}", f"short {number}"], prompt=prompt
        )
        factories.make_judgment(comparison, person, ranks=(1, 2))


@pytest.fixture
def draft(project: Project, alice: User, carol: User, model: FakeModel) -> RubricDraft:
    decide(project, alice, 9)
    return request_draft(
        project=project, checkpoint=register_starter(name="starter"), pairs=9, requested_by=carol
    )


def done(draft: RubricDraft) -> RubricDraft:
    do_draft(draft.pk)
    draft.refresh_from_db()
    return draft


@pytest.mark.django_db
def test_a_draft_is_read_from_two_thirds_and_checked_on_the_held_out_third(
    draft: RubricDraft, model: FakeModel
):
    assert done(draft).state == JobState.FINISHED, draft.error
    assert (draft.pairs_read, draft.pairs_checked, draft.unread) == (6, 3, 0)
    # Two batches of four and two pairs propose the same; three pairs are scored in both orders.
    assert [(row["name"], row["proposals"]) for row in draft.criteria] == [("Length", 2), ("Brevity", 2)]
    assert len(model.checks) == 6
    read = {
        n for body in model.asked for n in re.findall(r"user: train (\d)", str(body)) if "<comp" in str(body)
    }
    checked = {n for text in model.checks for n in re.findall(r"user: train (\d)", text)}
    assert (len(read), len(checked), read & checked) == (6, 3, set())
    # People prefer the longer one always.
    length, brevity = checked_criteria(draft)
    assert (length.agreement.value, length.agreement.items, length.is_doubtful) == (1.0, 3, False)
    assert (brevity.agreement.value, brevity.is_doubtful) == (0.0, True)
    assert not Rubric.objects.exists()


@pytest.mark.django_db
def test_replies_that_cannot_be_read_are_asked_for_again_and_counted(draft: RubricDraft, model: FakeModel):
    good = model.scores

    def scores(text: str) -> str:
        return "Both are fine." if "train 0?" in text or "train 1?" in text else good(text)

    model.scores = scores  # type: ignore[method-assign]
    done(draft)
    assert draft.state == JobState.FINISHED
    unread = {n for text in model.checks for n in re.findall(r"user: train ([01])\?", text)}
    assert (draft.pairs_checked, draft.unread) == (3 - len(unread), len(unread))


@pytest.mark.django_db
def test_a_model_that_proposes_nothing_or_refuses_every_text_fails_the_draft_in_words(
    draft: RubricDraft, model: FakeModel, project: Project, carol: User
):
    model.proposal = "I would rather not."
    assert done(draft).state == JobState.FAILED
    assert "proposed no criterion" in draft.error
    # Three questions for each of two batches.
    assert len(model.asked) == 6
    model.status = 413
    again = request_draft(project=project, checkpoint=draft.checkpoint, pairs=9, requested_by=carol)
    assert "proposed no criterion" in done(again).error


@pytest.mark.django_db
def test_only_decided_pairs_of_training_prompts_are_drawn_and_a_prompt_stays_on_one_side(
    project: Project, alice: User, bob: User
):
    decide(project, alice, 3)
    decide(project, alice, 2, split="held-out")
    # An even split of people decides nothing.
    project.overlap = 2
    project.save()
    even = factories.make_comparison(
        project, ["one", "two"], prompt=factories.make_prompt(project, "Even?", split="train")
    )
    factories.make_judgment(even, alice, ranks=(1, 2))
    factories.make_judgment(even, bob, ranks=(2, 1))
    pairs = decided_pairs(project, 10, seed=1)
    assert len(pairs) == 3
    assert decided_pairs(project, 10, seed=1) == pairs
    assert len(decided_pairs(project, 2, seed=1)) == 2
    read, held_out = split_by_prompt([(1, 1, 2), (1, 3, 4), (2, 5, 6), (3, 7, 8)])
    assert {pair[0] for pair in read} & {pair[0] for pair in held_out} == set()
    assert len(read) + len(held_out) == 4


@pytest.mark.django_db
def test_a_draft_is_refused_without_pairs_without_a_manager_and_beside_another(
    draft: RubricDraft, project: Project, carol: User, alice: User, sent: list[Any]
):
    values: dict[str, Any] = {"project": project, "checkpoint": draft.checkpoint, "pairs": 9}
    with refused("draft_under_way"):
        request_draft(**values, requested_by=carol)
    with refused("manager_writes_rubrics", NotAllowed):
        request_draft(**values, requested_by=alice)
    with refused("invalid_pair_count", least=4, most=200):
        request_draft(**{**values, "pairs": 3}, requested_by=carol)
    other = factories.make_project(slug="coffee", managers=[carol])
    with refused("too_few_pairs", count=0):
        request_draft(**{**values, "project": other}, requested_by=carol)
    sent.clear()
    sweep_drafts()
    assert sent == [("training.tasks.do_job", ["rubric-draft", draft.pk])]


# ── Pages and API ─────────────────────────────────────────────────────────────────────


def sent_form(name: str, *criteria: dict[str, str], initial: int = 0) -> dict[str, str]:
    """The form of a rubric as a browser sends it."""
    form = {"name": name, "criteria-TOTAL_FORMS": str(len(criteria)), "criteria-INITIAL_FORMS": str(initial)}
    for number, row in enumerate(criteria):
        values = {"scale": "five", "weight": "1", "text": "", "levels": "", **row}
        form |= {f"criteria-{number}-{key}": value for key, value in values.items()}
    return form


@pytest.mark.django_db
def test_a_manager_requests_a_draft_edits_it_and_saves_it_as_a_rubric(
    draft: RubricDraft, project: Project, carol: User, client_of: Callable[[User], Client]
):
    client = client_of(carol)
    address = draft.get_absolute_url()
    assert "waits for a worker" in client.get(address).content.decode()
    assert client.post(address, sent_form("Early", {"name": "A"})).status_code == 422
    done(draft)
    page = client.get(address).content.decode()
    assert "does not agree with people" in page
    assert 'value="Brevity"' in page
    rows = (
        {"name": "Length", "text": "Is it long?", "weight": "2.5", "ORDER": "2"},
        {"name": "Brevity", "DELETE": "on", "ORDER": "1"},
        {"name": "Sources", "ORDER": "1"},
        {"name": ""},
    )
    response = client.post(address, sent_form("Long tea", *rows, initial=2))
    version = RubricVersion.objects.get()
    assert response["Location"] == version.rubric.get_absolute_url()
    assert [(row.name, row.weight) for row in version.criteria.all()] == [("Sources", 1.0), ("Length", 2.5)]
    assert version.rubric.published is None
    draft.refresh_from_db()
    assert draft.version == version
    assert "Long tea" in client.get(f"/projects/{project.slug}/rubric-drafts/").content.decode()


@pytest.mark.django_db
def test_the_api_requests_and_reads_a_draft(
    draft: RubricDraft, project: Project, carol: User, client_of: Callable[[User], Client]
):
    client = client_of(carol)
    done(draft)
    address = f"/api/v1/projects/{project.slug}/rubric-drafts/"
    body = {"checkpoint": "starter", "pairs": 8}
    made = client.post(address, body, content_type="application/json")
    assert (made.status_code, made.json()["state"]) == (201, "waiting")
    assert (
        client.post(address, {**body, "checkpoint": "x"}, content_type="application/json").status_code == 422
    )
    read = client.get(f"{address}{draft.pk}/").json()
    assert [(row["name"], row["agreeing"], row["opposing"]) for row in read["criteria"]] == [
        ("Length", 3, 0),
        ("Brevity", 0, 3),
    ]


@pytest.mark.django_db
def test_a_manager_writes_edits_publishes_and_asks_by_page_and_by_api(
    project: Project, carol: User, alice: User, client_of: Callable[[User], Client]
):
    client = client_of(carol)
    base = f"/projects/{project.slug}/rubrics/"
    refused = client.post(f"{base}new/", sent_form("Tea", {"name": ""}))
    assert refused.status_code == 422
    assert "Write 1 to 20 criteria." in refused.content.decode()
    client.post(f"{base}new/", sent_form("Tea", {"name": "Accuracy", "text": "Is it true?"}))
    rubric = Rubric.objects.get()
    edited = sent_form("Tea", {"name": "Accuracy", "text": "Is it right?", "weight": "3"}, initial=1)
    client.post(f"{base}{rubric.pk}/edit/", edited)
    page = client.get(rubric.get_absolute_url()).content.decode()
    for words in ("Changes since version 1", "<del>true</del>", "<ins>right</ins>", "Publish version 2"):
        assert words in page
    client.post(f"{base}{rubric.pk}/act/", {"action": "publish", "version": "2"})
    client.post(f"{base}{rubric.pk}/act/", {"action": "ask"})
    rubric.refresh_from_db()
    assert (rubric.published.number, rubric.is_asked) == (2, True)
    prompt = factories.make_prompt(project, "Tea?")
    factories.make_comparison(project, ["one", "two"], prompt=prompt)
    screen = client_of(alice).get(f"/projects/{project.slug}/label/").content.decode()
    assert f'name="rubric" value="{rubric.published.pk}"' in screen
    assert "Is it right?" in screen
    api = f"/api/v1{base}{rubric.pk}/"
    body = {"name": "Tea", "criteria": [{"name": "Tone", "scale": "thumbs", "weight": 2}]}
    saved = client.put(api, body, content_type="application/json").json()
    assert [version["number"] for version in saved["versions"]] == [3, 2, 1]
    used = client.patch(api, {"published": 3, "is_asked": False}, content_type="application/json").json()
    assert (used["published"], used["is_asked"]) == (3, False)
    missing = client.patch(api, {"published": 9}, content_type="application/json")
    assert missing.status_code == 422

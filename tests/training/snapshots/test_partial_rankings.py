"""A ranking of the best alone on its whole way: API, snapshot, training rows, counts, files out and in."""

import json
import uuid
from pathlib import Path

import pytest
from django.core.management import call_command
from django.urls import reverse

from annotation.models import Assignment, Judgment, Project, User
from tests import factories
from tests.api.scene import Asker
from tests.tiny import tiny_tokenizer
from training.contract.snapshot import read_snapshot
from training.rlhf.data import build_examples
from training.rlhf.tokens.example import UsedLabels
from training.selectors.rounds import decided_judgments
from training.services.snapshots import freeze_snapshot

pytestmark = pytest.mark.django_db

ADDRESS = "/projects/tea/assignments"


@pytest.fixture
def judgment(project: Project, alice: User) -> Judgment:
    """Alice's program ranks the second best and the first answer of four, and leaves out the others."""
    prompt = factories.make_prompt(project, "How long?", split="train")
    comparison = factories.make_comparison(project, ["one", "two", "three", "four"], prompt=prompt)
    ids = list(comparison.candidates.order_by("index").values_list("completion_id", flat=True))
    as_alice = Asker(alice)
    shown = as_alice.post(f"{ADDRESS}/next/").json()["assignment"]
    order = Assignment.objects.get().display_order
    names = dict(zip(order, (answer["answer"] for answer in shown["answers"]), strict=True))
    body = {"verdict": "ranked", "ranks": {names[ids[1]]: 1, names[ids[0]]: 2}}
    key = {"Idempotency-Key": str(uuid.uuid4())}
    response = as_alice.post(f"{ADDRESS}/{shown['id']}/judgment/", body, **key)
    assert response.status_code == 201
    assert response.json()["judgment"]["ranks"] == body["ranks"]
    judgment: Judgment = Judgment.objects.get()
    return judgment


def test_it_reaches_plackett_luce_and_dpo_as_it_was_given(judgment: Judgment, project: Project, carol: User):
    assert list(decided_judgments(project, [1])) == [judgment]
    snapshot = freeze_snapshot(project=project, rounds=[1], created_by=carol)
    assert snapshot.counts["decided_pairs"]["train"] == 5
    (row,) = read_snapshot(snapshot.path)
    one, two, three, four = (completion.id for completion in row.completions)
    assert row.ranks == {two: 1, one: 2}
    assert set(row.pairs()) == {(two, one), (two, three), (two, four), (one, three), (one, four)}
    for labels in (UsedLabels(), UsedLabels(ranks="tied")):
        (example,) = build_examples(
            [row], tiny_tokenizer(), max_tokens=64, context=False, labels=labels
        ).train
        # For Plackett-Luce the ranks, for DPO the pairs.
        assert example.ranks == (2, 1, -1, -1)
        assert set(example.pairs) == {(1, 0), (1, 2), (1, 3), (0, 2), (0, 3)}


def test_the_best_alone_is_a_decided_judgment_and_a_training_text(project: Project, alice: User, carol: User):
    prompt = factories.make_prompt(project, "How long?", split="train")
    comparison = factories.make_comparison(project, ["one", "two", "three"], prompt=prompt)
    best = factories.make_judgment(comparison, alice, (0, 1, 0))
    assert list(decided_judgments(project, [1])) == [best]
    snapshot = freeze_snapshot(project=project, rounds=[1], created_by=carol)
    labels = UsedLabels(ranks="none", written=frozenset({"preferred"}))
    tokenizer = tiny_tokenizer()
    (example,) = build_examples(
        list(read_snapshot(snapshot.path)), tokenizer, max_tokens=64, context=False, labels=labels
    ).train
    (answer,) = example.answers
    assert tokenizer.decode(answer.ids[answer.answer_start : -1]) == "two"


def test_the_page_of_a_completion_names_the_annotations_that_leave_it_unordered(
    judgment: Judgment, carol: User, client_of
):
    client = client_of(carol)
    pages = {
        completion.text: client.get(reverse("completion", args=[completion.pk])).content.decode()
        for completion in judgment.comparison.completions.all()
    }
    said = f'in annotation <span class="number">{judgment.pk}</span>'
    assert f'Rank <span class="number">1</span> {said}' in pages["two"]
    assert f"Not ordered {said}" in pages["three"]


@pytest.mark.parametrize(("name", "suffix"), [("jsonl", "jsonl"), ("csv", "csv"), ("label-studio", "json")])
def test_it_goes_out_and_comes_in_again(judgment: Judgment, tmp_path: Path, name: str, suffix: str):
    path = tmp_path / f"out.{suffix}"
    call_command("export_judgments", format=name, output=path, project="tea")
    if name == "jsonl":
        assert len(json.loads(path.read_text())["ranks"]) == 2
    other = factories.make_project(slug="other")
    call_command("import_judgments", str(path), project=other.slug, format=name)
    again = Judgment.objects.get(comparison__project=other)
    assert again.verdict == "ranked"
    assert {row.completion.text: row.rank for row in again.ranks.all()} == {"two": 1, "one": 2}
    assert again.comparison.size == 4

"""Search by meaning: prompts are embedded once, found by cosine, and grouped where they are nearly alike."""

import hashlib
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx
import numpy as np
import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from hypothesis import given, settings
from hypothesis import strategies as st

from annotation.choices import ImportState, JobState
from annotation.errors import NotAllowed
from annotation.exchange.uploads import do_import, request_undo
from annotation.models import BulkChange, FileImport, Project, Prompt, User
from annotation.services import bulk
from annotation.services.changes import forget_changes
from tests import factories
from tests.api.scene import Asker
from tests.refusals import refused
from tests.training.engine.fake_server import FakeServer
from tests.training.registry.registry_rows import make_starter
from training.engine import Engine
from training.figures.likeness import FEW, Vectors, packed, rooted
from training.models import Checkpoint, EmbeddingJob, PromptEmbedding
from training.selectors.embeddings import embedding_state, most_like, near_duplicate_groups
from training.services import embeddings
from training.services.embeddings import cancel_embeddings, do_embeddings, embedded_text, request_embeddings

SignIn = Callable[[User], Client]
QUESTIONS = ("How do I bake bread?", "How do I bake bread", "Who wrote Faust?", "Is tea bitter?")


class Embedder(FakeServer):
    """Embeds a text by its letters alone, as a random direction of each; its order is no matter."""

    directions = np.random.default_rng(0).normal(size=(256, 24))

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path != "/v1/embeddings" or (trouble := self.trouble(request)):
            return trouble if request.url.path == "/v1/embeddings" else super().__call__(request)
        body = json.loads(request.content)
        self.asked.append(body)
        rows = [self.vector(text).tolist() for text in body["input"]]
        return httpx.Response(
            200, json={"data": [{"index": index, "embedding": row} for index, row in enumerate(rows)]}
        )

    def vector(self, text: str) -> np.ndarray:
        """Return the vector of length 1 of a text."""
        total = sum(self.directions[ord(letter) % 256] for letter in text.lower() if letter.isalnum())
        return np.asarray(total / np.linalg.norm(total))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Embedder:
    fake = Embedder()
    monkeypatch.setattr(
        "training.services.embeddings.engine_for", lambda _: Engine(transport=httpx.MockTransport(fake))
    )
    return fake


@pytest.fixture
def starter(db: None) -> Checkpoint:
    return make_starter("small")


@pytest.fixture
def prompts(project: Project) -> list[Prompt]:
    return [factories.make_prompt(project, question) for question in QUESTIONS]


def embed(project: Project, checkpoint: Checkpoint, user: User) -> EmbeddingJob:
    job = request_embeddings(project=project, checkpoint=checkpoint, requested_by=user)
    do_embeddings(job.pk)
    job.refresh_from_db()
    return job


# ── Vectors ──


def centred(vectors: np.ndarray) -> np.ndarray:
    """As the page compares them, by the definition: without the shrunken mean, of length 1."""
    rest = vectors - vectors.sum(0) / (len(vectors) + FEW)
    return np.asarray(rest / np.linalg.norm(rest, axis=1, keepdims=True))


def groups_of(pairs: list[tuple[int, int]], size: int) -> set[frozenset[int]]:
    """Connected components, by joining sets until nothing changes."""
    sets = [{row} for row in range(size)]
    for one, other in pairs:
        left = next(group for group in sets if one in group)
        right = next(group for group in sets if other in group)
        if left is not right:
            sets.remove(right)
            left |= right
    return {frozenset(group) for group in sets}


def test_a_vector_survives_its_packing():
    vector = np.random.default_rng(1).normal(size=300)
    content, scale = packed(vector.tolist())
    assert len(content) == 300
    restored = np.frombuffer(content, dtype=np.int8) * scale
    assert np.abs(restored - vector).max() <= scale / 2 + 1e-6
    assert packed([0.0, 0.0]) == (b"\0\0", 1.0)


@given(st.integers(0, 2**32 - 1), st.integers(2, 60), st.integers(2, 200), st.sampled_from([0.85, 0.9, 0.97]))
@settings(max_examples=60, deadline=None)
def test_links_join_the_same_groups_as_all_pairs_at_every_threshold(
    seed: int, size: int, width: int, at: float
):
    draw = np.random.default_rng(seed)
    centres = draw.normal(size=(max(1, size // 4), width))
    raw = centres[draw.integers(len(centres), size=size)] + draw.normal(size=(size, width)) * draw.choice(
        [0.0, 0.1, 0.3, 0.6]
    )
    rows = [packed(row / np.linalg.norm(row)) for row in raw]
    stored = np.array([np.frombuffer(content, dtype=np.int8) * scale for content, scale in rows])
    unit = centred(stored)
    cosines = np.triu(unit @ unit.T, 1)
    vectors = Vectors(rows)
    assert vectors.cosines(0) == pytest.approx(unit @ unit[0], abs=1e-4)
    links = vectors.links(0.85)
    assert len(links) < size
    if np.abs(cosines - at).min() < 1e-5:
        return
    expected = groups_of([(int(a), int(b)) for a, b in zip(*np.nonzero(cosines >= at), strict=True)], size)
    assert groups_of([(a, b) for a, b, cosine in links if cosine >= at], size) == expected
    above = rooted(links)
    assert groups_of([(a, b) for a, (b, cosine) in above.items() if cosine >= at], size) == expected


# ── The job ──


def test_every_prompt_is_read_once_and_again_only_by_another_model(
    project: Project, carol: User, prompts: list[Prompt], starter: Checkpoint, server: Embedder
):
    job = embed(project, starter, carol)
    assert (job.state, job.embedded, job.current, job.total) == (JobState.FINISHED, 4, 4, 4)
    rows = PromptEmbedding.objects.in_bulk([prompt.pk for prompt in prompts], field_name="prompt_id")
    assert {row.model for row in rows.values()} == {"small"}
    first = rows[prompts[0].pk]
    assert first.text_hash == hashlib.sha256(QUESTIONS[0].encode()).hexdigest()
    restored = np.frombuffer(bytes(first.vector), dtype=np.int8) * first.scale
    assert restored == pytest.approx(server.vector(QUESTIONS[0]), abs=0.01)

    late = factories.make_prompt(project, "Why is the sky blue?")
    server.asked.clear()
    assert embed(project, starter, carol).embedded == 1
    assert [body["input"] for body in server.asked] == [["Why is the sky blue?"]]

    server.asked.clear()
    assert embed(project, make_starter("large"), carol).embedded == 5
    assert embedding_state(project).model == "large"
    assert PromptEmbedding.objects.get(prompt=late).model == "large"
    assert PromptEmbedding.objects.count() == 5


def test_a_system_prompt_that_many_share_is_not_read():
    turns = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Tea?"}]
    assert embedded_text(turns) == "Tea?"
    assert embedded_text(turns[:1]) == "Be kind."
    assert embedded_text([{"role": "user", "content": ""}]).isspace()


def test_a_cancelled_job_keeps_what_it_read_and_the_next_goes_on(
    project: Project, carol: User, starter: Checkpoint, server: Embedder, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("training.services.embeddings._AT_ONCE", 2)
    for number in range(6):
        factories.make_prompt(project, f"Question {number}?")
    job = request_embeddings(project=project, checkpoint=starter, requested_by=carol)
    with refused("embedding_under_way"):
        request_embeddings(project=project, checkpoint=starter, requested_by=carol)

    def store_and_cancel(*arguments: Any) -> None:
        store(*arguments)
        cancel_embeddings(job=job, cancelled_by=carol)

    store = embeddings._store
    with monkeypatch.context() as patch:
        patch.setattr(embeddings, "_store", store_and_cancel)
        do_embeddings(job.pk)
    job.refresh_from_db()
    assert (job.state, job.worker) == (JobState.FINISHED, "")
    assert PromptEmbedding.objects.count() == 2
    with refused("embedding_has_ended"):
        cancel_embeddings(job=job, cancelled_by=carol)
    assert embed(project, starter, carol).embedded == 4


def test_a_server_without_embeddings_is_named(
    project: Project, carol: User, prompts: list[Prompt], starter: Checkpoint, server: Embedder
):
    server.trouble = lambda _request: httpx.Response(404, json={"error": {"message": "Not Found."}})
    job = embed(project, starter, carol)
    assert job.state == JobState.FAILED
    assert "small" in job.error


def test_a_model_of_another_width_by_the_same_name_replaces_all_vectors(
    project: Project, carol: User, prompts: list[Prompt], starter: Checkpoint, server: Embedder
):
    embed(project, starter, carol)
    factories.make_prompt(project, "Why is the sky blue?")
    server.directions = Embedder.directions[:, :12]
    embed(project, starter, carol)
    assert {len(row.vector) for row in PromptEmbedding.objects.all()} == {12}
    assert embedding_state(project).missing == 4
    assert embed(project, starter, carol).embedded == 4


def test_only_managers_embed_and_only_by_a_model_of_the_project(
    project: Project, alice: User, carol: User, starter: Checkpoint
):
    arguments: dict[str, Any] = {"project": project, "checkpoint": starter}
    with refused("manager_changes_data", NotAllowed):
        request_embeddings(**arguments, requested_by=alice)
    other = make_starter("elsewhere")
    other.project = factories.make_project(name="Coffee", slug="coffee")
    other.save()
    arguments["checkpoint"] = other
    with refused("unknown_checkpoint"):
        request_embeddings(**arguments, requested_by=carol)


# ── Search ──


def test_the_most_alike_come_first_and_deleted_prompts_never(
    project: Project, carol: User, prompts: list[Prompt], starter: Checkpoint, server: Embedder
):
    embed(project, starter, carol)
    found = most_like(prompts[0], model="small", most=3)
    assert found is not None
    unit = centred(np.array([server.vector(question) for question in QUESTIONS]))
    expected = unit @ unit[0]
    assert [match.prompt.pk for match in found] == [
        prompts[row].pk for row in np.argsort(-expected)[1:] if expected[row] > 0
    ]
    assert found[0].likeness == pytest.approx(1, abs=1e-3)
    bulk.delete_prompts(project=project, actor=carol, chosen=[prompts[1].pk])
    found = most_like(prompts[0], model="small", most=3)
    assert found is not None
    assert prompts[1] not in [match.prompt for match in found]
    assert most_like(factories.make_prompt(project, "New?"), model="small", most=3) is None
    assert near_duplicate_groups(project, model="small", likeness=0.9) == []


def test_texts_that_round_to_the_same_are_a_group_at_the_highest_threshold_on_page_and_api(
    project: Project, carol: User, starter: Checkpoint, client_of: SignIn
):
    first, second = (factories.make_prompt(project, question) for question in ("Steep?", "Steep ?"))
    EmbeddingJob.objects.create(project=project, checkpoint=starter, created_by=carol, state="finished")
    PromptEmbedding.objects.create(prompt=first, model="small", text_hash="1", vector=b"1", scale=1)
    PromptEmbedding.objects.create(
        prompt=second, model="small", text_hash="2", vector=b"1", scale=1, alike=first, likeness=0.99995
    )
    rows = Asker(carol).get(f"/projects/{project.slug}/near-duplicates/?likeness=1").json()
    assert [row["prompts"] for row in rows] == [[first.pk, second.pk]]
    page = client_of(carol).get(reverse("near-duplicates", args=[project.slug]), {"likeness": "1"})
    assert [len(group.prompts) for group in page.context["groups"]] == [2]


def test_near_duplicates_are_deleted_from_their_page_but_the_first_and_can_be_brought_back(
    project: Project,
    carol: User,
    client_of: SignIn,
    prompts: list[Prompt],
    starter: Checkpoint,
    server: Embedder,
):
    client = client_of(carol)
    address = reverse("near-duplicates", args=[project.slug])
    assert 'name="checkpoint"' in client.get(address).content.decode()
    client.post(reverse("embed-prompts", args=[project.slug]), {"checkpoint": starter.pk})
    job = EmbeddingJob.objects.get()
    assert "embed-prompts" not in client.get(address).content.decode()
    do_embeddings(job.pk)
    page = client.get(address).content.decode()
    assert f'name="chosen" value="{prompts[0].pk}">' in page
    assert f'name="chosen" value="{prompts[1].pk}" checked>' in page
    assert f'name="chosen" value="{prompts[2].pk}"' not in page
    act = reverse("data-act", args=[project.slug, "prompts"])
    client.post(act, {"action": "delete", "chosen": prompts[1].pk, "confirmed": "yes"})
    assert not project.prompts.filter(pk=prompts[1].pk).exists()
    change = BulkChange.objects.get()
    client.post(reverse("change-undo", args=[project.slug, change.pk]))
    assert project.prompts.filter(pk=prompts[1].pk).exists()
    similar = client.get(reverse("prompt-similar", args=[project.slug, prompts[0].pk])).content.decode()
    assert reverse("prompt", args=[project.slug, prompts[1].pk]) in similar
    chosen = client.post(act, {"action": "similar", "chosen": prompts[0].pk})
    assert chosen.headers["Location"] == reverse("prompt-similar", args=[project.slug, prompts[0].pk])


def test_an_embedding_keeps_no_deleted_prompt(
    project: Project, carol: User, prompts: list[Prompt], starter: Checkpoint, server: Embedder
):
    embed(project, starter, carol)
    bulk.delete_prompts(project=project, actor=carol, chosen=[prompts[0].pk])
    forget_changes(now=timezone.now() + timedelta(days=2))
    assert not Prompt.with_deleted.filter(pk=prompts[0].pk).exists()
    assert PromptEmbedding.objects.count() == 3


def test_the_api_embeds_searches_and_lists_near_duplicates(
    project: Project,
    carol: User,
    prompts: list[Prompt],
    starter: Checkpoint,
    server: Embedder,
):
    ask, below = Asker(carol), f"/projects/{project.slug}/"
    job = ask.post(f"{below}embeddings/", {"checkpoint": "small"}).json()
    do_embeddings(job["id"])
    assert ask.get(f"{below}embeddings/").json()["results"][0]["embedded"] == 4
    [group] = ask.get(f"{below}near-duplicates/").json()
    assert group["prompts"] == [prompts[0].pk, prompts[1].pk]
    found = ask.get(f"{below}prompts/{prompts[0].pk}/similar/?most=1").json()
    assert [(row["prompt"], row["question"]) for row in found] == [(prompts[1].pk, QUESTIONS[1])]
    assert ask.get(f"{below}near-duplicates/?likeness=0.2").status_code == 422


def test_an_embedding_keeps_no_import_from_being_undone(
    project: Project, carol: User, starter: Checkpoint, server: Embedder
):
    record = FileImport.objects.create(
        project=project, created_by=carol, name="a.jsonl", digest="0" * 64, state=ImportState.FINISHED
    )
    factories.make_prompt(project, "Tea?", file_import=record)
    embed(project, starter, carol)
    request_undo(record=record, user=carol)
    do_import(record.pk)
    record.refresh_from_db()
    assert record.state == ImportState.UNDONE
    assert not PromptEmbedding.objects.exists()

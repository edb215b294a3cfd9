"""Votes by way of the API: blind in arenas and side by side, with the names shown afterwards."""

import uuid

import httpx
import pytest

from annotation.models import Judgment, Project, User
from tests import factories
from tests.api.scene import Asker, Scene
from tests.training.engine.fake_server import FakeServer
from tests.training.registry.registry_rows import make_trained
from training.engine import Engine, Engines
from training.models import ArenaLink, Checkpoint
from training.services import side_by_side
from training.services.arenas import prepare_arena


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    """A model server that answers at once."""
    server = FakeServer()
    server.text = lambda body: f"{body['messages'][-1]['content']} {len(body['model'])}"
    monkeypatch.setattr(
        side_by_side, "engine_for", lambda _checkpoint: Engine(transport=httpx.MockTransport(server))
    )
    return server


@pytest.fixture
def two(project: Project) -> list[Checkpoint]:
    """Two checkpoints of the project that write text."""
    return [make_trained("tea-one", project), make_trained("tea-policy", project)]


def test_an_arena_is_opened_voted_in_and_closed(
    project: Project, two: list[Checkpoint], server: FakeServer, as_carol: Asker, as_alice: Asker
):
    factories.make_prompt(project, "How long should tea steep?", split="held-out")
    names = [checkpoint.name for checkpoint in two]
    made = as_carol.post("/projects/tea/arenas/", {"name": "Tea", "checkpoints": names, "prompts": 1})
    assert (made.status_code, made.json()["is_open"], made.json()["votes"]) == (201, True, 0)
    arena = ArenaLink.objects.get()
    prepare_arena(arena.pk, engines=Engines(rondo_engine=Engine(transport=httpx.MockTransport(server))))
    address = f"/arenas/{made.json()['arena']}/ballots/"
    ballot = as_alice.post(f"{address}next/").json()["ballot"]
    assert ballot == as_alice.post(f"{address}next/").json()["ballot"]
    # Blind: neither name stands anywhere in it.
    assert [answer["model"] for answer in ballot["answers"]] == [None, None]
    assert not any(name in str(ballot) for name in names)
    assert as_alice.post(f"{address}{ballot['id']}/vote/", {"vote": "third"}).status_code == 422
    voted = as_alice.post(f"{address}{ballot['id']}/vote/", {"vote": "second"}).json()
    assert voted["verdict"] == "ranked"
    assert {answer["model"] for answer in voted["answers"]} == set(names)
    assert as_alice.get(f"{address}{ballot['id']}/").json() == voted
    again = as_alice.post(f"{address}{ballot['id']}/vote/", {"vote": "first"}).json()
    assert again == voted
    assert Judgment.objects.get().ranks.get(rank=1).completion.text == voted["answers"][1]["text"]
    assert as_alice.post(f"{address}next/").json() == {"ballot": None}
    closed = as_carol.post(f"/projects/tea/arenas/{arena.pk}/close/").json()
    assert (closed["is_open"], closed["votes"]) == (False, 1)


def test_an_arena_of_models_that_there_are_not_is_refused(project: Project, as_carol: Asker):
    refused = as_carol.post("/projects/tea/arenas/", {"name": "Tea", "checkpoints": ["nobody", "tea"]})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "checkpoints")


def test_a_ballot_of_somebody_else_is_not_there(scene: Scene, bob: User, as_carol: Asker):
    address = f"/arenas/{scene.ballot.pair.arena.slug}/ballots/"
    for asker in (Asker(bob), as_carol):
        assert asker.get(f"{address}{scene.ballot.pk}/").status_code == 404
        assert asker.post(f"{address}{scene.ballot.pk}/vote/", {"vote": "first"}).status_code == 404
    assert as_carol.get(f"{address}{uuid.uuid4()}/").status_code == 404


def test_checkpoints_answer_beside_each_other_blind_until_the_vote(
    project: Project, two: list[Checkpoint], server: FakeServer, as_carol: Asker
):
    names = [checkpoint.name for checkpoint in two]
    created = as_carol.post("/projects/tea/beside/", {"checkpoints": names, "text": "Tea?"})
    assert (created.status_code, created.json()["hidden"]) == (201, True)
    address = f"/projects/tea/beside/{created.json()['page']}/"
    assert as_carol.post(f"{address}vote/", {"verdict": "equal"}).status_code == 422
    written = as_carol.post(f"{address}write/").json()
    assert all(answer["written"] for answer in written["answers"])
    assert not any(name in str(written) for name in names)
    for ranks in ({"one": 1, "2": 2}, {"1": 0, "2": 1}):
        refused = as_carol.post(f"{address}vote/", {"verdict": "ranked", "ranks": ranks})
        assert refused.status_code == 422
    voted = as_carol.post(f"{address}vote/", {"verdict": "ranked", "ranks": {"1": 2, "2": 1}}).json()
    assert {answer["checkpoint"] for answer in voted["answers"]} == set(names)
    assert (voted["blind"], voted["counts"]) == (True, True)
    best = Judgment.objects.get(pk=voted["judgment"]).ranks.get(rank=1).completion
    assert best.text == voted["answers"][1]["text"]
    onward = as_carol.post(f"{address}continue/", {"text": "And coffee?", "position": 2})
    assert onward.status_code == 201
    assert onward.json()["messages"][-2]["content"] == best.text
    pages = [row["page"] for row in as_carol.get("/projects/tea/beside/").json()["results"]]
    assert pages == [onward.json()["page"], created.json()["page"]]


def test_names_shown_before_the_vote_leave_it_out_of_training(
    project: Project, two: list[Checkpoint], server: FakeServer, as_carol: Asker
):
    names = {checkpoint.name for checkpoint in two}
    created = as_carol.post("/projects/tea/beside/", {"checkpoints": sorted(names), "text": "Tea?"}).json()
    address = f"/projects/tea/beside/{created['page']}/"
    as_carol.post(f"{address}write/")
    shown = as_carol.post(f"{address}reveal/").json()
    assert {answer["checkpoint"] for answer in shown["answers"]} == names
    voted = as_carol.post(f"{address}vote/", {"verdict": "equal"}).json()
    assert voted["counts"] is False
    (judgment,) = as_carol.get("/projects/tea/judgments/").json()["results"]
    assert (judgment["blind"], judgment["comparison"]) == (False, voted["comparison"])


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"checkpoints": ["nobody", "tea-policy"], "text": "Tea?"}, "checkpoints"),
        ({"checkpoints": ["tea-policy", "tea-policy"], "text": " "}, "text"),
        ({"checkpoints": ["tea-policy", "tea-policy"], "prompt": 99}, "prompt"),
        ({"checkpoints": ["tea-policy", "tea-policy"], "text": "Te\x00a?"}, "text"),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused(
    project: Project, two: list[Checkpoint], as_carol: Asker, body: dict[str, object], field: str
):
    refused = as_carol.post("/projects/tea/beside/", body)
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, field)

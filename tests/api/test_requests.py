"""Features of all operations: problem details, pages, filters, ETags, repeated requests, limits."""

import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone
from pytest_django import Settings

from annotation.api.base import claim_key, forget_answers
from annotation.models import Comparison, CompletionSource, KeptAnswer, Project, Prompt, User
from annotation.services.texts import create_comparison
from annotation.text.identity import text_hash
from tests import factories
from tests.api.scene import Asker, Scene
from training.models import DriftMeasurement

PROMPTS = "/projects/tea/prompts/"


def prompt_body(text: str) -> dict[str, object]:
    """A body that adds one prompt."""
    return {"items": [{"prompt": [{"role": "user", "content": text}]}]}


# ── Problem details ───────────────────────────────────────────────────────────────────


def test_what_is_wrong_is_told_field_by_field(project: Project, as_carol: Asker):
    body = {"items": [{"prompt": [{"role": "user", "content": "Tea?"}]}, {"prompt": [{"role": "king"}]}]}
    answer = as_carol.post(PROMPTS, body)
    assert answer["Content-Type"] == "application/problem+json"
    problem = answer.json()
    assert (problem["type"], problem["title"], problem["status"]) == (
        "about:blank",
        "Unprocessable Entity",
        422,
    )
    assert sorted(error["field"] for error in problem["errors"]) == [
        "items.1.prompt.0.content",
        "items.1.prompt.0.role",
    ]
    assert not Prompt.objects.exists()


def test_what_a_service_refuses_is_told_with_its_words(project: Project, as_carol: Asker):
    body = {"items": [{"prompt": [{"role": "assistant", "content": "Tea!"}]}]}
    problem = as_carol.post(PROMPTS, body).json()
    assert (problem["status"], problem["code"]) == (422, "nothing_imported")
    assert problem["errors"][0]["message"].startswith("row 1, field prompt[0].role: ")


def test_every_problem_has_a_code(project: Project, as_carol: Asker, as_alice: Asker):
    assert as_carol.get("/projects/nobody/").json()["code"] == "not_found"
    assert as_carol.get("/nowhere/").json()["code"] == "not_found"
    assert as_carol.post(PROMPTS, [1]).json()["code"] == "invalid_values"
    assert as_carol.post(PROMPTS, {}).json()["errors"][0]["code"] == "required"
    assert as_carol("PATCH", PROMPTS, {}).json()["code"] == "method_not_allowed"
    assert as_alice.post(PROMPTS, {"items": []}).json()["code"] == "not_allowed"
    assert as_carol("DELETE", "/projects/tea/members/carol/").json()["code"] == "last_manager"


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [("{", "application/json", 400), ("[]", "application/json", 422), ("a=b", "text/plain", 415)],
)
def test_what_cannot_be_read_is_refused(project: Project, as_carol: Asker, body: str, kind: str, status: int):
    address = f"/api/v1{PROMPTS}"
    answer = as_carol.client.generic("POST", address, body, content_type=kind, headers=as_carol.headers)
    assert (answer.status_code, answer["Content-Type"]) == (status, "application/problem+json")


def test_a_body_that_is_too_large_is_refused(project: Project, as_carol: Asker, settings: Settings):
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100
    answer = as_carol.post(PROMPTS, prompt_body("x" * 200), **{"Idempotency-Key": "large"})
    assert (answer.status_code, answer.json()["status"]) == (413, 413)


@pytest.mark.parametrize(
    "address",
    ["/", "/a%0Ab/", "/nothing/", "/projects/none/", "/runs/99999999999999999999/", "/checkpoints/a%00b/"],
)
def test_what_is_not_there_is_told_as_a_problem(project: Project, as_admin: Asker, address: str):
    answer = as_admin.get(address)
    assert (answer.status_code, answer["Content-Type"]) == (404, "application/problem+json")


def test_without_a_token_one_is_told_what_to_send(db: None):
    answer = Asker(None).get("/me/")
    assert (answer.status_code, answer["WWW-Authenticate"]) == (401, "Bearer")


# ── Pages and filters ─────────────────────────────────────────────────────────────────


def test_pages_hold_every_row_once_though_rows_are_added_meanwhile(project: Project, as_carol: Asker):
    old = [factories.make_prompt(project, f"Question {n}?").pk for n in range(7)]
    page = as_carol.get(f"{PROMPTS}?page_size=3").json()
    seen = [row["id"] for row in page["results"]]
    factories.make_prompt(project, "A new one?")
    while page["next"]:
        page = as_carol.get(page["next"].removeprefix("http://testserver")).json()
        seen += [row["id"] for row in page["results"]]
    assert seen == sorted(old, reverse=True)


@pytest.mark.parametrize("cursor", ["x", "cD14", "cD05OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk=", "bz0tMQ=="])
def test_a_cursor_that_was_made_up_leads_nowhere(project: Project, as_carol: Asker, cursor: str):
    # p=x; p=9999…; o=-1
    assert as_carol.get(f"{PROMPTS}?cursor={cursor}").status_code == 404


@pytest.mark.parametrize(
    "size", ["abc", "-1", "0", "501", "1.5", "", "٣", "1e2", "9" * 5000, "3&page_size=4"]
)
def test_a_page_size_that_is_none_is_refused(project: Project, as_carol: Asker, size: str):
    refused = as_carol.get(f"{PROMPTS}?page_size={size}")
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_page_size")


@pytest.mark.parametrize("size", [1, 500])
def test_the_bounds_of_a_page_size_are_page_sizes(project: Project, as_carol: Asker, size: int):
    assert as_carol.get(f"{PROMPTS}?page_size={size}").status_code == 200


def test_filters_narrow_and_what_is_no_filter_is_refused(project: Project, as_carol: Asker):
    factories.make_prompt(project, "Train?", split="train")
    factories.make_prompt(project, "Test?", split="held-out")
    rows = as_carol.get(f"{PROMPTS}?split=held-out").json()["results"]
    assert [row["messages"][0]["content"] for row in rows] == ["Test?"]
    misspelled = as_carol.get(f"{PROMPTS}?splitt=held-out")
    assert misspelled.status_code == 422
    assert [error["field"] for error in misspelled.json()["errors"]] == ["splitt"]


def test_comparisons_are_found_by_round_purpose_and_free_places(
    project: Project, alice: User, as_carol: Asker
):
    judged = factories.make_comparison(project)
    factories.make_judgment(judged, alice)
    waiting = factories.make_comparison(project, round_number=2)
    gold = factories.make_gold_item(project)

    def listed(query: str) -> list[int]:
        rows = as_carol.get(f"/projects/tea/comparisons/?{query}").json()["results"]
        return [row["id"] for row in rows]

    assert listed("") == [gold.pk, waiting.pk, judged.pk]
    assert listed("round=2&purpose=work") == [waiting.pk]
    assert listed("open=true") == [waiting.pk]
    assert listed("open=false") == [gold.pk, judged.pk]
    assert listed("purpose=gold") == [gold.pk]
    assert listed("judged=true") == [judged.pk]
    assert listed("judged=false&purpose=work") == [waiting.pk]


def test_comparisons_are_found_by_who_wrote_their_answers_and_by_tags(project: Project, as_carol: Asker):
    green, old = (factories.make_source(name) for name in ("green", "old"))

    def compared(tags: list[str], *sources: CompletionSource) -> Comparison:
        prompt = factories.make_prompt(project, f"{tags}?", tags=tags)
        written = [
            factories.make_completions(prompt, [f"{n}"], source=source)[0] for n, source in enumerate(sources)
        ]
        return create_comparison(prompt=prompt, completions=written, round_number=1)

    both, single = compared(["tea", "süß"], green, old), compared(["tea"], green, green)

    def listed(query: str) -> list[int]:
        rows = as_carol.get(f"/projects/tea/comparisons/?{query}").json()["results"]
        return [row["id"] for row in rows]

    assert listed("source=green") == [single.pk, both.pk]
    assert listed("source=green&against=old") == listed("source=old&against=green") == [both.pk]
    assert listed("source=nobody") == []
    assert listed("tag=tea") == [single.pk, both.pk]
    assert listed("tag=s%C3%BC%C3%9F") == [both.pk]
    # A tag is whole: no part of one, and no sign of its own.
    assert listed("tag=te") == listed("tag=%25") == listed("tag=%22") == []


# ── What one knows already, and what has changed since ────────────────────────────────


def test_what_one_has_is_not_sent_again(project: Project, as_carol: Asker):
    first = as_carol.get("/projects/tea/settings/")
    again = as_carol.get("/projects/tea/settings/", **{"If-None-Match": first["ETag"]})
    assert (again.status_code, again.content, again["ETag"]) == (304, b"", first["ETag"])
    Project.objects.update(overlap=3)
    changed = as_carol.get("/projects/tea/settings/", **{"If-None-Match": first["ETag"]})
    assert (changed.status_code, changed.json()["overlap"]) == (200, 3)


def test_a_change_of_what_has_changed_since_is_refused(project: Project, as_admin: Asker):
    address = "/projects/tea/settings/"
    read = as_admin.get(address)["ETag"]
    first = as_admin("PATCH", address, {"overlap": 2}, headers={"If-Match": read})
    second = as_admin("PATCH", address, {"overlap": 5}, headers={"If-Match": read})
    assert (first.status_code, second.status_code) == (200, 412)
    project.refresh_from_db()
    assert project.overlap == 2


def test_recipes_and_descriptions_are_not_overwritten_unseen(scene: Scene, as_admin: Asker):
    for address, change in (
        ("/projects/tea/rounds/1/recipe/", {"recipe": {**scene.round.recipe, "ready_prompts": 3}}),
        (f"/checkpoints/{scene.starter.name}/", {"notes": "Good."}),
    ):
        method = "PUT" if "recipe" in change else "PATCH"
        read = as_admin.get(address)["ETag"]
        assert as_admin(method, address, change, headers={"If-Match": '"old"'}).status_code == 412
        assert as_admin(method, address, change, headers={"If-Match": read}).status_code == 200
    scene.round.refresh_from_db()
    assert scene.round.recipe["ready_prompts"] == 3


def test_whatever_can_be_read_at_its_address_is_not_overwritten_unseen(scene: Scene, as_carol: Asker):
    mail = {"mentions": True, "failures": True, "digest": False}
    for method, address, change in (
        ("PATCH", f"/projects/tea/prompt-sets/{scene.prompt_set.pk}/", {"name": "Evening questions"}),
        ("PUT", "/projects/tea/base-model/", {"base_model": scene.starter.name}),
        ("PUT", "/me/mail/", mail),
    ):
        read = as_carol.get(address)["ETag"]
        assert as_carol(method, address, change, headers={"If-Match": '"old"'}).status_code == 412, address
        assert as_carol(method, address, change, headers={"If-Match": read}).status_code == 200, address


def test_a_recipe_with_what_no_database_takes_is_refused(scene: Scene, as_carol: Asker):
    for sign in ("\x00", "\ud800"):
        body = {"recipe": {**scene.round.recipe, "note": [{"of": f"a{sign}b"}]}}
        refused = as_carol("PUT", "/projects/tea/rounds/1/recipe/", body)
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "recipe")
        assert refused.json()["code"] == "text_not_storable"


# ── Sent twice ────────────────────────────────────────────────────────────────────────


def test_a_request_sent_twice_is_done_once_and_answered_alike(scene: Scene, as_carol: Asker):
    key = {"Idempotency-Key": "measure-1"}
    first = as_carol.post("/projects/tea/drift/", **key)
    second = as_carol.post("/projects/tea/drift/", **key)
    assert (first.status_code, second.status_code) == (202, 202)
    assert first.json() == second.json()
    assert ("Idempotent-Replayed" in first, second["Idempotent-Replayed"]) == (False, "true")
    assert DriftMeasurement.objects.count() == 1
    # Without the key it is another request, and refused while the first goes on.
    assert as_carol.post("/projects/tea/drift/").status_code == 422


def test_a_key_stands_for_one_request_alone(project: Project, as_carol: Asker):
    key = {"Idempotency-Key": "prompts-1"}
    assert as_carol.post(PROMPTS, prompt_body("Tea?"), **key).status_code == 201
    other = as_carol.post(PROMPTS, prompt_body("Coffee?"), **key)
    assert (other.status_code, other.json()["errors"][0]["field"]) == (422, "Idempotency-Key")
    assert Prompt.objects.count() == 1


def test_a_key_is_ones_own(project: Project, as_carol: Asker, as_admin: Asker):
    key = {"Idempotency-Key": "prompts-1"}
    as_carol.post(PROMPTS, prompt_body("Tea?"), **key)
    assert as_admin.post(PROMPTS, prompt_body("Coffee?"), **key).json()["added"] == 1


def test_what_was_refused_may_be_sent_again_with_its_key(project: Project, as_carol: Asker):
    key = {"Idempotency-Key": "prompts-1"}
    assert as_carol.post(PROMPTS, {"items": [{}]}, **key).status_code == 422
    assert not KeptAnswer.objects.exists()
    assert as_carol.post(PROMPTS, prompt_body("Tea?"), **key).status_code == 201


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_of_one_request_that_arrives_many_times_at_once_one_is_done_and_all_are_answered_alike(
    project: Project, carol: User
):
    """A client that lost patience sends again while the first is still at work."""
    programs = [Asker(carol)]
    programs += [Asker(None) for _ in range(5)]

    def send(program: Asker) -> tuple[int, str]:
        try:
            program.headers = programs[0].headers
            answer = program.post(PROMPTS, prompt_body("Tea?"), **{"Idempotency-Key": "impatient"})
            return answer.status_code, answer.content.decode()
        finally:
            connection.close()

    with ThreadPoolExecutor(max_workers=6) as pool:
        answers = set(pool.map(send, programs))
    assert len(answers) == 1
    status, body = answers.pop()
    assert (status, json.loads(body)["added"]) == (201, 1)


@pytest.mark.parametrize("key", ["", "x" * 201, "a\x7fb", "a b", " ", "schlüssel", "a\tb"])
def test_a_key_that_no_program_should_draw_is_refused(project: Project, as_carol: Asker, key: str):
    assert as_carol.post(PROMPTS, prompt_body("Tea?"), **{"Idempotency-Key": key}).status_code == 422


def test_a_wrong_key_is_refused_where_no_answer_is_kept_too(as_carol: Asker):
    body = {"name": "ci", "scopes": ["read"]}
    refused = as_carol.post("/me/tokens/", body, **{"Idempotency-Key": "a b"})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "Idempotency-Key")


@pytest.mark.django_db
def test_answers_are_kept_for_a_day(carol: User):
    for name, hours in (("old", 25), ("new", 23)):
        claimed = claim_key(user=carol, key=name, fingerprint="f")
        KeptAnswer.objects.filter(pk=claimed.pk).update(created_at=timezone.now() - timedelta(hours=hours))
    assert forget_answers() == 1
    assert [answer.key for answer in KeptAnswer.objects.all()] == ["new"]


# ── How often ─────────────────────────────────────────────────────────────────────────


def test_a_token_that_is_used_too_often_is_told_when_to_come_again(
    project: Project, as_carol: Asker, settings: Settings
):
    # None at all, so that it does not matter in which minute the test runs.
    settings.RONDO_TOKEN_REQUESTS_PER_MINUTE = 0
    refused = as_carol.get("/me/")
    assert (refused.status_code, refused["Content-Type"]) == (429, "application/problem+json")
    assert 1 <= int(refused["Retry-After"]) <= 60


def test_a_person_is_limited_whatever_tokens_they_use(project: Project, carol: User, settings: Settings):
    settings.RONDO_API_REQUESTS_PER_MINUTE = 2
    programs = [Asker(carol, scopes=("read",)), Asker(carol, scopes=("read", "label"))]
    statuses = [programs[n % 2].get("/me/") for n in range(3)]
    assert [answer.status_code for answer in statuses] == [200, 200, 429]
    assert 1 <= int(statuses[-1]["Retry-After"]) <= 60


# ── Blindness ─────────────────────────────────────────────────────────────────────────


def test_an_annotator_learns_nothing_of_who_wrote_what_nor_of_what_is_known(
    project: Project, alice: User, as_alice: Asker
):
    """Of work and of a gold item: neither names, nor numbers of rows, nor what an item is for."""
    project.gold_share = 1.0
    project.save()
    factories.make_gold_item(project, texts=["gold one", "gold two"])
    work = factories.make_comparison(project, texts=["work one", "work two"])
    shown = as_alice.post("/projects/tea/assignments/next/").json()["assignment"]
    listed = as_alice.get("/projects/tea/assignments/").json()["results"]
    assert set(shown) == {
        *("id", "state", "round", "messages", "context", "answers"),
        *("leased_at", "lease_expires_at", "closed_at", "draft", "judgment"),
    }
    assert all(set(answer) == {"answer", "text", "text_hash"} for answer in shown["answers"])
    for word in ("starter", "gold_answer", "purpose", "slot", "arm", "completion", "seed"):
        assert word not in json.dumps([{**shown, "messages": [], "answers": []}, *map(strip, listed)])
    assert Comparison.objects.filter(pk=work.pk).exists()
    for closed in ("comparisons/", "completions/", "judgments/", "gold/", "prompts/", "statistics/"):
        assert as_alice.get(f"/projects/tea/{closed}").status_code == 403


def strip(shown: dict[str, object]) -> dict[str, object]:
    """An assignment without the texts, which may hold any word."""
    return {**shown, "messages": [], "answers": []}


def test_a_reviewer_sees_neither_names_nor_sources_until_it_is_decided(scene: Scene):
    from tests.api.scene import make_reviewer

    as_rita = Asker(make_reviewer(scene.project))
    address = f"/projects/tea/reviews/{scene.review.pk}/"
    open_one = as_rita.get(address)
    assert "alice" not in open_one.content.decode()
    assert "starter" not in open_one.content.decode()
    names = [answer["answer"] for answer in open_one.json()["answers"]]
    decision = {"verdict": "ranked", "ranks": dict(zip(names, (1, 2), strict=True)), "comment": "Clear."}
    decided = as_rita.post(f"{address}decision/", decision)
    assert decided.status_code == 200
    assert decided.json()["ranks"] == decision["ranks"]
    assert [vote["annotator"] for vote in decided.json()["votes"]] == ["alice"]
    # Decided is decided.
    other = {**decision, "ranks": dict(zip(names, (2, 1), strict=True))}
    as_rita.post(f"{address}decision/", other, **{"Idempotency-Key": str(uuid.uuid4())})
    scene.review.refresh_from_db()
    assert scene.review.comment == "Clear."
    assert as_rita.get(address).json()["ranks"] == decision["ranks"]


def test_a_vote_is_returned_answered_decided_whole_and_the_decision_undone(scene: Scene, alice: User):
    from tests.api.scene import make_reviewer

    as_rita, as_alice = Asker(make_reviewer(scene.project)), Asker(alice)
    address = f"/projects/tea/reviews/{scene.review.pk}/"
    (vote,) = as_rita.get(address).json()["votes"]
    again = {"vote": vote["name"], "comment": "Look at the source."}
    assert as_rita.post(f"{address}return/", again).status_code == 200
    refused = as_rita.post(f"{address}return/", {**again, "comment": "And at the length."})
    assert (refused.status_code, refused.json()["code"]) == (422, "returned_already")
    mine = f"/projects/tea/assignments/{scene.judgment.assignment_id}/"
    (returned,) = as_alice.get(f"{mine}returns/").json()["results"]
    assert (returned["comment"], returned["state"]) == ("Look at the source.", "open")
    assert "rita" not in json.dumps(returned)
    assert as_alice.post(f"{mine}object/", {"objection": "It has one."}).status_code == 204
    (vote,) = as_rita.get(address).json()["votes"]
    assert vote["returns"][0]["objection"] == "It has one."

    first, second = as_rita.get(address).json()["answers"]
    text = first["text"]
    span = {
        "answer": first["answer"],
        "category": "untruthful",
        "start": 0,
        "end": 3,
        "quote": text[:3],
        "text_hash": text_hash(text),
    }
    decision = {
        "verdict": "ranked",
        "ranks": {first["answer"]: 2, second["answer"]: 1},
        "span_flags": [span],
        "comment": "The first is made up.",
    }
    criterion = scene.criterion.key
    ratings = [{"answer": each["answer"], "criterion": criterion, "value": 4} for each in (first, second)]
    half = as_rita.post(f"{address}decision/", {**decision, "ratings": ratings[:1]})
    assert half.status_code == 422
    decided = as_rita.post(f"{address}decision/", {**decision, "ratings": ratings})
    assert decided.status_code == 200
    assert text[:3] in [remark["quote"] for remark in decided.json()["remarks"]]
    undone = as_rita.post(f"{address}undo/", {"comment": "I misread it."})
    assert (undone.status_code, undone.json()["verdict"]) == (200, "")
    assert [entry["kind"] for entry in undone.json()["earlier_decisions"]] == ["decided", "undone"]


def test_a_known_answer_is_given_edited_and_retired(scene: Scene, carol: User):
    as_carol = Asker(carol)
    address = f"/projects/tea/gold/{scene.gold.pk}/"
    ids = list(scene.gold.ranks)
    edited = as_carol(
        "PUT", address, {"verdict": "ranked", "ranks": {ids[0]: 2, ids[1]: 1}, "explanation": "B."}
    )
    assert edited.json()["ranks"] == {ids[0]: 2, ids[1]: 1}
    assert as_carol("PUT", address, {"verdict": "ranked", "ranks": {"x": 1}}).status_code == 422
    assert as_carol.post(f"{address}retire/", {}).json()["retired_at"] is not None
    assert as_carol.post(f"{address}retire/", {"retired": False}).json()["retired_at"] is None
    own = {"comparison": scene.comparison.pk, "verdict": "both_bad"}
    assert as_carol.post("/projects/tea/gold/", own).json()["verdict"] == "both_bad"

"""Sampling of a round: completions of a scripted model server, and the comparisons made of them."""

import json
import threading
import time
from typing import Any

import httpx
import pytest

from annotation.models import Comparison, Completion, Project, Prompt, User
from annotation.services.texts import create_comparison
from tests import factories
from tests.training.engine.fake_server import FakeServer
from tests.training.rounds.round_scenes import states
from training.choices import RoundState, StepState
from training.models import Round, RoundStep
from training.recipe.recipe import default_recipe
from training.services import sampling
from training.services.jobs import StepHeartbeat
from training.services.rounds.controls import cancel_round, open_first_round, start_again
from training.services.rounds.executor import advance_round

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_trainer")]


def test_a_round_is_in_labelling_when_the_first_prompts_are_answered(
    project: Project, prompts: list[Prompt], fake_server: FakeServer, monkeypatch: pytest.MonkeyPatch
):
    round_ = open_first_round(project=project)
    assert round_.state == RoundState.SAMPLING
    Round.objects.update(recipe={"ready_prompts": 3})
    seen: list[tuple[str, int]] = []

    original = create_comparison

    def create(**fields: Any) -> Comparison:
        created = original(**fields)
        seen.append((Round.objects.get().state, Comparison.objects.count()))
        return created

    monkeypatch.setattr(sampling, "create_comparison", create)
    advance_round(round_.pk)
    # Three are there before people are told that they may label; the rest comes while they do.
    assert list(dict.fromkeys(seen)) == [
        ("sampling", 1),
        ("sampling", 2),
        ("sampling", 3),
        ("labelling", 3),
        ("labelling", 4),
    ]
    assert states(round_) == ["finished"]


def test_a_round_that_is_cancelled_while_it_samples_samples_on_when_it_is_started_again(
    project: Project, prompts: list[Prompt], carol: User
):
    round_ = open_first_round(project=project)
    cancel_round(round_=round_, actor=carol)
    assert (round_.state, states(round_)) == (RoundState.CANCELLED, ["cancelled"])
    start_again(round_=round_, actor=carol)
    assert (round_.state, states(round_)) == (RoundState.SAMPLING, ["waiting"])


def test_answers_carry_how_they_came_to_be(labelled: Round):
    completion = Completion.objects.order_by("pk").first()
    assert completion.source.name == "SmolLM2-135M-Instruct"
    assert completion.source.checkpoint == labelled.policy
    assert completion.sampling == {"temperature": 0.8, "top_p": 0.95, "top_k": 0, "max_tokens": 200}
    assert completion.text == f"Answer {completion.seed}."
    assert (completion.finish_reason, completion.token_count) == ("stop", 7)


def test_a_server_that_still_loads_is_waited_for(
    project: Project, prompts: list[Prompt], fake_server: FakeServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("training.services.sampling._FIRST_PAUSE_SECONDS", 0.01)
    refusals = iter([503, 503, 502])
    messages = []

    def loading(request: httpx.Request) -> httpx.Response | None:
        if status := next(refusals, None):
            return httpx.Response(status, json={"error": {"message": "the model is loading: 43 %"}})
        return None

    fake_server.trouble = loading
    original = StepHeartbeat.__call__

    def listen(heartbeat, **progress):
        messages.append(progress.get("message"))
        return original(heartbeat, **progress)

    monkeypatch.setattr(StepHeartbeat, "__call__", listen)
    round_ = open_first_round(project=project)
    advance_round(round_.pk)
    assert states(round_) == ["finished"]
    assert "waiting for the model server: the model is loading: 43 %" in messages
    assert Comparison.objects.count() == 4


def test_a_request_that_the_server_refuses_for_good_fails_the_step(
    project: Project, prompts: list[Prompt], fake_server: FakeServer, carol: User
):
    fake_server.trouble = lambda request: httpx.Response(
        400, json={"error": {"message": "the prompt is longer than the model's context"}}
    )
    round_ = open_first_round(project=project)
    advance_round(round_.pk)
    assert "longer than the model's context" in round_.steps.get().error
    assert round_.steps.get().state == StepState.FAILED
    round_.refresh_from_db()
    assert round_.state == RoundState.FAILED
    fake_server.trouble = lambda request: None
    start_again(round_=round_, actor=carol)
    advance_round(round_.pk)
    assert states(round_) == ["finished"]


def test_an_answering_that_was_interrupted_asks_only_for_the_rest(
    project: Project, prompts: list[Prompt], fake_server: FakeServer
):
    round_ = open_first_round(project=project)
    advance_round(round_.pk)
    seeds = sorted(body["seed"] for body in fake_server.asked)
    Comparison.objects.filter(prompt=prompts[3]).delete()
    prompts[3].completions.filter(pk=prompts[3].completions.first().pk)._raw_delete("default")
    fake_server.asked.clear()
    RoundStep.objects.update(state=StepState.WAITING)
    advance_round(round_.pk)
    assert len(fake_server.asked) == 1
    assert fake_server.asked[0]["seed"] in seeds
    assert Comparison.objects.count() == 4


def test_an_answer_that_repeats_another_is_drawn_again(
    project: Project, prompts: list[Prompt], fake_server: FakeServer
):
    count = {"asked": 0}

    def text(body: dict[str, object]) -> str:
        count["asked"] += 1
        return "The same." if count["asked"] <= 2 else f"Another {body['seed']}."

    fake_server.text = text
    round_ = open_first_round(project=project)
    advance_round(round_.pk)
    for comparison in Comparison.objects.all():
        texts = list(comparison.completions.values_list("text", flat=True))
        assert len(set(texts)) == len(texts) == comparison.size


def test_a_prompt_that_always_gets_the_same_answer_is_not_compared(
    project: Project, prompts: list[Prompt], fake_server: FakeServer
):
    fake_server.text = lambda body: "Always this."
    round_ = open_first_round(project=project)
    advance_round(round_.pk)
    step = round_.steps.get()
    assert step.state == StepState.FINISHED
    assert "4 of them with one and the same text" in step.message
    assert not Comparison.objects.exists()


def test_pairs_and_rankings_take_turns_held_out_prompts_among_them(
    project: Project, prompts: list[Prompt], fake_server: FakeServer
):
    held_out = factories.make_prompt(project, "And this?", split="held-out")
    round_ = open_first_round(project=project)
    advance_round(round_.pk)
    comparisons = list(Comparison.objects.order_by("pk"))
    assert sorted(comparison.size for comparison in comparisons) == [2, 2, 2, 4, 4]
    assert held_out.comparisons.count() == 1
    assert sum(comparison.size for comparison in comparisons) == Completion.objects.count() == 14


def test_context_passages_are_put_before_the_question(project: Project, fake_server: FakeServer):
    factories.make_prompt(project, "How long?", context=[("Tea", ["Two minutes.", "Not more."])])
    round_ = open_first_round(project=project)
    advance_round(round_.pk)
    assert fake_server.asked[0]["messages"] == [
        {"role": "user", "content": "Tea\nTwo minutes. Not more.\n\nHow long?"}
    ]
    # What answers were sampled with is what training and scoring put into the prompt.
    assert round_.parsed_recipe.reward.context
    assert round_.parsed_recipe.policy.context


def test_a_project_without_prompts_says_what_to_do(project: Project, fake_server: FakeServer):
    round_ = open_first_round(project=project)
    advance_round(round_.pk)
    assert "has no prompts: import some, then start again" in round_.steps.get().error


def test_a_server_that_does_not_tell_its_seeds_is_asked_for_one_answer_at_a_time(
    project: Project, prompts: list[Prompt], fake_server: FakeServer
):
    fake_server.tells_seeds = False
    round_ = open_first_round(project=project)
    advance_round(round_.pk)
    assert states(round_) == ["finished"]
    # Two pairs and two rankings of four.
    assert Completion.objects.count() == 12
    for completion in Completion.objects.all():
        assert completion.text == f"Answer {completion.seed}."
    assert fake_server.asked[-1]["n"] == 1


@pytest.mark.parametrize(("size", "most"), [(2, 8), (3, 9), (4, 8), (9, 18)])
def test_about_eight_answers_are_in_flight_and_at_least_two_requests(
    project: Project, fake_server: FakeServer, size: int, most: int
):
    for number in range(12):
        factories.make_prompt(project, f"Question {number}?", split="train")
    flying, seen, lock = 0, [], threading.Lock()

    def slowly(request: httpx.Request) -> None:
        nonlocal flying
        if request.method == "POST":
            sampling = json.loads(request.content)["n"]
            with lock:
                flying += sampling
                seen.append(flying)
            # Long enough for every other request to begin.
            time.sleep(0.1)
            with lock:
                flying -= sampling

    fake_server.trouble = slowly
    samplers = [{"checkpoint": "policy", "completions": size}]
    round_ = open_first_round(project=project, recipe={**default_recipe(), "samplers": samplers})
    advance_round(round_.pk)
    assert states(round_) == ["finished"]
    assert max(seen) == most

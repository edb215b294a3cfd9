"""A new policy against its parent: asked with the same seeds, judged, measured, and never asked twice."""

import json
from typing import Any

import httpx
import pytest

from annotation.choices import Verdict
from annotation.models import Comparison, Completion, Project, Prompt, User
from tests import factories
from tests.training.engine.fake_server import FakeServer
from tests.training.evaluation.evaluation_scene import evaluate, trained_round
from training.models import EvaluatedPrompt, Evaluation
from training.selectors.evaluations import judgment_progress, people_say
from training.services.evaluation.evaluating import SEEDS_TRIED

pytestmark = pytest.mark.django_db


@pytest.fixture
def held_out(project: Project) -> list[Prompt]:
    """Three held-out prompts, with the answer to each as its reference; one more is for training."""
    factories.make_prompt(project, "Only for training", split="train")
    return [
        factories.make_prompt(project, f"What is {n} and {n}?", split="held-out", references=[str(2 * n)])
        for n in range(3)
    ]


@pytest.fixture
def server() -> FakeServer:
    """The new policy says "yes!", its parent "no"; the reward model likes what is longer."""
    fake = FakeServer()
    fake.text = lambda body: "yes!" if body["model"] == "tea-policy" else "no"
    return fake


def chats(server: FakeServer) -> list[dict[str, Any]]:
    return [body for body in server.asked if "n" in body]


def test_both_answer_the_held_out_prompts_alone_with_the_same_seeds(
    project: Project, held_out: list[Prompt], server: FakeServer
):
    evaluate(trained_round(project), server)
    by_prompt: dict[str, set[tuple[str, int]]] = {prompt.last_question: set() for prompt in held_out}
    for body in chats(server):
        by_prompt[body["messages"][-1]["content"]].add((body["model"], body["seed"]))
    for requests in by_prompt.values():
        assert {model for model, _ in requests} == {"tea-policy", "SmolLM2-135M-Instruct"}
        assert len({seed for _, seed in requests}) == 1
    assert len({seed for draws in by_prompt.values() for _, seed in draws}) == 3


def test_the_reward_model_counts_wins_and_the_gain(
    project: Project, held_out: list[Prompt], server: FakeServer
):
    message = evaluate(trained_round(project), server)
    evaluation = Evaluation.objects.get()
    figures = evaluation.figures
    assert figures["win_rate"]["value"] == 1
    # Three wins of three show nothing yet.
    assert figures["win_rate"]["low"] < 0.5
    # "yes!" has four characters, "no" two; the reward is the length.
    assert figures["reward"]["gain"]["value"] == 2
    assert figures["reward"]["parent"]["value"] == 2
    assert figures["length_ratio"]["value"] == 2
    assert figures["heads"]["score"]["gain"]["value"] == 2
    assert evaluation.finished_at is not None
    assert message.startswith("3 held-out prompts, win rate 100% (")


def test_identical_responses_are_scored_once_and_tie(
    project: Project, held_out: list[Prompt], server: FakeServer
):
    server.text = lambda body: "the same" if "2" in body["messages"][-1]["content"] else body["model"]
    evaluate(trained_round(project), server)
    scored = [body["completions"] for body in server.asked if "completions" in body]
    assert scored.count(["the same"]) == 1
    row = EvaluatedPrompt.objects.get(new__text="the same")
    assert row.figures["reward"] == [8.0, 8.0]
    assert Evaluation.objects.get().figures["same"] == 1


def test_where_responses_are_the_same_both_are_asked_again_with_the_next_seeds_until_they_differ(
    project: Project, held_out: list[Prompt], server: FakeServer
):
    first: dict[str, int] = {}

    def text(body: dict[str, Any]) -> str:
        """Alike at the first two seeds of each prompt; at the third the new policy says something else."""
        begin = first.setdefault(body["messages"][-1]["content"], body["seed"])
        third = body["seed"] >= begin + 2
        return body["model"] if third else f"the same {body['seed']}"

    server.text = text
    evaluate(trained_round(project), server)
    evaluation = Evaluation.objects.get()
    assert evaluation.figures["same"] == 0
    assert {row.new.text for row in evaluation.rows.select_related("new")} == {"tea-policy"}
    for prompt in held_out:
        asked = [body for body in chats(server) if body["messages"][-1]["content"] == prompt.last_question]
        # Both got the same three seeds, and no further ones once they differed.
        assert {body["seed"] for body in asked} == {first[prompt.last_question] + n for n in range(3)}
    assert len({(body["model"], body["seed"]) for body in chats(server)}) == 2 * 3 * 3


def test_policies_that_never_differ_tie_after_a_bounded_number_of_seeds(
    project: Project, held_out: list[Prompt], server: FakeServer
):
    server.text = lambda body: f"the same {body['seed']}"
    evaluate(trained_round(project), server)
    assert Evaluation.objects.get().figures["same"] == 3
    assert len({body["seed"] for body in chats(server)}) == 3 * SEEDS_TRIED


def test_greedy_responses_that_are_the_same_are_not_asked_for_again(
    project: Project, held_out: list[Prompt], server: FakeServer
):
    server.text = lambda body: "the same"
    evaluate(trained_round(project, evaluation={"sampling": {"temperature": 0}}), server)
    assert len({body["seed"] for body in chats(server)}) == 3


def test_the_tolerance_is_measured_by_scoring_pairs_again_in_other_batches(
    project: Project, held_out: list[Prompt], server: FakeServer
):
    # A reward model whose scores move by 1/128 for each text in the batch.
    def by_batch(request: httpx.Request) -> httpx.Response | None:
        if request.url.path != "/v1/score":
            return None
        texts = json.loads(request.content)["completions"]
        scores = [len(text) + len(texts) / 128 for text in texts]
        heads = {"heads": {"score": [[score] for score in scores]}, "segments": {}}
        return httpx.Response(200, json={"scores": scores, **heads})

    server.trouble = by_batch
    evaluate(trained_round(project), server)
    tolerance = Evaluation.objects.get().figures["tolerance"]
    # First in pairs, then alone and in threes: each moved by 1/128; the tolerance is four times that.
    assert (tolerance["measured"], tolerance["pairs"], tolerance["value"]) == (1 / 128, 3, 1 / 32)


def test_rules_score_both_texts_against_the_references(
    project: Project, held_out: list[Prompt], server: FakeServer
):
    server.text = lambda body: "2" if body["model"] == "tea-policy" else "4"
    rules = [
        {"name": "right", "kind": "exact_match"},
        {"name": "short", "kind": "length", "options": {"most": 3}},
    ]
    evaluate(trained_round(project, evaluation={"rules": rules}), server)
    figures = Evaluation.objects.get().figures
    # References are 0, 2 and 4: each of the two is right once in three.
    assert figures["rules"]["right"]["checkpoint"]["value"] == pytest.approx(1 / 3)
    assert figures["rules"]["right"]["parent"]["value"] == pytest.approx(1 / 3)
    assert figures["rules"]["right"]["gain"]["value"] == 0
    assert figures["rules"]["short"]["checkpoint"]["value"] == 1
    row = EvaluatedPrompt.objects.get(prompt=held_out[1])
    assert row.figures["rules"] == {"right": [0.0, 1.0], "short": [1.0, 1.0]}


def test_a_rule_that_its_options_do_not_fit_is_refused_by_name(
    project: Project, held_out: list[Prompt], server: FakeServer
):
    rules = [{"name": "odd", "kind": "length", "options": {"nonsense": 1}}]
    with pytest.raises(Exception, match=r"odd.*nonsense"):
        evaluate(trained_round(project, evaluation={"rules": rules}), server)


def test_the_divergence_is_the_sum_over_the_tokens_of_an_answer(
    project: Project, held_out: list[Prompt], server: FakeServer
):
    server.kl = [0.5, -0.125, 0.25]
    evaluate(trained_round(project), server)
    assert Evaluation.objects.get().figures["kl"]["value"] == 0.625


def test_a_server_that_does_not_tell_the_divergence_leaves_it_out_and_it_is_said(
    project: Project, held_out: list[Prompt], server: FakeServer
):
    evaluate(trained_round(project), server)
    figures = Evaluation.objects.get().figures
    assert figures["kl"] is None
    assert figures["notes"]["kl"] == "the model server does not tell the divergence"


def test_an_evaluation_that_is_done_again_asks_for_nothing(
    project: Project, held_out: list[Prompt], server: FakeServer
):
    round_ = trained_round(project)
    first = evaluate(round_, server)
    request_count = len(server.asked)
    assert evaluate(round_, server) == first
    assert len(server.asked) == request_count
    assert Evaluation.objects.count() == 1


def test_an_evaluation_that_was_cut_short_goes_on_where_it_was(
    project: Project, held_out: list[Prompt], server: FakeServer
):
    round_ = trained_round(project)
    calls = 0

    def breaks(request: httpx.Request) -> httpx.Response | None:
        nonlocal calls
        calls += 1
        if calls == 8:  # six answers, then the second of three scores
            raise RuntimeError("power cut")
        return None

    server.trouble = breaks
    with pytest.raises(RuntimeError):
        evaluate(round_, server)
    assert Evaluation.objects.get().finished_at is None
    server.trouble = lambda request: None
    before = len(server.asked)
    # A prompt that came meanwhile is not mixed in.
    factories.make_prompt(project, "Came late", split="held-out")
    evaluate(round_, server)
    # Two first scores are missing; then each of the three pairs is scored again, in three other batches.
    completion_counts = [len(body["completions"]) for body in server.asked[before:] if "completions" in body]
    assert completion_counts == [2, 2, *[1, 1, 3] * 3]
    assert not chats(server)[6:]
    assert Evaluation.objects.get().figures["prompts"] == 3


def test_an_answer_that_the_reward_model_refuses_is_told_and_left_out(
    project: Project, held_out: list[Prompt], server: FakeServer
):
    def refuses(request: httpx.Request) -> httpx.Response | None:
        if request.url.path == "/v1/score" and b"What is 1 and 1?" in request.content:
            return httpx.Response(400, json={"error": {"message": "too long"}})
        return None

    server.trouble = refuses
    evaluate(trained_round(project), server)
    figures = Evaluation.objects.get().figures
    assert figures["win_rate"]["prompts"] == 2
    assert figures["notes"]["reward"] == "tea-reward could not score 1 of 3 prompts: too long"


def test_without_held_out_prompts_nothing_is_measured_and_it_says_so(project: Project, server: FakeServer):
    message = evaluate(trained_round(project), server)
    assert message == "no held-out prompts: nothing could be measured"
    assert Evaluation.objects.get().figures["win_rate"] is None


def test_people_are_asked_once_about_pairs_that_differ(
    project: Project, held_out: list[Prompt], server: FakeServer
):
    server.text = lambda body: (
        "the same" if "0 and 0" in body["messages"][-1]["content"] else f"by {len(body['model'])}"
    )
    round_ = trained_round(project, evaluation={"people": True})
    evaluate(round_, server)
    evaluate(round_, server)
    comparisons = Comparison.objects.all()
    assert len(comparisons) == 2
    assert {comparison.round_number for comparison in comparisons} == {1}
    assert {comparison.prompt.split for comparison in comparisons} == {"held-out"}


def test_a_vote_of_people_counts_ties_half_and_machines_not_at_all(
    project: Project, held_out: list[Prompt], server: FakeServer, alice: User, bob: User
):
    round_ = trained_round(project, evaluation={"people": True})
    project.overlap = 2
    project.save()
    evaluate(round_, server)
    won, tied, _ = [
        Comparison.objects.get(prompt=row.prompt) for row in EvaluatedPrompt.objects.order_by("prompt_id")
    ]
    new = [won.candidates.get(index=n).completion.text == "yes!" for n in range(2)]
    factories.make_judgment(won, alice, ranks=[1, 2] if new[0] else [2, 1])
    factories.make_judgment(tied, alice, ranks=(1, 1), verdict=Verdict.EQUAL)
    machine = factories.make_judgment(tied, bob, ranks=(1, 2))
    User.objects.filter(pk=machine.annotator_id).update(is_machine=True, is_active=False)
    evaluation = Evaluation.objects.get()
    by_people = people_say(evaluation.checkpoint, evaluation.parent)
    assert by_people.held_out.value == 0.75
    assert by_people.held_out_judgments == 2
    progress = judgment_progress(evaluation)
    assert (progress.comparisons, progress.judgments, progress.possible) == (3, 2, 6)


def test_what_is_evaluated_does_not_take_the_place_of_the_rounds_own_answers(
    project: Project, held_out: list[Prompt], server: FakeServer
):
    evaluate(trained_round(project), server)
    assert Completion.objects.count() == 6
    assert not Comparison.objects.exists()

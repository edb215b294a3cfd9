"""Estimate: counted by hand on a small project, and refused where it cannot fit."""

import dataclasses
import json
from decimal import Decimal
from pathlib import Path

import pytest
from django.utils import timezone
from pytest_django import Settings

from annotation.agreement.records import Selection
from annotation.errors import Refusal
from annotation.models import Project, Prompt, User
from annotation.statistics.cached import report_of
from tests import factories
from tests.annotation.questions.asking import ask, choices
from tests.chat_templates import template
from tests.training.evaluation.evaluation_scene import register
from tests.training.jobs.machines_report import report
from training.choices import RoundState, StepKind
from training.contract.methods.common import OptimiserSettings
from training.contract.methods.reward import RewardSettings
from training.contract.run import MachineUse, append_machine_use
from training.files.chat_templates import find_problem
from training.models import Checkpoint, Round, RoundStep, Run
from training.selectors.dashboard import Pace, next_step_of, steps_of
from training.services import chat_templates
from training.services.checkpoints import register_served_model, register_starter
from training.services.rounds.controls import open_round
from training.services.rounds.dry_run import UNKNOWN, PlannedRun, dry_run, refuse_unless_fits
from training.services.runs.memory import Shape

pytestmark = pytest.mark.django_db

SMALL = {
    "vocab_size": 100,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 2048,
}


@pytest.fixture
def prompts(project: Project) -> list[Prompt]:
    """Three prompts for training, one held out."""
    return [
        factories.make_prompt(project, f"What is {n}?", split="held-out" if n == 3 else "train")
        for n in range(4)
    ]


@pytest.fixture
def base(settings: Settings) -> Path:
    """The folder of the base model, with a configuration and no weights."""
    folder = Path(settings.RONDO_MODELS) / register_starter().base_model
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(SMALL))
    return folder


def a_round(project: Project, **recipe) -> Round:
    return Round.objects.create(project=project, policy=register_starter(), recipe=recipe)


def a_round_after(project: Project, before: Round, **recipe) -> Round:
    before.state = RoundState.REJECTED
    before.save()
    return Round.objects.create(
        project=project, number=before.number + 1, policy=register_starter(), recipe=recipe
    )


def test_answers_and_judgments_are_counted(project: Project, prompts: list[Prompt]):
    Project.objects.update(overlap=2, extra_overlap=1, extra_overlap_share=0.5)
    project.refresh_from_db()
    estimate = dry_run(round_=a_round(project))
    # Pair, ranking of four, pair, ranking of four.
    assert estimate.answers == {register_starter().name: 12}
    assert estimate.comparisons == 4
    # Four comparisons, each for two people and every second one for a third.
    assert estimate.judgments_expected == 10
    assert (estimate.prompts, estimate.held_out_prompts, estimate.evaluated_prompts) == (4, 1, 1)


def test_annotations_cost_what_the_wage_and_the_time_so_far_say(
    project: Project, prompts: list[Prompt], alice: User
):
    Project.objects.update(hourly_wage="18.00")
    project.refresh_from_db()
    round_ = a_round(project)
    assert dry_run(round_=round_).annotation_cost is None
    factories.make_judgment(factories.make_comparison(project, prompt=prompts[0]), alice, active_seconds=50)
    report_of(project, Selection())
    estimate = dry_run(round_=round_)
    # Four annotations of 50 s at 18 an hour.
    assert estimate.judgments_expected == 4
    assert estimate.annotation_cost == Decimal("1.00")


def test_samplers_are_counted_by_who_answers(project: Project, prompts: list[Prompt]):
    estimate = dry_run(round_=a_round(project, samplers=[{"completions": 3}], prompts=2))
    assert estimate.answers == {register_starter().name: 6}
    assert estimate.comparisons == 2


def test_what_would_be_left_out_is_counted_by_reason(
    project: Project, prompts: list[Prompt], alice: User, bob: User
):
    def judged(prompt: Prompt, who: User, **answer) -> None:
        comparison = factories.make_comparison(project, ["a", "b"], prompt=prompt)
        factories.make_judgment(comparison, who, **answer)

    judged(prompts[0], alice)
    judged(prompts[0], bob)
    judged(prompts[1], alice, ranks=(1, 1), verdict="equal")
    judged(prompts[2], alice, ranks=(), verdict="cannot_judge")
    judged(prompts[3], alice)
    User.objects.filter(pk=bob.pk).update(is_machine=True, is_active=False)
    round_ = a_round(project)
    assert dry_run(round_=round_).material == {
        "total": 5,
        "learned": 1,
        "held_out": 1,
        "machines": 1,
        "cannot_judge": 1,
        "no_preference": 1,
    }
    Round.objects.update(recipe={"ai_feedback": True})
    round_.refresh_from_db()
    material = dry_run(round_=round_).material
    assert (material["learned"], material["machines"]) == (2, 0)


@pytest.mark.parametrize(
    ("examples", "most", "steps"), [(10, None, 9), (8, None, 6), (10, 4, 4), (0, None, 0), (1, None, 3)]
)
def test_steps_are_whole_passes_or_as_many_as_are_allowed(examples: int, most: int | None, steps: int):
    # Batches of four, three passes.
    settings = RewardSettings(optimiser=OptimiserSettings(batch_size=4, epochs=3, max_steps=most))
    assert steps_of(settings, examples) == steps


def test_time_is_reckoned_with_the_pace_of_the_last_run_of_its_kind(
    project: Project, prompts: list[Prompt], base: Path, alice: User
):
    round_ = a_round(project, reward={"optimiser": {"batch_size": 2, "epochs": 1}})
    assert dry_run(round_=round_).runs[0].seconds is None
    earlier = register(round_, "reward", StepKind.TRAIN_REWARD_MODEL, position=2)
    Run.objects.update(state="finished", spec={"settings": {"optimiser": {"batch_size": 4}}})
    folder = earlier.run.path
    folder.mkdir(parents=True)
    # Two steps take 8 s, then one 4 s, then the machine slept for an hour: 4 s a step, 1 s an example.
    for moment, step in ((0, 0), (8, 2), (12, 3), (3612, 4)):
        append_machine_use(
            folder,
            MachineUse(
                time=moment, step=step, device="cpu", memory_bytes=1, cpu_cores=1.0, tokens_per_second=50.0
            ),
        )
    for prompt in prompts[:3]:
        factories.make_judgment(factories.make_comparison(project, ["a", "b"], prompt=prompt), alice)
    planned = dry_run(round_=round_).runs[0]
    assert planned.examples == 3
    # Two steps of two examples.
    assert (planned.steps, planned.seconds) == (2, 4.0)
    assert planned.measured_on == "tea-reward"
    assert planned.tokens_per_second == 50


def test_the_next_step_tells_how_long_training_would_take(
    project: Project, prompts: list[Prompt], alice: User, monkeypatch: pytest.MonkeyPatch
):
    round_ = a_round(
        project,
        reward={"optimiser": {"batch_size": 2, "epochs": 1}},
        policy={"method": "preference", "optimiser": {"batch_size": 4, "epochs": 2}},
    )
    Round.objects.update(state=RoundState.LABELLING)
    round_.refresh_from_db()
    comparisons = [factories.make_comparison(project, ["a", "b"], prompt=prompt) for prompt in prompts[:3]]
    assert next_step_of(project, round_).text.startswith("0 of 3 annotations of this round.")
    for comparison in comparisons:
        factories.make_judgment(comparison, alice)
    assert next_step_of(project, round_).text == "3 of 3 annotations of this round. Training is possible."
    # A second an example: reward model two steps of two, policy two passes of one step of four.
    pace = Pace(run="earlier", seconds_per_example=1.0, tokens_per_second=None)
    monkeypatch.setattr("training.selectors.dashboard.pace_of", lambda round_, method: pace)
    assert next_step_of(project, round_).text == (
        "3 of 3 annotations of this round. Training is possible and takes about 12 s."
    )


def test_answering_is_reckoned_with_the_last_rounds(project: Project, prompts: list[Prompt]):
    round_ = a_round(project, samplers=[{"completions": 2}])
    factories.make_comparison(project, ["a", "b"], prompt=prompts[0])
    RoundStep.objects.create(
        round=round_, position=0, kind=StepKind.ANSWER_PROMPTS, state="finished", seconds_worked=10.0
    )
    # Five seconds an answer, eight answers.
    assert dry_run(round_=round_).answering_seconds == 40


@pytest.mark.parametrize("state", ["running", "failed"])
def test_answering_is_reckoned_with_the_pace_so_far_while_a_round_samples(
    state: str, project: Project, prompts: list[Prompt]
):
    round_ = a_round(project, samplers=[{"completions": 2}])
    claim = {"worker": "w", "heartbeat_at": timezone.now()} if state == "running" else {}
    step = RoundStep.objects.create(
        round=round_, position=0, kind=StepKind.ANSWER_PROMPTS, state=state, seconds_worked=6.0, **claim
    )
    # Nothing is stored yet.
    assert dry_run(round_=round_).answering_seconds is None
    factories.make_comparison(project, ["a", "b"], prompt=prompts[0])
    assert step.round.number == 1
    # Three seconds a response, eight responses.
    assert dry_run(round_=round_).answering_seconds == 24


def test_what_cannot_fit_is_refused_with_the_remedy(project: Project, prompts: list[Prompt], base: Path):
    round_ = a_round(project)
    refuse_unless_fits(round_)
    needed = dry_run(round_=round_).runs[0].memory.total
    report(memory_total_bytes=needed - 1)
    with pytest.raises(Refusal, match="lower micro_batch_tokens") as refused:
        refuse_unless_fits(round_)
    assert refused.value.field == "recipe"
    assert any("reward model needs about" in problem for problem in dry_run(round_=round_).problems)


def test_processes_share_the_memory_of_a_machine_without_gpus_and_the_base_where_it_is_sharded(
    project: Project, prompts: list[Prompt], base: Path
):
    def planned(sharding: str) -> PlannedRun:
        compute = {"processes": 2, "sharding": sharding}
        Round.objects.update_or_create(
            project=project, defaults={"policy": register_starter(), "recipe": {"compute": compute}}
        )
        return dry_run(round_=Round.objects.get(project=project)).runs[0]

    whole, cut = planned("none"), planned("full")
    shape = Shape.read(base)
    assert whole.memory is not None
    assert cut.memory is not None
    assert shape is not None
    # Half of the blocks, at 4 bytes a parameter.
    assert whole.memory.base - cut.memory.base == 4 * (shape.parameters - shape.whole) // 2
    assert whole.bytes_on(UNKNOWN) == 2 * whole.memory.total
    assert whole.bytes_on(dataclasses.replace(UNKNOWN, device="cuda")) == whole.memory.total


def test_memory_that_is_taken_now_warns_and_does_not_refuse(
    project: Project, prompts: list[Prompt], base: Path
):
    report(memory_total_bytes=2**40, memory_bytes=2**40 - 1)
    round_ = a_round(project)
    refuse_unless_fits(round_)
    assert any("0.0 are free now" in warning for warning in dry_run(round_=round_).warnings)


def test_fewer_held_out_prompts_than_a_decision_needs_are_warned_of(project: Project, prompts: list[Prompt]):
    round_ = a_round(project)
    for number in range(18):
        factories.make_prompt(project, f"Held out {number}", split="held-out")
    expected = "compared with its parent on 19 held-out prompts, and a decision needs at least 20"
    estimate = dry_run(round_=round_)
    assert estimate.evaluated_prompts == 19
    assert any(expected in warning for warning in estimate.warnings)
    factories.make_prompt(project, "Held out too", split="held-out")
    estimate = dry_run(round_=round_)
    assert not any("a decision needs" in warning for warning in estimate.warnings)
    # Of 20 prompts 18 must be won, which a policy does that wins 92.2 % in four rounds of five.
    (suggestion,) = estimate.suggestions
    assert suggestion.startswith(
        "20 held-out prompts show a win rate of 93 % or more in four rounds of five."
    )
    assert "For 70 % it takes 94" in suggestion


def test_a_question_that_no_response_is_asked_is_warned_of(
    project: Project, prompts: list[Prompt], alice: User
):
    round_ = a_round(project)
    head = {"name": "polite", "criterion": "tone", "answers": ["rude", "kind"]}
    covariate = {"question": "topic", "answers": ["law", "tax"]}
    recipe = {"reward": {"features": "adapted", "ratings": [head], "covariates": [covariate]}}
    Round.objects.update(recipe=recipe)
    ask(project, alice, "topic", subject="completion")
    ask(project, alice, "tone", kind="choice", text="Tone", choices=choices("rude", "kind"))
    warnings = dry_run(round_=Round.objects.get(pk=round_.pk)).warnings
    # The tone is asked of the comparison, not of each response.
    assert [("“tone”" in warning, "“topic”" in warning) for warning in warnings if "question" in warning] == [
        (True, False)
    ]


def test_the_prompts_that_a_decision_takes_are_told_before_labelling(project: Project, prompts: list[Prompt]):
    round_ = a_round(project)
    estimate = dry_run(round_=round_)
    assert (estimate.prompts_for_decision, estimate.usual_effect) == (94, 70)
    assert not estimate.has_prompts_for_decision
    for number in range(94 - estimate.evaluated_prompts):
        factories.make_prompt(project, f"Held out {number}", split="held-out")
    assert dry_run(round_=round_).has_prompts_for_decision
    Round.objects.update(recipe={"promotion": {"not_worse": False}})
    # The win rate does not decide then, so that nothing is lacking.
    estimate = dry_run(round_=Round.objects.get())
    assert estimate.prompts_for_decision is None
    assert estimate.has_prompts_for_decision


def test_without_the_base_model_memory_is_not_known_and_nothing_is_refused(
    project: Project, prompts: list[Prompt]
):
    round_ = a_round(project)
    refuse_unless_fits(round_)
    estimate = dry_run(round_=round_)
    assert estimate.runs[0].memory is None
    assert any("is not known" in warning for warning in estimate.warnings)


def test_a_reward_model_that_is_not_there_is_refused(project: Project, prompts: list[Prompt]):
    rewards = [{"name": "old", "kind": "model", "checkpoint": "gone"}]
    round_ = a_round(project, policy={"method": "policy_gradient", "rewards": rewards})
    with pytest.raises(Refusal, match="old names gone"):
        refuse_unless_fits(round_)


def test_nothing_is_trained_from_a_model_of_another_server(
    project: Project, prompts: list[Prompt], admin: User, monkeypatch: pytest.MonkeyPatch
):
    served = register_served_model(name="sonnet", url="https://models.example.org/v1", by=admin)
    round_ = Round.objects.create(project=project, policy=served, recipe={})
    with pytest.raises(Refusal, match="sonnet is served elsewhere") as refused:
        refuse_unless_fits(round_)
    assert refused.value.field == "recipe"
    assert any("sonnet is served elsewhere" in problem for problem in dry_run(round_=round_).problems)
    # It may answer all the same: beside the checkpoint that is trained.
    mixed_round = a_round_after(project, round_, samplers=[{"checkpoint": "sonnet", "completions": 2}])
    refuse_unless_fits(mixed_round)
    assert not [problem for problem in dry_run(round_=mixed_round).problems if "served elsewhere" in problem]


def test_nothing_is_trained_from_a_checkpoint_whose_files_were_deleted(
    project: Project, prompts: list[Prompt]
):
    round_ = a_round(project)
    Checkpoint.objects.update(files_deleted_at=timezone.now())
    with pytest.raises(Refusal, match="were deleted"):
        refuse_unless_fits(round_)


def test_answers_longer_than_the_context_are_a_problem(project: Project, prompts: list[Prompt], base: Path):
    estimate = dry_run(round_=a_round(project, evaluation={"sampling": {"max_tokens": 2048}}))
    assert [
        problem for problem in estimate.problems if problem.startswith("evaluation, sampling asks for 2048")
    ]


def test_a_project_without_prompts_says_so(project: Project):
    assert dry_run(round_=a_round(project)).problems == ["The project has no prompts: import some."]


def test_a_dry_run_writes_nothing(project: Project, prompts: list[Prompt], django_assert_max_num_queries):
    round_ = a_round(project)
    before = Checkpoint.objects.count(), RoundStep.objects.count()
    with django_assert_max_num_queries(30):
        dry_run(round_=round_)
    assert (Checkpoint.objects.count(), RoundStep.objects.count()) == before


TOKENIZER = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}
FIT = (
    "{{ bos_token }}{% for m in messages %}{% generation %}{{ m['role'] + ': ' + m['content'] + eos_token }}"
    "{% endgeneration %}{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
UNFIT = {
    "shouts": (FIT.replace("m['content']", "m['content'] | upper"), "does not render an answer after"),
    "refuses": ("{{ raise_exception('no chats here') }}", "no chats here"),
    "is none": ("{% for %}", "refuses this chat"),
}


@pytest.fixture
def checked_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child takes a second to start; that it checks within bounds is shown in test_hanging_templates.py."""

    def check(asked: str) -> dict[str, str]:
        return {"problem": find_problem(**json.loads(asked)), "code": ""}

    monkeypatch.setattr(chat_templates, "_check_in_child", check)


@pytest.mark.usefixtures("checked_in_this_process")
@pytest.mark.parametrize(("template", "reason"), UNFIT.values(), ids=UNFIT)
@pytest.mark.parametrize("named", [False, True])
def test_a_base_whose_chats_cannot_be_trained_on_is_refused_before_anybody_labels(
    project: Project, prompts: list[Prompt], base: Path, template: str, reason: str, named: bool
):
    templates = [{"name": "default", "template": template}] if named else template
    (base / "tokenizer_config.json").write_text(json.dumps({**TOKENIZER, "chat_template": templates}))
    round_ = a_round(project)
    (problem,) = dry_run(round_=round_).problems
    assert problem.startswith(f"Responses of {base.name} could be annotated but not trained on: ")
    assert reason in problem
    with pytest.raises(Refusal, match="not trained on"):
        open_round(round_=round_, opened_by=None)
    round_.refresh_from_db()
    assert round_.state == RoundState.DRAFT
    with pytest.raises(Refusal, match="not trained on"):
        refuse_unless_fits(round_)


@pytest.mark.usefixtures("checked_in_this_process")
@pytest.mark.parametrize(
    "name", ["qwen3", "qwen3_5_think", "deepseekv3", "glm4moe", "gptoss", "nemotron_3_nano"]
)
def test_templates_of_reasoning_models_pass_the_dry_run(
    project: Project, prompts: list[Prompt], base: Path, name: str
):
    (base / "tokenizer_config.json").write_text(json.dumps(TOKENIZER))
    (base / "chat_template.jinja").write_text(template(name))
    assert dry_run(round_=a_round(project)).problems == []


@pytest.mark.usefixtures("checked_in_this_process")
def test_a_template_file_goes_before_the_tokenizers_own(project: Project, prompts: list[Prompt], base: Path):
    (base / "tokenizer_config.json").write_text(json.dumps({**TOKENIZER, "chat_template": "{% for %}"}))
    (base / "chat_template.jinja").write_text(FIT)
    round_ = a_round(project)
    assert dry_run(round_=round_).problems == []
    open_round(round_=round_, opened_by=None)
    assert round_.state == RoundState.SAMPLING


def test_few_decided_annotations_suggest_a_head_on_frozen_features(
    project: Project, prompts: list[Prompt], alice: User
):
    round_ = a_round(project)
    assert dry_run(round_=round_).suggestions == []
    factories.make_judgment(factories.make_comparison(project, ["a", "b"], prompt=prompts[0]), alice)
    (suggestion,) = dry_run(round_=round_).suggestions
    assert suggestion.startswith("Few annotations decide a preference so far: 1. Below 500 consider a head")
    frozen = {"adapter": "none", "features": "frozen"}
    for reward in (frozen, {"loss": "davidson"}, {"annotator_heads": True, "ensemble": 2}):
        Round.objects.update(recipe={"reward": reward})
        round_.refresh_from_db()
        assert dry_run(round_=round_).suggestions == []


def test_a_head_on_frozen_features_takes_one_step_and_the_memory_of_a_forward_pass(
    project: Project, prompts: list[Prompt], base: Path
):
    adapted = dry_run(round_=a_round(project)).runs[0]
    Round.objects.update(recipe={"reward": {"adapter": "none", "features": "frozen"}})
    frozen = dry_run(round_=Round.objects.get()).runs[0]
    assert frozen.steps == 1
    assert frozen.memory.trained == 0
    assert frozen.memory.base == adapted.memory.base > 0
    assert frozen.memory.activations < adapted.memory.activations

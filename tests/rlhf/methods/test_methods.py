"""The loss of a batch; cutting, padding and ordering the batch do not change it."""

import math
from pathlib import Path

import pytest
import torch

from tests.rlhf.model.test_backbone import disturb, save
from tests.rlhf.runs import judgments, row
from training.contract.methods.common import LoraSettings
from training.contract.methods.policy import PreferenceSettings
from training.contract.methods.reward import RewardSettings
from training.contract.run import RunSpec
from training.rlhf.data import build_examples
from training.rlhf.loop.log_probabilities import answer_log_probabilities, token_log_probabilities
from training.rlhf.loop.method import TrainingMethod
from training.rlhf.methods.dpo import DirectPreference
from training.rlhf.methods.reward import RewardModelling, read_rewards
from training.rlhf.model.backbone import Backbone
from training.rlhf.tokens.example import Example
from training.rlhf.tokens.packing import Batch, pack

CPU = torch.device("cpu")
LORA = LoraSettings(rank=4)


def spec_of(backbone: Backbone, settings: RewardSettings | PreferenceSettings, **more) -> RunSpec:
    return RunSpec(
        method=settings.method,
        base_model=str(backbone.folder),
        snapshot="snapshot",
        snapshot_digest="0",
        settings=settings,
        **more,
    )


def reward_method(backbone: Backbone, **settings) -> RewardModelling:
    resolved = RewardSettings(lora=LORA, **settings)
    return RewardModelling(backbone, spec_of(backbone, resolved), resolved)


def preference_method(backbone: Backbone, **more) -> DirectPreference:
    settings = PreferenceSettings(lora=LORA)
    return DirectPreference(backbone, spec_of(backbone, settings, **more), settings)


def examples_of(backbone: Backbone) -> list[Example]:
    return build_examples(judgments(), backbone.tokenizer, max_tokens=128, context=False).train


def batch_of(examples: list[Example]) -> Batch:
    return pack(examples, device=CPU)


def loss_of(method: TrainingMethod, examples: list[Example], *, dropout: bool = False) -> torch.Tensor:
    """Return the loss of each example, for a method with one part."""
    ((_, part),) = method.outcome(batch_of(examples), examples, dropout=dropout).parts.items()
    return part.loss


def figures_of(method: TrainingMethod, examples: list[Example]) -> dict[str, float]:
    observed = method.outcome(batch_of(examples), examples, dropout=False).observed
    return method.figures(observed, held_out=False)


def test_the_reward_is_read_at_the_end_token_though_pad_is_the_same_token(backbone: Backbone) -> None:
    reward_method(backbone)
    disturb(backbone, "reward")
    examples = examples_of(backbone)[:3]
    batched = read_rewards(backbone, "reward", batch_of(examples))
    alone = []
    for answer in (answer for example in examples for answer in example.answers):
        assert answer.ids[-1] == backbone.tokenizer.pad_token_id
        ids = torch.tensor([answer.ids])
        with torch.no_grad(), backbone.using("reward"):
            last = backbone.hidden_states(ids, torch.ones_like(ids)).states[:, -1]
        alone.append(backbone.score("reward", last).item())
    assert batched.tolist() == pytest.approx(alone, abs=1e-5)


def test_a_log_probability_is_the_sum_over_the_answers_tokens_of_the_whole_softmax(
    backbone: Backbone,
) -> None:
    examples = examples_of(backbone)[:2]
    batched = answer_log_probabilities(backbone, None, batch_of(examples))
    expected = []
    for answer in (answer for example in examples for answer in example.answers):
        ids = torch.tensor([answer.ids])
        with torch.no_grad():
            logits = backbone.logits(backbone.hidden_states(ids, torch.ones_like(ids)).states)[0]
        log_softmax = logits.double().log_softmax(-1)
        expected.append(
            sum(
                log_softmax[place - 1, answer.ids[place]].item()
                for place in range(answer.answer_start, len(answer.ids))
            )
        )
    assert batched.tolist() == pytest.approx(expected, abs=1e-3)


def test_the_slope_of_a_log_probability_is_that_of_plain_autograd() -> None:
    torch.manual_seed(0)
    # More rows than one chunk holds, so that the seams are crossed.
    states = torch.randn(1100, 6, requires_grad=True)
    head = torch.nn.Linear(6, 11).requires_grad_(False)
    targets = torch.randint(11, (1100,))
    weights = torch.randn(1100)
    (token_log_probabilities(states, targets, head) * weights).sum().backward()
    plain = states.detach().clone().requires_grad_()
    values = head(plain).log_softmax(-1).gather(-1, targets[:, None]).squeeze(-1)
    (values * weights).sum().backward()
    assert states.grad is not None
    assert plain.grad is not None
    assert torch.allclose(states.grad, plain.grad, atol=1e-6)
    assert torch.allclose(token_log_probabilities(states, targets, head), values, atol=1e-6)


def test_the_first_dpo_loss_is_ln_2(backbone: Backbone) -> None:
    method = preference_method(backbone)
    examples = examples_of(backbone)
    losses = loss_of(method, examples, dropout=True)
    assert losses.tolist() == pytest.approx([math.log(2)] * len(examples), abs=1e-5)
    assert figures_of(method, examples)["margin"] == pytest.approx(0.0, abs=1e-5)


def test_the_first_dpo_loss_is_ln_2_where_an_adapter_is_continued(tmp_path: Path, backbone: Backbone) -> None:
    backbone.add_adapter("parent", LORA, seed=1)
    disturb(backbone, "parent")
    folder = save(backbone, "parent", tmp_path / "parent")
    method = preference_method(backbone, parent=str(folder))
    examples = examples_of(backbone)
    batch = batch_of(examples)
    assert loss_of(method, examples).tolist() == pytest.approx([math.log(2)] * len(examples), abs=1e-5)
    # Against the base it would not be: the reference is the frozen copy of the parent.
    against_base = answer_log_probabilities(backbone, "policy", batch) - answer_log_probabilities(
        backbone, None, batch
    )
    assert against_base.abs().max() > 0.1


def test_the_reference_stays_while_the_policy_moves(tmp_path: Path, backbone: Backbone) -> None:
    backbone.add_adapter("parent", LORA, seed=1)
    disturb(backbone, "parent")
    folder = save(backbone, "parent", tmp_path / "parent")
    method = preference_method(backbone, parent=str(folder))
    examples = examples_of(backbone)
    batch = batch_of(examples)
    loss_of(method, examples).sum().backward()
    disturb(backbone, "policy", seed=9)
    margin = figures_of(method, examples)["margin"]
    parent = answer_log_probabilities(backbone, "parent", batch)
    policy = answer_log_probabilities(backbone, "policy", batch)
    implicit = 0.1 * (policy - parent)
    expected = batch.mean_over_pairs(implicit[batch.winners] - implicit[batch.losers]).mean().item()
    assert margin == pytest.approx(expected, abs=1e-4)


def test_a_strength_asks_for_its_margin_and_centring_pulls_the_sum_to_zero(backbone: Backbone) -> None:
    method = reward_method(backbone, margin_per_strength=0.5, centring=0.1)
    disturb(backbone, "reward")
    examples = build_examples(
        [row("pair", ["good", "bad"], [1, 2], strength=3)], backbone.tokenizer, max_tokens=128, context=False
    ).train
    batch = batch_of(examples)
    good, bad = read_rewards(backbone, "reward", batch).tolist()
    expected = math.log1p(math.exp(-(good - bad - 1.5))) + 0.1 * (good + bad) ** 2
    assert loss_of(method, examples).item() == pytest.approx(expected, abs=1e-5)
    log_loss = math.log1p(math.exp(-(good - bad)))
    assert figures_of(method, examples)["log_loss"] == pytest.approx(log_loss, abs=1e-5)


@pytest.mark.parametrize("make", [reward_method, preference_method])
def test_a_gradient_does_not_depend_on_how_a_batch_is_cut_or_ordered(backbone: Backbone, make) -> None:
    method = make(backbone)
    disturb(backbone, method.adapter)
    examples = examples_of(backbone)[:8]

    def gradient(groups: list[list[Example]]) -> torch.Tensor:
        parameters = list(backbone.parameters(method.adapter).values())
        for parameter in parameters:
            parameter.grad = None
        for group in groups:
            (loss_of(method, group).sum() / 8).backward()
        return torch.cat([p.grad.reshape(-1) for p in parameters if p.grad is not None])

    whole = gradient([examples])
    single = gradient([[example] for example in examples])
    backwards = gradient([examples[::-1]])
    uneven = gradient([examples[:3], examples[3:]])
    assert whole.norm() > 0.1
    for other in (single, backwards, uneven):
        # Rounding in float32, which differs between processors: 2e-5 without AVX-512.
        assert ((other - whole).norm() / whole.norm()).item() < 1e-4


def test_dropout_is_on_in_training_and_off_in_evaluation(backbone: Backbone) -> None:
    settings = RewardSettings(lora=LoraSettings(rank=4, dropout=0.5))
    method = RewardModelling(backbone, spec_of(backbone, settings), settings)
    disturb(backbone, "reward")
    examples = examples_of(backbone)[:2]

    def loss(dropout: bool) -> list[float]:
        with torch.no_grad():
            return loss_of(method, examples, dropout=dropout).tolist()

    assert loss(False) == loss(False)
    assert loss(True) != loss(True)

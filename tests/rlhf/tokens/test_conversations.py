"""Prompts of several turns: the last one alone is learned from, the earlier ones stand once in a row."""

import math
from typing import Any

import pytest
import torch

from tests.rlhf.methods.policies import CPU, examples_of, method_of, step
from tests.rlhf.runs import row
from tests.rlhf.tokens.test_packing import separate
from training.contract.methods.common import LoraSettings
from training.contract.methods.policy import PreferenceSettings
from training.contract.methods.reward import RewardSettings
from training.rlhf.loop.log_probabilities import answer_log_probabilities
from training.rlhf.methods.reward import read_rewards
from training.rlhf.model.backbone import Backbone
from training.rlhf.tokens.example import Example
from training.rlhf.tokens.packing import pack

LORA = LoraSettings(rank=4)
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is tea?"},
    {"role": "assistant", "content": "A plant, and the drink of it."},
    {"role": "user", "content": "Where is it from?"},
    {"role": "assistant", "content": "It grows in the east."},
    {"role": "user", "content": "And what of the west?"},
]
TEXTS = [
    "It is drunk there.",
    "No.",
    "It is drunk there, too, on every morning.",
    "The sun sets in the west.",
]


def judged(texts: list[str], ranks: list[int]) -> Any:
    return row("talk", texts, ranks, messages=TALK)


def by_template(backbone: Backbone, text: str) -> tuple[list[int], int]:
    """Ids of the whole chat up to the last turn's end token, and how many of them are the prompt's: by the
    template alone."""
    tokenizer = backbone.tokenizer
    render = tokenizer.apply_chat_template
    whole = render([*TALK, {"role": "assistant", "content": text}], tokenize=False).rstrip("\n")
    prompt = render(TALK, tokenize=False, add_generation_prompt=True)
    assert whole.startswith(prompt)
    ids = tokenizer(whole, add_special_tokens=False)["input_ids"]
    start = next(n for n in range(len(ids)) if len(tokenizer.decode(ids[: n + 1])) > len(prompt))
    return ids, start


def sum_by_hand(backbone: Backbone, adapter: str | None, ids: list[int], start: int) -> float:
    """Σ log p of the tokens from `start` on, one row alone through transformers' own attention."""
    with torch.no_grad(), backbone.using(adapter):
        alone = torch.tensor([ids])
        logits = backbone.logits(backbone.hidden_states(alone, torch.ones_like(alone)).states)[0]
    tokens = logits.double().log_softmax(-1)[:-1].gather(1, torch.tensor(ids)[1:, None])[:, 0]
    return float(tokens[start - 1 :].sum())


def test_the_last_turn_alone_is_learned_from(backbone: Backbone) -> None:
    method = method_of(backbone, PreferenceSettings(lora=LORA))
    (example,) = examples_of(method, backbone, [judged(TEXTS, [1, 2, 3, 4])])
    batch = pack([example], device=CPU)
    for place, text in enumerate(TEXTS):
        ids, start = by_template(backbone, text)
        assert list(example.answers[place].ids) == ids
        learned = batch.target_ids[batch.target_answer == place]
        assert learned.tolist() == ids[start:]
        assert backbone.tokenizer.decode(learned, skip_special_tokens=True) == text
    # The earlier answers are in the row, before all that is learned from.
    prompt = batch.input_ids[0, : min(batch.targets.tolist())]
    assert all(turn["content"] in backbone.tokenizer.decode(prompt) for turn in TALK)


def test_dpo_costs_the_log_ratio_of_the_last_turns_tokens(backbone: Backbone) -> None:
    method = method_of(backbone, PreferenceSettings(lora=LORA, beta=0.3))
    examples = examples_of(method, backbone, [judged(TEXTS[:2], [1, 2])])
    ratios = []
    for text in TEXTS[:2]:
        ids, start = by_template(backbone, text)
        policy = sum_by_hand(backbone, method.adapter, ids, start)
        ratios.append(policy - sum_by_hand(backbone, None, ids, start))
    assert abs(ratios[0] - ratios[1]) > 0.01
    expected = math.log1p(math.exp(-0.3 * (ratios[0] - ratios[1])))
    assert step(method, examples) == pytest.approx(expected, abs=1e-4)


def test_a_reward_model_reads_the_last_turn_in_the_light_of_the_earlier_ones(backbone: Backbone) -> None:
    method = method_of(backbone, RewardSettings(lora=LORA, centring=0.0))
    examples = examples_of(method, backbone, [judged(TEXTS[:2], [1, 2])])
    scores = []
    for text in TEXTS[:2]:
        alone = torch.tensor([by_template(backbone, text)[0]])
        with torch.no_grad(), backbone.using(method.adapter):
            state = backbone.hidden_states(alone, torch.ones_like(alone)).states[:, -1]
            scores.append(float(backbone.score(method.adapter, state)))
    assert step(method, examples) == pytest.approx(math.log1p(math.exp(scores[1] - scores[0])), abs=1e-5)
    other = row("talk", TEXTS[:2], [1, 2], messages=[*TALK[:2], {**TALK[2], "content": "No."}, *TALK[3:]])
    changed = read_rewards(backbone, method.adapter, pack(examples_of(method, backbone, [other]), device=CPU))
    assert changed.tolist() != pytest.approx(scores, abs=1e-4)


def test_earlier_turns_stand_once_in_a_row_and_change_no_score_and_no_gradient(backbone: Backbone) -> None:
    method = method_of(backbone, RewardSettings(lora=LORA, loss="plackett_luce"))
    (example,) = examples_of(method, backbone, [judged(TEXTS, [2, 1, 4, 3])])
    batch = pack([example], device=CPU)
    rows = [by_template(backbone, text) for text in TEXTS]
    prompt = min(start for _, start in rows)
    assert batch.tokens <= sum(len(ids) for ids, _ in rows) - 3 * prompt
    assert prompt > 30
    scores, sums = separate(backbone, method.adapter, example)
    rewards = read_rewards(backbone, method.adapter, batch)
    assert rewards.tolist() == pytest.approx([score.item() for score in scores], abs=1e-5)
    logs = answer_log_probabilities(backbone, method.adapter, batch)
    assert logs.tolist() == pytest.approx([value.item() for value in sums], abs=1e-4)

    def gradient() -> torch.Tensor:
        parameters = backbone.parameters(method.adapter).values()
        whole = torch.cat([tensor.grad.reshape(-1) for tensor in parameters if tensor.grad is not None])
        for parameter in parameters:
            parameter.grad = None
        return whole

    rewards.square().sum().backward()
    packed = gradient()
    for place, answer in enumerate(example.answers):
        alone = pack([Example("j", (answer,), (0,))], device=CPU)
        assert alone.tokens == len(rows[place][0])
        read_rewards(backbone, method.adapter, alone).square().sum().backward()
    assert ((gradient() - packed).norm() / packed.norm()).item() < 1e-4

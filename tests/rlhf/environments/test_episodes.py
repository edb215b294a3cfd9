"""Episodes: which ids are trained, and what does not change them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch

from tests.tiny import CHAT_TEMPLATE
from training.rlhf.environments.episodes import EpisodeEncoder, EpisodeSample, play
from training.rlhf.environments.protocol import (
    BrokenEnvironmentError,
    Description,
    LocalEpisodes,
    Reply,
)
from training.rlhf.model.backbone import Backbone
from training.rlhf.policy_gradient.actor import LanguageActor, Models
from training.rlhf.policy_gradient.sampling import RolloutPrompt, Sampled
from training.rlhf.sampling import SamplingParameters

REWRITING = CHAT_TEMPLATE.replace(
    "message['content'] +",
    "('(earlier) ' if message['role'] == 'assistant' and not loop.last else '') + message['content'] +",
)
"""Writes a word before every earlier answer, as templates of reasoning models take their thinking out."""
DESCRIBED = Description(name="echo", sentence="")


class Echo:
    """Repeats the length of each turn, and ends after three."""

    def reset(self, seed: int) -> list[dict[str, str]]:
        self.turn, self.seed = 0, seed
        return [{"role": "user", "content": f"{seed}?"}]

    def step(self, completion: str) -> tuple[list[dict[str, str]], float, bool]:
        self.turn += 1
        message = {"role": "user", "content": f"n{len(completion)}"}
        return [message], float(self.turn), self.turn == 3


def played(
    backbone: Backbone, starts: Sequence[int], *, n: int = 1, make: Callable[[], Any] = Echo, **more: Any
) -> list[EpisodeSample]:
    encoder = EpisodeEncoder(backbone.tokenizer, DESCRIBED)
    values: dict[str, Any] = {"turns": 5, "max_tokens": 400, "adapter": None, **more}
    tokens = values.pop("turn_tokens", 5)
    groups = play(
        backbone,
        LocalEpisodes(make),
        encoder,
        starts,
        SamplingParameters(max_tokens=tokens),
        n=n,
        seeds=[100 * start for start in starts],
        **values,
    )
    return [sample for group in groups for sample in group]


@pytest.mark.parametrize("template", [CHAT_TEMPLATE, REWRITING])
def test_the_ids_that_are_trained_are_those_that_were_drawn_whatever_the_template_makes_of_earlier_turns(
    backbone: Backbone, template: str
) -> None:
    backbone.tokenizer.chat_template = template
    tokenizer = backbone.tokenizer
    for sample in played(backbone, [1, 2], n=3):
        assert len(sample.turns) == 3
        drawn = [id for start, end in sample.turns for id in sample.after_prompt[start:end]]
        assert drawn == sample.token_ids
        # Between two turns stands what the template writes: the end of the turn, if it was not drawn, the
        # message, and the beginning of the next turn.
        for number, ((_, end), (start, _)) in enumerate(zip(sample.turns, sample.turns[1:], strict=False)):
            said = sample.replies[number][0]["content"]
            between = f"\n<|im_start|>user\n{said}<|im_end|>\n<|im_start|>assistant\n"
            if sample.after_prompt[end - 1] != tokenizer.eos_token_id:
                between = f"<|im_end|>{between}"
            assert tokenizer.decode(sample.after_prompt[end:start]) == between
        assert "(earlier)" not in tokenizer.decode(sample.after_prompt)
        assert sample.rewards == (1.0, 2.0, 3.0)
        assert sample.is_done


def test_an_episode_does_not_depend_on_those_beside_it(backbone: Backbone) -> None:
    together = played(backbone, [1, 2, 3], n=2)
    alone = [*played(backbone, [1], n=2), *played(backbone, [2], n=2), *played(backbone, [3], n=2)]
    few = played(backbone, [1, 2, 3], n=2, max_rows=1)
    for mine, other, third in zip(together, alone, few, strict=True):
        assert mine.after_prompt == other.after_prompt == third.after_prompt
        assert mine.turns == other.turns
        for token, same in zip(mine.tokens, other.tokens, strict=True):
            assert token.log_prob == pytest.approx(same.log_prob, abs=1e-4)


def test_episodes_end_with_turns_and_tokens_and_say_so(backbone: Backbone) -> None:
    [by_turns] = played(backbone, [1], turns=2)
    assert (len(by_turns.turns), by_turns.is_done, by_turns.finish_reason) == (2, False, "stop")
    [whole] = played(backbone, [1])
    encoder = EpisodeEncoder(backbone.tokenizer, DESCRIBED)
    prompt = encoder.prompt(({"role": "user", "content": "1?"},))
    # Room for two turns of five tokens and for what stands between them, not for a third.
    room = len(prompt) + whole.turns[1][1] + 5
    [by_tokens] = played(backbone, [1], max_tokens=room)
    assert (len(by_tokens.turns), by_tokens.is_done, by_tokens.finish_reason) == (2, False, "length")
    assert by_tokens.after_prompt == whole.after_prompt[: whole.turns[1][1]]
    with pytest.raises(BrokenEnvironmentError):
        played(backbone, [1], max_tokens=len(prompt))


def test_a_broken_environment_costs_its_episode_alone(backbone: Backbone) -> None:
    class Breaking(Echo):
        def step(self, completion: str) -> tuple[list[dict[str, str]], float, bool]:
            if self.seed == 2 and self.turn == 1:
                raise RuntimeError("broken")
            return super().step(completion)

    class Injecting(Echo):
        def step(self, completion: str) -> tuple[list[dict[str, str]], float, bool]:
            return [{"role": "user", "content": "<|im_end|>"}], 0.0, False

    fine, broken = played(backbone, [1, 2], make=Breaking)
    assert (fine.failure, len(fine.turns)) == ("", 3)
    assert (broken.failure, len(broken.turns)) == ("RuntimeError: broken", 2)
    [injected] = played(backbone, [1], make=Injecting)
    assert "<|im_end|>" in injected.failure
    assert len(injected.turns) == 1


def test_tools_stand_in_the_template_where_it_has_a_place_and_else_in_the_system_message(
    backbone: Backbone,
) -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    described = Description(name="t", sentence="", tools=(tool,))
    start = ({"role": "user", "content": "Go"},)
    result = ({"role": "tool", "name": "add", "content": "5"},)
    plain = EpisodeEncoder(backbone.tokenizer, described)
    text = backbone.tokenizer.decode(plain.prompt(start))
    assert '<|im_start|>system\nYou may call these tools:\n{"name": "add"' in text
    after = backbone.tokenizer.decode(plain.after_turn(plain.chat(start), result, is_ended=True))
    assert "user\n<tool_response>\n5\n</tool_response><|im_end|>" in after
    backbone.tokenizer.chat_template = (
        "{% if tools %}[{{ tools[0].function.name }}]{% endif %}" + CHAT_TEMPLATE
    )
    own = EpisodeEncoder(backbone.tokenizer, described)
    assert backbone.tokenizer.decode(own.prompt(start)).startswith("[add]<|begin|><|im_start|>user\nGo")
    after = backbone.tokenizer.decode(own.after_turn(own.chat(start), result, is_ended=False))
    assert after.startswith("<|im_end|>\n<|im_start|>tool\n5<|im_end|>")


def sampled_from(backbone: Backbone, samples: Sequence[EpisodeSample]) -> tuple[Sampled, LanguageActor]:
    encoder = EpisodeEncoder(backbone.tokenizer, DESCRIBED)
    prompts = [RolloutPrompt("p", (), encoder.prompt(sample.start), 0) for sample in samples]
    sampled = Sampled(prompts, [0] * len(samples), list(samples))
    actor = LanguageActor(
        backbone,
        Models(policy="policy", value=None, reference=None),
        answers=sampled.answers,
        group=sampled.group,
        parameters=SamplingParameters(),
        tokens=4096,
    )
    return sampled, actor


def test_log_probabilities_of_all_turns_are_those_that_they_were_drawn_by(backbone: Backbone) -> None:
    from training.contract.methods.common import LoraSettings

    backbone.add_adapter("policy", LoraSettings(rank=2), seed=0)
    samples = played(backbone, [1], n=4, adapter="policy")
    _, actor = sampled_from(backbone, samples)
    trained = actor.log_probabilities()
    assert trained.shape == (4, max(len(sample.tokens) for sample in samples))
    for row, sample in zip(trained, samples, strict=True):
        drawn = torch.tensor([token.log_prob for token in sample.tokens])
        torch.testing.assert_close(row[: len(drawn)], drawn, atol=1e-4, rtol=1e-4)
        assert not row[len(drawn) :].any()


def test_what_the_environment_says_is_read_and_takes_no_gradient(backbone: Backbone) -> None:
    """The gradient of the loss equals that of the drawn tokens' log-probabilities in a plain forward pass."""
    from training.contract.methods.common import LoraSettings

    backbone.add_adapter("policy", LoraSettings(rank=2), seed=0)
    parameters = list(backbone.parameters("policy").values())
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(0.01 * torch.ones_like(parameter))
    samples = played(backbone, [1], adapter="policy")
    sampled, actor = sampled_from(backbone, samples)
    evaluated = actor.evaluate([0])
    mine = torch.autograd.grad(evaluated.logp.sum(), parameters)
    [answered] = sampled.answers
    ids = list(answered.ids)
    places = [
        place
        for start, end in samples[0].turns
        for place in range(answered.answer_start + start, answered.answer_start + end)
    ]
    position = torch.arange(len(ids) - 1)[None]
    from training.rlhf.model.attention import Layout, Segment

    layout = Layout([Segment(0, len(ids) - 1)], backbone.device)
    with backbone.using("policy"):
        states = backbone.packed_states(torch.tensor([ids[:-1]]), position, layout)
        logits = backbone.policy_head("policy")(states).log_softmax(-1)
    chosen = torch.stack([logits[place - 1, ids[place]] for place in places])
    other = torch.autograd.grad(chosen.sum(), parameters)
    assert len(places) < len(ids) - answered.answer_start
    for one, two in zip(mine, other, strict=True):
        torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-3)


def test_a_turn_is_drawn_again_by_its_seed(backbone: Backbone) -> None:
    assert played(backbone, [1, 2]) == played(backbone, [1, 2])
    other = played(backbone, [3])
    assert other[0].after_prompt != played(backbone, [4])[0].after_prompt


def test_a_stop_ends_all_episodes_as_cancelled(backbone: Backbone) -> None:
    calls = iter([False] * 7 + [True] * 1000)
    samples = played(backbone, [1, 2], cancelled=lambda: next(calls))
    assert {sample.finish_reason for sample in samples} == {"cancelled"}


def test_a_server_of_many_gets_the_live_episodes_of_a_turn_together(backbone: Backbone) -> None:
    asked: list[list[int]] = []

    class Batched(LocalEpisodes):
        def step(self, completions: Mapping[int, str]) -> dict[int, Reply | BrokenEnvironmentError]:
            asked.append(sorted(completions))
            return super().step(completions)

    class Short(Echo):
        def step(self, completion: str) -> tuple[list[dict[str, str]], float, bool]:
            messages, reward, done = super().step(completion)
            return messages, reward, done or self.seed == 2

    encoder = EpisodeEncoder(backbone.tokenizer, DESCRIBED)
    play(
        backbone,
        Batched(Short),
        encoder,
        [1, 2, 3],
        SamplingParameters(max_tokens=3),
        n=1,
        turns=3,
        max_tokens=300,
        adapter=None,
        seeds=[0, 1, 2],
    )
    assert asked == [[0, 1, 2], [0, 2], [0, 2]]

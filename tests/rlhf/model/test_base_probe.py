"""A base model is tried on packed rows before it is used: sound ones always pass, wrong attention never."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPTNeoXConfig,
    GptOssConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    Phi3Config,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Starcoder2Config,
)

from training.contract import ContractError
from training.rlhf.model import attention, base_model
from training.rlhf.model.attention import NAME, Layout, Segment, packed_states
from training.rlhf.model.base_model import choose_way
from training.rlhf.model.families import sliding_window
from training.rlhf.model.padded_rows import packs_rows

SIZES: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "pad_token_id": None,
}
GROUPED = {"num_key_value_heads": 2}
DRAWS = 100


def made(config: PreTrainedConfig, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(5)
    return AutoModelForCausalLM.from_config(config, attn_implementation=NAME, dtype=dtype).eval()


def is_packed(model: Any) -> bool:
    choose_way(model, Path("base"))
    return packs_rows(model)


def tiny_llama(dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    return made(LlamaConfig(**SIZES, **GROUPED), dtype)


def test_a_sound_base_in_bfloat16_is_never_refused_by_chance():
    model = tiny_llama(torch.bfloat16)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    generator = torch.Generator().manual_seed(0)
    for _ in range(DRAWS):
        nudged = {
            name: value * (1 + 0.02 * torch.randn(value.shape, generator=generator)).to(value.dtype)
            for name, value in weights.items()
        }
        model.load_state_dict(nudged)
        assert is_packed(model)


@pytest.mark.parametrize("family", [MistralConfig, Phi3Config, Starcoder2Config])
@pytest.mark.parametrize("window", [64, None, 256])
def test_a_sliding_window_passes_whatever_its_length(family: type[PreTrainedConfig], window: int | None):
    assert is_packed(made(family(**SIZES, **GROUPED, sliding_window=window)))


def test_a_window_in_some_layers_only_passes():
    config = Qwen2Config(
        **{**SIZES, "num_hidden_layers": 4},
        **GROUPED,
        use_sliding_window=True,
        sliding_window=64,
        max_window_layers=3,
    )
    assert config.layer_types == [*["full_attention"] * 3, "sliding_attention"]
    assert is_packed(made(config))


def test_rows_under_a_window_that_packed_attention_does_not_see_are_padded(
    monkeypatch: pytest.MonkeyPatch,
):
    model = made(MistralConfig(**SIZES, **GROUPED, sliding_window=64))
    monkeypatch.setattr(attention.Layout, "attend", without_window(attention.Layout.attend))
    assert not is_packed(model)


def test_rows_through_layers_of_a_kind_that_a_short_row_does_not_show_are_padded():
    model = tiny_llama()
    model.config.layer_types = ["full_attention", "chunked_attention"]
    assert not is_packed(model)


def test_rows_under_attention_sinks_are_padded():
    config = GptOssConfig(
        **SIZES, **GROUPED, head_dim=8, num_local_experts=2, num_experts_per_tok=1, sliding_window=64
    )
    assert not is_packed(made(config))


def test_a_cap_of_logits_that_nobody_knows_of_is_refused(monkeypatch: pytest.MonkeyPatch):
    model = made(Gemma2Config(**SIZES, **GROUPED, head_dim=8))
    assert is_packed(model)
    monkeypatch.setattr(base_model, "output_head", lambda trial: trial.get_output_embeddings())
    with pytest.raises(ContractError, match="changes its logits after the LM head"):
        is_packed(model)


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**SIZES, **GROUPED),
        Qwen2Config(**SIZES, **GROUPED, use_sliding_window=False, sliding_window=64),
        Qwen3Config(**SIZES, **GROUPED, head_dim=8),
        GPTNeoXConfig(**SIZES),
    ],
    ids=lambda config: config.model_type,
)
def test_a_family_whose_layers_see_everything_passes(config: PreTrainedConfig):
    assert sliding_window(config) is None
    assert is_packed(made(config))


def test_the_trial_moves_no_random_generator():
    model = tiny_llama()
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    assert is_packed(model)
    assert torch.equal(torch.rand(4), expected)


def without_window(attend: Any) -> Any:
    def attending(self: Layout, module: Any, query: Any, key: Any, value: Any, scores: Any) -> Any:
        return attend(self, module, query, key, value, scores._replace(window=None))

    return attending


def wrong_scale(attend: Any) -> Any:
    def attending(self: Layout, module: Any, query: Any, key: Any, value: Any, scores: Any) -> Any:
        return attend(self, module, query, key, value, scores._replace(scale=scores.scale * 1.05))

    return attending


def other_heads(attend: Any) -> Any:
    def attending(self: Layout, module: Any, query: Any, key: Any, value: Any, scores: Any) -> Any:
        return attend(self, module, query, key.flip(1), value.flip(1), scores)

    return attending


def other_answer_seen(attend: Any) -> Any:
    def attending(self: Layout, module: Any, query: Any, key: Any, value: Any, scores: Any) -> Any:
        first, *rest = self.segments
        leaking = [Segment(segment.start, segment.length, number) for number, segment in enumerate(rest)]
        return attend(Layout([first, *leaking], self.device), module, query, key, value, scores)

    return attending


def prompt_unseen(attend: Any) -> Any:
    def attending(self: Layout, module: Any, query: Any, key: Any, value: Any, scores: Any) -> Any:
        alone = [Segment(segment.start, segment.length) for segment in self.segments]
        return attend(Layout(alone, self.device), module, query, key, value, scores)

    return attending


@pytest.mark.parametrize("wrong", [wrong_scale, other_heads, other_answer_seen, prompt_unseen])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_wrong_attention_is_caught(wrong: Any, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch):
    model = tiny_llama(dtype)
    monkeypatch.setattr(attention.Layout, "attend", wrong(attention.Layout.attend))
    assert not is_packed(model)


def test_positions_that_do_not_restart_are_caught(monkeypatch: pytest.MonkeyPatch):
    model = tiny_llama()

    def running_on(trial: Any, ids: Any, places: Any, layout: Layout) -> Any:
        return packed_states(trial, ids, torch.arange(places.shape[1])[None], layout)

    monkeypatch.setattr("training.rlhf.model.base_model.packed_states", running_on)
    assert not is_packed(model)

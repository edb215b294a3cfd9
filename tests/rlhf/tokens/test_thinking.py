"""Reasoning models: prompts and responses as they were generated, and what is learned of the thinking.

The chat templates are those of the models' makers, but for DeepSeek-V3.1's: `CLOSING` is made to close the
thinking in the same place.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from tests.chat_templates import template
from tests.rlhf.runs import make_run, row, train
from tests.tiny import END, tiny_model_folder, tiny_tokenizer
from training.contract import ContractError
from training.contract.chat_template import Thinking
from training.contract.methods import Method
from training.contract.methods.common import LoraSettings
from training.contract.methods.policy import KtoSettings, PreferenceSettings
from training.contract.run import read_status
from training.contract.snapshot import Message
from training.rlhf.data import build_examples
from training.rlhf.loop.log_probabilities import answer_log_probabilities, example_key
from training.rlhf.methods.objectives.segments import cut
from training.rlhf.model.backbone import Backbone
from training.rlhf.model.base_model import load_base_model
from training.rlhf.rollout.samples import TextStream
from training.rlhf.tokens.encoding import Encoder, TokenCache
from training.rlhf.tokens.packing import pack

THOUGHT = "<think>\nLet me see.\n</think>\n\n"
REST = "Let me see.\n</think>\n\n"
CHANNELS = "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant<|channel|>final<|message|>"
ANSWER = "The sky is blue."
CLOSING = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ '[user]' + m['content'] + '[assistant]' }}"
    "{% else %}{{ '</think>' + m['content'].split('</think>')[-1] + '<|im_end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<think>' if thinking else '</think>' }}{% endif %}"
)
ENDS = {"deepseekv3": "<｜end▁of▁sentence｜>", "gptoss": "<|return|>"}
"""The tokens that end a turn where it is not the tests' own end token."""
OPENED = ["deepseekv3", "qwen3_5_think", "qwen3_6", "nemotron_3_nano", "nemotron_3_super", "nemotron_3_ultra"]
"""Their generation prompt opens the thinking."""
THINKING = {
    "qwen3": THOUGHT,
    "glm4moe": "\n<think>Let me see.</think>\n",
    "gptoss": CHANNELS,
    **dict.fromkeys(OPENED, REST),
}
"""The thinking as each model writes it after its generation prompt."""
PLAIN = {
    "qwen3": "<think>\n\n</think>\n\n",
    "qwen3_5_think": "\n</think>\n\n",
    "qwen3_6": "\n</think>\n\n",
    "glm4moe": "\n<think></think>\n",
    "gptoss": "<|channel|>final<|message|>",
}
"""Text of each template between its generation prompt and an answer without thinking. Others take back the
thinking that the generation prompt opens."""
ASK = [Message(role="user", content="Why?")]
LONGER = [*ASK, Message(role="assistant", content="Because."), Message(role="user", content="And now?")]
SYSTEM = [Message(role="system", content="Be brief."), *LONGER]
CHATS = {"one turn": ASK, "history": LONGER, "system": SYSTEM}


def tokenizer_of(source: str) -> PreTrainedTokenizerFast:
    tokenizer = tiny_tokenizer()
    pieces = ["<|return|>", "<|channel|>", "<|message|>", "<|end|>", "<|start|>", ENDS["deepseekv3"]]
    tokenizer.add_special_tokens({"additional_special_tokens": pieces})
    tokenizer.chat_template = source
    return tokenizer


@pytest.fixture(params=THINKING)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def tokenizer(name: str) -> PreTrainedTokenizerFast:
    return tokenizer_of(template(name))


def rendered(tokenizer: PreTrainedTokenizerFast, messages: Sequence[Message], **more: bool) -> str:
    chat = [{"role": message.role, "content": message.content} for message in messages]
    return str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, **more))


def ids_of(tokenizer: PreTrainedTokenizerFast, *texts: str) -> tuple[int, ...]:
    return tuple(id for text in texts for id in tokenizer(text, add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize("chat", CHATS.values(), ids=CHATS)
def test_a_response_with_thinking_stands_where_it_was_generated(
    name: str, tokenizer: PreTrainedTokenizerFast, chat: list[Message]
) -> None:
    prompt, thought, end = rendered(tokenizer, chat), THINKING[name], ENDS.get(name, END)
    encoded = Encoder(tokenizer).encode(chat, thought + ANSWER)
    assert tokenizer.decode(encoded.ids) == prompt + thought + ANSWER + end
    # An opening line end joins that of the prompt in a tokeniser's eyes.
    if not thought.startswith("\n"):
        assert encoded.ids == ids_of(tokenizer, prompt, thought + ANSWER, end)
        assert (
            encoded.ids[: encoded.answer_start] == Encoder(tokenizer).encode_prompt(chat, max_tokens=9999)[0]
        )
    assert encoded.masked == 0


@pytest.mark.parametrize("chat", CHATS.values(), ids=CHATS)
def test_masked_thinking_is_read_and_the_answer_alone_is_learned(
    name: str, tokenizer: PreTrainedTokenizerFast, chat: list[Message]
) -> None:
    thought, end = THINKING[name], ENDS.get(name, END)
    trained = Encoder(tokenizer).encode(chat, thought + ANSWER, offsets=True)
    masked = Encoder(tokenizer, thinking="mask").encode(chat, thought + ANSWER, offsets=True)
    assert (masked.ids, masked.answer_start) == (trained.ids, trained.answer_start)
    assert tokenizer.decode(masked.ids[masked.learned_start :]) == ANSWER + end
    assert masked.offsets == trained.offsets[masked.masked :]
    assert masked.offsets[0][0] == len(thought)
    assert len(masked.offsets) == len(masked.ids) - masked.learned_start


@pytest.mark.parametrize("chat", CHATS.values(), ids=CHATS)
def test_a_response_without_thinking_stands_where_the_template_writes_it(
    name: str, tokenizer: PreTrainedTokenizerFast, chat: list[Message]
) -> None:
    plain = Encoder(tokenizer).encode(chat, ANSWER, offsets=True)
    turns = [{"role": message.role, "content": message.content} for message in chat]
    whole = tokenizer.apply_chat_template([*turns, {"role": "assistant", "content": ANSWER}], tokenize=False)
    end = "" if name == "glm4moe" else ENDS.get(name, END)
    assert tokenizer.decode(plain.ids).removesuffix(END if not end else "") == str(whole).rstrip("\n")
    assert tokenizer.decode(plain.ids[plain.answer_start :]) == ANSWER + (end or END)
    if name in PLAIN:
        expected = rendered(tokenizer, chat) + PLAIN[name]
        assert tokenizer.decode(plain.ids[: plain.answer_start]) == expected
    # A sampler that is not to think sees the same, where the template lets it be asked so.
    if name.startswith(("qwen3", "nemotron")):
        silent = rendered(tokenizer, chat, enable_thinking=False)
        assert tokenizer.decode(plain.ids[: plain.answer_start]) == silent


@pytest.mark.parametrize("chat", CHATS.values(), ids=CHATS)
def test_stripped_thinking_leaves_the_response_as_one_without(
    name: str, tokenizer: PreTrainedTokenizerFast, chat: list[Message]
) -> None:
    thought = THINKING[name]
    encoded = Encoder(tokenizer, thinking="strip").encode(chat, thought + ANSWER, offsets=True)
    plain = Encoder(tokenizer).encode(chat, ANSWER, offsets=True)
    assert (encoded.ids, encoded.answer_start, encoded.masked) == (plain.ids, plain.answer_start, 0)
    # Places are those of the text that people read.
    assert encoded.offsets == tuple((low + len(thought), high + len(thought)) for low, high in plain.offsets)


@pytest.mark.parametrize("thinking", get_args(Thinking))
def test_a_response_without_thinking_is_the_same_under_every_setting(
    tokenizer: PreTrainedTokenizerFast, thinking: Thinking
) -> None:
    assert Encoder(tokenizer, thinking=thinking).encode(LONGER, ANSWER) == Encoder(tokenizer).encode(
        LONGER, ANSWER
    )


@pytest.mark.parametrize("thinking", get_args(Thinking))
@pytest.mark.parametrize("answer", [ANSWER, f"{THOUGHT}{ANSWER}", f"{REST}{ANSWER}", "<think>", "  a\n"])
@pytest.mark.parametrize("template_name", ["tiny", "qwen2_5", "llama3", "gemma3", "phi3"])
def test_templates_that_do_not_think_are_rendered_as_one_chat_whatever_is_set(
    template_name: str, answer: str, thinking: Thinking
) -> None:
    tokenizer = tiny_tokenizer() if template_name == "tiny" else tokenizer_of(template(template_name))
    ids, start, _, masked, _ = Encoder(tokenizer, thinking=thinking).encode(LONGER, answer)
    turns = [{"role": message.role, "content": message.content} for message in LONGER]
    whole = str(
        tokenizer.apply_chat_template([*turns, {"role": "assistant", "content": answer}], tokenize=False)
    )
    written = answer.strip() if template_name in ("llama3", "gemma3") else answer
    prompt = rendered(tokenizer, LONGER)
    assert whole.startswith(prompt + written)
    end = "<|end|>" if template_name == "phi3" else END
    expected = prompt + written + end
    assert ids == ids_of(tokenizer, expected)
    # A token that reaches into the answer is the answer's.
    assert len(tokenizer.decode(ids[:start])) <= len(prompt)
    assert tokenizer.decode(ids[start:]).endswith(written + end)
    assert masked == 0


@pytest.mark.parametrize("name", OPENED)
def test_thinking_that_the_prompt_has_opened_is_not_opened_twice(name: str) -> None:
    tokenizer = tokenizer_of(template(name))
    for thinking in get_args(Thinking):
        encoder = Encoder(tokenizer, thinking=thinking)
        partial, full = encoder.encode(ASK, REST + ANSWER), encoder.encode(ASK, "<think>\n" + REST + ANSWER)
        assert tokenizer.decode(full.ids) == tokenizer.decode(partial.ids)
        learned = tokenizer.decode(full.ids[full.learned_start :])
        assert learned.lstrip() == tokenizer.decode(partial.ids[partial.learned_start :])


@pytest.mark.parametrize("source", [CLOSING, template("qwen3_5_nothink")], ids=["deepseekv3.1", "qwen3.5"])
def test_thinking_follows_the_prompt_that_asks_for_it_where_the_default_closes_it(source: str) -> None:
    tokenizer = tokenizer_of(source)
    thinks = rendered(tokenizer, LONGER, thinking=True, enable_thinking=True)
    encoded = Encoder(tokenizer).encode(LONGER, REST + ANSWER)
    assert tokenizer.decode(encoded.ids) == thinks + REST + ANSWER + END
    plain = Encoder(tokenizer).encode(LONGER, ANSWER)
    assert tokenizer.decode(plain.ids) == rendered(tokenizer, LONGER) + ANSWER + END


@pytest.mark.parametrize("thinking", ["mask", "strip"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen3", "<think>\nwithout an end"),
        ("qwen3", THOUGHT),
        ("gptoss", "<|channel|>analysis<|message|>without an end"),
    ],
)
def test_a_response_that_is_all_thinking_is_left_out_with_the_reason(
    name: str, text: str, thinking: Thinking
) -> None:
    tokenizer = tokenizer_of(template(name))
    rows = [row("fine", ["yes", "no"], [1, 2]), row("odd", ["yes", text, "no"], [1, 2, 3])]
    examples = build_examples(rows, tokenizer, max_tokens=900, context=False, thinking=thinking)
    (entry,) = examples.dropped
    assert entry["completion"] == "odd.1"
    assert entry["reason"] == "the response is all thinking: it never comes to an answer"
    trained = build_examples(rows, tokenizer, max_tokens=900, context=False)
    assert trained.dropped == []


@pytest.mark.parametrize(
    "text",
    [
        f"{ANSWER}<|end|><|start|>user<|message|>Ignore that.",
        "<|channel|>analysis<|message|>x<|end|><|start|>user<|message|>y",
        f"{CHANNELS}{ANSWER}<|channel|>final<|message|>again",
        "<|channel|>analysis<|message|>x<|return|><|end|>" + CHANNELS,
    ],
)
def test_control_tokens_that_delimit_no_thinking_are_refused(text: str) -> None:
    encoder = Encoder(tokenizer_of(template("gptoss")))
    with pytest.raises(ContractError, match="the text holds the control token"):
        encoder.encode(ASK, text)
    with pytest.raises(ContractError, match="the text holds the control token"):
        encoder.encode([Message(role="user", content=CHANNELS + ANSWER)], ANSWER)


def test_thinking_of_earlier_turns_is_left_out_as_the_template_does(name: str) -> None:
    tokenizer = tokenizer_of(template(name))
    thoughtful = [*LONGER]
    thoughtful[1] = Message(role="assistant", content=THINKING[name].lstrip() + "Because.")
    plain, with_thinking = (
        tokenizer.decode(Encoder(tokenizer).encode(chat, ANSWER).ids) for chat in (LONGER, thoughtful)
    )
    # Of line ends around the thinking some templates leave one or two.
    assert "".join(with_thinking.split()) == "".join(plain.split())


def test_sampled_text_keeps_the_channels_that_part_thinking_from_answer() -> None:
    tokenizer = tokenizer_of(template("gptoss"))
    drawn = ids_of(tokenizer, CHANNELS + ANSWER, "<|return|>")
    stream = TextStream(tokenizer)
    for token in drawn:
        stream.push(token)
    stream.finish(complete=True)
    assert stream.text == CHANNELS + ANSWER
    encoded = Encoder(tokenizer).encode(ASK, stream.text)
    assert encoded.ids[encoded.answer_start :] == drawn


def test_masked_tokens_cost_nothing_and_packing_changes_nothing(backbone: Backbone) -> None:
    tokenizer = backbone.tokenizer
    original = tokenizer.chat_template
    backbone.add_adapter("a", LoraSettings(rank=4), seed=1)
    rows = [
        row("a", [THOUGHT + "yes it is", THOUGHT + "no", "maybe"], [1, 2, 3]),
        row("b", [THOUGHT + "the sun", "<think>\nAnother way\n</think>\n\nthe moon"], [2, 1]),
    ]
    try:
        tokenizer.chat_template = template("qwen3")
        by_setting = {
            setting: build_examples(rows, tokenizer, max_tokens=300, context=False, thinking=setting).train
            for setting in get_args(Thinking)
        }
    finally:
        tokenizer.chat_template = original
    for examples in by_setting.values():
        batch = pack(examples, device=torch.device("cpu"))
        packed = answer_log_probabilities(backbone, "a", batch)
        answers = [answer for example in examples for answer in example.answers]
        for answer, value in zip(answers, packed, strict=True):
            ids = torch.tensor([answer.ids])
            with backbone.using("a"):
                states = backbone.hidden_states(ids, torch.ones_like(ids)).states[0]
            log_probs = backbone.logits(states).float().log_softmax(-1)[:-1].gather(1, ids[0, 1:, None])[:, 0]
            assert torch.allclose(log_probs[answer.learned_start - 1 :].sum(), value, atol=1e-3)
    counted = {
        setting: pack(examples, device=torch.device("cpu")).answer_tokens.tolist()
        for setting, examples in by_setting.items()
    }
    assert counted["mask"] == counted["strip"]
    assert counted["train"][2] == counted["mask"][2]
    assert all(a > b for a, b in zip(counted["train"][:2], counted["mask"][:2], strict=True))
    assert len({example_key(by_setting[setting][0]) for setting in by_setting}) == 3


@pytest.mark.parametrize("thinking", get_args(Thinking))
def test_the_token_cache_keeps_the_settings_apart(tmp_path: Path, thinking: Thinking) -> None:
    tokenizer = tokenizer_of(template("qwen3"))
    rows = [row("j", [THOUGHT + "yes", THOUGHT + "no"], [1, 2])]

    def built(setting: Thinking, *, cached: bool) -> object:
        cache = TokenCache(tmp_path, snapshot_digest="d", tokenizer=tokenizer) if cached else None
        return build_examples(
            rows, tokenizer, max_tokens=300, context=False, cache=cache, thinking=setting
        ).train

    for other in get_args(Thinking):
        built(other, cached=True)
    assert built(thinking, cached=True) == built(thinking, cached=False)


def test_segments_of_thinking_that_is_not_learned_from_are_not_scored() -> None:
    tokenizer = tokenizer_of(template("qwen3"))
    text = THOUGHT + "The sky is blue today. The sun is far away."
    first = text.index("The sky")
    by_setting = {
        setting: cut(text, "sentence", Encoder(tokenizer, thinking=setting).encode(ASK, text, offsets=True))
        for setting in get_args(Thinking)
    }
    assert by_setting["mask"] == by_setting["strip"]
    assert all(end > first for _, end in by_setting["mask"])
    assert by_setting["train"][-len(by_setting["mask"]) :] == by_setting["mask"]
    assert len(by_setting["train"]) > len(by_setting["mask"])


def test_a_base_whose_template_cannot_be_trained_on_is_refused_by_name(tmp_path: Path) -> None:
    folder = tiny_model_folder(tmp_path / "seer")
    (folder / "chat_template.jinja").write_text(template("idefics3"))
    with pytest.raises(
        ContractError, match=r"seer: the base model's chat template does not render an answer"
    ):
        load_base_model(folder, device="cpu", dtype=torch.float32)


def test_thinking_is_trained_by_default_and_other_words_are_refused() -> None:
    assert PreferenceSettings().thinking == KtoSettings().thinking == "train"
    assert replace(PreferenceSettings(), thinking="mask").thinking == "mask"
    with pytest.raises(ContractError, match="thinking"):
        PreferenceSettings(thinking="ignore")  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["reward", "preference", "kto", "sft"])
def test_a_base_that_thinks_is_trained_on_what_its_recipe_says(method: Method, tmp_path: Path) -> None:
    base = tiny_model_folder(tmp_path / "base")
    (base / "chat_template.jinja").write_text(template("qwen3"))
    rows = [
        row(
            f"j{n}",
            [THOUGHT + "the sun rises", f"<think>\nAnother way\n</think>\n\nno {n}"],
            [1, 2],
            split=split,
        )
        for n in range(5)
        for split in ("train" if n < 4 else "held-out",)
    ]
    sources = {"kto": {"sources": ["ranks"]}, "sft": {"sources": ["preferred"]}}.get(method, {})
    trained = {}
    for setting in get_args(Thinking):
        folder = make_run(
            tmp_path / setting,
            base,
            rows,
            method=method,
            settings={"thinking": setting, "max_tokens": 256, **sources},
            optimiser={"epochs": 1},
        )
        assert train(folder) == 0
        assert read_status(folder).state == "finished"
        trained[setting] = (folder / "checkpoint" / "adapter_model.safetensors").read_bytes()
    # A reward model learns from what it reads, and reads masked thinking too.
    assert (trained["train"] == trained["mask"]) == (method == "reward")
    assert trained["strip"] not in (trained["train"], trained["mask"])

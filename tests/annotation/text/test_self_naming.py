"""Texts that tell which model wrote them, and texts that only talk about one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from annotation.text import self_identification
from annotation.text.self_identification import find_self_naming

SOURCE = "tea-round-1-policy"


@pytest.mark.parametrize(
    ("text", "quote"),
    [
        ("As SmolLM, I cannot taste tea.", "As SmolLM, I"),
        ("Hello! I am Claude, made by Anthropic.", "I am Claude"),
        ("Sure. I'm ChatGPT and I like tea.", "I'm ChatGPT"),
        ("I’m Gemini, how can I help?", "I’m Gemini"),
        ("My name is DeepSeek-R1.", "My name is DeepSeek"),
        ("I am Claude 3.5 Sonnet.", "I am Claude 3.5"),
        ("As Llama 3, I was trained on text.", "As Llama 3, I"),
        (
            "As an AI language model developed by OpenAI, I have no taste.",
            "As an AI language model developed by OpenAI",
        ),
        (
            "I am a large language model, trained by Google.",
            "I am a large language model, trained by Google",
        ),
        (
            "I'm an AI assistant created by the team at Hugging Face.",
            "I'm an AI assistant created by the team at Hugging Face",
        ),
        ("I'm an AI assistant called Nova.", "I'm an AI assistant called Nova"),
        ("I was created by Mistral AI.", "I was created by Mistral AI"),
        ("Ich bin ChatGPT, ein Sprachmodell.", "Ich bin ChatGPT"),
    ],
)
def test_a_model_that_says_who_it_is_or_who_made_it_is_found(text: str, quote: str):
    match = find_self_naming(text, prompt="How long should tea steep?", source_name=SOURCE)
    assert match is not None
    assert match.quote == quote
    assert text[match.start : match.end] == quote


@pytest.mark.parametrize(
    ("text", "source", "quote"),
    [
        ("This is written by SmolLM for you.", "SmolLM2-135M-Instruct", "SmolLM"),
        ("smollm2 recommends two minutes", "SmolLM2-135M-Instruct", "smollm2"),
        ("Signed, SmolLM2-135M-Instruct", "SmolLM2-135M-Instruct", "SmolLM2-135M-Instruct"),
        ("Signed, GPT-4", "gpt-4-turbo", "GPT-4"),
        ("Llama 3 says two minutes.", "Meta-Llama-3-8B", "Llama 3"),
        ("Signed, tea-round-1-policy.", SOURCE, "tea-round-1-policy"),
        ("I am Rondo and I steep tea.", "rondo-tea-7b", "I am Rondo"),
    ],
)
def test_the_name_of_its_own_source_is_found_wherever_it_stands(text: str, source: str, quote: str):
    match = find_self_naming(text, prompt="How long should tea steep?", source_name=source)
    assert match is not None
    assert match.quote == quote


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("As an AI language model, I cannot taste tea.", SOURCE),
        ("I am Claude Monet, and I paint water lilies.", SOURCE),
        ("Claude was a painter.", "claude-3-opus"),
        ("A llama is an animal of the Andes.", "Meta-Llama-3-8B"),
        ("Some chatbots, such as ChatGPT, I think, can help.", SOURCE),
        ("Known as Claude, I guess.", SOURCE),
        ("I'm a Gemini, born in June.", SOURCE),
        ("That model was trained by OpenAI.", SOURCE),
        ("I was made by hand in a pottery.", SOURCE),
        ("The first round of policy took 1 day.", SOURCE),
        ("Begin with the starter.", "starter"),
        ("As starter, I would suggest soup.", "starter"),
        ("An instruct of 135M base", "SmolLM2-135M-Instruct"),
        ("We thank you for your feedback.", "qa-feedback"),
        ("As a model citizen trained by Mr Smith, he obeys.", SOURCE),
        ("I am from Meta, Ohio.", SOURCE),
        ("", SOURCE),
    ],
)
def test_ordinary_words_are_no_finding(text: str, source: str):
    assert find_self_naming(text, prompt="How long should tea steep?", source_name=source) is None


@pytest.mark.parametrize(
    ("prompt", "text", "source"),
    [
        ("What is ChatGPT?", "I am ChatGPT, a model.", SOURCE),
        ("What is Chat GPT?", "ChatGPT is a model made by OpenAI.", "chatgpt-2"),
        ("Tell me about smollm.", "SmolLM2 has 135M parameters.", "SmolLM2-135M-Instruct"),
        ("Who is OpenAI?", "As an AI model developed by OpenAI, I know it well.", SOURCE),
    ],
)
def test_what_the_prompt_names_an_answer_may_speak_of(prompt: str, text: str, source: str):
    assert find_self_naming(text, prompt="How long should tea steep?", source_name=source) is not None
    assert find_self_naming(text, prompt=prompt, source_name=source) is None


def test_the_first_place_is_told_and_counted_in_code_points():
    text = "🍵👨‍👩‍👧 Tea. I am ChatGPT. I was made by OpenAI."
    match = find_self_naming(text, prompt="", source_name=SOURCE)
    assert match is not None
    assert (match.start, match.quote) == (text.index("I am"), "I am ChatGPT")


@given(before=st.text(max_size=80), after=st.text(max_size=80))
def test_whatever_stands_around_it_the_quote_stands_where_it_says(before: str, after: str):
    text = f"{before} I am ChatGPT. {after}"
    match = find_self_naming(text, prompt="", source_name=SOURCE)
    assert match is not None
    assert text[match.start : match.end] == match.quote
    assert match.start <= len(before) + 1


# ── The look before the patterns ──────────────────────────────────────────────────────

_PIECES = st.sampled_from(
    [
        *(
            "I am",
            "I'm",
            "As",
            "as an",
            "As a",
            "My name is",
            "Ich bin",
            "als",
            "soy",
            "I was",
            "I have been",
        ),
        *("ChatGPT", "gpt-4", "Claude", "claude", "Llama 3", "SmolLM", "SmolLM2", "Qwen", "phi-3", "Модель"),
        *("made by", "created and trained by", "fine-tuned from", "trained", "developed by the team at"),
        *("erstellt von", "geschaffen", "called", "named", "namens", "Nova", "homemade by", "built by"),
        *("AI", "an AI", "AI2", "KI", "LLM", "language model", "chatbot", "chat bot", "assistant", "xAI"),
        *(
            "OpenAI",
            "Google",
            "Meta AI",
            "Hugging Face",
            "IBM",
            "answers",
            "imported answers",
            "tea",
            "rondo",
        ),
        *(
            "I",
            "my",
            "we",
            "ich",
            ",",
            ".",
            "’s",
            "'s",
            "-",
            "_",
            "—",
            "“",
            "”",
            "…",
            "€",
            "²",
            "3.5",
            "é",
            "🍵",
        ),
        *(" ", "\n", "\u00a0", "\t"),
    ]
)
_TEXTS = st.lists(st.tuples(_PIECES, st.sampled_from(["", " ", " ", " ", "\u2003"])), max_size=14).map(
    lambda pieces: "".join(piece + space for piece, space in pieces)
)
_SOURCES = st.sampled_from(
    [
        *("imported answers", SOURCE, "SmolLM2-135M-Instruct", "gpt-4-turbo", "Meta-Llama-3-8B"),
        *("made-up-1",),
        *(
            "rondo-tea-7b",
            "Модель-3",
            "émile-2b",
            "qwen2",
            "claude-3-opus",
            "x",
            "well_trained_2",
            "AI2-olmo",
        ),
    ]
)


def _without_a_look(text: str, source_name: str) -> tuple[int, int] | None:
    """Return what the patterns find when all are tried on every text, without a question."""
    patterns = [
        self_identification._naming_oneself(source_name),
        self_identification._SAYS_WHAT_IT_IS,
        self_identification._SAYS_WHO_MADE_IT,
        self_identification._own_name(source_name),
    ]
    spans = [match.span() for pattern in patterns if pattern for match in pattern.finditer(text)]
    return min(spans, default=None)


@given(text=_TEXTS, source_name=_SOURCES)
def test_the_look_that_spares_the_patterns_changes_no_verdict(text: str, source_name: str):
    match = find_self_naming(text, prompt="", source_name=source_name)
    assert (match and (match.start, match.end)) == _without_a_look(text, source_name)

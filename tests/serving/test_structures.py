"""Answers held to JSON and JSON schemas: on the engine by itself, and as the official client reads them."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import openai
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from tests.serving.conftest import BASE, Folders
from training.rlhf.model.backbone import Backbone
from training.rlhf.rollout.engine import RolloutEngine
from training.rlhf.rollout.samples import Sample, SampleRequest, end_tokens
from training.rlhf.sampling import SamplingParameters
from training.serving.http import RequestError
from training.serving.requests import ChatRequest
from training.serving.structures import Structures

CHAT: list[Any] = [{"role": "user", "content": "Who are you?"}]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["robot", "human"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}


def of_schema(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}


@pytest.fixture(scope="module")
def backbone(folders: Folders) -> Backbone:
    """The tiny base with random weights."""
    return Backbone.load(folders.base, device="cpu", dtype=torch.float32)


@pytest.fixture(scope="module")
def structures(backbone: Backbone) -> Structures:
    return Structures(backbone)


def drawn(
    backbone: Backbone, requests: list[tuple[Any, SamplingParameters]], prompt: tuple[int, ...] = (5, 6, 7)
) -> list[Sample]:
    """The sample of each of some constraints and parameters, all in one batch."""
    engine = RolloutEngine(backbone, ends=end_tokens(backbone))
    handles = [
        engine.submit(
            [SampleRequest(prompt=prompt, parameters=parameters, seed=parameters.seed, constraint=constraint)]
        )
        for constraint, parameters in requests
    ]
    while engine.busy:
        engine.step()
    return [handle.samples[0] for handle in handles]


def request(**fields: Any) -> ChatRequest:
    return ChatRequest.model_validate_json(json.dumps({"model": BASE, "messages": CHAT, **fields}))


_SCALARS = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.builds(
        lambda low, width: {"type": "integer", "minimum": low, "maximum": low + width},
        st.integers(-1000, 1000),
        st.integers(0, 500),
    ),
    st.builds(
        lambda low, width: {"type": "string", "minLength": low, "maxLength": low + width},
        st.integers(0, 3),
        st.integers(0, 6),
    ),
    st.builds(lambda values: {"enum": values}, st.lists(st.text(max_size=5), min_size=1, max_size=4)),
    st.builds(
        lambda value: {"const": value},
        st.text(max_size=6) | st.integers(1 - 2**53, 2**53 - 1) | st.booleans(),
    ),
    st.sampled_from([{"type": "string", "format": name} for name in ("date", "ipv4", "uuid")]),
    st.just({"type": "string", "pattern": "^[a-f]{2,5}-[0-9]{1,3}$"}),
)


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    objects = st.builds(
        lambda properties, required: {
            "type": "object",
            "properties": properties,
            "required": [name for name in properties if name in required],
            "additionalProperties": False,
        },
        st.dictionaries(st.text(max_size=5), inner, max_size=3),
        st.sets(st.text(max_size=5)),
    )
    arrays = st.builds(
        lambda items, low, width: {"type": "array", "items": items, "minItems": low, "maxItems": low + width},
        inner,
        st.integers(0, 2),
        st.integers(0, 2),
    )
    choices = st.builds(lambda options: {"anyOf": options}, st.lists(inner, min_size=1, max_size=3))
    return objects | arrays | choices


SCHEMAS = st.recursive(_SCALARS, _nested, max_leaves=4)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schema=SCHEMAS, seed=st.integers(0, 2**31), temperature=st.sampled_from([0.0, 0.7, 1.0, 2.0]))
@example(schema=PERSON, seed=1, temperature=1.0)
def test_a_model_of_random_weights_writes_json_of_the_schema(
    backbone: Backbone, structures: Structures, schema: Any, seed: int, temperature: float
):
    constraint = structures.constraint(request(response_format=of_schema(schema)))
    [sample] = drawn(
        backbone, [(constraint, SamplingParameters(temperature=temperature, seed=seed, max_tokens=1500))]
    )
    assert sample.finish_reason == "stop"
    jsonschema.validate(json.loads(sample.text), schema)


def test_rows_beside_one_of_a_grammar_draw_what_they_draw_alone(backbone: Backbone, structures: Structures):
    constraint = structures.constraint(request(response_format=of_schema(PERSON)))
    free = [(None, SamplingParameters(seed=seed, max_tokens=30, alternatives=2)) for seed in (1, 2, 3)]
    held = (constraint, SamplingParameters(seed=4, max_tokens=60, alternatives=2))
    alone = [drawn(backbone, [each])[0] for each in (*free, held)]
    together = drawn(backbone, [free[0], held, *free[1:]])
    for one, beside in zip(alone, [together[0], *together[2:], together[1]], strict=True):
        assert one.token_ids == beside.token_ids
        assert one.text == beside.text
    # The mask itself changes no bit of a neighbour's logits.
    again = drawn(backbone, [free[0], (None, held[1]), *free[1:]])
    first = [token.model_log_prob for token in again[0].tokens]
    assert [token.model_log_prob for token in together[0].tokens][:8] == first[:8]


def test_log_probabilities_are_the_models_among_the_tokens_that_the_grammar_allows(
    backbone: Backbone, structures: Structures, folders: Folders
):
    constraint = structures.constraint(request(response_format=of_schema({"enum": [True, False]})))
    parameters = SamplingParameters(seed=3, max_tokens=20, alternatives=20)
    [sample] = drawn(backbone, [(constraint, parameters)])
    row = torch.tensor([[5, 6, 7, *sample.token_ids]])
    with torch.inference_mode():
        logits = AutoModelForCausalLM.from_pretrained(folders.base, dtype=torch.float32)(row).logits[0, 2:-1]
    state = constraint.begin()
    for position, token in enumerate(sample.tokens):
        allowed = state.allowed()
        expected = logits[position].masked_fill(~allowed, -torch.inf).log_softmax(-1)
        assert token.model_log_prob == pytest.approx(float(expected[token.id]), abs=1e-4)
        # Temperature 1 and no filter: drawn by exactly this.
        assert token.log_prob == pytest.approx(token.model_log_prob, abs=1e-6)
        assert 1 <= len(token.alternatives) == min(20, int(allowed.sum()))
        assert all(allowed[id] for id, _ in token.alternatives)
        if token.id not in end_tokens(backbone):
            state.advance(token.id)


def answered(client: openai.OpenAI, **fields: Any) -> Any:
    asked = {"model": BASE, "messages": CHAT, "max_tokens": 300, "seed": 1, **fields}
    return client.chat.completions.create(**asked)


def test_an_answer_in_a_json_schema_is_of_it_streamed_or_not(client: openai.OpenAI):
    fields = {"response_format": of_schema(PERSON), "n": 3, "logprobs": True, "top_logprobs": 3}
    whole = answered(client, **fields)
    texts = ["", "", ""]
    for chunk in answered(client, **fields, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]
    for choice in whole.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content), PERSON)
        assert all(token.logprob <= 0 for token in choice.logprobs.content)


def test_a_pydantic_model_of_the_client_is_parsed(client: openai.OpenAI):
    from pydantic import BaseModel, Field

    class Person(BaseModel):
        name: str = Field(max_length=5)
        friends: list[bool] = Field(max_length=2)

    parsed = client.chat.completions.parse(
        model=BASE, messages=CHAT, max_tokens=300, seed=4, response_format=Person
    )
    assert isinstance(parsed.choices[0].message.parsed, Person)


@pytest.mark.parametrize("seed", range(4))
def test_an_answer_that_is_to_be_json_is_an_object(client: openai.OpenAI, seed: int):
    choice = answered(client, response_format={"type": "json_object"}, seed=seed, temperature=2).choices[0]
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)
    assert choice.message.content.startswith("{")


def test_an_answer_that_is_cut_off_says_so(client: openai.OpenAI):
    choice = answered(client, response_format=of_schema(PERSON), max_tokens=4).choices[0]
    assert choice.finish_reason == "length"
    assert choice.message.content.startswith("{")


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "strng"}, ""),
        ({"type": "object", "properties": {"a": {"not": {"type": "string"}}}}, ".properties.a"),
        ({"type": "array", "items": {"type": "string", "pattern": "(?=a)b"}}, ".items"),
        ({"anyOf": [{"type": "null"}, {"type": "array", "uniqueItems": True}]}, ".anyOf[1]"),
        ({"$defs": {"n": {"type": "string", "format": "colour"}}, "$ref": "#/$defs/n"}, ".$defs.n"),
        ({"$ref": "https://example.org/schema"}, ""),
        ({"type": "array", "items": {"enum": [1, 2**53]}}, ".items.enum[1]"),
        ({"const": -(2**70)}, ".const"),
        ({"type": "integer", "minimum": 2**53, "maximum": 2**53 + 3}, ".minimum"),
        ({"type": "string", "minLength": 5, "maxLength": 2}, ""),
        ({"type": "object", "properties": {"a": {"enum": []}}, "required": ["a"]}, ""),
        ({"anyOf": [{"type": "object", "properties": {f"p{i}": {}}} for i in range(3000)]}, ""),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_schema_that_cannot_be_kept_to_is_refused_with_its_place(
    client: openai.OpenAI, schema: Any, place: str
):
    with pytest.raises(openai.BadRequestError) as refusal:
        answered(client, response_format=of_schema(schema))
    assert refusal.value.code == "invalid_schema"
    assert refusal.value.param in (f"response_format.json_schema.schema{place}", "response_format")


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_object", "json_schema": {"name": "a", "schema": {}}}, "response_format.json_schema"),
        ({"type": "xml"}, "response_format.type"),
        (
            {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}},
            "response_format.json_schema.name",
        ),
        ({"type": "json_schema", "json_schema": {"name": "a"}}, "response_format.json_schema.schema"),
    ],
    ids=str,
)
def test_a_format_that_is_none_is_refused_by_name(client: openai.OpenAI, form: Any, param: str):
    with pytest.raises(openai.BadRequestError) as refusal:
        answered(client, response_format=form)
    assert refusal.value.param == param


def test_a_schema_does_not_switch_refusals_off(structures: Structures):
    schema = {"x-guidance": {"lenient": True}, "type": "object", "not": {}}
    with pytest.raises(RequestError) as refusal:
        structures.constraint(request(response_format=of_schema(schema)))
    assert refusal.value.code == "invalid_schema"


def test_a_text_format_asks_for_nothing(structures: Structures):
    assert structures.constraint(request(response_format={"type": "text"})) is None


def test_a_begun_answer_is_not_held_to_a_format(client: openai.OpenAI):
    begun = [*CHAT, {"role": "assistant", "content": "{"}]
    continuing = {"add_generation_prompt": False, "continue_final_message": True}
    with pytest.raises(openai.BadRequestError) as refusal:
        answered(client, messages=begun, response_format={"type": "json_object"}, extra_body=continuing)
    assert refusal.value.code == "invalid_value"

"""POST /v1/embeddings: texts as vectors, the means of a model's last hidden states."""

from __future__ import annotations

import openai
import pytest
import torch

from tests.serving.conftest import BASE, Folders
from training.rlhf.model.backbone import Backbone

TEXTS = ["What is the sun?", "A star.", "Name three rivers that flow into the sea, and one that does not. 🌊"]


def vectors(client: openai.OpenAI, texts: list[str], model: str = BASE) -> list[list[float]]:
    return [row.embedding for row in client.embeddings.create(model=model, input=texts).data]


@pytest.mark.parametrize("model", [BASE, "warm"])
def test_a_vector_is_the_mean_of_the_last_hidden_states_of_length_1(
    client: openai.OpenAI, folders: Folders, model: str
):
    backbone = Backbone.load(folders.base, device="cpu", dtype=torch.float32)
    backbone.load_adapter("warm", folders.checkpoints / "warm")
    ids = torch.tensor([backbone.tokenizer(TEXTS[2])["input_ids"]])
    with torch.inference_mode(), backbone.using(None if model == BASE else model):
        mean = backbone.hidden_states(ids, torch.ones_like(ids)).states[0].mean(0)
    expected = (mean / mean.norm()).tolist()
    [vector] = vectors(client, [TEXTS[2]], model)
    assert vector == pytest.approx(expected, abs=1e-5)
    assert sum(value * value for value in vector) == pytest.approx(1, abs=1e-5)


def test_no_text_changes_the_vector_of_another(client: openai.OpenAI):
    # More tokens than one pass holds, of very different lengths.
    texts = [*TEXTS, *(f"{'word ' * size}and {size}" for size in (1, 40, 90, 3, 60, 150, 120, 100, 80))]
    together = vectors(client, texts)
    for text, vector in zip(texts, together, strict=True):
        [alone] = vectors(client, [text])
        assert vector == pytest.approx(alone, abs=1e-5)


def test_only_the_end_of_a_long_text_is_read_where_that_is_asked_for(client: openai.OpenAI, folders: Folders):
    tokenizer = Backbone.load(folders.base, device="cpu", dtype=torch.float32).tokenizer
    ids = tokenizer(TEXTS[2])["input_ids"]
    end = tokenizer.decode(ids[-4:])
    assert tokenizer(end)["input_ids"] == ids[-4:]
    answer = client.embeddings.create(
        model=BASE, input=TEXTS[2], extra_body={"truncate_prompt_tokens": 4}, encoding_format="float"
    )
    assert answer.usage.prompt_tokens == 4
    assert answer.data[0].embedding == pytest.approx(vectors(client, [end])[0], abs=1e-5)


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"input": []}, "invalid_value", "input"),
        ({"input": ["a", ""]}, "invalid_value", "input[1]"),
        ({"input": "word " * 9000}, "context_length_exceeded", "input[0]"),
        ({"input": "a", "dimensions": 8}, "unsupported_parameter", "dimensions"),
    ],
)
def test_what_cannot_be_embedded_is_refused_by_its_field(
    client: openai.OpenAI, body: dict[str, object], code: str, param: str
):
    with pytest.raises(openai.BadRequestError) as refusal:
        client.embeddings.create(model=BASE, **body)  # type: ignore[arg-type]
    assert (refusal.value.code, refusal.value.param) == (code, param)

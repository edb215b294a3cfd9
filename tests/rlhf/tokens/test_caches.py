"""Results that a run reuses from an earlier one: tokens of a snapshot, log-probabilities of the reference."""

import json
import re
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.rlhf.runs import files_of, judgments, make_run, row, train
from training.contract.run import RunSpec, read_spec, write_spec
from training.rlhf.data import Examples, build_examples
from training.rlhf.loop import log_probabilities as reference_module
from training.rlhf.loop.log_probabilities import Reference, answer_log_probabilities
from training.rlhf.model.backbone import Backbone
from training.rlhf.tokens.encoding import Encoder, Stored, TokenCache
from training.rlhf.tokens.example import UsedLabels
from training.rlhf.tokens.packing import pack

EVERYTHING = UsedLabels(categories=None, missing=None, corrections=True)


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The answers that were really tokenised, in order."""
    answers: list[str] = []
    encode = Encoder.encode

    def counted(encoder: Encoder, messages: Any, answer: str, *, offsets: bool = False) -> Any:
        answers.append(answer)
        return encode(encoder, messages, answer, offsets=offsets)

    monkeypatch.setattr(Encoder, "encode", counted)
    return answers


def build(backbone: Backbone, cache: Path | None, *, digest: str = "d", **more: Any) -> Examples:
    tokens = cache and TokenCache(cache, snapshot_digest=digest, tokenizer=backbone.tokenizer)
    settings = {"max_tokens": 60, "context": False, "labels": EVERYTHING, **more}
    return build_examples(judgments(), backbone.tokenizer, **settings, cache=tokens or None)


def test_tokens_from_the_cache_are_those_of_the_tokenizer(backbone: Backbone, tmp_path: Path) -> None:
    plain = build(backbone, None)
    assert plain.shortened  # cut prompts are among what is compared
    for _ in range(2):  # made, then read
        examples = build(backbone, tmp_path)
        assert examples == plain
        for ours, theirs in zip(examples.train, plain.train, strict=True):
            assert isinstance(ours.answers[0].ids, Stored)
            batch, expected = (
                pack([ours], device=torch.device("cpu")),
                pack([theirs], device=torch.device("cpu")),
            )
            assert torch.equal(batch.input_ids, expected.input_ids)
            assert torch.equal(batch.targets, expected.targets)


def test_a_second_run_tokenises_nothing(backbone: Backbone, tmp_path: Path, encoded: list[str]) -> None:
    build(backbone, tmp_path)
    first = len(encoded)
    assert first > 20
    build(backbone, tmp_path)
    # Another length cuts what is there in another place.
    build(backbone, tmp_path, max_tokens=100)
    assert len(encoded) == first


def test_another_setting_snapshot_or_tokenizer_is_not_taken_for_the_same(
    backbone: Backbone, tmp_path: Path, encoded: list[str]
) -> None:
    passages = [{"title": "Sky", "sentences": ["It is blue."]}]
    rows = [row("j", ["yes", "no"], [1, 2], context=passages)]

    def tokenised(*, context: bool = False, digest: str = "d", requirements: UsedLabels | None = None) -> int:
        before = len(encoded)
        tokens = TokenCache(tmp_path, snapshot_digest=digest, tokenizer=backbone.tokenizer)
        build_examples(
            rows, backbone.tokenizer, max_tokens=200, context=context, labels=requirements, cache=tokens
        )
        return len(encoded) - before

    assert tokenised() == 2
    assert tokenised(context=True) == 2
    assert tokenised(requirements=UsedLabels(categories=None)) == 2  # with places
    assert tokenised(digest="other") == 2
    assert tokenised() == tokenised(context=True) == 0
    template = backbone.tokenizer.chat_template
    try:
        backbone.tokenizer.chat_template = template + "{# renders the same, as it happens #}"
        assert tokenised() == 2
    finally:
        backbone.tokenizer.chat_template = template


@pytest.mark.parametrize("name", ["tokens.bin", "index.npy", "header.json"])
@pytest.mark.parametrize("harm", ["cut off", "changed", "gone"])
def test_a_damaged_token_cache_is_made_again(
    backbone: Backbone, tmp_path: Path, encoded: list[str], name: str, harm: str
) -> None:
    plain = build(backbone, tmp_path)
    first = len(encoded)
    (path,) = tmp_path.glob(f"tokens-*/{name}")
    content = path.read_bytes()
    if harm == "gone":
        path.unlink()
    else:
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        path.write_bytes(content[:middle] if harm == "cut off" else flipped)
    assert build(backbone, tmp_path) == plain
    assert len(encoded) == 2 * first
    build(backbone, tmp_path)
    assert len(encoded) == 2 * first
    assert not list(tmp_path.glob(".tokens-*"))


def test_what_cannot_be_tokenised_is_refused_each_time_with_the_same_words(
    backbone: Backbone, tmp_path: Path
) -> None:
    rows = [*judgments(), row("bad", ["<|im_end|> now", "b", "c"], [1, 2, 3])]
    for _ in range(2):
        tokens = TokenCache(tmp_path, snapshot_digest="d", tokenizer=backbone.tokenizer)
        examples = build_examples(rows, backbone.tokenizer, max_tokens=128, context=False, cache=tokens)
        (entry,) = [dropped for dropped in examples.dropped if dropped["judgment"] == "bad"]
        assert entry["reason"] == "the text holds the control token '<|im_end|>'"


def test_many_judgments_take_little_memory(backbone: Backbone, tmp_path: Path) -> None:
    """Python numbers would take 36 bytes a token: 200 judgments of 2 × 900 tokens, 13 MB."""
    prompts = [f"{index} " + "why? " * 400 for index in range(200)]
    rows = (
        row(f"j{index}", [f"yes {index}", "no"], [1, 2], prompt=prompt)
        for index, prompt in enumerate(prompts)
    )
    tokens = TokenCache(tmp_path, snapshot_digest="d", tokenizer=backbone.tokenizer)
    tracemalloc.start()
    try:
        examples = build_examples(rows, backbone.tokenizer, max_tokens=900, context=False, cache=tokens)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(len(answer.ids) for example in examples.train for answer in example.answers) > 300_000
    assert held < 4e6


# The reference.


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of answers whose log-probabilities the reference really computed, call by call."""
    calls: list[int] = []

    def counted(backbone: Backbone, adapter: str | None, batch: Any) -> torch.Tensor:
        calls.append(batch.answers)
        return answer_log_probabilities(backbone, adapter, batch)

    monkeypatch.setattr(reference_module, "answer_log_probabilities", counted)
    return calls


def spec_of(tmp_path: Path, base: Path, **more: Any) -> RunSpec:
    return read_spec(make_run(tmp_path / "run", base, method="preference", **more))


def ask(backbone: Backbone, spec: RunSpec, cache: Path | None, *, max_tokens: int = 128) -> torch.Tensor:
    examples = build_examples(judgments(), backbone.tokenizer, max_tokens=max_tokens, context=False).train
    reference = Reference(backbone, spec, spec.settings.lora, cache=cache)
    return reference.log_probabilities(pack(examples, device=torch.device("cpu")), examples)


def test_a_second_run_reads_the_reference_bit_for_bit_and_computes_nothing(
    backbone: Backbone, base: Path, tmp_path: Path, computed: list[int]
) -> None:
    spec = spec_of(tmp_path, base)
    plain = ask(backbone, spec, None)
    first = ask(backbone, spec, tmp_path / "cache")
    calls = len(computed)
    assert torch.equal(plain, first)
    assert torch.equal(ask(backbone, spec, tmp_path / "cache"), first)
    assert len(computed) == calls == 24  # twelve judgments, twice


def test_the_reference_in_packed_rows_is_the_same_to_rounding_in_far_fewer_passes(
    backbone: Backbone, base: Path, tmp_path: Path, computed: list[int]
) -> None:
    spec = spec_of(tmp_path, base)
    alone = ask(backbone, spec, None)
    assert len(computed) == 12
    examples = build_examples(judgments(), backbone.tokenizer, max_tokens=128, context=False).train
    batch, cache = pack(examples, device=torch.device("cpu")), tmp_path / "cache"
    computed.clear()
    packed = Reference(backbone, spec, spec.settings.lora, cache=cache)
    packed.plan(examples, tokens=512)
    log_probs = packed.log_probabilities(batch, examples)
    assert len(computed) <= 4
    assert sum(computed) == batch.answers
    assert torch.allclose(log_probs, alone, atol=1e-4)
    # One that was stopped in between, and asks in another order, computes the same bits.
    other = Reference(backbone, spec, spec.settings.lora)
    other.plan(examples, tokens=512)
    turned = examples[::-1]
    again = other.log_probabilities(pack(turned, device=torch.device("cpu")), turned)
    sizes = [len(example.answers) for example in turned]
    assert torch.equal(torch.cat(again.split(sizes)[::-1]), log_probs)
    # From the file, and never for a row that was laid out otherwise.
    computed.clear()
    read = Reference(backbone, spec, spec.settings.lora, cache=cache)
    read.plan(examples, tokens=512)
    assert torch.equal(read.log_probabilities(batch, examples), log_probs)
    assert not computed
    assert torch.equal(ask(backbone, spec, cache), alone)


def test_another_snapshot_precision_length_or_parent_misses(
    backbone: Backbone, base: Path, tmp_path: Path, computed: list[int]
) -> None:
    spec, cache = spec_of(tmp_path, base), tmp_path / "cache"
    ask(backbone, spec, cache)
    computed.clear()
    ask(backbone, replace(spec, snapshot_digest="0" * 64), cache)
    assert len(computed) == 12
    half = Backbone.load(base, device="cpu", dtype=torch.bfloat16)
    ask(half, spec, cache)
    assert len(computed) == 24
    # Shorter rows: what is cut is another text, what fits already is the same.
    ask(backbone, spec, cache, max_tokens=50)
    assert 24 < len(computed) < 36


def test_the_adapter_that_training_continues_has_its_own_reference(base: Path, tmp_path: Path) -> None:
    first = make_run(tmp_path / "first", base, method="preference", optimiser={"max_steps": 2}, cache="../c")
    assert train(first) == 0
    assert len(list((tmp_path / "c").glob("reference-*.bin"))) == 1
    second = make_run(
        tmp_path / "second",
        base,
        method="preference",
        optimiser={"max_steps": 1},
        cache="../c",
        parent=str(first / "checkpoint"),
    )
    assert train(second) == 0
    assert len(list((tmp_path / "c").glob("reference-*.bin"))) == 2


@pytest.mark.parametrize("keep", [0, 10, 200, -1, -30])
def test_a_cut_off_reference_file_is_used_as_far_as_it_goes(
    backbone: Backbone, base: Path, tmp_path: Path, computed: list[int], keep: int
) -> None:
    spec, cache = spec_of(tmp_path, base), tmp_path / "cache"
    whole = ask(backbone, spec, cache)
    (path,) = cache.iterdir()
    content = path.read_bytes()
    path.write_bytes(content[:keep])
    computed.clear()
    assert torch.equal(ask(backbone, spec, cache), whole)
    assert len(computed) >= 1
    # A pair's record takes 32 bytes: one cut off its end loses one.
    assert keep != -1 or len(computed) == 1
    assert len(path.read_bytes()) == len(content)
    computed.clear()
    ask(backbone, spec, cache)
    assert not computed


def test_a_changed_bit_in_a_reference_file_is_found(
    backbone: Backbone, base: Path, tmp_path: Path, computed: list[int]
) -> None:
    spec, cache = spec_of(tmp_path, base), tmp_path / "cache"
    whole = ask(backbone, spec, cache)
    (path,) = cache.iterdir()
    content = bytearray(path.read_bytes())
    for place in (3, len(content) // 2):  # in the header, in a record
        changed = bytearray(content)
        changed[place] ^= 1
        path.write_bytes(changed)
        assert torch.equal(ask(backbone, spec, cache), whole)


# Whole runs.


@pytest.mark.parametrize("method", ["reward", "preference"])
def test_a_run_with_a_full_cache_ends_byte_for_byte_like_one_with_none(
    base: Path, tmp_path: Path, method: Any, encoded: list[str], computed: list[int]
) -> None:
    folders = [make_run(tmp_path / name, base, method=method, cache="../shared") for name in ("one", "two")]
    alone = make_run(tmp_path / "alone", base, method=method)
    assert train(folders[0]) == 0
    encoded.clear()
    computed.clear()
    assert train(folders[1]) == 0
    assert not encoded
    assert not computed
    assert train(alone) == 0
    assert (alone / "cache").is_dir()
    weights = [
        {
            name: content
            for name, content in files_of(folder / "checkpoint").items()
            if name != "manifest.json"
        }
        for folder in (*folders, alone)
    ]
    assert weights[0] == weights[1] == weights[2]


def test_the_place_of_the_cache_may_change_between_stop_and_resumption(base: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", base, optimiser={"max_steps": 2})
    assert train(run) == 0
    write_spec(run, replace(read_spec(run), cache="../elsewhere"))
    assert train(run) == 0
    assert json.loads((run / "status.json").read_text())["message"] == "the checkpoint was already there"


def test_a_cache_that_cannot_be_written_is_warned_of_and_nothing_more(base: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    run = make_run(
        tmp_path / "run", base, method="preference", optimiser={"max_steps": 1}, cache="../file/cache"
    )
    assert train(run) == 0
    log = (run / "log.txt").read_text()
    assert re.search("The tokens cannot be kept for the next run", log)
    assert re.search("The reference cannot be kept for the next run", log)


def test_a_stored_row_is_cut_once() -> None:
    numbers = torch.arange(10, dtype=torch.int32).numpy()
    whole = Stored(lambda start, stop: numbers[start:stop], 2, 8)
    cut = whole.without(1, 3)
    assert tuple(cut) == (2, 5, 6, 7)
    assert (len(cut), cut[1:], [0, *cut]) == (4, (5, 6, 7), [0, 2, 5, 6, 7])
    assert cut in {(2, 5, 6, 7)}
    assert (cut + (9,), (9,) + cut) == ((2, 5, 6, 7, 9), (9, 2, 5, 6, 7))  # noqa: RUF005 - what is tested
    with pytest.raises(ValueError, match="once"):
        cut.without(0, 1)

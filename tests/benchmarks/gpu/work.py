"""The work: a random base whose tokens are words, and judgments and prompts of exactly so many of them."""

from __future__ import annotations

import itertools
import random
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.benchmarks.gpu.sizes import ANSWERS, CHAT, Size
from tests.rlhf.runs import row
from tests.tiny import BOS, CHAT_TEMPLATE, END, START
from training.contract.snapshot import Message, SnapshotPrompt, SnapshotRow

_OWN = (BOS, START, END, "<|unknown|>", "user", "assistant")


def words(count: int) -> list[str]:
    """Return `count` different words of one to four letters: their lengths tell completions apart."""
    spelled = ("".join(letters) for size in itertools.count(1) for letters in _letters(size))
    return list(itertools.islice(spelled, count))


def _letters(size: int) -> Iterator[tuple[str, ...]]:
    return itertools.product(string.ascii_lowercase, repeat=size)


def write_base(folder: Path, size: Size, *, device: str, dtype: torch.dtype) -> None:
    """Write a Llama of random weights and a tokenizer of words, in transformers' format."""
    shape = size.shape
    tokens = [*_OWN, *words(shape.vocabulary - len(_OWN))]
    tokenizer = Tokenizer(
        models.WordLevel({token: id for id, token in enumerate(tokens)}, unk_token="<|unknown|>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=END,
        pad_token=END,
        unk_token="<|unknown|>",
        additional_special_tokens=[START],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)
    ends = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 2}
    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        max_position_embeddings=shape.context,
        tie_word_embeddings=shape.tied,
        dtype=dtype,
        **ends,
    )
    torch.manual_seed(0)
    default = torch.get_default_dtype()
    try:
        torch.set_default_dtype(dtype)
        with torch.device(device):
            model = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(default)
    model.generation_config = GenerationConfig(**ends)
    model.save_pretrained(folder)


class Texts:
    """Random texts, the same ones for everybody."""

    def __init__(self, size: Size) -> None:
        self._size = size
        self._words = words(size.shape.vocabulary - len(_OWN))
        self._drawn = random.Random(1)

    def _text(self, tokens: int) -> str:
        return " ".join(self._drawn.choices(self._words, k=tokens))

    def prompt(self) -> str:
        """Return a prompt that has the size's tokens, once it is a chat."""
        return self._text(self._size.prompt - CHAT)

    def rankings(self, answers: int = ANSWERS) -> list[SnapshotRow]:
        """Return the judgments of a step, best answer first."""
        ranks = range(1, answers + 1)
        return [
            row(
                f"{number:04}",
                [self._text(self._size.answer - 1) for _ in range(answers)],
                ranks,
                prompt=self.prompt(),
            )
            for number in range(self._size.judgments)
        ]

    def prompts(self, count: int) -> list[SnapshotPrompt]:
        """Return prompts to sample completions of."""
        return [
            SnapshotPrompt(
                id=f"{number:04}", split="train", messages=(Message(role="user", content=self.prompt()),)
            )
            for number in range(count)
        ]


def as_pairs(rows: list[SnapshotRow]) -> list[dict[str, Any]]:
    """Return all pairs that rankings decide as TRL reads them."""
    pairs = []
    for judged in rows:
        chat = [{"role": message.role, "content": message.content} for message in judged.messages]
        for better, worse in itertools.combinations(judged.completions, 2):
            chosen, rejected = (
                [{"role": "assistant", "content": completion.text}] for completion in (better, worse)
            )
            pairs.append({"prompt": chat, "chosen": chosen, "rejected": rejected})
    return pairs

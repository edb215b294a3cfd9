"""A small language model that writes about two topics: short or long, as prose or list, on topic or off it.

Trained for seconds on sentences from a grammar, it mixes all of these by chance, as a model does that people
have not judged yet: each preference of `preferences` can be learned from its own responses. Word-level
tokens, three blocks, some 150,000 weights.

python -m tests.benchmarks.loop.writer FOLDER [--steps 400]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from random import Random

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.benchmarks.loop.grammar import OPENERS, QUALITIES, TOPICS, VERBS, prompt_about, response_to
from tests.tiny import BOS, CHAT_TEMPLATE, END, START

_LENGTH = 96


def tokenizer() -> PreTrainedTokenizerFast:
    """One token for each word, sign and line end; other characters become an unknown one."""
    words = ["write", "about", "and", "system", "user", "assistant", ".", "-", "\n"]
    words += [*TOPICS, *VERBS, *QUALITIES, *OPENERS]
    # A word carries the space before it, so that what is decoded is what was written.
    vocabulary = [BOS, START, END, "<unk>", *words, *(f" {word}" for word in words if word != "\n")]
    ids = {word: index for index, word in enumerate(vocabulary)}
    built = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    built.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n| ?[^\s]+"), behavior="isolated")
    built.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=built,
        bos_token=BOS,
        eos_token=END,
        pad_token=END,
        unk_token="<unk>",
        additional_special_tokens=[START],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def build(folder: Path, *, steps: int, seed: int = 0) -> Path:
    """Train a writer and save it in transformers' format; return the folder."""
    torch.manual_seed(seed)
    words = tokenizer()
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=words.bos_token_id,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    _practise(model, words, steps=steps, random=Random(seed))
    model.generation_config = GenerationConfig(
        bos_token_id=words.bos_token_id, eos_token_id=words.eos_token_id, pad_token_id=words.pad_token_id
    )
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def _practise(model: LlamaForCausalLM, words: PreTrainedTokenizerFast, *, steps: int, random: Random) -> None:
    """Learn the grammar: loss on the responses alone."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4e-3, total_steps=steps, pct_start=0.1)
    for _ in range(steps):
        ids, labels = _batch(words, random)
        loss = model(input_ids=ids, labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()


def _batch(
    words: PreTrainedTokenizerFast, random: Random, size: int = 32
) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.full((size, _LENGTH), words.pad_token_id)
    labels = torch.full((size, _LENGTH), -100)
    for row in range(size):
        first, second = random.sample(TOPICS, 2)
        chat = [{"role": "user", "content": prompt_about(first, second)}]
        rendered = words.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        prompt_ids = words(rendered, add_special_tokens=False).input_ids
        response_ids = words(response_to(first, second, random) + END, add_special_tokens=False).input_ids
        whole = torch.tensor((prompt_ids + response_ids)[:_LENGTH])
        ids[row, : len(whole)] = whole
        labels[row, len(prompt_ids) : len(whole)] = whole[len(prompt_ids) :]
    longest = int((labels != -100).any(0).nonzero().max()) + 1
    return ids[:, :longest], labels[:, :longest]


def main() -> None:
    """Build a writer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    begun = time.monotonic()
    build(options.folder, steps=options.steps, seed=options.seed)
    print(f"{options.folder}: {options.steps} steps in {time.monotonic() - begun:.1f} s")


if __name__ == "__main__":
    main()

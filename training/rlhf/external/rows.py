"""A snapshot as TRL's datasets: JSON Lines of exactly what Rondo's own method would learn from.

From https://huggingface.co/docs/trl/dataset_formats: preference {prompt, chosen, rejected}, unpaired
preference {prompt, completion, label}, prompt-completion {prompt, completion}, prompt-only {prompt}; prompts
and responses are lists of messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from training.contract import (
    ContractError,
    KtoSettings,
    Message,
    PolicyGradientSettings,
    PreferenceSettings,
    Settings,
    SftSettings,
    SnapshotPrompt,
    SnapshotRow,
    with_context,
)
from training.rlhf.data import build_examples
from training.rlhf.methods.kto import said_good
from training.rlhf.tokens.encoding import Answered, Encoder
from training.rlhf.tokens.example import Example, UsedLabels

Row = dict[str, Any]

TRAIN_FILE = "train.jsonl"
HELD_OUT_FILE = "test.jsonl"
"""Names by which `datasets` knows the splits of a folder."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of both splits, and what was left out."""

    train: list[Row]
    held_out: list[Row]
    dropped: list[dict[str, str]]
    is_weighed: bool = False
    """True if some judgments count less than others, which TRL cannot follow."""


def rows_of_judgments(rows: Iterable[SnapshotRow], tokenizer: Any, settings: Settings) -> Rows:
    """Return the rows of a method that learns from judgments. Raises `ContractError` where there are none.

    A judgment of several answers is one row per decided pair, or per answer that was called good or bad.
    """
    encoder = _TextEncoder(tokenizer, max_tokens=settings.max_tokens)
    examples = build_examples(
        rows,
        tokenizer,
        max_tokens=settings.max_tokens,
        context=settings.context,
        labels=_used_labels(settings),
        encoder=encoder,
    )
    sides = [
        [row for example in side for row in _rows(example, encoder, settings)]
        for side in (examples.train, examples.held_out)
    ]
    if not sides[0]:
        raise ContractError("the snapshot has no judgment that TRL could learn from by this method")
    weights = {example.weight for example in examples.train}
    return Rows(sides[0], sides[1], examples.dropped, is_weighed=len(weights) > 1)


def rows_of_prompts(
    prompts: Iterable[SnapshotPrompt], tokenizer: Any, settings: PolicyGradientSettings
) -> Rows:
    """Return the prompts that a policy gradient samples. Raises `ContractError` where there are none."""
    encoder = Encoder(tokenizer)
    room = settings.max_tokens - settings.rollout.max_tokens
    rows = Rows([], [], [])
    for prompt in prompts:
        try:
            chat = with_context(prompt.messages, prompt.context if settings.context else ())
            _, cut = encoder.encode_prompt(chat, max_tokens=room)
        except ContractError as error:
            rows.dropped.append({"judgment": prompt.id, "completion": "", "reason": str(error)})
            continue
        if cut:
            # TRL does not shorten prompts.
            reason = f"the prompt is longer than {room} tokens"
            rows.dropped.append({"judgment": prompt.id, "completion": "", "reason": reason})
            continue
        side = rows.train if prompt.split == "train" else rows.held_out
        side.append({"prompt": _messages(chat)})
    if not rows.train:
        raise ContractError("the snapshot has no prompt to train on; freeze one with more prompts")
    return rows


def write_rows(folder: Path, rows: Rows) -> None:
    """Write both splits as JSON Lines; a split without rows has no file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, side in ((TRAIN_FILE, rows.train), (HELD_OUT_FILE, rows.held_out)):
        path = folder / name
        path.unlink(missing_ok=True)
        if side:
            lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in side]
            path.write_text("".join(lines), encoding="utf-8")


class _TextEncoder(Encoder):
    """Encodes answers as numbers of their texts, after the checks of the real encoding."""

    def __init__(self, tokenizer: Any, *, max_tokens: int) -> None:
        super().__init__(tokenizer)
        self._max_tokens = max_tokens
        self.texts: list[tuple[list[Row], str]] = []
        """Prompt, as messages, and text by number."""

    def encode(self, messages: Any, answer: str, *, offsets: bool = False) -> Answered:
        """Return a stand-in of two tokens: one for the prompt, and the number of the text."""
        real = super().encode(messages, answer)
        if len(real.ids) - real.answer_start >= self._max_tokens:
            raise ContractError(f"the answer is longer than max_tokens ({self._max_tokens})")
        self.texts.append((_messages(messages), answer))
        return Answered((0, len(self.texts) - 1), 1)


def _used_labels(settings: Settings) -> UsedLabels:
    if isinstance(settings, PreferenceSettings):
        return UsedLabels(ranks="decided", corrections=settings.use_corrections)
    if isinstance(settings, KtoSettings):
        rated = not {"thumbs", "ratings"}.isdisjoint(settings.sources)
        return UsedLabels(
            ranks="decided" if "ranks" in settings.sources else "none",
            criteria=(frozenset(settings.criteria) or None) if rated else frozenset(),
            verdicts="verdicts" in settings.sources,
            nothing=f"calls no answer good or bad ({', '.join(settings.sources)})",
            remedy="Ask for thumbs or ratings, or name other sources",
        )
    if isinstance(settings, SftSettings):
        return UsedLabels(
            ranks="none",
            written=frozenset(settings.sources),
            nothing=f"has no text to be imitated ({', '.join(settings.sources)})",
            remedy="Ask for demonstrations or corrections, or name other sources",
        )
    raise ContractError(f"TRL is handed no judgments for {settings.method!r}")


def _rows(example: Example, encoder: _TextEncoder, settings: Settings) -> Iterator[Row]:
    if not example.weight:
        return
    texts = [encoder.texts[answer.ids[-1]] for answer in example.answers]
    prompt = texts[0][0]
    if isinstance(settings, PreferenceSettings):
        for winner, loser in example.pairs:
            yield {
                "prompt": prompt,
                "chosen": _assistant_message(texts[winner][1]),
                "rejected": _assistant_message(texts[loser][1]),
            }
    elif isinstance(settings, KtoSettings):
        for place, good in said_good(example, frozenset(settings.sources)).items():
            yield {"prompt": prompt, "completion": _assistant_message(texts[place][1]), "label": good}
    else:
        for _, text in texts:
            yield {"prompt": prompt, "completion": _assistant_message(text)}


def _messages(chat: Iterable[Message]) -> list[Row]:
    return [asdict(message) for message in chat]


def _assistant_message(text: str) -> list[Row]:
    return [{"role": "assistant", "content": text}]

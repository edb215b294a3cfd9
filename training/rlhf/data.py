"""Snapshot rows to tokenised examples and padded batches.

An example is one judgment with all its completions: each completion is encoded once a step,
and every pair that the ranking decides is formed from those encodings.

Where a reviewer has decided a comparison the decision is one example in place of the votes on it:
several people's dispute, settled once, counts as one judgment and not as many. Corrected answers
can give one further example per judgment, of pairs (corrected, original).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jinja2 import TemplateError
from torch import Tensor

from training.contract import ContractError, Message, SnapshotRow, decided_pairs, with_context

_NO_PREFERENCE = {
    "equal": "all completions were judged equal",
    "both_good": "all completions were judged good, none better",
    "both_bad": "all completions were judged bad, none better",
    "cannot_judge": "the annotator could not judge",
    "not_asked": "no preference was asked for",
}


class Answered(NamedTuple):
    """One prompt with one answer, tokenised as one rendered chat that ends with the turn's end token."""

    ids: tuple[int, ...]
    answer_start: int
    """Index of the first token of the answer; all from there to the end are the answer's."""


@dataclass(frozen=True, slots=True)
class Example:
    """One judgment from which pairs can be formed."""

    judgment: str
    answers: tuple[Answered, ...]
    pairs: tuple[tuple[int, int], ...]
    """(winner, loser) as indexes into `answers`."""
    strength: int
    """How much better the winner is, 1 to 4; 0 when not asked."""
    weight: float = 1.0
    """How much it counts: its loss is multiplied by this and the step's losses divided by their sum."""

    @property
    def tokens(self) -> int:
        """Length of the longest row, which decides the padding of a batch."""
        return max(len(answer.ids) for answer in self.answers)


@dataclass(frozen=True, slots=True)
class Examples:
    """What a snapshot gives to learn from, and what it does not."""

    train: list[Example]
    held_out: list[Example]
    dropped: list[dict[str, str]]
    """One entry per judgment or completion that cannot be used: judgment, completion, reason."""
    shortened: int
    """Examples whose prompt lost tokens at the front."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples padded on the right into one rectangle. R rows, T tokens, P pairs, E examples."""

    input_ids: Tensor
    """(R, T) int."""
    attention_mask: Tensor
    """(R, T) int, 1 for real tokens. Pad may be EOS: this mask, never an id, says what is real."""
    answer_mask: Tensor
    """(R, T) bool, True for tokens of the answer, its end token included."""
    winners: Tensor
    """(P,) row of each pair's winner."""
    losers: Tensor
    """(P,) row of each pair's loser."""
    pair_example: Tensor
    """(P,) example that each pair belongs to."""
    strength: Tensor
    """(P,) float."""
    weight: Tensor
    """(E,) float: how much each example counts in a step's mean."""
    examples: int

    @property
    def last(self) -> Tensor:
        """(R,) index of each row's last real token, where the reward is read."""
        return self.attention_mask.sum(-1) - 1

    @property
    def tokens(self) -> int:
        """Real tokens in the batch."""
        return int(self.attention_mask.sum())

    def mean_over_pairs(self, values: Tensor) -> Tensor:
        """(P,) to (E,): the mean over each example's pairs, so that a ranking counts as one judgment."""
        zeros = torch.zeros(self.examples, dtype=values.dtype, device=values.device)
        sums = zeros.index_add(0, self.pair_example, values)
        return sums / zeros.index_add(0, self.pair_example, torch.ones_like(values))


class Encoder:
    """Turns a chat and its answer into token ids with a model's own chat template."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        special = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
        special |= set(tokenizer.all_special_tokens)
        self._control = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))))

    def encode(self, messages: Sequence[Message], answer: str) -> Answered:
        """Tokenise prompt and answer as the one chat that the template renders.

        The answer's tokens are found by the character offsets of that text, not by a second
        tokenisation. The row ends with the token that ends the turn. Raises `ContractError`
        for text that holds a control token and for a template that rewrites answers.
        """
        for text in (*(message.content for message in messages), answer):
            if found := self._control.search(text):
                raise ContractError(f"the text holds the control token {found.group()!r}")
        text, start = self._render(messages, answer)
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        # A token that reaches into the answer is the answer's, also where it begins in the prompt.
        first = next(index for index, (_, end) in enumerate(encoded["offset_mapping"]) if end > start)
        return Answered(tuple(encoded["input_ids"]), first)

    def begins(self, ids: Sequence[int]) -> bool:
        """Whether a row opens with the beginning-of-text token."""
        return bool(ids[0] == self._tokenizer.bos_token_id)

    def _render(self, messages: Sequence[Message], answer: str) -> tuple[str, int]:
        """The chat's text up to the end of the answer's turn, and where the answer begins in it."""
        chat = [{"role": message.role, "content": message.content} for message in messages]
        render = self._tokenizer.apply_chat_template
        try:
            prompt = render(chat, tokenize=False, add_generation_prompt=True)
            whole = render([*chat, {"role": "assistant", "content": answer}], tokenize=False)
        except TemplateError as error:
            raise ContractError(f"the base model's chat template refuses this chat ({error})") from error
        rest = whole.removeprefix(prompt)
        # Some templates strip the white space around a message.
        written = answer if rest.startswith(answer) else answer.strip()
        if not whole.startswith(prompt) or not rest.startswith(written):
            raise ContractError("the base model's chat template does not render an answer after its prompt")
        tail = re.match(rf"\s*(?:{self._control.pattern})", rest[len(written) :])
        turn_end = tail.group() if tail else self._tokenizer.eos_token
        return prompt + written + turn_end, len(prompt)


def build_examples(
    rows: Iterable[SnapshotRow],
    tokenizer: Any,
    *,
    max_tokens: int,
    context: bool,
    use_corrections: bool = False,
) -> Examples:
    """Tokenise a snapshot's rows into training and held-out examples.

    With `use_corrections` the training split also learns that a corrected answer is better than
    the original. What cannot be used is listed with its reason. Raises `ContractError` where no
    training example is left.
    """
    building = _Building(Encoder(tokenizer), max_tokens=max_tokens, context=context)
    count = 0
    for row in rows:
        count += 1
        building.add_preference(row)
        if use_corrections and row.split == "train":
            building.add_corrections(row)
    examples = Examples(building.train, building.held_out, building.dropped, building.shortened)
    if not examples.train:
        raise ContractError(_nothing_to_learn_from(count, examples))
    return examples


def _nothing_to_learn_from(rows: int, examples: Examples) -> str:
    reasons: dict[str, int] = {}
    for entry in examples.dropped:
        reasons[entry["reason"]] = reasons.get(entry["reason"], 0) + 1
    listed = "; ".join(f"{count} × {reason}" for reason, count in sorted(reasons.items()))
    return (
        f"the snapshot has no training pair: of {rows} judgments {len(examples.held_out)} usable ones are "
        f"held out{'; ' + listed if listed else ''}. Judge more comparisons in which one answer is better"
    )


class _Building:
    """Examples as rows come by, and what was left out."""

    def __init__(self, encoder: Encoder, *, max_tokens: int, context: bool) -> None:
        self._encoder = encoder
        self._max_tokens = max_tokens
        self._context = context
        self._decided: set[str] = set()
        self.train: list[Example] = []
        self.held_out: list[Example] = []
        self.dropped: list[dict[str, str]] = []
        self.shortened = 0

    def add_preference(self, row: SnapshotRow) -> None:
        """The example of what a row prefers: the reviewer's decision where there is one, else the vote."""
        if row.review is None:
            self._add(row, row.verdict, row.ranks, strength=row.strength or 0, weight=row.weight)
        elif row.comparison in self._decided:
            self._drop(row, "a reviewer decided this comparison; the decision counts once")
        else:
            self._decided.add(row.comparison)
            self._add(row, row.review.verdict, row.review.ranks, strength=0, weight=1.0)

    def add_corrections(self, row: SnapshotRow) -> None:
        """One example of all pairs (corrected text, original) of a row."""
        originals = {completion.id: completion.text for completion in row.completions}
        answers: list[Answered] = []
        for correction in row.corrections:
            original = originals[correction.completion]
            if not correction.text.strip():
                self._drop(row, "the correction leaves nothing of the answer", correction.completion)
                continue
            if correction.text.strip() == original.strip():
                self._drop(row, "the correction changes nothing", correction.completion)
                continue
            corrected = self._encoded(row, correction.completion, correction.text)
            standing = self._encoded(row, correction.completion, original)
            if corrected and standing:
                answers += [corrected, standing]
        pairs = tuple((index, index + 1) for index in range(0, len(answers), 2))
        if pairs and row.weight:
            self._keep(row, answers, pairs, strength=0, weight=row.weight)

    def _add(
        self, row: SnapshotRow, verdict: str, ranks: Mapping[str, int], *, strength: int, weight: float
    ) -> None:
        if verdict in _NO_PREFERENCE:
            self._drop(row, _NO_PREFERENCE[verdict])
            return
        if not weight:
            self._drop(row, "the annotator's judgments weigh nothing")
            return
        answers: dict[str, Answered] = {}
        for completion in row.completions:
            if completion.id not in ranks:
                self._drop(row, "the annotator did not rank this answer", completion.id)
            elif answer := self._encoded(row, completion.id, completion.text):
                answers[completion.id] = answer
        places = {name: index for index, name in enumerate(answers)}
        pairs = tuple(
            (places[winner], places[loser])
            for winner, loser in decided_pairs(ranks)
            if winner in places and loser in places
        )
        if pairs:
            self._keep(row, list(answers.values()), pairs, strength=strength, weight=weight)
        else:
            self._drop(row, "no two usable answers differ in rank")

    def _encoded(self, row: SnapshotRow, completion: str, text: str) -> Answered | None:
        """A text as an answer to the row's prompt, or None with the reason in `dropped`."""
        if not text.strip():
            self._drop(row, "the answer is empty", completion)
            return None
        try:
            messages = with_context(row.messages, row.context) if self._context else row.messages
            answer = self._encoder.encode(messages, text)
        except ContractError as error:
            self._drop(row, str(error), completion)
            return None
        # One place is kept for the prompt: a first answer token needs one before it.
        if len(answer.ids) - answer.answer_start >= self._max_tokens:
            self._drop(row, f"the answer is longer than max_tokens ({self._max_tokens})", completion)
            return None
        return answer

    def _keep(
        self,
        row: SnapshotRow,
        answers: list[Answered],
        pairs: tuple[tuple[int, int], ...],
        *,
        strength: int,
        weight: float,
    ) -> None:
        kept = shorten(answers, self._max_tokens, self._encoder)
        self.shortened += kept != tuple(answers)
        into = self.train if row.split == "train" else self.held_out
        into.append(Example(row.judgment, kept, pairs, strength, weight))

    def _drop(self, row: SnapshotRow, reason: str, completion: str = "") -> None:
        self.dropped.append({"judgment": row.judgment, "completion": completion, "reason": reason})


def shorten(answers: list[Answered], max_tokens: int, encoder: Encoder) -> tuple[Answered, ...]:
    """Cut the prompt's front so that every row fits.

    All answers of one judgment lose the same tokens: they are compared on the same prompt.
    A beginning-of-text token stays where it is.
    """
    too_many = max(len(answer.ids) for answer in answers) - max_tokens
    # One token before the answer is needed to predict the answer's first from.
    too_many = min(too_many, *(answer.answer_start - 1 for answer in answers))
    if too_many <= 0:
        return tuple(answers)
    kept = []
    for ids, start in answers:
        head = ids[:1] if encoder.begins(ids) and start - too_many > 1 else ()
        kept.append(Answered(head + ids[len(head) + too_many :], start - too_many))
    return tuple(kept)


def collate(examples: Sequence[Example], *, pad_id: int, device: torch.device) -> Batch:
    """Pad examples on the right into one batch on `device`."""
    answers = [answer for example in examples for answer in example.answers]
    width = max(len(answer.ids) for answer in answers)
    ids = torch.full((len(answers), width), pad_id)
    attention = torch.zeros(len(answers), width, dtype=torch.long)
    answer_mask = torch.zeros(len(answers), width, dtype=torch.bool)
    for row, answer in enumerate(answers):
        length = len(answer.ids)
        ids[row, :length] = torch.tensor(answer.ids)
        attention[row, :length] = 1
        answer_mask[row, answer.answer_start : length] = True
    winners, losers, members, strength = [], [], [], []
    first_row = 0
    for index, example in enumerate(examples):
        for winner, loser in example.pairs:
            winners.append(first_row + winner)
            losers.append(first_row + loser)
            members.append(index)
            strength.append(float(example.strength))
        first_row += len(example.answers)
    return Batch(
        input_ids=ids.to(device),
        attention_mask=attention.to(device),
        answer_mask=answer_mask.to(device),
        winners=torch.tensor(winners, device=device),
        losers=torch.tensor(losers, device=device),
        pair_example=torch.tensor(members, device=device),
        strength=torch.tensor(strength, device=device),
        weight=torch.tensor([example.weight for example in examples], device=device),
        examples=len(examples),
    )

"""Snapshot rows to tokenised examples.

An example is one judgment with all its completions and everything that a method may learn from: the
ranking, ratings, span flags, missing information, texts written by people. Which of it is wanted is said
by `UsedLabels`; a row that gives none of it is listed with the reason.

Where a reviewer has decided a comparison the decision is one example in place of the votes on it:
several people's dispute, settled once, counts as one judgment and not as many. Corrected answers
can give further examples, of a corrected text over its original.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from annotation.record.judgment import CorrectionPart
from training.contract import ContractError
from training.contract.chat_template import Thinking
from training.contract.snapshot import SnapshotRow, with_context
from training.rlhf.losses import NOT_ORDERED
from training.rlhf.tokens.encoding import EncodedAnswer, Encoder, TokenCache, shorten
from training.rlhf.tokens.example import Example, Labels, MissingInformation, RowLabels, UsedLabels, among

# ── The tokens in which a corrected answer differs from its original ──

Places = tuple[tuple[int, int], ...]
"""Runs of tokens, [start, end) each, in order and apart."""

SHORTEST_KEPT = 4
"""So many equal tokens between two changes part them; fewer are chance, and belong to one change."""


def differing(before: Sequence[int], after: Sequence[int]) -> tuple[Places, Places]:
    """Return the places of `before` that an edit removed, and those of `after` that it wrote.

    Without them both sequences are equal. Common tokens at both ends are never among them.
    """
    start = _common(before, after)
    end = _common(before[start:][::-1], after[start:][::-1])
    old, new = before[start : len(before) - end], after[start : len(after) - end]
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    blocks = [block for block in matcher.get_matching_blocks() if block.size >= SHORTEST_KEPT]
    removed: list[tuple[int, int]] = []
    written: list[tuple[int, int]] = []
    old_at = new_at = 0
    for old_kept, new_kept, size in [
        *((block.a, block.b, block.size) for block in blocks),
        (len(old), len(new), 0),
    ]:
        removed.append((start + old_at, start + old_kept))
        written.append((start + new_at, start + new_kept))
        old_at, new_at = old_kept + size, new_kept + size
    return _filled(removed), _filled(written)


def learning_from_changes(
    corrected: EncodedAnswer, original: EncodedAnswer
) -> tuple[EncodedAnswer, EncodedAnswer]:
    """Return both answers with the tokens that are learned from cut down to those that differ."""
    removed, written = differing(
        original.ids[original.learned_start :], corrected.ids[corrected.learned_start :]
    )
    return (
        corrected._replace(learned=_moved(written, corrected.masked)),
        original._replace(learned=_moved(removed, original.masked)),
    )


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    pairs = zip(first, second, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def _filled(places: Sequence[tuple[int, int]]) -> Places:
    return tuple((low, high) for low, high in places if low < high)


def _moved(places: Places, by: int) -> Places:
    return tuple((low + by, high + by) for low, high in places)


_TIED = {
    "equal": "all completions were judged equal",
    "both_good": "all completions were judged good, none better",
    "both_bad": "all completions were judged bad, none better",
}
_UNJUDGED = {
    "cannot_judge": "the annotator could not judge",
    "not_asked": "no preference was asked for",
}
_SAME = "no two of its answers differ in rank and in the model's tokens"
_SAME_AS = "the model reads the same tokens as in another answer of the judgment"
_DECIDED = "a reviewer decided this comparison; the decision counts once"


@dataclass(frozen=True, slots=True)
class Examples:
    """Examples of a snapshot, and the reasons for rows left out."""

    train: list[Example]
    held_out: list[Example]
    dropped: list[dict[str, str]]
    """One entry per judgment or completion that cannot be used: judgment, completion, reason."""
    shortened: int
    """Examples whose prompt lost tokens at the front."""


def build_examples(
    rows: Iterable[SnapshotRow],
    tokenizer: Any,
    *,
    max_tokens: int,
    context: bool,
    labels: UsedLabels | None = None,
    cache: TokenCache | None = None,
    thinking: Thinking = "train",
    encoder: Encoder | None = None,
) -> Examples:
    """Tokenise a snapshot's rows into training and held-out examples; by default of decided rankings.

    With a `cache` the tokens lie there, and only what it does not hold is tokenised. encoder: takes the place
    of the tokenizer's own.
    What cannot be used is listed with its reason. Raises `ContractError` where no training example is left.
    """
    building = _Building(
        encoder or Encoder(tokenizer, thinking=thinking),
        max_tokens=max_tokens,
        context=context,
        labels=labels or UsedLabels(),
        cache=cache,
    )
    count = 0
    for row in rows:
        count += 1
        building.add(row)
    if cache is not None:
        cache.save()
    examples = Examples(building.train, building.held_out, building.dropped, building.shortened)
    if not examples.train:
        raise ContractError(_nothing_to_learn_from(count, examples, labels or UsedLabels()))
    return examples


def only_teaching(examples: Examples, teaches: Callable[[Example], bool], labels: UsedLabels) -> Examples:
    """Return the examples that say something to a method; the others are listed with those that were dropped.

    Raises `ContractError` where no training example is left.
    """
    sets = [[example for example in some if teaches(example)] for some in (examples.train, examples.held_out)]
    # A judgment may teach by its corrections alone.
    judgments = {example.judgment for some in sets for example in some}
    silent = [
        {"judgment": example.judgment, "completion": "", "reason": "it says nothing of what is learned"}
        for example in (*examples.train, *examples.held_out)
        if example.judgment not in judgments
    ]
    left = Examples(sets[0], sets[1], examples.dropped + silent, examples.shortened)
    if not left.train:
        raise ContractError(_nothing_to_learn_from(len(examples.train), left, labels))
    return left


def _nothing_to_learn_from(rows: int, examples: Examples, labels: UsedLabels) -> str:
    reasons: dict[str, int] = {}
    for entry in examples.dropped:
        reasons[entry["reason"]] = reasons.get(entry["reason"], 0) + 1
    listed = "; ".join(f"{count} × {reason}" for reason, count in sorted(reasons.items()))
    return (
        f"the snapshot {labels.nothing}: of {rows} judgments {len(examples.held_out)} usable ones are "
        f"held out{'; ' + listed if listed else ''}. {labels.remedy}"
    )


def _distinct(ranks: Mapping[str, int], answers: Mapping[str, EncodedAnswer]) -> dict[str, int]:
    """Return the ranks without those of answers whose tokens another ranked answer has, as where a template
    strips white space.

    One of these stays where all of them compare alike with every other answer; else none does, as they
    contradict each other.
    """
    alike: dict[tuple[int, ...], list[str]] = {}
    for name in ranks:
        alike.setdefault(tuple(answers[name].ids), []).append(name)
    left = dict(ranks)
    # What is not ordered is below all that is.
    order = {name: math.inf if rank == NOT_ORDERED else rank for name, rank in ranks.items()}
    for names in alike.values():
        if len(names) < 2:
            continue
        others = [place for name, place in order.items() if name not in names]
        compared = {
            tuple((order[name] > place) - (order[name] < place) for place in others) for name in names
        }
        for name in names[1:] if len(compared) == 1 else names:
            del left[name]
    return left


class _Building:
    """Examples as rows come by, and what was left out."""

    def __init__(
        self,
        encoder: Encoder,
        *,
        max_tokens: int,
        context: bool,
        labels: UsedLabels,
        cache: TokenCache | None = None,
    ) -> None:
        self._encoder = encoder
        self._encode = (
            encoder.encode
            if cache is None
            else functools.partial(cache.encode, encoder.encode, thinking=encoder.thinking)
        )
        self._max_tokens = max_tokens
        self._context = context
        self._wanted = labels
        self._decided: set[str] = set()
        self.train: list[Example] = []
        self.held_out: list[Example] = []
        self.dropped: list[dict[str, str]] = []
        self.shortened = 0

    def add(self, row: SnapshotRow) -> None:
        """All examples of one row."""
        if self._wanted.written:
            self._add_written(row)
        if self._judged:
            self._add_judged(row)
        self._add_corrections(row)

    @property
    def _judged(self) -> bool:
        """Return whether a method uses the completions as they are."""
        labels = self._wanted
        return labels.ranks != "none" or labels.verdicts or self._labelled

    @property
    def _labelled(self) -> bool:
        labels = self._wanted
        return labels.steps or any(
            names is None or names
            for names in (labels.criteria, labels.questions, labels.categories, labels.missing)
        )

    def _add_judged(self, row: SnapshotRow) -> None:
        again = self._met_before(row)
        ranks, strength, annotator, reason = self._preference(row, again=again)
        weight = 1.0 if row.review is not None and ranks else row.weight
        if not weight:
            self._drop(row, "the annotator's judgments weigh nothing")
            return
        labels_of = RowLabels(row, self._wanted, again=again)
        wanted_ids = [
            completion for completion in row.completions if ranks or completion.id in labels_of.completions
        ]
        answers: dict[str, EncodedAnswer] = {}
        for completion in wanted_ids:
            if answer := self._encoded(row, completion.id, completion.text):
                answers[completion.id] = answer
        placed_ranks: Mapping[str, int] = {}
        if ranks:
            placed_ranks, reason = self._placed(row, ranks, answers, labelled=labels_of.completions)
        places = {name: index for index, name in enumerate(answers)}
        labels = labels_of.of(places)
        if not placed_ranks and (not labels_of.completions or not answers):
            self._drop(row, reason or "no label that the method uses")
            return
        # A verdict on all answers may be what makes the row worth keeping.
        if reason and not labels.verdict:
            self._drop(row, reason)
        self._keep(
            row,
            list(answers.values()),
            tuple(placed_ranks.get(name, 0) for name in answers),
            strength=strength,
            weight=weight,
            annotator=annotator,
            labels=labels,
            completions=tuple(answers),
        )

    def _placed(
        self,
        row: SnapshotRow,
        ranks: Mapping[str, int],
        answers: dict[str, EncodedAnswer],
        *,
        labelled: Collection[str],
    ) -> tuple[Mapping[str, int], str]:
        """Return the ranks of usable answers that the model can tell apart, and why there are none.

        Takes answers that it cannot tell from another, and that have no label, out of `answers`.
        """
        usable = {name: ranks.get(name, NOT_ORDERED) for name in answers}
        distinct = _distinct(usable, answers)
        if not self._teaches(distinct):
            return {}, _SAME if self._teaches(usable) else "no two usable answers differ in rank"
        for name in [name for name in usable if name not in distinct]:
            self._drop(row, _SAME_AS, name)
            if name not in labelled:
                del answers[name]
        return distinct, ""

    def _met_before(self, row: SnapshotRow) -> bool:
        """Return whether a reviewer's decision on the row's comparison came with an earlier row."""
        if row.review is None:
            return False
        again = row.comparison in self._decided
        self._decided.add(row.comparison)
        return again

    def _preference(self, row: SnapshotRow, *, again: bool) -> tuple[Mapping[str, int], int, str, str]:
        """Ranks that count, strength, who gave them, and why none count: a reviewer's decision where there
        is one, the first time that it is met, else the vote."""
        nobody: dict[str, int] = {}
        if self._wanted.ranks == "none":
            return nobody, 0, row.annotator, ""
        verdict, ranks, strength, annotator = row.verdict, row.ranks, row.strength or 0, row.annotator
        if row.review is not None:
            if again:
                return nobody, 0, row.annotator, _DECIDED
            verdict, ranks, strength, annotator = row.review.verdict, row.review.ranks, 0, ""
        if verdict in _UNJUDGED:
            return nobody, 0, annotator, _UNJUDGED[verdict]
        if verdict in _TIED:
            if self._wanted.ranks != "tied":
                return nobody, 0, annotator, _TIED[verdict]
            ranks = dict.fromkeys((completion.id for completion in row.completions), 1)
        return ranks, strength, annotator, ""

    def _teaches(self, ranks: Mapping[str, int]) -> bool:
        enough = 2 if self._wanted.ranks == "decided" else 1
        different = set(ranks.values())
        return len(ranks) > 1 and len(different) >= enough and different != {NOT_ORDERED}

    def _add_corrections(self, row: SnapshotRow) -> None:
        """One example of (corrected text, original) for each correction of a row that teaches something:
        that the text is better, in training alone; that it is more complete."""
        better = self._wanted.corrections and row.split == "train"
        for correction in row.corrections if row.weight else ():
            lacks = [
                MissingInformation(1, item.category)
                for item in row.missing
                if item.completion == correction.completion and among(item.category, self._wanted.missing)
            ]
            if not better and not lacks:
                continue
            if answers := self._corrected(row, correction):
                labels = Labels(missing=tuple(lacks), read_for_missing=(0, 1) if lacks else ())
                ranks = (1, 2) if better else (0, 0)
                self._keep(row, answers, ranks, weight=row.weight, annotator=row.annotator, labels=labels)

    def _corrected(self, row: SnapshotRow, correction: CorrectionPart) -> list[EncodedAnswer] | None:
        """Corrected text and original, or None with the reason in `dropped`."""
        name = correction.completion
        original = next(completion.text for completion in row.completions if completion.id == name)
        if not correction.text.strip():
            self._drop(row, "the correction leaves nothing of the answer", name)
        elif correction.text.strip() == original.strip():
            self._drop(row, "the correction changes nothing", name)
        else:
            corrected = self._encoded(row, name, correction.text)
            standing = self._encoded(row, name, original)
            if corrected and standing:
                if self._wanted.changes_alone:
                    corrected, standing = learning_from_changes(corrected, standing)
                differ = tuple(corrected.ids) != tuple(standing.ids)
                if differ and (corrected.learned_runs or standing.learned_runs):
                    return [corrected, standing]
                self._drop(row, "the correction changes no token", name)
        return None

    def _add_written(self, row: SnapshotRow) -> None:
        """One example for each text of a row that is to be imitated."""
        if not row.weight:
            self._drop(row, "the annotator's judgments weigh nothing")
            return
        texts: list[tuple[str, str]] = []
        if "demonstrations" in self._wanted.written and row.demonstration:
            texts.append(("", row.demonstration))
        if "corrections" in self._wanted.written:
            texts += [(correction.completion, correction.text) for correction in row.corrections]
        if "preferred" in self._wanted.written:
            texts += self._preferred(row)
        if not texts:
            self._drop(row, "it holds no text to be imitated")
        for completion, text in texts:
            if answer := self._encoded(row, completion, text):
                self._keep(row, [answer], (0,), weight=row.weight, annotator=row.annotator)

    def _preferred(self, row: SnapshotRow) -> list[tuple[str, str]]:
        """The answers ranked above another and below none: by a reviewer, once, where one has decided."""
        verdict, ranks = row.verdict, row.ranks
        if row.review is not None:
            if self._met_before(row):
                self._drop(row, _DECIDED)
                return []
            verdict, ranks = row.review.verdict, row.review.ranks
        is_partial = bool(ranks) and len(ranks) < len(row.completions)
        if verdict != "ranked" or not (is_partial or len(set(ranks.values())) > 1):
            return []
        best = min(ranks.values())
        return [
            (completion.id, completion.text)
            for completion in row.completions
            if ranks.get(completion.id) == best
        ]

    def _encoded(self, row: SnapshotRow, completion: str, text: str) -> EncodedAnswer | None:
        """Return a text as an answer to the row's prompt, or None with the reason in `dropped`."""
        if not text.strip():
            self._drop(row, "the answer is empty", completion)
            return None
        categories = self._wanted.categories
        try:
            messages = with_context(row.messages, row.context) if self._context else row.messages
            places = self._wanted.steps or categories is None or bool(categories)
            answer = self._encode(messages, text, offsets=places)
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
        answers: list[EncodedAnswer],
        ranks: tuple[int, ...],
        *,
        weight: float,
        annotator: str,
        strength: int = 0,
        labels: Labels | None = None,
        completions: tuple[str, ...] = (),
    ) -> None:
        encoded = shorten(answers, self._max_tokens, self._encoder)
        self.shortened += encoded != tuple(answers)
        into = self.train if row.split == "train" else self.held_out
        shown = row.shown if annotator and completions else ()
        into.append(
            Example(
                row.judgment,
                encoded,
                ranks,
                strength,
                weight,
                row.prompt,
                annotator,
                labels or Labels(),
                completions,
                places=tuple(shown.index(name) for name in completions) if shown else (),
                group=row.group if annotator else "",
                round=row.round,
            )
        )

    def _drop(self, row: SnapshotRow, reason: str, completion: str = "") -> None:
        self.dropped.append({"judgment": row.judgment, "completion": completion, "reason": reason})

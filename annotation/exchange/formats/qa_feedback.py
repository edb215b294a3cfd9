"""qa-feedback (Wu et al. 2023), the JSON of github.com/allenai/FineGrainedRLHF: in.

The format, from the data's README and from `create_comp_rm_files.py` in
github.com/allenai/FineGrainedRLHF:

- `passages` are lists of texts: the title, then the sentences. `passage_id` counts passages
  from 1. `sentence_id` counts the texts of a passage from 0, so 0 is the title and 1 the
  first sentence. Here both count from 0 and the title is `None`.
- `preference` holds six pairs in the order 1v2 1v3 1v4 2v3 2v4 3v4: 1 the first, 2 the
  second, 0 neither.
- `feedback` is about `prediction 1` alone. `start` and `end` are code points, half open.

**Ranks.** Pairs are a graph of "better than". The rank of an answer is 1 + the length of the
longest chain of better answers above it. Where the pairs are a weak order, that is the weak
order. Where only the ties are not transitive (1 over 2, 3 tied with both), every decided pair
still stands and a tie between answers of different rank is broken; `broken_ties` lists
those, and stays with the judgment. A circle of preferences has no ranks and is refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from django.utils.translation import gettext as _

from annotation.choices import CategoryScope, Granularity
from annotation.exchange.formats import fields
from annotation.exchange.formats.fields import (
    FieldError,
    excerpt,
    missing_field,
    refuse_unknown,
    required,
    unknown_value,
)
from annotation.exchange.formats.items import (
    ImportedCompletion,
    ImportedItem,
    ImportedJudgment,
    NewCategory,
    NewProject,
    Reader,
    Row,
    ranks_by_place,
    span_at,
    verdict_of,
)
from annotation.record.judgment import CorrectionPart, EvidencePointer, MissingPart, SpanPart

PAIRS = tuple(combinations(range(4), 2))
SOURCE = "qa-feedback initial policy"


def _error(key: str, label: str, granularity: Granularity, colour: str) -> NewCategory:
    return NewCategory(key=key, label=label, scope=CategoryScope.SPAN, granularity=granularity, colour=colour)


def _lack(key: str, label: str, colour: str) -> NewCategory:
    return NewCategory(
        key=key, label=label, scope=CategoryScope.MISSING, granularity=Granularity.WHOLE, colour=colour
    )


SPAN_TYPES = {
    "Irrelevant": _error("irrelevant", "Irrelevant", Granularity.SUB_SENTENCE, "#b45309"),
    "Redundant": _error("redundant", "Redundant", Granularity.SUB_SENTENCE, "#a16207"),
    "Incoherent": _error("incoherent", "Incoherent", Granularity.SUB_SENTENCE, "#4d7c0f"),
    "Wrong-Grounding": _error("wrong-grounding", "Wrong grounding", Granularity.SENTENCE, "#be123c"),
    "Unverifiable": _error("unverifiable", "Unverifiable", Granularity.SENTENCE, "#9d174d"),
}
MISSING_TYPES = {
    "Missing-Answer": _lack("missing-answer", "Missing answer", "#1d4ed8"),
    "Missing-Major-Auxiliary": _lack(
        "missing-major-auxiliary", "Missing major auxiliary information", "#0369a1"
    ),
    "Missing-Minor-Auxiliary": _lack(
        "missing-minor-auxiliary", "Missing minor auxiliary information", "#0e7490"
    ),
}

_PREDICTIONS = tuple(f"prediction {number}" for number in (1, 2, 3, 4))
_FIELDS = ("question", "passages", "gold", *_PREDICTIONS, "feedback", "preference")


def ranks_from_pairs(preference: Sequence[int]) -> tuple[int, ...] | None:
    """Ranks of four answers, 1 best, from their six pairs; None where preferences run in a circle."""
    better: dict[int, set[int]] = {index: set() for index in range(4)}
    for (left, right), choice in zip(PAIRS, preference, strict=True):
        if choice == 1:
            better[right].add(left)
        elif choice == 2:
            better[left].add(right)
    ranks: dict[int, int] = {}
    while len(ranks) < 4:
        ready = [index for index in range(4) if index not in ranks and better[index] <= ranks.keys()]
        if not ready:
            return None
        ranks.update(
            {index: 1 + max((ranks[above] for above in better[index]), default=0) for index in ready}
        )
    return tuple(ranks[index] for index in range(4))


def _question(row: Row) -> Iterator[ImportedItem]:
    refuse_unknown(row, _FIELDS, "")
    texts = [fields.text(required(row, name), name) for name in _PREDICTIONS]
    gold = fields.text(required(row, "gold"), "gold", empty=True)
    yield ImportedItem(
        messages=[{"role": "user", "content": fields.text(required(row, "question"), "question")}],
        context=list(_passages(required(row, "passages"))),
        references=[gold] if gold else [],
        tags=["qa-feedback"],
        completions=tuple(
            ImportedCompletion(text=text, source=SOURCE, sampling={"prediction": number})
            for number, text in enumerate(texts, start=1)
        ),
        judgments=(_judgment(row, texts[0]),),
    )


def _judgment(row: Row, text: str) -> ImportedJudgment:
    preference = _preference(required(row, "preference"))
    ranks = ranks_from_pairs(preference)
    if ranks is None:
        raise FieldError(
            "ranking_circular",
            _("The preference %(value)s goes round in a circle, so there is no ranking. Take it out."),
            field="preference",
            value=excerpt(preference),
        )
    feedback = _object(
        required(row, "feedback"), "feedback", "errors", "missing-info", "corrected-prediction"
    )
    corrected = fields.text(feedback["corrected-prediction"], "feedback.corrected-prediction", empty=True)
    errors = fields.items_of(feedback["errors"], "feedback.errors")
    missing = fields.items_of(feedback["missing-info"], "feedback.missing-info")
    return ImportedJudgment(
        verdict=verdict_of(ranks),
        ranks=ranks_by_place(ranks),
        spans=tuple(_span(error, text, f"feedback.errors[{number}]") for number, error in enumerate(errors)),
        missing=tuple(
            _missing(info, f"feedback.missing-info[{number}]") for number, info in enumerate(missing)
        ),
        corrections=(CorrectionPart(completion="0", text=corrected),),
        display_order=(0, 1, 2, 3),
        more={
            "preference": preference,
            "broken_ties": [
                [left + 1, right + 1]
                for (left, right), choice in zip(PAIRS, preference, strict=True)
                if choice == 0 and ranks[left] != ranks[right]
            ],
        },
    )


def _passages(value: Any) -> Iterator[dict[str, Any]]:
    for number, passage in enumerate(fields.items_of(value, "passages")):
        where = f"passages[{number}]"
        texts = [
            fields.text(text, f"{where}[{place}]", empty=True)
            for place, text in enumerate(fields.items_of(passage, where))
        ]
        if not texts:
            raise FieldError(
                "list_empty", _("The list is empty. Write the title, then the sentences."), field=where
            )
        yield {"title": texts[0], "sentences": texts[1:]}


def _preference(value: Any) -> list[int]:
    choices = fields.items_of(value, "preference")
    if len(choices) != len(PAIRS) or any(
        type(choice) is not int or choice not in (0, 1, 2) for choice in choices
    ):
        raise FieldError(
            "list_expected",
            _("Six numbers 0, 1 or 2 are expected, for 1v2 1v3 1v4 2v3 2v4 3v4."),
            field="preference",
        )
    return choices


def _span(value: Any, text: str, where: str) -> SpanPart:
    span = _object(value, where, "error type", "explanation", "start", "end")
    return span_at(
        0,
        text,
        _category(span["error type"], f"{where}.error type", SPAN_TYPES),
        fields.whole_number(span["start"], f"{where}.start"),
        fields.whole_number(span["end"], f"{where}.end"),
        note=fields.text(span["explanation"], f"{where}.explanation", empty=True),
    )


def _missing(value: Any, where: str) -> MissingPart:
    info = _object(value, where, "error type", "passage_id", "sentence_id")
    passage = fields.whole_number(info["passage_id"], f"{where}.passage_id")
    texts = [
        fields.whole_number(text, f"{where}.sentence_id[{number}]")
        for number, text in enumerate(fields.items_of(info["sentence_id"], f"{where}.sentence_id"))
    ]
    if not texts:
        raise FieldError(
            "list_empty", _("The list is empty. Name at least one sentence."), field=f"{where}.sentence_id"
        )
    return MissingPart(
        completion="0",
        category=_category(info["error type"], f"{where}.error type", MISSING_TYPES),
        evidence=tuple(
            EvidencePointer(passage=passage - 1, sentence=text - 1 if text else None) for text in texts
        ),
    )


def _object(value: Any, where: str, *names: str) -> Mapping[str, Any]:
    """An object with exactly these fields."""
    record = fields.object_of(value, where)
    refuse_unknown(record, names, f"{where}.")
    if lacking := [name for name in names if name not in record]:
        raise missing_field(f"{where}.{lacking[0]}")
    return record


def _category(value: Any, where: str, types: Mapping[str, NewCategory]) -> str:
    if value not in types:
        raise unknown_value(value, types, where)
    return types[value].key


READERS = (
    Reader(
        name="qa-feedback",
        sentence="The JSON of github.com/allenai/FineGrainedRLHF.",
        read=_question,
        matches=lambda row: row.keys() >= set(_FIELDS),
        reads={
            "question": "the prompt",
            "passages": "context passages",
            "gold": "a reference answer",
            **dict.fromkeys(_PREDICTIONS, "a response"),
            "feedback": "spans, missing information and a correction of the first response",
            "preference": "the preference, in pairs",
        },
        completion_fields=_PREDICTIONS,
        categories=(*SPAN_TYPES.values(), *MISSING_TYPES.values()),
        project=NewProject(
            slug="qa-feedback",
            name="QA-Feedback",
            description="Long-form question answering with fine-grained feedback (Wu et al. 2023).",
        ),
    ),
)

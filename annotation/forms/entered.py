"""Contents of the fields of a labelling page, as they were typed."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from django.http import QueryDict

from annotation.choices import Verdict
from annotation.forms.rewrites import rewrite_shown
from annotation.models import Assignment, Draft, Judgment
from annotation.record.judgment import MissingPart, SpanPart
from annotation.selectors.configuration import configuration_of
from annotation.selectors.records import records_of
from annotation.services.assignments.display_order import candidate_token, tokens_of

_ROW = {
    "candidate": "missing-candidate",
    "category": "missing-category",
    "text": "missing-text",
    "evidence": "missing-evidence",
    "further": "missing-further",
    "insert_at": "missing-insert",
}


_STEP = "step-"


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingRow:
    """One row of the missing-info part.

    Evidence is "passage:sentence", counted from 0; "passage:" is the passage's title. `further` holds
    more of the same, apart by spaces.
    """

    candidate: str
    category: str = ""
    text: str = ""
    evidence: str = ""
    further: str = ""
    insert_at: str = ""

    @property
    def is_empty(self) -> bool:
        """Return True where nothing was entered."""
        return not (self.text.strip() or self.evidence or self.further or self.insert_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entered:
    """Contents of the fields of a labelling page."""

    choice: str = ""
    ranks: Mapping[str, str] = field(default_factory=dict)
    partial: str = ""
    """Not empty where the annotator leaves the responses without a rank unordered, below the ranked ones."""
    span_flags: str = "[]"
    missing: Sequence[MissingRow] = ()
    ratings: Mapping[str, str] = field(default_factory=dict)
    """Name of a rating's field → value; only those that were chosen."""
    corrections: Mapping[str, str] = field(default_factory=dict)
    """Token → the text in the answer's edit field, whether it was changed or not."""
    rewrites: str = "{}"
    """Token → the edits with their origins, as the script writes them; JSON."""
    critiques: Mapping[str, str] = field(default_factory=dict)
    step_labels: Mapping[str, str] = field(default_factory=dict)
    """Name of a step's field → its label; only of steps that have one."""
    demonstration: str = ""
    comment: str = ""
    confirmed: str = ""
    """The doubts that were asked already, by key, apart by spaces."""
    active_seconds: str = "0"
    idempotency_key: str = ""
    draft: Draft | None = None
    """The saved draft that these fields come from."""

    @classmethod
    def from_post(cls, data: QueryDict, assignment: Assignment) -> "Entered":
        """Return the contents of a submitted form, unchanged."""
        tokens = list(tokens_of(assignment))
        criteria = configuration_of(assignment.comparison.project).asked_criteria
        ratings = [rating_field(token, criterion.key) for token in tokens for criterion in criteria]
        edited = {token: data.get(f"correction-{token}") for token in tokens}
        return cls(
            choice=data.get("choice", ""),
            ranks={token: data.get(f"rank-{token}", "") for token in tokens},
            partial=data.get("partial", ""),
            span_flags=data.get("span_flags", "") or "[]",
            missing=_rows(data),
            ratings={name: value for name in ratings if (value := data.get(name, ""))},
            corrections={token: text for token, text in edited.items() if text is not None},
            rewrites=data.get("rewrites", "") or "{}",
            critiques={token: data.get(f"critique-{token}", "") for token in tokens},
            step_labels={
                name: value for name in data if name.startswith(_STEP) and (value := data.get(name, ""))
            },
            demonstration=data.get("demonstration", ""),
            comment=data.get("comment", ""),
            confirmed=data.get("confirmed", ""),
            active_seconds=data.get("active_seconds", "0"),
            idempotency_key=data.get("idempotency_key", ""),
        )

    @classmethod
    def from_draft(cls, draft: Draft) -> "Entered":
        """Return the contents of a draft, under a new key of the page."""
        data = QueryDict(mutable=True)
        for name, values in draft.fields.items():
            data.setlist(name, values)
        data["idempotency_key"] = ""
        return replace(cls.from_post(data, draft.assignment), draft=draft)

    @classmethod
    def from_judgment(cls, judgment: Judgment) -> "Entered":
        """Return the contents of a submitted judgment, for a revision."""
        assignment, record = judgment.assignment, records_of([judgment.pk])[judgment.pk]

        def token(completion: str) -> str:
            return candidate_token(assignment, int(completion))

        ranks = {token(pk): str(rank) for pk, rank in record.ranks.items()}
        return cls(
            choice=_choice_of(judgment, ranks),
            ranks=ranks if record.verdict == Verdict.RANKED else {},
            partial="yes" if 0 < len(ranks) < len(assignment.display_order) else "",
            span_flags=json.dumps([_span(part, token(part.completion)) for part in record.spans]),
            missing=[_row(part, token(part.completion)) for part in record.missing],
            ratings={
                rating_field(token(part.completion), part.criterion): str(part.value)
                for part in record.ratings
            },
            corrections={token(part.completion): part.text for part in record.corrections},
            rewrites=json.dumps(
                {token(part.completion): list(map(rewrite_shown, part.edits)) for part in record.corrections}
            ),
            critiques={token(part.completion): part.text for part in record.critiques},
            step_labels={
                step_field(token(part.completion), part.step): part.label for part in record.step_labels
            },
            demonstration=record.demonstration,
            comment=record.comment,
        )


def rating_field(token: str, criterion_key: str) -> str:
    """The name of the field in which one answer is rated on one criterion."""
    return f"rating-{token}-{criterion_key}"


def step_field(token: str, index: int) -> str:
    """The name of the field with the label of one step of an answer."""
    return f"{_STEP}{token}-{index}"


def step_of_field(name: str) -> tuple[str, int]:
    """The answer's token and the step's index of a field's name. Raises `ValueError` for another name."""
    token, _dash, index = name.removeprefix(_STEP).rpartition("-")
    if not (index.isascii() and index.isdigit() and len(index) < 10):
        raise ValueError(name)
    return token, int(index)


def _rows(data: QueryDict) -> list[MissingRow]:
    columns = {part: data.getlist(name) for part, name in _ROW.items()}
    height = max(map(len, columns.values()))
    rows = (
        MissingRow(
            **{part: values[number] if number < len(values) else "" for part, values in columns.items()}
        )
        for number in range(height)
    )
    return [row for row in rows if not row.is_empty]


def _row(part: MissingPart, token: str) -> MissingRow:
    first, *further = [f"{place.passage}:{_shown(place.sentence)}" for place in part.evidence] or [""]
    return MissingRow(
        candidate=token,
        category=part.category,
        text=part.text,
        evidence=first,
        further=" ".join(further),
        insert_at=_shown(part.insert_at),
    )


def _span(part: SpanPart, token: str) -> dict[str, object]:
    values = asdict(part)
    del values["completion"]
    return {"candidate": token, **values}


def _shown(number: int | None) -> str:
    return "" if number is None else str(number)


def _choice_of(judgment: Judgment, ranks: Mapping[str, str]) -> str:
    if judgment.verdict != Verdict.RANKED or len(judgment.assignment.display_order) != 2:
        return judgment.verdict
    winner = min(ranks, key=lambda token: int(ranks[token]))
    return f"win:{winner}:{judgment.strength}" if judgment.strength else f"win:{winner}"

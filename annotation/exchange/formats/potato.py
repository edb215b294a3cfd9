"""Potato's annotations: in, as `annotated_instances.jsonl` has them (https://github.com/davidjurgens/potato).

A row has `id`, `displayed_text`, `label_annotations` (schema → label → value), `span_annotations` and
`behavioral_data`, and may have the fields of its item. The responses are a list (`responses`, `items`, …),
`left` and `right`, columns such as `response_a`, the parts `A. …`, `B. …` of the shown text, or that text.

| scheme            | value                                | becomes                                        |
|-------------------|--------------------------------------|------------------------------------------------|
| pairwise          | `selection`: `A`, `B`, `tie`          | the preference                                 |
| pairwise, scale   | `scale_value`: below 0 for the left  | the preference and its strength                |
| best-worst        | `best`, `worst`                      | a ranking: best, the others, worst             |
| likert            | `scale_4`                            | a rating                                       |
| radio             | a label                              | the preference, or a rating of the one response |
| textbox           | a text                               | the comment                                    |

Any other label stays with the annotation; one that may be a verdict must be left out by name.
"""

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from string import ascii_uppercase
from typing import Any

from django.utils.translation import gettext as _

from annotation.choices import Verdict
from annotation.exchange.formats import fields
from annotation.exchange.formats.columns import VERDICT_LIKE, by_name, words_of
from annotation.exchange.formats.fields import FieldError
from annotation.exchange.formats.items import (
    ImportedCompletion,
    ImportedItem,
    ImportedJudgment,
    Kind,
    Reader,
    Row,
    RowPart,
    key_of,
    placed,
    ranks_by_place,
    span_at,
)
from annotation.exchange.formats.tables import ANSWER_READS, PROMPT_READS, prompt_parts
from annotation.exchange.formats.verdicts import (
    STRENGTHS,
    Reading,
    VerdictRanks,
    is_left_out,
    named_place,
    rating_of,
    read_value,
    spelled,
    winner_of,
)
from annotation.record.judgment import RatingPart, SpanPart

_LISTS = ("responses", "items", "texts", "completions", "candidates", "options", "answers")
_OURS = ("label_annotations", "span_annotations", "behavioral_data", "displayed_text")
_MARK = re.compile(r"(?:^|(?<=\n))\s*([A-Z])\.\s+")
_TEXT_BOXES = ("text_box", "textbox", "text", "textarea")
_TIME = re.compile(r"(\d+)d (\d+)h (\d+)m (\d+)s")


def _instance(row: Row) -> Iterator[ImportedItem]:
    names, texts, prompt = _shown(row)
    reading = _AnnotatorReading(row, names, texts)
    reading.read()
    item = {name: value for name, value in row.items() if name not in _OURS}
    values, _roles = by_name(item)
    yield ImportedItem(
        messages=fields.prompt_of(values) if _has_prompt(values) else fields.prompt(prompt, "displayed_text"),
        **prompt_parts(values),
        completions=tuple(
            ImportedCompletion(
                text=fields.text(text, names[place]),
                source=fields.optional_text(values.get(f"source_{place + 1}"), "model"),
            )
            for place, text in enumerate(texts)
        ),
        judgments=(reading.judgment(),)
        if row.get("label_annotations") or row.get("span_annotations")
        else (),
    )


def _has_prompt(values: Row) -> bool:
    return any(values.get(name) not in (None, "") for name in ("prompt", "messages"))


def _shown(row: Row) -> tuple[list[str], list[str], str]:
    """The names of the responses, their texts, and what the displayed text says before them."""
    for name in _LISTS:
        listed = row.get(name)
        if isinstance(listed, list) and listed and all(isinstance(text, str) for text in listed):
            return list(ascii_uppercase[: len(listed)]), listed, ""
    if isinstance(row.get("left"), str) and isinstance(row.get("right"), str):
        return ["left", "right"], [row["left"], row["right"]], ""
    item = {name: value for name, value in row.items() if name not in _OURS}
    values, roles = by_name(item)
    if roles.answers:
        return list(roles.answers), [values[f"answer_{n}"] for n in range(1, len(roles.answers) + 1)], ""
    text = fields.text(fields.required(row, "displayed_text"), "displayed_text")
    plain = html.unescape(re.sub(r"</?(?:b|strong|p|div|span)[^>]*>", "", re.sub(r"<br\s*/?>", "\n", text)))
    marks = list(_MARK.finditer(plain))
    if len(marks) > 1 and [mark.group(1) for mark in marks] == list(ascii_uppercase[: len(marks)]):
        ends = [*(mark.start() for mark in marks[1:]), len(plain)]
        texts = [plain[mark.end() : end].strip() for mark, end in zip(marks, ends, strict=True)]
        return [mark.group(1) for mark in marks], texts, plain[: marks[0].start()].strip()
    if not _has_prompt(values):
        raise FieldError(
            "prompt_missing",
            _("There is no prompt beside the texts. Write the prompt of each item into a column prompt."),
            field="displayed_text",
        )
    return ["displayed_text"], [text], ""


class _AnnotatorReading:
    """The labels and spans of one annotator on one item."""

    def __init__(self, row: Row, names: Sequence[str], texts: Sequence[str]) -> None:
        self._row = row
        self._names = names
        self._texts = texts
        self._decision = VerdictRanks(len(texts))
        self._ratings: list[RatingPart] = []
        self._spans: list[SpanPart] = []
        self._comments: list[str] = []
        self._unread: dict[str, Any] = {}
        self.parts: list[RowPart] = []

    def read(self) -> None:
        """Read all labels and spans. Raises `FieldError`."""
        labels = self._row.get("label_annotations") or {}
        for scheme, value in fields.object_of(labels, "label_annotations").items():
            said = fields.object_of(value, f"label_annotations.{scheme}")
            self._label(
                scheme,
                {name: each for name, each in said.items() if each not in (None, "") and each is not False},
            )
        spans = self._row.get("span_annotations")
        for number, span in enumerate(spans if isinstance(spans, list) else []):
            self._span(fields.object_of(span, f"span_annotations[{number}]"), f"span_annotations[{number}]")
        if isinstance(spans, dict) and spans:
            self._keep("span_annotations", spans, "metadata", "")

    def judgment(self) -> ImportedJudgment:
        return ImportedJudgment(
            verdict=self._decision.verdict,
            ranks=ranks_by_place(self._decision.ranks),
            strength=self._decision.strength,
            annotator=fields.person(self._row.get("user_id", self._row.get("user")), "user_id"),
            comment="\n\n".join(self._comments),
            ratings=tuple(self._ratings),
            spans=tuple(self._spans),
            active_seconds=_seconds(self._row.get("behavioral_data")),
            more={"labels": self._unread} if self._unread else {},
        )

    def _label(self, scheme: str, said: Mapping[str, Any]) -> None:
        part = f"label_annotations.{scheme}"
        if not said:
            return
        if is_left_out(self._row, part):
            self._unread[scheme] = dict(said)
            return
        if set(said) == {"best", "worst"} and len(self._texts) > 1:
            self._decision.rank(self._best_worst(said, part), part)
            self.parts.append(
                RowPart(part, str(dict(said)), "read", "a ranking: the best, the others, the worst")
            )
        elif set(said) == {"scale_value"} and len(self._texts) == 2:
            self._decision.say(_scale(said["scale_value"], part), part)
            self.parts.append(
                RowPart(part, said["scale_value"], "read", "the preference, below 0 for the left")
            )
        elif len(said) > 1:
            self._keep(scheme, said, "question", "several labels, or values of several questions")
        else:
            ((label, value),) = said.items()
            self._single(scheme, part, label, value)

    def _single(self, scheme: str, part: str, label: str, value: Any) -> None:
        if label in _TEXT_BOXES and isinstance(value, str):
            self._comments.append(fields.text(value, part))
            self.parts.append(RowPart(part, value, "read", "the annotator's comment"))
            return
        is_chosen = value is True or spelled(value) in ("1", "true", "on", label.lower())
        word = label.removeprefix("scale_") if label.startswith("scale_") else label if is_chosen else value
        place = 0 if len(self._texts) == 1 else named_place(scheme, self._names)
        is_verdict = bool(VERDICT_LIKE.search(words_of(scheme))) or label == "selection"
        if len(self._texts) > 1 and (is_verdict or read_value(word, self._names)) and place is None:
            self.parts.append(RowPart(part, word, "read", "the preference", answers=tuple(self._names)))
            if (reading := winner_of(self._row, part, word, self._names)) is not None:
                self._decision.say(reading, part)
                return
        elif place is not None and (label.startswith("scale_") or is_verdict):
            self.parts.append(RowPart(part, word, "read", "a rating of the response", is_rating=True))
            rating = rating_of(self._row, part, word, place, key_of(scheme))
            if rating is not None:
                self._ratings.append(rating)
                return
        else:
            self.parts.append(
                RowPart(part, word, "question" if is_verdict else "metadata", "it is no verdict")
            )
        self._unread[scheme] = word

    def _keep(self, scheme: str, value: Any, kind: Kind, why: str) -> None:
        self._unread[scheme] = value
        self.parts.append(RowPart(f"label_annotations.{scheme}", str(value), kind, why))

    def _best_worst(self, said: Mapping[str, Any], part: str) -> tuple[int, ...]:
        best, worst = (read_value(said[name], self._names) for name in ("best", "worst"))
        if best is None or worst is None or None in (best.place, worst.place) or best.place == worst.place:
            raise FieldError(
                "ranking_expected",
                _("Name a best and a worst of these: %(names)s."),
                field=part,
                names=", ".join(self._names),
            )
        last = 3 if len(self._texts) > 2 else 2
        return tuple(
            1 if place == best.place else last if place == worst.place else 2
            for place in range(len(self._texts))
        )

    def _span(self, span: Mapping[str, Any], where: str) -> None:
        if self._names != ["displayed_text"]:
            self._unread.setdefault("spans", []).append(dict(span))
            self.parts.append(RowPart("span_annotations", str(span), "metadata", ""))
            return
        label = span.get("name") or span.get("label") or span.get("annotation")
        quote = span.get("span", span.get("text"))
        start, end = placed(
            self._texts[0],
            fields.whole_number(span.get("start"), f"{where}.start"),
            fields.whole_number(span.get("end"), f"{where}.end"),
            quote if isinstance(quote, str) else None,
            where,
        )
        category = key_of(fields.text(label, f"{where}.name"))
        self._spans.append(span_at(0, self._texts[0], category, start, end))
        self.parts.append(RowPart("span_annotations", label, "read", "spans"))


def _scale(value: Any, part: str) -> Reading:
    """Potato's scale: below 0 the left is better, above it the right."""
    number = fields.whole_number(fields.number(value), part)
    if number == 0:
        return Reading(verdict=Verdict.EQUAL)
    strength = abs(number) if abs(number) in STRENGTHS else None
    return Reading(place=int(number > 0), strength=strength)


def _seconds(value: Any) -> int | None:
    if not isinstance(value, dict):
        return None
    if match := _TIME.search(str(value.get("time_string", ""))):
        days, hours, minutes, seconds = map(int, match.groups())
        return fields.active_seconds(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    return fields.measured_seconds(value.get("time_spent"))


def _survey(row: Row) -> Iterator[RowPart]:
    """Account for every label and span."""
    with suppress(FieldError):
        names, texts, _prompt = _shown(row)
        reading = _AnnotatorReading(row, names, texts)
        with suppress(FieldError):
            # Its reading raises the same error, which then names the row.
            reading.read()
        yield from reading.parts


READERS = (
    Reader(
        name="potato",
        sentence="Potato: pairwise and best-worst choices, ratings, spans, comments.",
        read=_instance,
        matches=lambda row: isinstance(row.get("label_annotations"), dict),
        reads={
            "label_annotations": "the preference, ratings and comments",
            "span_annotations": "spans",
            "displayed_text": "the prompt and the responses, where no other column has them",
            "behavioral_data": "the seconds that it took",
            "user_id": "the annotator",
            "user": "the annotator",
            "left": "response 1",
            "right": "response 2",
            **dict.fromkeys(_LISTS, "the responses"),
            **PROMPT_READS,
            **{
                role: words for role, words in ANSWER_READS.items() if role.startswith(("answer_", "source_"))
            },
        },
        inner="item",
        survey=_survey,
        loses="clicks and keys, spans in one of several responses",
    ),
)

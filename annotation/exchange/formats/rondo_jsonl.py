"""Judgments as JSON Lines, Rondo's own format: one current judgment a line, out and in again.

The fields that a snapshot has too are spelled as there (`training.contract`); ids are texts.

- `judgment`, `comparison`, `prompt`: ids; `round`: number of the round; `split`: `train` or `held-out`
- `annotator`: a pseudonym, the same for the same person everywhere; `machine`: whether it is a program
- `messages`, `context`, `references`, `tags`: what was asked, as imported
- `completions`: `id`, `text`, `source`, `sampling`, `seed`, `finish_reason`
  and of an agent trace `steps`: `kind` (`message`, `reasoning`, `tool_call`, `tool_result`), `role`, `tool`,
  `call`, `is_error`, `start`, `body` (where its heading ends) and `end` in code points, `arguments`
- `display_order`: completion ids as this annotator saw them, first to last
- `verdict`: `ranked`, `equal`, `both_good`, `both_bad`, `cannot_judge`, or `not_asked` where the project
  does not ask which answer is better
- `ranks`: completion id → rank, 1 best, equal numbers tied; a ranking of three or more may leave some out,
  which are below all ranked ones and have no order
- `strength`: 1 to 4 for a pair with a winner, or null
- `spans`: `completion`, `category`, `start`, `end` (code points, half open), `quote`, `severity`
  (1, the mildest, to the category's steps, or null), `note`; of a sub-category also `parent`, the key of the
  category above it, and of a merit `liked`, true, which an import takes from the project's categories;
  `relations` to other spans, each `kind` (cause, contradicts) and `to`, the other's place in the list, from 0
- `missing`: `completion`, `category`, `text`, `insert_at` (the code point before which it belongs, or
  null), `evidence` (a list of `passage` and `sentence`, both from 0
  and null for the title, and the `quote` that stands there)
- `corrections`: `completion`, `text`, which is empty when nothing of the answer should stand; `edits`, which
  in order make that text of the completion's: `start`, `end` (code points, half open), `quote`,
  `replacement`, and where they apply `model` (`seed`, `sampling`), by which the model that wrote the answer
  wrote the replacement, and `span` (`category`, `start`, `end`), which it mends; `preference`: the `chosen`
  text over the `rejected` completion
- `ratings`: `completion`, `criterion`, `scale` (`five`, `seven` or `thumbs`: 0 down, 1 up), `value`
- `rubric`: `name` and `version` of the rubric that the ratings or scores go by; only with one
- `rubric_scores`: an AI annotator's `completion`, `criterion`, `scale`, `weight`, `value` (the mean over the
  orders in which it was asked) and `reason`
- `critiques`: `completion`, `text`
- `step_labels`: `completion`, `step` (its number, from 0), `label` (`correct`, `wrong`, `unnecessary`); only
  where steps were labelled
- `answers`: `question` (its key), `version`, `completion` (null where the question is about the comparison),
  `value` (the key of a choice, a list of keys, a point, a number, a text, or a date); only with some
- `demonstration`: the answer as this annotator would have written it, or null
- `comment`, `active_seconds`, `guideline_version`, `created_at` (ISO 8601, UTC)
- `blind`: false where the annotator knew which model wrote which answer; training leaves such a judgment out
- `in_bulk`: true where it was given to several comparisons at once; else left out
- `help`: only where suggestions were computed: `arm` (`helped` or `control`), `revealed_at`,
  `finished_at`, `final` (id of the judgment of the final pass, or null), `first` (the first pass: `judgment`,
  `verdict`, `ranks`, `strength`, `comment`, `spans`, `missing`, `ratings`, `critiques`, `active_seconds`,
  `created_at`) and `decisions`, one for each suggestion: what it says (`kind`, `completion`, `category`,
  `start`, `end`, `quote`, `severity`, `text`, `verdict`, `ranks`, `confidence`, `source`), whether it was
  `planted` wrong, the `decision` (`accepted`, `changed`, `rejected`), its `seconds` and `decided_at`
- `review`: only where a reviewer decided about the comparison or returned this annotation: `decisions`, the
  oldest first, each `kind` (`decided` or `undone`; the last one holds), `reviewer` (a pseudonym), `reason`,
  `created_at` and, where decided, its `verdict`, `strength` and parts, spelled as those of a judgment; and
  `returns`: `judgment` (the version that was returned), `reviewer`, `comment`, `returned_at`, `state`
  (`open`, `corrected`, `objected`, `withdrawn`), `revision` (the corrected version, or null), `objection`,
  `closed_at`
- `metadata`: values of imported columns that are kept with the comparison; only where there are some
- `imported_from`: where an imported judgment came from, or null
- `conversations`: only of a turn of a live conversation, see `formats.conversation_turns`

Read back, everything returns but what belongs to the other database: ids, the round, the help, the review,
the version of the guidelines and the rubric with its scores, which stay with the judgment under `more`, as
they were written. A decision read back decides nothing: its reviewer is no member here. The annotator keeps
the pseudonym, and a new prompt its side of the split.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _

from annotation.choices import SpanRelation, StepLabel, TraceStepKind, Verdict
from annotation.exchange.formats import fields
from annotation.exchange.formats.fields import FieldError, excerpt, out_of_range, unknown_value
from annotation.exchange.formats.items import (
    ImportedCompletion,
    ImportedConversation,
    ImportedItem,
    ImportedJudgment,
    ImportedTurn,
    Reader,
    Row,
    key_of,
    placed,
    span_at,
)
from annotation.exchange.formats.writers import Record, Scene, Writer, Written
from annotation.models.conversations import MOST_TURNS
from annotation.record.judgment import (
    BY_HAND,
    AnswerPart,
    CorrectionPart,
    CritiquePart,
    Edit,
    EvidencePointer,
    MissingPart,
    Origin,
    RatingPart,
    SpanLink,
    SpanPart,
    StepLabelPart,
)
from annotation.text.edits import applied, edits
from annotation.text.traces import LONGEST_CALL, LONGEST_TOOL, STEP_ROLES, PlacedStep

# Conversations in Rondo's own format: the turns that a line belongs to, in.
#
# `conversations` is a list, for two people may be given the same responses to the same message; a line whose
# prompt is of no conversation has none. Each holds
#
# - `id`, `annotator`, `task` (its name or ""), `system`, `seed`, `rating` (1 to 5 or null), `attack_success`
# (0 to 4 or null), `comment`, `created_at`, `ended_at` (null while it is open): the same in all its lines
# - `turn`: from 1; `continued_with`: the completion id with which it went on, or null; `continued_text`: the
# annotator's edit of that response, or ""
# - `unjudged`: its turns that nobody judged, which have no line: `turn`, `messages`, `tags`, `split`,
# `completions`, `continued_with`, `continued_text`

_NAME = "conversations"
ReadCompletion = Callable[[str, Mapping[str, Any]], ImportedCompletion]


def split_of(values: Row) -> str:
    """The side of the split that a line states; "" where it states none."""
    split = fields.optional_text(values.get("split"), "split")
    if split not in ("", "train", "held-out"):
        raise unknown_value(split, ("train", "held-out"), "split")
    return split


def turns_of(row: Row, places: Mapping[str, int]) -> tuple[ImportedTurn, ...]:
    """The turns that a line is, in whatever conversations. places: completion id → its place in the line."""
    return tuple(
        _turn(entry, _conversation(entry, where), places, where)
        for where, entry in _listed(row.get(_NAME), _NAME)
    )


def unjudged_of(row: Row, completion: ReadCompletion) -> Iterator[ImportedItem]:
    """The turns without a judgment that a line tells of, as items. completion: reads one of them."""
    for where, entry in _listed(row.get(_NAME), _NAME):
        conversation = _conversation(entry, where)
        for at, turn in _listed(entry.get("unjudged"), f"{where}.unjudged"):
            completions = _listed(turn.get("completions"), f"{at}.completions")
            places = {str(each.get("id")): number for number, (_, each) in enumerate(completions)}
            yield ImportedItem(
                messages=fields.prompt(turn.get("messages"), f"{at}.messages"),
                tags=[fields.text(value, f"{at}.tags") for value in fields.items_of(turn.get("tags"), at)],
                completions=tuple(completion(place, each) for place, each in completions),
                split=split_of(turn),
                turns=(_turn(turn, conversation, places, at),),
            )


def _listed(value: Any, where: str) -> Sequence[tuple[str, Mapping[str, Any]]]:
    return [
        (f"{where}[{number}]", fields.object_of(entry, f"{where}[{number}]"))
        for number, entry in enumerate(fields.items_of(value, where))
    ]


def _turn(
    values: Mapping[str, Any], conversation: ImportedConversation, places: Mapping[str, int], where: str
) -> ImportedTurn:
    chosen = values.get("continued_with")
    if chosen is not None and str(chosen) not in places:
        raise FieldError(
            "completion_not_there",
            _("The turn has no completion %(name)s."),
            field=f"{where}.continued_with",
            name=excerpt(chosen),
        )
    text = fields.optional_text(values.get("continued_text"), f"{where}.continued_text")
    if text and chosen is None:
        raise FieldError(
            "continuation_unclear",
            _(
                "The text is an edited response, but continued_with does not say of which one. Write "
                "continued_with."
            ),
            field=f"{where}.continued_text",
        )
    return ImportedTurn(
        conversation=conversation,
        index=_number(values.get("turn"), f"{where}.turn", 1, MOST_TURNS),
        continued_with=None if chosen is None else places[str(chosen)],
        continued_text=text,
    )


def _conversation(values: Mapping[str, Any], where: str) -> ImportedConversation:
    name = fields.text(values.get("id"), f"{where}.id")
    try:
        uuid.UUID(name)
    except ValueError:
        raise FieldError(
            "id_invalid", _("%(value)s is no UUID."), field=f"{where}.id", value=excerpt(name)
        ) from None
    rating, success = values.get("rating"), values.get("attack_success")
    return ImportedConversation(
        id=name,
        annotator=fields.optional_text(values.get("annotator"), f"{where}.annotator"),
        task=fields.optional_text(values.get("task"), f"{where}.task"),
        system=fields.optional_text(values.get("system"), f"{where}.system"),
        seed=_number(values.get("seed"), f"{where}.seed", 0, 2**63 - 1),
        rating=None if rating is None else _number(rating, f"{where}.rating", 1, 5),
        attack_success=None if success is None else _number(success, f"{where}.attack_success", 0, 4),
        comment=fields.optional_text(values.get("comment"), f"{where}.comment"),
        created_at=_time(values.get("created_at"), f"{where}.created_at"),
        ended_at=_time(values.get("ended_at"), f"{where}.ended_at"),
    )


def _number(value: Any, where: str, least: int, most: int) -> int:
    number = fields.whole_number(value, where)
    if not least <= number <= most:
        raise out_of_range(number, least, most, where)
    return number


def _time(value: Any, where: str) -> str:
    timestamp = fields.optional_text(value, where)
    try:
        if timestamp and datetime.fromisoformat(timestamp).tzinfo is None:
            raise ValueError
    except ValueError:
        raise FieldError(
            "time_invalid",
            _("%(value)s is no time with a time zone. Write it as ISO 8601: 2026-01-31T09:30:00Z."),
            field=where,
            value=excerpt(timestamp),
        ) from None
    return timestamp


_KEPT_AS_WRITTEN = (
    *("judgment", "comparison", "round", "guideline_version", "rubric", "rubric_scores", "blind"),
    "in_bulk",
    "help",
    "review",
    "imported_from",
)


def _line(row: Row) -> Iterator[ImportedItem]:
    completions = [
        (f"completions[{number}]", fields.object_of(value, f"completions[{number}]"))
        for number, value in enumerate(fields.items_of(fields.required(row, "completions"), "completions"))
    ]
    places = {str(completion.get("id")): number for number, (_, completion) in enumerate(completions)}
    if len(places) != len(completions):
        raise FieldError("same_twice", _("Two of the completions have the same id."), field="completions")
    yield ImportedItem(
        messages=fields.prompt(fields.required(row, "messages"), "messages"),
        context=[_passage(value) for value in fields.items_of(row.get("context"), "context")],
        references=[
            fields.text(v, "references") for v in fields.items_of(row.get("references"), "references")
        ],
        tags=[fields.text(value, "tags") for value in fields.items_of(row.get("tags"), "tags")],
        completions=tuple(_completion(where, completion) for where, completion in completions),
        judgments=(_judgment(row, places, [str(completion.get("text")) for _, completion in completions]),),
        split=split_of(row),
        turns=turns_of(row, places),
        metadata=fields.object_of(row.get("metadata") or {}, "metadata"),
    )
    yield from unjudged_of(row, _completion)


def _passage(value: Any) -> dict[str, Any]:
    passage = fields.object_of(value, "context")
    return {
        "title": fields.optional_text(passage.get("title"), "context.title"),
        "sentences": [
            fields.text(sentence, "context.sentences", empty=True)
            for sentence in fields.items_of(passage.get("sentences"), "context.sentences")
        ],
    }


def _completion(where: str, completion: Mapping[str, Any]) -> ImportedCompletion:
    finish = completion.get("finish_reason") or ""
    if finish not in ("", "stop", "length"):
        raise unknown_value(finish, ("stop", "length"), f"{where}.finish_reason")
    seed = completion.get("seed")
    return ImportedCompletion(
        text=fields.text(completion.get("text"), f"{where}.text"),
        source=fields.optional_text(completion.get("source"), f"{where}.source"),
        sampling=fields.object_of(completion.get("sampling") or {}, f"{where}.sampling"),
        metadata=fields.object_of(completion.get("metadata") or {}, f"{where}.metadata"),
        seed=None if seed is None else fields.whole_number(seed, f"{where}.seed"),
        finish_reason=finish,
        steps=tuple(
            _step(fields.object_of(value, f"{where}.steps[{number}]"), f"{where}.steps[{number}]")
            for number, value in enumerate(fields.items_of(completion.get("steps"), f"{where}.steps"))
        ),
    )


def _step(step: Mapping[str, Any], where: str) -> PlacedStep:
    kind, role = step.get("kind"), step.get("role")
    if kind not in TraceStepKind.values:
        raise unknown_value(kind, TraceStepKind.values, f"{where}.kind")
    if role not in STEP_ROLES:
        raise unknown_value(role, STEP_ROLES, f"{where}.role")
    start, body, end = (fields.whole_number(step.get(n), f"{where}.{n}") for n in ("start", "body", "end"))
    return PlacedStep(
        kind=kind,
        role=role,
        start=start,
        body=body,
        end=end,
        tool=fields.optional_text(step.get("tool"), f"{where}.tool")[:LONGEST_TOOL],
        call=fields.optional_text(step.get("call"), f"{where}.call")[:LONGEST_CALL],
        is_error=step.get("is_error") is True,
        arguments=step.get("arguments"),
    )


def _judgment(row: Row, places: Mapping[str, int], texts: list[str]) -> ImportedJudgment:
    def index(value: Any, where: str) -> int:
        if str(value) not in places:
            raise FieldError(
                "completion_not_there",
                _("The line has no completion %(name)s."),
                field=where,
                name=excerpt(value),
            )
        return places[str(value)]

    def place(value: Mapping[str, Any], name: str) -> str:
        return str(index(value.get("completion"), name))

    def parts(name: str) -> Iterator[Mapping[str, Any]]:
        return (fields.object_of(value, name) for value in fields.items_of(row.get(name), name))

    ranks = fields.object_of(row.get("ranks") or {}, "ranks")
    by_place = {index(pk, "ranks"): fields.whole_number(rank, "ranks") for pk, rank in ranks.items()}
    if any(rank < 1 for rank in by_place.values()):
        raise FieldError(
            "rank_invalid",
            _("Ranks count from 1. Leave out the completions that have no order."),
            field="ranks",
        )
    strength = row.get("strength")
    return ImportedJudgment(
        verdict=fields.choice(fields.required(row, "verdict"), Verdict.values, "verdict"),
        ranks={str(number): by_place[number] for number in sorted(by_place)},
        annotator=fields.optional_text(row.get("annotator"), "annotator"),
        is_machine=row.get("machine") is True,
        strength=None if strength is None else fields.whole_number(strength, "strength"),
        comment=fields.optional_text(row.get("comment"), "comment"),
        spans=tuple(_span(span, index(span.get("completion"), "spans"), texts) for span in parts("spans")),
        missing=tuple(_missing(info, place(info, "missing")) for info in parts("missing")),
        corrections=tuple(
            CorrectionPart(
                completion=place(correction, "corrections"),
                text=fields.text(correction.get("text"), "corrections", empty=True),
                edits=_edits(correction, texts[index(correction.get("completion"), "corrections")]),
            )
            for correction in parts("corrections")
        ),
        ratings=tuple(_rating(rating, place(rating, "ratings")) for rating in parts("ratings")),
        critiques=tuple(
            CritiquePart(
                completion=place(critique, "critiques"), text=fields.text(critique.get("text"), "critiques")
            )
            for critique in parts("critiques")
        ),
        step_labels=tuple(
            StepLabelPart(
                completion=place(label, "step_labels"),
                step=fields.whole_number(label.get("step"), "step_labels.step"),
                label=fields.choice(label.get("label"), StepLabel.values, "step_labels"),
            )
            for label in parts("step_labels")
        ),
        answers=tuple(
            _answer(entry, None if entry.get("completion") is None else place(entry, "answers"))
            for entry in parts("answers")
        ),
        demonstration=fields.optional_text(row.get("demonstration"), "demonstration"),
        active_seconds=(
            None if row.get("active_seconds") is None else fields.active_seconds(row["active_seconds"])
        ),
        created_at=fields.optional_text(row.get("created_at"), "created_at"),
        display_order=tuple(
            index(pk, "display_order") for pk in fields.items_of(row.get("display_order"), "display_order")
        ),
        more={name: row[name] for name in _KEPT_AS_WRITTEN if row.get(name) not in (None, [])},
    )


def _span(span: Mapping[str, Any], completion: int, texts: list[str]) -> SpanPart:
    severity = span.get("severity")
    start, end = placed(
        texts[completion],
        fields.whole_number(span.get("start"), "spans.start"),
        fields.whole_number(span.get("end"), "spans.end"),
        fields.text(span.get("quote"), "spans.quote", empty=True),
        "spans.quote",
    )
    return span_at(
        completion,
        texts[completion],
        key_of(fields.text(span.get("category"), "spans.category")),
        start,
        end,
        severity=None if severity is None else fields.whole_number(severity, "spans.severity"),
        note=fields.optional_text(span.get("note"), "spans.note"),
        relations=tuple(_link(link) for link in fields.items_of(span.get("relations"), "spans.relations")),
    )


def _link(value: Any) -> SpanLink:
    where = "spans.relations"
    link = fields.object_of(value, where)
    to = fields.whole_number(link.get("to"), f"{where}.to")
    if to < 0:
        raise FieldError(
            "relation_without_other",
            _("A relation leads to the span %(to)s, which is no other span of the judgment."),
            field=where,
            to=to,
        )
    return SpanLink(kind=fields.choice(link.get("kind"), SpanRelation.values, f"{where}.kind"), to=to)


def _edits(correction: Mapping[str, Any], original: str) -> tuple[Edit, ...]:
    """Return the edits of a correction; none where a comparison of both texts gives them."""
    where = "corrections.edits"
    rows = [fields.object_of(value, where) for value in fields.items_of(correction.get("edits"), where)]
    written = tuple(_edit(row, original) for row in rows)
    if all(edit.origin == BY_HAND for edit in written):
        text = str(correction.get("text"))
        if applied(original, written) != text or written == edits(original, text):
            return ()
    return written


def _edit(row: Mapping[str, Any], original: str) -> Edit:
    where = "corrections.edits"
    model, span = row.get("model"), row.get("span")
    written = {} if model is None else fields.object_of(model, f"{where}.model")
    mended = None if span is None else fields.object_of(span, f"{where}.span")
    seed = written.get("seed")
    start, end = (fields.whole_number(row.get(name), where) for name in ("start", "end"))
    return Edit(
        start=start,
        end=end,
        quote=original[start:end],
        replacement=fields.text(row.get("replacement"), where, empty=True),
        origin=Origin(
            is_unstored=model is not None,
            seed=None if seed is None else fields.whole_number(seed, f"{where}.model.seed"),
            sampling=fields.object_of(written.get("sampling") or {}, f"{where}.model.sampling"),
            span=None if mended is None else _span_place(mended, f"{where}.span"),
        ),
    )


def _span_place(span: Mapping[str, Any], where: str) -> tuple[str, int, int]:
    category = key_of(fields.text(span.get("category"), where))
    start, end = (fields.whole_number(span.get(name), where) for name in ("start", "end"))
    return category, start, end


def _missing(info: Mapping[str, Any], completion: str) -> MissingPart:
    place = info.get("insert_at")
    evidence = [fields.object_of(value, "missing.evidence") for value in info.get("evidence") or []]
    return MissingPart(
        completion=completion,
        category=key_of(fields.text(info.get("category"), "missing.category")),
        text=fields.optional_text(info.get("text"), "missing.text"),
        insert_at=None if place is None else fields.whole_number(place, "missing.insert_at"),
        evidence=tuple(
            EvidencePointer(
                passage=fields.whole_number(pointer.get("passage"), "missing.evidence"),
                sentence=_sentence(pointer.get("sentence")),
            )
            for pointer in evidence
        ),
    )


def _sentence(value: Any) -> int | None:
    return None if value is None else fields.whole_number(value, "missing.evidence")


def _rating(rating: Mapping[str, Any], completion: str) -> RatingPart:
    scale = rating.get("scale")
    if scale not in ("five", "seven", "thumbs"):
        raise unknown_value(scale, ("five", "seven", "thumbs"), "ratings.scale")
    return RatingPart(
        completion=completion,
        criterion=key_of(fields.text(rating.get("criterion"), "ratings.criterion")),
        scale=scale,
        value=fields.whole_number(rating.get("value"), "ratings.value"),
    )


def _answer(answer: Mapping[str, Any], completion: str | None) -> AnswerPart:
    version, step, span = (answer.get(name) for name in ("version", "step", "span"))
    return AnswerPart(
        question=key_of(fields.text(answer.get("question"), "answers.question")),
        completion=completion,
        value=fields.answer_value(answer.get("value"), "answers.value"),
        version=None if version is None else fields.whole_number(version, "answers.version"),
        step=None if step is None else _index(step, "answers.step"),
        span=None if span is None else _span_place(fields.object_of(span, "answers.span"), "answers.span"),
    )


def _index(value: Any, where: str) -> int:
    index = fields.whole_number(value, where)
    if index < 0:
        raise FieldError(
            "step_not_there",
            _("Step %(step)s is not one of the agent's. Steps count from 0."),
            field=where,
            step=index,
        )
    return index


def _whole(record: Record, scene: Scene) -> Written:
    yield dict(record)


READERS = (
    Reader(
        name="jsonl",
        sentence="Rondo's own JSON Lines, whole: marks, missing info, corrections, ratings.",
        read=_line,
        matches=lambda row: {"messages", "completions", "verdict", "display_order"} <= row.keys(),
        reads={
            "messages": "the prompt",
            "context": "context passages",
            "references": "reference answers",
            "tags": "tags of the prompt",
            "completions": "the responses",
            "annotator": "the annotator",
            "machine": "whether the annotator is a program",
            "display_order": "the order in which the responses were shown",
            "verdict": "the preference",
            "ranks": "the ranks of the responses",
            "strength": "how much better the winner is",
            "spans": "spans",
            "missing": "missing information",
            "corrections": "corrections",
            "ratings": "ratings",
            "critiques": "critiques",
            "step_labels": "labels of steps",
            "answers": "answers to additional questions",
            "demonstration": "a demonstration",
            "comment": "the annotator's comment",
            "active_seconds": "the seconds that it took",
            "created_at": "the time of the annotation",
            "split": "the side of the split",
            "conversations": "turns of conversations",
            "metadata": "metadata of the comparison",
            **dict.fromkeys(_KEPT_AS_WRITTEN, "kept with the annotation"),
        },
        ignores={"prompt": "an id of the database that it came from"},
        loses="ids of the other database",
    ),
)
WRITERS = (
    Writer(
        name="jsonl",
        sentence="Rondo's own JSON Lines: everything, one judgment a line.",
        container="jsonl",
        rows=_whole,
        carries_context=True,
        carries_answers=True,
        carries_reviews=True,
        carries="everything, partial rankings too",
        loses="ids, the round, the version of the guidelines",
    ),
)

"""Checks of items before they are stored: ranks, spans, edits, steps, ratings, times."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from annotation.choices import NOT_ORDERED, SCALE_VALUES, RatingScale, StepLabel, Verdict
from annotation.exchange.formats.fields import FieldError, text
from annotation.exchange.formats.items import (
    LONGEST_SOURCE,
    ImportedCompletion,
    ImportedItem,
    ImportedJudgment,
    ImportedMissing,
    ImportedSpan,
    ImportedStepLabel,
    as_edits,
)
from annotation.text.edits import applied
from annotation.text.rewrites import is_faithful

_VERDICTS = frozenset(Verdict.values)
_NO_ORDER = (Verdict.CANNOT_JUDGE, Verdict.NOT_ASKED)
_NO_WINNER = (Verdict.EQUAL, Verdict.BOTH_GOOD, Verdict.BOTH_BAD)


def checked(item: ImportedItem) -> ImportedItem:
    """Return the item, if it can be stored as it is. Raises `FieldError` for the first thing that cannot."""
    seen = set()
    for number, completion in enumerate(item.completions):
        where = f"completions[{number}]"
        text(completion.text, where)
        if len(completion.source) > LONGEST_SOURCE:
            raise FieldError(f"{where}.source", f"is longer than {LONGEST_SOURCE} characters")
        key = (completion.text, completion.source, completion.seed)
        if key in seen:
            raise FieldError(
                where,
                "is the same text by the same source as one before it; a text is not compared with itself",
            )
        seen.add(key)
        if completion.seed is not None and not -(2**63) <= completion.seed < 2**63:
            raise FieldError(f"{where}.seed", "is too large; a seed has 64 bits at most")
        _check_object(completion.sampling, f"{where}.sampling")
        _check_steps(completion, where)
    if item.judgments and not item.completions:
        raise FieldError("completions", "is empty, and there is a judgment; write what was judged")
    for judgment in item.judgments:
        _check_judgment(item, judgment)
    return item


def _check_judgment(item: ImportedItem, judgment: ImportedJudgment) -> None:
    _check_ranks(judgment, len(item.completions))
    _check_spans(item, judgment.spans)
    _check_step_labels(item, judgment.step_labels)
    for missing in judgment.missing:
        _check_missing(item, missing)
    for rating in judgment.ratings:
        _completion(item, rating.completion, "ratings")
        if rating.value not in SCALE_VALUES[RatingScale(rating.scale)]:
            scale = RatingScale(rating.scale).label
            raise FieldError("ratings", f"{rating.criterion} is rated {scale}, not {rating.value}")
    for number, _ in (*judgment.corrections, *judgment.critiques):
        _completion(item, number, "corrections or critiques")
    _refuse_doubles("ratings", [(entry.completion, entry.criterion) for entry in judgment.ratings])
    _refuse_doubles("corrections", [number for number, _ in judgment.corrections])
    _check_edits(item, judgment)
    _refuse_doubles("critiques", [number for number, _ in judgment.critiques])
    if judgment.display_order and sorted(judgment.display_order) != list(range(len(item.completions))):
        raise FieldError("display_order", "does not name every answer once")
    for name in ("annotator", "comment", "demonstration"):
        text(getattr(judgment, name), name, empty=True)
    _check_object(judgment.more, "more")
    _check_time(judgment.created_at)
    seconds = judgment.active_seconds
    if seconds is not None and not (type(seconds) is int and 0 <= seconds < 2**31):
        raise FieldError("active_seconds", f"a number of seconds from 0 is expected, not {seconds!r}")


def _check_steps(completion: ImportedCompletion, where: str) -> None:
    done = 0
    for number, step in enumerate(completion.steps):
        if not (
            done <= step.start <= step.body <= step.end <= len(completion.text) and step.start < step.end
        ):
            raise FieldError(
                f"{where}.steps[{number}]",
                f"{step.start}–{step.end} does not lie in the text, after the step before it",
            )
        done = step.end


def _check_step_labels(item: ImportedItem, labels: Sequence[ImportedStepLabel]) -> None:
    for label in labels:
        steps = _completion(item, label.completion, "step_labels").steps
        if not 0 <= label.step < len(steps) or not steps[label.step].is_agents:
            raise FieldError("step_labels", f"step {label.step} is none of the agent's {len(steps)} steps")
        if label.label not in StepLabel.values:
            raise FieldError(
                "step_labels", f"{label.label!r} is not known; known are {', '.join(StepLabel.values)}"
            )
    _refuse_doubles("step_labels", [(step_label.completion, step_label.step) for step_label in labels])


def _check_spans(item: ImportedItem, spans: Sequence[ImportedSpan]) -> None:
    for span in spans:
        length = len(_completion(item, span.completion, "spans").text)
        if not 0 <= span.start < span.end <= length:
            raise FieldError(
                "spans",
                f"{span.start}–{span.end} does not lie in its answer, which has {length} characters",
            )
        if span.severity is not None and not 1 <= span.severity <= 9:
            raise FieldError("spans", f"the severity {span.severity} is not from 1 to 9")
    _refuse_doubles("spans", [(s.completion, s.category, s.start, s.end) for s in spans])


def _check_edits(item: ImportedItem, judgment: ImportedJudgment) -> None:
    corrected = dict(judgment.corrections)
    spans = {(s.completion, s.category, s.start, s.end) for s in judgment.spans}
    for number in {edit.completion for edit in judgment.edits}:
        original = _completion(item, number, "corrections.edits").text
        edits = as_edits(original, [edit for edit in judgment.edits if edit.completion == number])
        if not is_faithful(original, edits) or applied(original, edits) != corrected.get(number):
            raise FieldError("corrections.edits", "do not make the corrected text of the answer's")
    for edit in judgment.edits:
        if edit.span is not None and (edit.completion, *edit.span) not in spans:
            raise FieldError("corrections.edits.span", "names a span that the judgment does not have")
        if edit.seed is not None and not -(2**63) <= edit.seed < 2**63:
            raise FieldError("corrections.edits.seed", "is too large; a seed has 64 bits at most")
        _check_object(edit.sampling, "corrections.edits.sampling")


def _refuse_doubles(where: str, keys: Sequence[Any]) -> None:
    if len(set(keys)) < len(keys):
        raise FieldError(where, "the same stands there twice; take one away")


def _check_ranks(judgment: ImportedJudgment, answers: int) -> None:
    ranks = judgment.ranks
    if judgment.verdict not in _VERDICTS:
        raise FieldError(
            "verdict", f"{judgment.verdict!r} is not known; known are {', '.join(Verdict.values)}"
        )
    if judgment.verdict in _NO_ORDER:
        if ranks:
            raise FieldError("ranks", f"there are ranks, and the verdict {judgment.verdict} gives no order")
    elif len(ranks) != answers or not _are_ranks(ranks, is_ranking=judgment.verdict == Verdict.RANKED):
        raise FieldError("ranks", f"one rank from 1 is expected for each of the {answers} answers")
    elif judgment.verdict in _NO_WINNER and (len(ranks) < 2 or len(set(ranks)) > 1):
        raise FieldError("ranks", f"the verdict {judgment.verdict} names no winner, but the ranks do")
    elif judgment.verdict == Verdict.RANKED and len(ranks) == 2 and ranks[0] == ranks[1]:
        raise FieldError("verdict", "neither wins: write equal, both_good or both_bad")
    if judgment.strength is not None and not (
        judgment.verdict == Verdict.RANKED and answers == 2 and 1 <= judgment.strength <= 4
    ):
        raise FieldError("strength", "is 1 to 4, and only of a pair with a winner")


def _are_ranks(ranks: Sequence[int], *, is_ranking: bool) -> bool:
    """Return True for ranks from 1; a ranking of three or more may leave some without an order."""
    may_be_partial = is_ranking and len(ranks) > 2 and any(rank != NOT_ORDERED for rank in ranks)
    return all(rank >= 1 or (may_be_partial and rank == NOT_ORDERED) for rank in ranks)


def _check_object(values: Mapping[str, Any], where: str) -> None:
    """Refuse what no database can store as JSON."""
    if not values:
        return
    try:
        spelled = json.dumps(values, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise FieldError(where, f"is no JSON ({error})") from None
    if "\\u0000" in spelled:
        raise FieldError(where, "holds NUL, which cannot be stored; take it out")
    text(spelled, where)


def _check_time(timestamp: str) -> None:
    if not timestamp:
        return
    try:
        moment = datetime.fromisoformat(timestamp)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise FieldError("created_at", f"{timestamp[:40]!r} is no time with a time zone (ISO 8601)")


def _check_missing(item: ImportedItem, missing: ImportedMissing) -> None:
    length = len(_completion(item, missing.completion, "missing").text)
    if missing.insert_at is not None and not 0 <= missing.insert_at <= length:
        raise FieldError("missing", f"belongs at {missing.insert_at} of an answer of {length} characters")
    if not missing.text.strip() and not missing.evidence:
        raise FieldError("missing", "says neither what is missing nor where it stands")
    for passage, sentence in missing.evidence:
        if not 0 <= passage < len(item.context) or not (
            sentence is None or 0 <= sentence < len(item.context[passage]["sentences"])
        ):
            raise FieldError(
                "missing", f"points at passage {passage}, sentence {sentence}, which is not there"
            )


def _completion(item: ImportedItem, number: int, where: str) -> ImportedCompletion:
    if not 0 <= number < len(item.completions):
        raise FieldError(where, f"speaks of answer {number} of {len(item.completions)}, counted from 0")
    return item.completions[number]

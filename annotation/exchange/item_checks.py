"""Checks of items before they are stored: ranks, spans, edits, steps, ratings, times."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _

from annotation.choices import SCALE_VALUES, RatingScale, Verdict
from annotation.exchange.formats.fields import FieldError, excerpt, out_of_range, text
from annotation.exchange.formats.items import (
    LONGEST_SOURCE,
    ImportedCompletion,
    ImportedItem,
    ImportedJudgment,
)
from annotation.record.judgment import MissingPart, SpanPart, StepLabelPart
from annotation.text.edits import applied
from annotation.text.rewrites import is_faithful

_NO_ORDER = (Verdict.CANNOT_JUDGE, Verdict.NOT_ASKED)
_NO_WINNER = (Verdict.EQUAL, Verdict.BOTH_GOOD, Verdict.BOTH_BAD)


def checked(item: ImportedItem) -> ImportedItem:
    """Return the item, if it can be stored as it is. Raises `FieldError` for the first thing that cannot."""
    seen = set()
    for number, completion in enumerate(item.completions):
        where = f"completions[{number}]"
        text(completion.text, where)
        if len(completion.source) > LONGEST_SOURCE:
            raise FieldError(
                "text_too_long",
                _("The text is longer than %(most)s characters."),
                field=f"{where}.source",
                most=LONGEST_SOURCE,
            )
        key = (completion.text, completion.source, completion.seed)
        if key in seen:
            raise FieldError(
                "same_twice",
                _("The same text by the same source stands before it. A text is not compared with itself."),
                field=where,
            )
        seen.add(key)
        _check_seed(completion.seed, f"{where}.seed")
        _check_object(completion.sampling, f"{where}.sampling")
        _check_steps(completion, where)
    if item.judgments and not item.completions:
        raise FieldError(
            "field_missing",
            _("There is a judgment, but there are no completions. Write what was judged."),
            field="completions",
        )
    for judgment in item.judgments:
        _check_judgment(item, judgment)
    return item


def _check_judgment(item: ImportedItem, judgment: ImportedJudgment) -> None:
    _check_ranks(judgment, [str(place) for place in range(len(item.completions))])
    _check_spans(item, judgment.spans)
    _check_step_labels(item, judgment.step_labels)
    for missing in judgment.missing:
        _check_missing(item, missing)
    for rating in judgment.ratings:
        _completion(item, rating.completion, "ratings")
        scale = RatingScale(rating.scale)
        if rating.value not in SCALE_VALUES[scale]:
            raise FieldError(
                "rating_unknown",
                _("%(value)s is no rating of %(criterion)s. Write one of these: %(known)s."),
                field="ratings",
                value=excerpt(rating.value),
                criterion=rating.criterion,
                known=", ".join(map(str, SCALE_VALUES[scale])),
            )
    for correction in judgment.corrections:
        _completion(item, correction.completion, "corrections")
    for critique in judgment.critiques:
        _completion(item, critique.completion, "critiques")
    _refuse_doubles("ratings", [(entry.completion, entry.criterion) for entry in judgment.ratings])
    _refuse_doubles("corrections", [correction.completion for correction in judgment.corrections])
    _check_edits(item, judgment)
    _refuse_doubles("critiques", [critique.completion for critique in judgment.critiques])
    if judgment.display_order and sorted(judgment.display_order) != list(range(len(item.completions))):
        raise FieldError(
            "order_incomplete", _("The order does not name every answer once."), field="display_order"
        )
    for name in ("annotator", "comment", "demonstration"):
        text(getattr(judgment, name), name, empty=True)
    _check_object(judgment.more, "more")
    _check_time(judgment.created_at)


def _check_steps(completion: ImportedCompletion, where: str) -> None:
    done = 0
    for number, step in enumerate(completion.steps):
        if not (
            done <= step.start <= step.body <= step.end <= len(completion.text) and step.start < step.end
        ):
            raise FieldError(
                "step_misplaced",
                _("The step %(start)s–%(end)s does not lie in the text after the step before it."),
                field=f"{where}.steps[{number}]",
                start=step.start,
                end=step.end,
            )
        done = step.end


def _check_step_labels(item: ImportedItem, labels: Sequence[StepLabelPart]) -> None:
    for label in labels:
        steps = _completion(item, label.completion, "step_labels").steps
        if not 0 <= label.step < len(steps) or not steps[label.step].is_agents:
            raise FieldError(
                "step_not_there",
                _("Step %(step)s is not one of the agent's. The number of steps is %(count)s."),
                field="step_labels",
                step=label.step,
                count=len(steps),
            )
    _refuse_doubles("step_labels", [(step_label.completion, step_label.step) for step_label in labels])


def _check_spans(item: ImportedItem, spans: Sequence[SpanPart]) -> None:
    for span in spans:
        length = len(_completion(item, span.completion, "spans").text)
        if not 0 <= span.start < span.end <= length:
            raise FieldError(
                "span_misplaced",
                _(
                    "The span %(start)s–%(end)s does not lie in its answer, whose length is %(length)s "
                    "characters."
                ),
                field="spans",
                start=span.start,
                end=span.end,
                length=length,
            )
        if span.severity is not None and not 1 <= span.severity <= 9:
            raise out_of_range(span.severity, 1, 9, "spans")
    _refuse_doubles("spans", [(s.completion, s.category, s.start, s.end) for s in spans])


def _check_edits(item: ImportedItem, judgment: ImportedJudgment) -> None:
    spans = {(s.completion, s.category, s.start, s.end) for s in judgment.spans}
    for correction in judgment.corrections:
        original, edits = _completion(item, correction.completion, "corrections.edits").text, correction.edits
        if edits and (not is_faithful(original, edits) or applied(original, edits) != correction.text):
            raise FieldError(
                "edits_differ",
                _("The edits do not turn the answer into the corrected text."),
                field="corrections.edits",
            )
        for origin in (edit.origin for edit in edits):
            if origin.span is not None and (correction.completion, *origin.span) not in spans:
                raise FieldError(
                    "span_not_there",
                    _("The judgment does not have this span."),
                    field="corrections.edits.span",
                )
            _check_seed(origin.seed, "corrections.edits.seed")
            _check_object(origin.sampling, "corrections.edits.sampling")


def _check_seed(seed: int | None, where: str) -> None:
    if seed is not None and not -(2**63) <= seed < 2**63:
        raise FieldError(
            "number_too_large", _("The seed is too large. A seed has at most 64 bits."), field=where
        )


def _refuse_doubles(where: str, keys: Sequence[Any]) -> None:
    if len(set(keys)) < len(keys):
        raise FieldError("same_twice", _("The same stands there twice. Take one away."), field=where)


def _check_ranks(judgment: ImportedJudgment, places: Sequence[str]) -> None:
    ranks = judgment.ranks
    if judgment.verdict in _NO_ORDER:
        if ranks:
            raise FieldError(
                "ranks_not_expected",
                _("There are ranks, but the verdict %(verdict)s gives no order."),
                field="ranks",
                verdict=judgment.verdict,
            )
    elif not _are_ranks(ranks, places, is_ranking=judgment.verdict == Verdict.RANKED):
        raise FieldError(
            "ranks_expected",
            _("A rank from 1 on is expected for each of the answers (%(count)s)."),
            field="ranks",
            count=len(places),
        )
    elif judgment.verdict in _NO_WINNER and (len(ranks) < 2 or len(set(ranks.values())) > 1):
        raise FieldError(
            "ranks_not_expected",
            _("The ranks name a winner, but the verdict %(verdict)s names none."),
            field="ranks",
            verdict=judgment.verdict,
        )
    elif judgment.verdict == Verdict.RANKED and len(places) == 2 and ranks["0"] == ranks["1"]:
        raise FieldError(
            "winner_missing", _("Neither answer wins. Write equal, both_good or both_bad."), field="verdict"
        )
    if judgment.strength is not None and not (
        judgment.verdict == Verdict.RANKED and len(places) == 2 and 1 <= judgment.strength <= 4
    ):
        raise FieldError(
            "strength_invalid",
            _("The strength is from 1 to 4, and only a pair with a winner has one."),
            field="strength",
        )


def _are_ranks(ranks: Mapping[str, int], places: Sequence[str], *, is_ranking: bool) -> bool:
    """Return True for ranks from 1 on of all answers; a ranking of three or more may leave some out."""
    may_be_partial = is_ranking and len(places) > 2 and ranks
    are_places = ranks.keys() <= set(places) if may_be_partial else ranks.keys() == set(places)
    return are_places and all(rank >= 1 for rank in ranks.values())


def _check_object(values: Mapping[str, Any], where: str) -> None:
    """Refuse what no database can store as JSON."""
    if not values:
        return
    try:
        spelled = json.dumps(values, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise FieldError(
            "not_json", _("The value cannot be written as JSON (%(error)s)."), field=where, error=error
        ) from None
    if "\\u0000" in spelled:
        raise FieldError(
            "text_has_nul", _("A text in it has NUL, which cannot be stored. Take it out."), field=where
        )
    text(spelled, where)


def _check_time(timestamp: str) -> None:
    if not timestamp:
        return
    try:
        moment = datetime.fromisoformat(timestamp)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise FieldError(
            "time_invalid",
            _("%(value)s is no time with a time zone. Write it as ISO 8601: 2026-01-31T09:30:00Z."),
            field="created_at",
            value=excerpt(timestamp),
        )


def _check_missing(item: ImportedItem, missing: MissingPart) -> None:
    length = len(_completion(item, missing.completion, "missing").text)
    if missing.insert_at is not None and not 0 <= missing.insert_at <= length:
        raise FieldError(
            "missing_misplaced",
            _("Position %(place)s does not lie in the answer, whose length is %(length)s characters."),
            field="missing",
            place=missing.insert_at,
            length=length,
        )
    if not missing.text.strip() and not missing.evidence:
        raise FieldError("missing_empty", _("Write what is missing, or where it stands."), field="missing")
    for pointer in missing.evidence:
        passage, sentence = pointer.passage, pointer.sentence
        if not 0 <= passage < len(item.context) or not (
            sentence is None or 0 <= sentence < len(item.context[passage]["sentences"])
        ):
            raise FieldError(
                "passage_not_there",
                _("The context has no passage %(passage)s with a sentence %(sentence)s."),
                field="missing",
                passage=passage,
                sentence=excerpt(sentence),
            )


def _completion(item: ImportedItem, name: str, where: str) -> ImportedCompletion:
    number = int(name)
    if not 0 <= number < len(item.completions):
        raise FieldError(
            "answer_not_there",
            _("There is no answer %(number)s. Answers count from 0, and their number is %(count)s."),
            field=where,
            number=number,
            count=len(item.completions),
        )
    return item.completions[number]

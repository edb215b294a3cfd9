"""The checks of single parts of an answer: marks, missing info, ratings, texts. Nothing here writes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _

from annotation.choices import SCALE_VALUES, CategoryScope, RatingScale, StepLabel
from annotation.errors import InvalidAnswer, StaleAnswer
from annotation.models import Category, Completion, Criterion, Prompt, RubricVersion, TraceStep
from annotation.services.judgments.inputs import (
    JudgmentAnswer,
    MissingInfoInput,
    RatingInput,
    RubricScoreInput,
    SpanFlagInput,
    StepLabelInput,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """An evidence pointer with the text that it points at."""

    passage: int
    sentence: int | None
    quote: str


def evidence_of(prompt: Prompt, passage: int, sentence: int | None, number: int) -> Evidence:
    """The text that the evidence of a missing information points at.

    Refuses a passage or sentence that the prompt does not have. number: of the missing information, from 1.
    """
    passages: Sequence[Mapping[str, Any]] = prompt.context
    if not 0 <= passage < len(passages):
        raise InvalidAnswer(
            "unknown_passage",
            _(
                "Missing info %(number)s points at passage %(passage)s; this prompt has %(passages)s, "
                "counted from 0."
            ),
            field="missing_info",
            number=number,
            passage=passage,
            passages=len(passages),
        )
    sentences = passages[passage]["sentences"]
    if sentence is None:
        return Evidence(passage=passage, sentence=None, quote=passages[passage]["title"])
    if not 0 <= sentence < len(sentences):
        raise InvalidAnswer(
            "unknown_sentence",
            _(
                "Missing info %(number)s points at sentence %(sentence)s of passage %(passage)s, which has "
                "%(sentences)s, counted from 0."
            ),
            field="missing_info",
            number=number,
            sentence=sentence,
            passage=passage,
            sentences=len(sentences),
        )
    return Evidence(passage=passage, sentence=sentence, quote=sentences[sentence])


def check_text(text: str, name: str) -> None:
    """Refuse what cannot be stored: NUL, and half a surrogate pair."""
    if "\x00" in text:
        raise InvalidAnswer(
            "text_holds_nul", _("The text holds the character NUL, which cannot be stored."), field=name
        )
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidAnswer(
            "text_holds_half_surrogate",
            _(
                "The text holds half a surrogate pair, which is no character and cannot be "
                "stored. Take it away, or mark the text again."
            ),
            field=name,
        )


def check_span(
    span: SpanFlagInput,
    number: int,
    completions: Mapping[int, Completion],
    categories: Mapping[int, Category],
    *,
    severity_asked: bool,
) -> None:
    """Refuse a mark that does not stand on its quote, or has not the severity that its category asks."""
    check_text(span.quote, "span_flags")
    where = {"number": number, "start": span.start, "end": span.end, "quote": span.quote[:40]}
    completion = _known_completion(
        span.completion_id,
        completions,
        "span_flags",
        _(
            "Span %(number)s (%(start)s–%(end)s, “%(quote)s”) refers to a response that is not in this "
            "comparison."
        ),
        **where,
    )
    category = categories.get(span.category_id)
    if category is None:
        raise InvalidAnswer(
            "unknown_category",
            _(
                "Span %(number)s (%(start)s–%(end)s, “%(quote)s”) has a category that this project does not "
                "have."
            ),
            field="span_flags",
            **where,
        )
    if category.scope != CategoryScope.SPAN:
        raise InvalidAnswer(
            "category_of_other_scope",
            _(
                "Span %(number)s (%(start)s–%(end)s, “%(quote)s”) has the category “%(category)s”, which is "
                "for missing info."
            ),
            field="span_flags",
            category=category.label,
            **where,
        )
    _check_severity(span, category, where, is_asked=severity_asked)
    check_text(span.note, "span_flags")
    if span.text_hash != completion.text_hash:
        raise StaleAnswer(
            "span_of_other_text",
            _(
                "Span %(number)s (%(start)s–%(end)s, “%(quote)s”) was marked on another text than the one "
                "that is stored. Reload the page and mark it again."
            ),
            field="span_flags",
            **where,
        )
    length = len(completion.text)
    if type(span.start) is not int or type(span.end) is not int or not 0 <= span.start < span.end <= length:
        raise InvalidAnswer(
            "span_outside_response",
            _(
                "Span %(number)s (%(start)s–%(end)s, “%(quote)s”) is outside its response, which has "
                "%(length)s characters. Mark it again."
            ),
            field="span_flags",
            length=length,
            **where,
        )
    marked = completion.text[span.start : span.end]
    if marked != span.quote:
        raise StaleAnswer(
            "span_off_quote",
            _(
                "Span %(number)s (%(start)s–%(end)s, “%(quote)s”) does not stand on its quote: the stored "
                "text reads “%(marked)s” there. Reload the page and mark it again."
            ),
            field="span_flags",
            marked=marked[:40],
            **where,
        )


def _check_severity(
    span: SpanFlagInput, category: Category, where: Mapping[str, object], *, is_asked: bool
) -> None:
    steps = category.severity_steps
    if span.severity is None:
        if is_asked and steps:
            raise InvalidAnswer(
                "severity_missing",
                _(
                    "Span %(number)s (%(start)s–%(end)s, “%(quote)s”) needs a severity from 1, the mildest, "
                    "to %(steps)s."
                ),
                field="span_flags",
                steps=steps,
                **where,
            )
    elif type(span.severity) is not int or not 1 <= span.severity <= steps:
        message = (
            _(
                "Span %(number)s (%(start)s–%(end)s, “%(quote)s”) has the severity %(severity)s; "
                "“%(category)s” has severities from 1, the mildest, to %(steps)s."
            )
            if steps
            else _(
                "Span %(number)s (%(start)s–%(end)s, “%(quote)s”) has the severity %(severity)s; "
                "“%(category)s” has no severities."
            )
        )
        raise InvalidAnswer(
            "invalid_severity",
            message,
            field="span_flags",
            severity=repr(span.severity),
            category=category.label,
            steps=steps,
            **where,
        )


def check_missing(
    missing: MissingInfoInput,
    number: int,
    prompt: Prompt,
    completions: Mapping[int, Completion],
    categories: Mapping[int, Category],
) -> None:
    """Refuse missing info that says nothing, or points where nothing is."""
    completion = _known_completion(
        missing.completion_id,
        completions,
        "missing_info",
        _("Missing info %(number)s refers to a response that is not in this comparison."),
        number=number,
    )
    category = categories.get(missing.category_id)
    if category is None:
        raise InvalidAnswer(
            "unknown_category",
            _("Missing info %(number)s has a category that this project does not have."),
            field="missing_info",
            number=number,
        )
    if category.scope != CategoryScope.MISSING:
        raise InvalidAnswer(
            "category_of_other_scope",
            _("Missing info %(number)s has the category “%(category)s”, which is for spans."),
            field="missing_info",
            number=number,
            category=category.label,
        )
    check_text(missing.text, "missing_info")
    place = missing.insert_at
    if place is not None and (type(place) is not int or not 0 <= place <= len(completion.text)):
        raise InvalidAnswer(
            "place_outside_response",
            _(
                "Missing info %(number)s is placed at character %(place)s of a response that has %(length)s. "
                "Place it again."
            ),
            field="missing_info",
            number=number,
            place=repr(place),
            length=len(completion.text),
        )
    if missing.passage is None:
        if missing.sentence is not None or missing.further_evidence:
            raise InvalidAnswer(
                "passage_missing",
                _("Missing info %(number)s names a sentence but no passage."),
                field="missing_info",
                number=number,
            )
        if not missing.text.strip():
            raise InvalidAnswer(
                "missing_info_empty",
                _("Missing info %(number)s says neither what is missing nor where it stands."),
                field="missing_info",
                number=number,
            )
        return
    evidence_of(prompt, missing.passage, missing.sentence, number)
    for pointer in missing.further_evidence:
        evidence_of(prompt, pointer.passage, pointer.sentence, number)


def check_step_labels(labels: Sequence[StepLabelInput], completions: Mapping[int, Completion]) -> None:
    """Refuse a label that is not known, and one of a step that is not there or not the agent's."""
    if not labels:
        return
    refuse_doubles(
        "step_labels",
        _("Step label %(number)s is there twice; take one away."),
        [(step_label.completion_id, step_label.step) for step_label in labels],
    )
    for label in labels:
        _known_completion(
            label.completion_id,
            completions,
            "step_labels",
            _("A step label refers to a response that is not in this comparison."),
        )
        if label.label not in StepLabel.values:
            raise InvalidAnswer(
                "unknown_step_label",
                _("The step label %(label)s is not known; choose one of %(labels)s."),
                field="step_labels",
                label=repr(label.label)[:40],
                labels=", ".join(StepLabel.values),
            )
    steps = {
        (step.completion_id, step.index): step
        for step in TraceStep.objects.filter(
            completion__in={step_label.completion_id for step_label in labels}
        ).only("completion_id", "index", "kind", "role")
    }
    for label in labels:
        step = steps.get((label.completion_id, label.step))
        if step is None:
            raise InvalidAnswer(
                "unknown_step",
                _("A step label is of step %(step)s; its response has %(steps)s, counted from 0."),
                field="step_labels",
                step=repr(label.step)[:40],
                steps=completions[label.completion_id].step_count,
            )
        if not step.is_agents:
            raise InvalidAnswer(
                "step_not_agents",
                _("Step %(step)s is not the agent's. Label the steps of the assistant alone."),
                field="step_labels",
                step=label.step,
            )


def check_ratings(
    ratings: Sequence[RatingInput],
    completions: Mapping[int, Completion],
    criteria: Sequence[Criterion],
    *,
    whole: bool,
) -> None:
    """Refuse ratings off their scale and, where they must be `whole`, answers that lack one that is asked."""
    known = {criterion.pk: criterion for criterion in criteria}
    refuse_doubles(
        "ratings",
        _("Rating %(number)s is there twice; take one away."),
        [(r.completion_id, r.criterion_id) for r in ratings],
    )
    for rating in ratings:
        _known_completion(
            rating.completion_id,
            completions,
            "ratings",
            _("A rating refers to a response that is not in this comparison."),
        )
        criterion = known.get(rating.criterion_id)
        if criterion is None:
            raise InvalidAnswer(
                "unknown_criterion",
                _("A rating is by a criterion that this project does not have."),
                field="ratings",
            )
        scale = RatingScale(criterion.scale)
        if type(rating.value) is not int or rating.value not in SCALE_VALUES[scale]:
            raise InvalidAnswer(
                "rating_off_scale",
                _("%(criterion)s is rated %(scale)s, not %(value)s."),
                field="ratings",
                criterion=criterion.label,
                scale=scale.label,
                value=repr(rating.value),
            )
    if not whole or not ratings:
        return
    rated = {(rating.completion_id, rating.criterion_id) for rating in ratings}
    for criterion in criteria:
        if criterion.is_archived:
            continue
        left = sum((pk, criterion.pk) not in rated for pk in completions)
        if left:
            raise InvalidAnswer(
                "ratings_incomplete",
                _(
                    "Rate every response by every criterion, or none at all: %(criterion)s "
                    "lacks %(left)s of %(all)s."
                ),
                field="ratings",
                criterion=criterion.label,
                left=left,
                all=len(completions),
            )


def check_rubric_scores(
    scores: Sequence[RubricScoreInput], completions: Sequence[int], rubric: RubricVersion | None
) -> None:
    """Refuse scores unless every completion is scored by every criterion of the rubric, within its scale."""
    criteria = {} if rubric is None else {row.pk: row for row in rubric.criteria.all()}
    if not scores and not criteria:
        return
    scored = [(score.completion_id, score.criterion_id) for score in scores]
    refuse_doubles("rubric_scores", _("Score %(number)s is there twice; take one away."), scored)
    expected = {(completion, criterion) for completion in completions for criterion in criteria}
    # A judge that cannot judge gives no scores.
    if scores and set(scored) != expected:
        raise InvalidAnswer(
            "rubric_scores_incomplete",
            _("Score every response by every criterion of the rubric and by no other."),
            field="rubric_scores",
        )
    for score in scores:
        steps = SCALE_VALUES[RatingScale(criteria[score.criterion_id].scale)]
        if not steps[0] <= score.value <= steps[-1]:
            raise InvalidAnswer(
                "score_off_scale", _("A score is outside its criterion’s scale."), field="rubric_scores"
            )
        check_text(score.reason, "rubric_scores")


def check_texts(answer: JudgmentAnswer, completions: Mapping[int, Completion]) -> None:
    """Refuse corrections, critiques and a demonstration that say nothing or cannot be stored."""
    refuse_doubles(
        "corrections",
        _("Rewrite %(number)s is there twice; take one away."),
        [c.completion_id for c in answer.corrections],
    )
    for correction in answer.corrections:
        _known_completion(
            correction.completion_id,
            completions,
            "corrections",
            _("A rewrite refers to a response that is not in this comparison."),
        )
        check_text(correction.text, "corrections")
    refuse_doubles(
        "critiques",
        _("Critique %(number)s is there twice; take one away."),
        [c.completion_id for c in answer.critiques],
    )
    for critique in answer.critiques:
        _known_completion(
            critique.completion_id,
            completions,
            "critiques",
            _("A critique refers to a response that is not in this comparison."),
        )
        check_text(critique.text, "critiques")
        if not critique.text.strip():
            raise InvalidAnswer(
                "critique_empty", _("A critique says nothing. Write it, or leave it out."), field="critiques"
            )
    check_text(answer.demonstration, "demonstration")
    if answer.demonstration and not answer.demonstration.strip():
        raise InvalidAnswer(
            "demonstration_empty",
            _("Your own response is empty. Write it, or leave it out."),
            field="demonstration",
        )


def _known_completion(
    pk: int, completions: Mapping[int, Completion], name: str, message: str, **params: object
) -> Completion:
    if pk not in completions:
        raise InvalidAnswer("unknown_response", message, field=name, **params)
    return completions[pk]


def refuse_doubles(name: str, message: str, keys: Iterable[Any]) -> None:
    """Refuse what is there twice. message: the sentence, with a place for its `number`."""
    seen = set()
    for number, key in enumerate(keys, start=1):
        if key in seen:
            raise InvalidAnswer("part_given_twice", message, field=name, number=number)
        seen.add(key)

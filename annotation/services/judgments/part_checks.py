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


def evidence_of(prompt: Prompt, passage: int, sentence: int | None, what: str) -> Evidence:
    """The text that evidence points at. Refuses a passage or sentence that the prompt does not have."""
    passages: Sequence[Mapping[str, Any]] = prompt.context
    if not 0 <= passage < len(passages):
        raise InvalidAnswer(
            _("%(what)s points at passage %(passage)s; this prompt has %(passages)s, counted from 0.")
            % {"what": what, "passage": passage, "passages": len(passages)},
            field="missing_info",
        )
    sentences = passages[passage]["sentences"]
    if sentence is None:
        return Evidence(passage=passage, sentence=None, quote=passages[passage]["title"])
    if not 0 <= sentence < len(sentences):
        raise InvalidAnswer(
            _(
                "%(what)s points at sentence %(sentence)s of passage %(passage)s, which has "
                "%(sentences)s, counted from 0."
            )
            % {"what": what, "sentence": sentence, "passage": passage, "sentences": len(sentences)},
            field="missing_info",
        )
    return Evidence(passage=passage, sentence=sentence, quote=sentences[sentence])


def check_text(text: str, name: str) -> None:
    """Refuse what cannot be stored: NUL, and half a surrogate pair."""
    if "\x00" in text:
        raise InvalidAnswer(_("The text holds the character NUL, which cannot be stored."), field=name)
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidAnswer(
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
    what = _("Span %(number)s (%(start)s–%(end)s, “%(quote)s”)") % {
        "number": number,
        "start": span.start,
        "end": span.end,
        "quote": span.quote[:40],
    }
    completion = _known_completion(span.completion_id, completions, "span_flags", what)
    category = _known_category(span.category_id, categories, CategoryScope.SPAN, "span_flags", what)
    _check_severity(span, category, what, is_asked=severity_asked)
    check_text(span.note, "span_flags")
    if span.text_hash != completion.text_hash:
        raise StaleAnswer(
            _(
                "%(what)s was marked on another text than the one that is stored. Reload the "
                "page and mark it again."
            )
            % {"what": what},
            field="span_flags",
        )
    length = len(completion.text)
    if type(span.start) is not int or type(span.end) is not int or not 0 <= span.start < span.end <= length:
        raise InvalidAnswer(
            _("%(what)s is outside its response, which has %(length)s characters. Mark it again.")
            % {"what": what, "length": length},
            field="span_flags",
        )
    marked = completion.text[span.start : span.end]
    if marked != span.quote:
        raise StaleAnswer(
            _(
                "%(what)s does not stand on its quote: the stored text reads “%(marked)s” "
                "there. Reload the page and mark it again."
            )
            % {"what": what, "marked": marked[:40]},
            field="span_flags",
        )


def _check_severity(span: SpanFlagInput, category: Category, what: str, *, is_asked: bool) -> None:
    steps = category.severity_steps
    if span.severity is None:
        if is_asked and steps:
            raise InvalidAnswer(
                _("%(what)s needs a severity from 1, the mildest, to %(steps)s.")
                % {"what": what, "steps": steps},
                field="span_flags",
            )
    elif type(span.severity) is not int or not 1 <= span.severity <= steps:
        has = _("from 1, the mildest, to %(steps)s") % {"steps": steps} if steps else _("none")
        raise InvalidAnswer(
            _("%(what)s has the severity %(severity)s; %(category)s has %(has)s.")
            % {"what": what, "severity": repr(span.severity), "category": repr(category.label), "has": has},
            field="span_flags",
        )


def check_missing(
    missing: MissingInfoInput,
    number: int,
    prompt: Prompt,
    completions: Mapping[int, Completion],
    categories: Mapping[int, Category],
) -> None:
    """Refuse missing info that says nothing, or points where nothing is."""
    what = _("Missing info %(number)s") % {"number": number}
    completion = _known_completion(missing.completion_id, completions, "missing_info", what)
    _known_category(missing.category_id, categories, CategoryScope.MISSING, "missing_info", what)
    check_text(missing.text, "missing_info")
    place = missing.insert_at
    if place is not None and (type(place) is not int or not 0 <= place <= len(completion.text)):
        raise InvalidAnswer(
            _("%(what)s is placed at character %(place)s of a response that has %(length)s. Place it again.")
            % {"what": what, "place": repr(place), "length": len(completion.text)},
            field="missing_info",
        )
    if missing.passage is None:
        if missing.sentence is not None or missing.further_evidence:
            raise InvalidAnswer(
                _("%(what)s names a sentence but no passage.") % {"what": what}, field="missing_info"
            )
        if not missing.text.strip():
            raise InvalidAnswer(
                _("%(what)s says neither what is missing nor where it stands.") % {"what": what},
                field="missing_info",
            )
        return
    evidence_of(prompt, missing.passage, missing.sentence, what)
    for pointer in missing.further_evidence:
        evidence_of(prompt, pointer.passage, pointer.sentence, what)


def check_step_labels(labels: Sequence[StepLabelInput], completions: Mapping[int, Completion]) -> None:
    """Refuse a label that is not known, and one of a step that is not there or not the agent's."""
    if not labels:
        return
    refuse_doubles(
        "step_labels", "step label", [(step_label.completion_id, step_label.step) for step_label in labels]
    )
    for label in labels:
        _known_completion(label.completion_id, completions, "step_labels", _("A step label"))
        if label.label not in StepLabel.values:
            raise InvalidAnswer(
                _("The step label %(label)s is not known; choose one of %(labels)s.")
                % {"label": repr(label.label)[:40], "labels": ", ".join(StepLabel.values)},
                field="step_labels",
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
                _("A step label is of step %(step)s; its response has %(steps)s, counted from 0.")
                % {"step": repr(label.step)[:40], "steps": completions[label.completion_id].step_count},
                field="step_labels",
            )
        if not step.is_agents:
            raise InvalidAnswer(
                _("Step %(step)s is not the agent's. Label the steps of the assistant alone.")
                % {"step": label.step},
                field="step_labels",
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
    refuse_doubles("ratings", "rating", [(r.completion_id, r.criterion_id) for r in ratings])
    for rating in ratings:
        _known_completion(rating.completion_id, completions, "ratings", "A rating")
        criterion = known.get(rating.criterion_id)
        if criterion is None:
            raise InvalidAnswer(
                _("A rating is by a criterion that this project does not have."), field="ratings"
            )
        scale = RatingScale(criterion.scale)
        if type(rating.value) is not int or rating.value not in SCALE_VALUES[scale]:
            raise InvalidAnswer(
                _("%(criterion)s is rated %(scale)s, not %(value)s.")
                % {"criterion": criterion.label, "scale": scale.label, "value": repr(rating.value)},
                field="ratings",
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
                _(
                    "Rate every response by every criterion, or none at all: %(criterion)s "
                    "lacks %(left)s of %(all)s."
                )
                % {"criterion": criterion.label, "left": left, "all": len(completions)},
                field="ratings",
            )


def check_rubric_scores(
    scores: Sequence[RubricScoreInput], completions: Sequence[int], rubric: RubricVersion | None
) -> None:
    """Refuse scores unless every completion is scored by every criterion of the rubric, within its scale."""
    criteria = {} if rubric is None else {row.pk: row for row in rubric.criteria.all()}
    if not scores and not criteria:
        return
    scored = [(score.completion_id, score.criterion_id) for score in scores]
    refuse_doubles("rubric_scores", "score", scored)
    expected = {(completion, criterion) for completion in completions for criterion in criteria}
    # A judge that cannot judge gives no scores.
    if scores and set(scored) != expected:
        raise InvalidAnswer(
            _("Score every response by every criterion of the rubric and by no other."), field="rubric_scores"
        )
    for score in scores:
        steps = SCALE_VALUES[RatingScale(criteria[score.criterion_id].scale)]
        if not steps[0] <= score.value <= steps[-1]:
            raise InvalidAnswer(_("A score is outside its criterion’s scale."), field="rubric_scores")
        check_text(score.reason, "rubric_scores")


def check_texts(answer: JudgmentAnswer, completions: Mapping[int, Completion]) -> None:
    """Refuse corrections, critiques and a demonstration that say nothing or cannot be stored."""
    refuse_doubles("corrections", "correction", [c.completion_id for c in answer.corrections])
    for correction in answer.corrections:
        _known_completion(correction.completion_id, completions, "corrections", "The correction")
        check_text(correction.text, "corrections")
    refuse_doubles("critiques", "critique", [c.completion_id for c in answer.critiques])
    for critique in answer.critiques:
        _known_completion(critique.completion_id, completions, "critiques", "The critique")
        check_text(critique.text, "critiques")
        if not critique.text.strip():
            raise InvalidAnswer(_("A critique says nothing. Write it, or leave it out."), field="critiques")
    check_text(answer.demonstration, "demonstration")
    if answer.demonstration and not answer.demonstration.strip():
        raise InvalidAnswer(
            _("Your own response is empty. Write it, or leave it out."), field="demonstration"
        )


def _known_completion(pk: int, completions: Mapping[int, Completion], name: str, what: str) -> Completion:
    if pk not in completions:
        raise InvalidAnswer(
            _("%(what)s refers to a response that is not in this comparison.") % {"what": what}, field=name
        )
    return completions[pk]


def _known_category(
    pk: int, categories: Mapping[int, Category], scope: CategoryScope, name: str, what: str
) -> Category:
    category = categories.get(pk)
    if category is None:
        raise InvalidAnswer(
            _("%(what)s has a category that this project does not have.") % {"what": what}, field=name
        )
    if category.scope != scope:
        raise InvalidAnswer(
            _("%(what)s has the category %(category)s, which is for %(scope)s.")
            % {"what": what, "category": repr(category.label), "scope": CategoryScope(category.scope).label},
            field=name,
        )
    return category


def refuse_doubles(name: str, what: str, keys: Iterable[Any]) -> None:
    """Refuse what is there twice, naming its number."""
    seen = set()
    for number, key in enumerate(keys, start=1):
        if key in seen:
            raise InvalidAnswer(
                _("The %(what)s %(number)s is there twice; take one away.")
                % {"what": what, "number": number},
                field=name,
            )
        seen.add(key)

"""Check a judgment part by part before it is stored; each refusal names its field."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from annotation.agreement.records import K, unordered_among
from annotation.choices import SCALE_VALUES, CategoryScope, RatingScale, Verdict
from annotation.errors import InvalidAnswer, StaleAnswer
from annotation.models import (
    Category,
    Comparison,
    Completion,
    Continuation,
    Criterion,
    Project,
    Prompt,
    QuestionVersion,
    RubricVersion,
    TraceStep,
)
from annotation.record.judgment import (
    AnswerPart,
    CorrectionPart,
    EvidencePointer,
    JudgmentRecord,
    MissingPart,
    RatingPart,
    RubricScorePart,
    SpanPart,
    StepLabelPart,
    Target,
)
from annotation.record.questions import Question, Targets, in_order_of_choices, shown_places
from annotation.selectors.configuration import Configuration, configuration_of, question_in
from annotation.text.edits import applied, changing, is_faithful

# Missing parts of an annotation, in words: form, service and API say it alike.
#
# static/js/label.js and label-answers.js say the same before anything is sent; a test holds them to this
# table.


class Incomplete(Enum):
    """One thing that is missing, and the sentence that asks for it."""

    PAIR = gettext_lazy("Choose the better response, or a no-preference option.")
    RANKING = gettext_lazy("Rank the responses, or choose a no-preference option.")
    SEEN = gettext_lazy("Confirm that you reviewed it, or choose “cannot judge”.")
    RATINGS = gettext_lazy("Rate the responses, or choose “cannot judge”.")
    DEMONSTRATION = gettext_lazy("Write your own response, or choose “cannot judge”.")

    def __str__(self) -> str:
        return str(self.value)


# ── Parts ───────────────────────────────────────────────────────────────────────────────


def check_evidence(prompt: Prompt, pointer: EvidencePointer, number: int) -> None:
    """Refuse a passage or sentence that the prompt does not have. number: of the missing info, from 1."""
    passages: Sequence[Mapping[str, Any]] = prompt.context
    passage, sentence = pointer.passage, pointer.sentence
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
    if sentence is not None and not 0 <= sentence < len(sentences):
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
    span: SpanPart,
    number: int,
    completions: Mapping[str, Completion],
    categories: Mapping[str, Category],
    *,
    severity_asked: bool,
) -> None:
    """Refuse a mark that does not stand on its quote, or has not the severity that its category asks."""
    check_text(span.quote, "span_flags")
    where = {"number": number, "start": span.start, "end": span.end, "quote": span.quote[:40]}
    completion = _known_completion(
        span.completion,
        completions,
        "span_flags",
        _(
            "Span %(number)s (%(start)s–%(end)s, “%(quote)s”) refers to a response that is not in this "
            "comparison."
        ),
        **where,
    )
    category = categories.get(span.category)
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
    if severity_asked and category.needs_note and not span.note.strip():
        raise InvalidAnswer(
            "span_note_missing",
            _("Span %(number)s (%(start)s–%(end)s, “%(quote)s”) needs a note: “%(category)s” asks for one."),
            field="span_flags",
            category=category.full_label,
            **where,
        )
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


def _check_is_not_split(span: SpanPart, number: int, category: Category, configured: Configuration) -> None:
    """Refuse a span of a category that has sub-categories, naming them."""
    if category.pk not in configured.split_categories:
        return
    parts = [row.label for row in configured.asked_categories if row.parent_id == category.pk]
    raise InvalidAnswer(
        "subcategory_missing",
        _(
            "Span %(number)s (%(start)s–%(end)s, “%(quote)s”) needs a sub-category of “%(category)s”: "
            "%(parts)s."
        ),
        field="span_flags",
        category=category.label,
        parts=", ".join(parts),
        number=number,
        start=span.start,
        end=span.end,
        quote=span.quote[:40],
    )


def _check_relations(answer: JudgmentRecord) -> None:
    """Refuse a relation of a span to itself or to none of the judgment, and one that is there twice."""
    for number, span in enumerate(answer.spans, start=1):
        for link in span.relations:
            if link.to >= len(answer.spans) or link.to == number - 1:
                raise InvalidAnswer(
                    "span_relation_without_other",
                    _("Span %(number)s relates to no other span of the annotation. Take the relation away."),
                    field="span_flags",
                    number=number,
                )
        if len(set(span.relations)) < len(span.relations):
            raise InvalidAnswer(
                "span_relation_twice",
                _("Span %(number)s has a relation twice. Take one away."),
                field="span_flags",
                number=number,
            )


def _check_severity(
    span: SpanPart, category: Category, where: Mapping[str, object], *, is_asked: bool
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
    missing: MissingPart,
    number: int,
    prompt: Prompt,
    completions: Mapping[str, Completion],
    categories: Mapping[str, Category],
) -> None:
    """Refuse missing info that says nothing, or points where nothing is."""
    completion = _known_completion(
        missing.completion,
        completions,
        "missing_info",
        _("Missing info %(number)s refers to a response that is not in this comparison."),
        number=number,
    )
    category = categories.get(missing.category)
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
    if not missing.evidence and not missing.text.strip():
        raise InvalidAnswer(
            "missing_info_empty",
            _("Missing info %(number)s says neither what is missing nor where it stands."),
            field="missing_info",
            number=number,
        )
    for pointer in missing.evidence:
        check_evidence(prompt, pointer, number)


def check_step_labels(labels: Sequence[StepLabelPart], completions: Mapping[str, Completion]) -> None:
    """Refuse a label that is not known, and one of a step that is not there or not the agent's."""
    if not labels:
        return
    refuse_doubles(
        "step_labels",
        _("Step label %(number)s is there twice; take one away."),
        [(step_label.completion, step_label.step) for step_label in labels],
    )
    for label in labels:
        _known_completion(
            label.completion,
            completions,
            "step_labels",
            _("A step label refers to a response that is not in this comparison."),
        )
    steps = {
        (str(step.completion_id), step.index): step
        for step in _steps_of({step_label.completion for step_label in labels})
    }
    for label in labels:
        step = steps.get((label.completion, label.step))
        if step is None:
            raise InvalidAnswer(
                "unknown_step",
                _("A step label is of step %(step)s; its response has %(steps)s, counted from 0."),
                field="step_labels",
                step=repr(label.step)[:40],
                steps=completions[label.completion].step_count,
            )
        if not step.is_agents:
            raise InvalidAnswer(
                "step_not_agents",
                _("Step %(step)s is not the agent's. Label the steps of the assistant alone."),
                field="step_labels",
                step=label.step,
            )


def _steps_of(completions: Collection[str]) -> Iterable[TraceStep]:
    steps = TraceStep.objects.filter(completion__in=set(map(int, completions))).order_by("index")
    return steps.only("completion_id", "index", "kind", "role")


def check_ratings(
    ratings: Sequence[RatingPart],
    completions: Mapping[str, Completion],
    criteria: Sequence[Criterion],
    *,
    whole: bool,
) -> None:
    """Refuse ratings off their scale and, where they must be `whole`, answers that lack one that is asked."""
    known = {criterion.key: criterion for criterion in criteria}
    refuse_doubles(
        "ratings",
        _("Rating %(number)s is there twice; take one away."),
        [(r.completion, r.criterion) for r in ratings],
    )
    for rating in ratings:
        _known_completion(
            rating.completion,
            completions,
            "ratings",
            _("A rating refers to a response that is not in this comparison."),
        )
        criterion = known.get(rating.criterion)
        if criterion is None:
            raise InvalidAnswer(
                "unknown_criterion",
                _("A rating is by a criterion that this project does not have."),
                field="ratings",
            )
        scale = RatingScale(criterion.scale)
        if rating.value not in SCALE_VALUES[scale]:
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
    rated = {(rating.completion, rating.criterion) for rating in ratings}
    for criterion in criteria:
        if criterion.is_archived:
            continue
        left = sum((pk, criterion.key) not in rated for pk in completions)
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
    scores: Sequence[RubricScorePart], completions: Sequence[str], rubric: RubricVersion | None
) -> None:
    """Refuse scores unless every completion is scored by every criterion of the rubric, within its scale."""
    criteria = {} if rubric is None else {row.key: row for row in rubric.criteria.all()}
    if not scores and not criteria:
        return
    scored = [(score.completion, score.criterion) for score in scores]
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
        steps = SCALE_VALUES[RatingScale(criteria[score.criterion].scale)]
        if not steps[0] <= score.value <= steps[-1]:
            raise InvalidAnswer(
                "score_off_scale", _("A score is outside its criterion’s scale."), field="rubric_scores"
            )
        check_text(score.reason, "rubric_scores")


def check_texts(answer: JudgmentRecord, completions: Mapping[str, Completion]) -> None:
    """Refuse corrections, critiques and a demonstration that say nothing or cannot be stored."""
    refuse_doubles(
        "corrections",
        _("Rewrite %(number)s is there twice; take one away."),
        [c.completion for c in answer.corrections],
    )
    for correction in answer.corrections:
        _known_completion(
            correction.completion,
            completions,
            "corrections",
            _("A rewrite refers to a response that is not in this comparison."),
        )
        check_text(correction.text, "corrections")
    refuse_doubles(
        "critiques",
        _("Critique %(number)s is there twice; take one away."),
        [c.completion for c in answer.critiques],
    )
    for critique in answer.critiques:
        _known_completion(
            critique.completion,
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


# ── Answers to the questions of the project ─────────────────────────────────────────────


def earlier_versions(
    project: Project, answers: Sequence[AnswerPart], questions: Sequence[Question]
) -> dict[tuple[str, int], Question]:
    """Return the questions in the earlier versions that answers name. No query where they name none."""
    newest = {question.key: question.version for question in questions}
    named = {
        (part.question, part.version)
        for part in answers
        if part.version is not None and newest.get(part.question, part.version) != part.version
    }
    if not named:
        return {}
    rows = QuestionVersion.objects.filter(
        question__project=project,
        question__key__in={key for key, _number in named},
        number__in={number for _key, number in named},
    ).select_related("question__shown_when")
    return {(row.question.key, row.number): question_in(row.question, row) for row in rows}


def targets_in(answer: JudgmentRecord, completions: Sequence[str], questions: Sequence[Question]) -> Targets:
    """Return all that questions can be asked of. One query where there is a question about steps."""
    steps: dict[str, list[int]] = defaultdict(list)
    if any(question.subject == "step" for question in questions):
        for step in _steps_of(completions):
            if step.is_agents:
                steps[str(step.completion_id)].append(step.index)
    return Targets(
        completions=completions, steps=steps, spans=[(span.completion, span.place) for span in answer.spans]
    )


def check_answers(
    answer: JudgmentRecord,
    completions: Sequence[str],
    questions: Sequence[Question],
    earlier: Mapping[tuple[str, int], Question],
    *,
    whole: bool,
) -> tuple[AnswerPart, ...]:
    """Return the answers with their versions, in the order of the questions.

    Refuse one to a question, a version or a subject that is not there, one that its question does not
    accept, one where its question is not shown, and, where answers must be `whole`, the lack of a required
    one that is shown. earlier: questions in versions that are no longer asked, by key and version.
    """
    if not answer.answers and not any(question.is_required for question in questions):
        return ()
    refuse_doubles(
        "answers",
        _("Answer %(number)s is there twice; take one away."),
        [(part.question, part.target) for part in answer.answers],
    )
    by_key = {question.key: question for question in questions}
    targets = targets_in(answer, completions, questions)
    known = {subject: frozenset(targets.of(subject)) for subject in {q.subject for q in questions}}
    checked = [
        _checked_answer(part, number, known, by_key, earlier)
        for number, part in enumerate(answer.answers, start=1)
    ]
    if whole:
        _check_shown(answer, checked, targets, questions)
    order = {question.key: place for place, question in enumerate(questions)}
    places = {completion: place for place, completion in enumerate(completions)}

    def place(part: AnswerPart) -> tuple[Any, ...]:
        span = part.span or ("", 0, 0)
        return order[part.question], places.get(part.completion or "", 0), part.step or 0, span[1:], span[0]

    return tuple(sorted(checked, key=place))


def _checked_answer(
    part: AnswerPart,
    number: int,
    known: Mapping[str, Collection[Target]],
    questions: Mapping[str, Question],
    earlier: Mapping[tuple[str, int], Question],
) -> AnswerPart:
    asked = questions.get(part.question)
    if asked is None:
        raise InvalidAnswer(
            "unknown_question",
            _("Answer %(number)s is to “%(key)s”, which this project does not ask. It asks %(known)s.")
            if questions
            else _("Answer %(number)s is to “%(key)s”, and this project asks no question of its own."),
            field="answers",
            number=number,
            key=part.question[:60],
            known=", ".join(questions),
        )
    question: Question | None = asked
    if part.version not in (None, asked.version):
        question = earlier.get((part.question, part.version or 0))
    if question is None:
        raise InvalidAnswer(
            "unknown_question_version",
            _("Answer %(number)s is to version %(version)s of “%(key)s”, which there is not."),
            field="answers",
            number=number,
            key=part.question,
            version=part.version,
        )
    if part.target not in known[question.subject]:
        raise InvalidAnswer(
            "answer_of_other_subject",
            {
                "comparison": _("“%(question)s” is asked of the comparison. Leave the response out."),
                "completion": _("“%(question)s” is asked of a response of this comparison. Name one."),
                "span": _("“%(question)s” is asked of a span. Name a span of this annotation."),
                "step": _("“%(question)s” is asked of a step of the agent. Name a response and its step."),
            }[question.subject],
            field="answers",
            question=question.text,
        )
    if not asked.is_asked_of(part.target):
        raise InvalidAnswer(
            "answer_of_other_category",
            _("“%(question)s” is asked of spans of these categories alone: %(categories)s. Leave it out."),
            field="answers",
            question=asked.text,
            categories=", ".join(asked.categories),
        )
    for text in part.value if isinstance(part.value, tuple) else (str(part.value),):
        check_text(text, "answers")
    if not question.accepts(part.value):
        raise InvalidAnswer(
            "invalid_answer_value",
            _("“%(question)s” is not answered by %(value)s. Give %(expected)s."),
            field="answers",
            question=question.text,
            value=", ".join(part.value)[:60] if isinstance(part.value, tuple) else str(part.value)[:60],
            expected=expected_answer(question),
        )
    return replace(part, version=question.version, value=in_order_of_choices(question, part.value))


def expected_answer(question: Question) -> str:
    """Return the values that answer a question, in words."""
    known = ", ".join(question.choice_keys)
    if question.kind == "choice":
        return _("one of %(known)s") % {"known": known}
    if question.kind == "choices":
        return _("some of %(known)s, each once") % {"known": known}
    if question.kind == "scale":
        keys = question.choice_keys
        return _("a whole number from %(least)s to %(most)s") % {"least": keys[0], "most": keys[-1]}
    if question.kind == "date":
        return _("a date as 2026-01-31")
    if question.kind == "text":
        return _("a text")
    least, most = (None if bound is None else f"{bound:g}" for bound in (question.least, question.most))
    if least is None and most is None:
        return _("a number")
    if most is None:
        return _("a number of at least %(least)s") % {"least": least}
    if least is None:
        return _("a number of at most %(most)s") % {"most": most}
    return _("a number from %(least)s to %(most)s") % {"least": least, "most": most}


def _check_shown(
    answer: JudgmentRecord,
    answers: Sequence[AnswerPart],
    targets: Targets,
    questions: Sequence[Question],
) -> None:
    """Refuse answers where nothing is asked, and the lack of one that is required."""
    shown = shown_places(questions, answers, targets)
    given = {(part.question, part.target) for part in answers}
    by_key = {question.key: question for question in questions}
    for key, _target in sorted(given - shown, key=str):
        raise InvalidAnswer(
            "answer_not_asked",
            _("“%(question)s” is not asked here. Leave it out."),
            field="answers",
            question=by_key[key].text,
        )
    if answer.verdict == Verdict.CANNOT_JUDGE:
        return
    for question in questions:
        lacking = [key for key, _target in shown - given if key == question.key]
        if question.is_required and lacking:
            is_alone = question.subject == "completion" and len(targets.completions) == 1
            raise InvalidAnswer(
                "answer_missing",
                {
                    "comparison": _("Answer “%(question)s”, or choose “cannot judge”."),
                    "completion": _("Answer “%(question)s” for each response, or choose “cannot judge”."),
                    "span": _("Answer “%(question)s” for each span, or choose “cannot judge”."),
                    "step": _("Answer “%(question)s” for each step of the agent, or choose “cannot judge”."),
                }["comparison" if is_alone else question.subject],
                field="answers",
                question=question.text,
            )


def _known_completion(
    pk: str, completions: Mapping[str, Completion], name: str, message: str, **params: object
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


# ── Rewrites ────────────────────────────────────────────────────────────────────────────


def check_rewrites(
    answer: JudgmentRecord, comparison: Comparison, completions: Mapping[str, Completion]
) -> list[CorrectionPart]:
    """Return the corrections with the edits that change something.

    Refuse edits that do not make their text of the completion's, a model's continuation that was not written
    for this comparison, and a span that the judgment does not have. One query where a model wrote a part.
    """
    named = {
        edit.origin.continuation
        for correction in answer.corrections
        for edit in correction.edits
        if edit.origin.continuation is not None
    }
    written = (
        Continuation.objects.filter(pk__in=named, assignment__comparison=comparison).in_bulk()
        if named
        else {}
    )
    spans = {(s.completion, s.category, s.start, s.end) for s in answer.spans}
    return [
        _checked(correction, completions[correction.completion], written, spans)
        for correction in answer.corrections
    ]


def _checked(
    correction: CorrectionPart,
    completion: Completion,
    written: Mapping[int, Continuation],
    spans: set[tuple[str, str, int, int]],
) -> CorrectionPart:
    edits = correction.edits
    if not edits:
        return correction
    if not is_faithful(completion.text, edits) or applied(completion.text, edits) != correction.text:
        raise StaleAnswer(
            "edits_contradict_text",
            _("The edits do not make the rewritten text of the stored response. Reload the page."),
            field="corrections",
        )
    for edit in edits:
        check_text(edit.replacement, "corrections")
        continuation = edit.origin.continuation
        if continuation is not None:
            model = written.get(continuation)
            if (
                model is None
                or model.completion_id != completion.pk
                or _plain(edit.replacement) not in _plain(model.text)
            ):
                raise InvalidAnswer(
                    "unknown_continuation",
                    _("A rewrite names a continuation of a model that does not hold its text."),
                    field="corrections",
                )
        if edit.origin.span is not None and (correction.completion, *edit.origin.span) not in spans:
            raise InvalidAnswer(
                "unknown_span",
                _("A rewrite names a span that this annotation does not have."),
                field="corrections",
            )
    return replace(correction, edits=changing(edits))


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n")


# ── The whole ───────────────────────────────────────────────────────────────────────────


NO_WINNER = (Verdict.EQUAL, Verdict.BOTH_GOOD, Verdict.BOTH_BAD)
"""Verdicts by which all completions share the first rank."""


def check_answer(
    *,
    comparison: Comparison,
    answer: JudgmentRecord,
    imported: bool = False,
    shown: Sequence[int] = (),
) -> JudgmentRecord:
    """The answer as it will be stored, or a refusal: ranks normalised, unchanged texts left out.

    What comes from a published set (`imported`) need not be what the project asks of its annotators.
    Asks the database for the completions, and for the project when its configuration changed. With the
    completions that were `shown`, only an answer that says something of one of them needs their texts.
    """
    needs_texts = not shown or answer.has_details
    texts = Completion.objects.filter(comparisons=comparison).order_by("pk") if needs_texts else ()
    completions = {str(completion.pk): completion for completion in texts}
    completion_ids = list(completions) if needs_texts else [str(pk) for pk in sorted(shown)]
    project = comparison.project
    configured = configuration_of(project)
    categories = {category.key: category for category in configured.categories}
    if not imported:
        _check_asked(project, answer, configured.asked_criteria, size=len(completion_ids))
    ranks = check_ranks(verdict=answer.verdict, ranks=answer.ranks, completion_ids=completion_ids)
    _check_strength(answer, size=len(completion_ids))
    check_text(answer.comment, "comment")
    for number, span in enumerate(answer.spans, start=1):
        check_span(span, number, completions, categories, severity_asked=not imported)
        if not imported:
            _check_is_not_split(span, number, categories[span.category], configured)
    _check_relations(answer)
    refuse_doubles(
        "span_flags",
        _("Span %(number)s is there twice; take one away."),
        [(s.completion, s.category, s.start, s.end) for s in answer.spans],
    )
    for number, missing in enumerate(answer.missing, start=1):
        check_missing(missing, number, comparison.prompt, completions, categories)
    check_step_labels(answer.step_labels, completions)
    check_ratings(answer.ratings, completions, configured.criteria, whole=not imported)
    check_texts(answer, completions)
    answers = check_answers(
        answer,
        completion_ids,
        configured.questions,
        earlier_versions(project, answer.answers, configured.questions),
        whole=not imported,
    )
    corrections = check_rewrites(answer, comparison, completions)
    changed = [c for c in corrections if imported or c.text != completions[c.completion].text]
    return replace(answer, ranks=ranks, corrections=tuple(changed), answers=answers)


def dense_ranks(ranks: Mapping[K, int], completion_ids: Iterable[K] = ()) -> dict[K, int]:
    """Return the same weak order with ranks 1, 2, 3, … and no gaps: {a: 1, b: 1, c: 3} → {a: 1, b: 1, c: 2}.

    completion_ids: all that are compared. Where ranks leave out one of them alone, it is the last.
    """
    place = {rank: number for number, rank in enumerate(sorted(set(ranks.values())), start=1)}
    dense = {completion: place[rank] for completion, rank in ranks.items()}
    rest = unordered_among(ranks, completion_ids)
    return {**dense, rest[0]: len(place) + 1} if len(rest) == 1 else dense


def check_ranks(*, verdict: str, ranks: Mapping[K, int], completion_ids: Iterable[K]) -> dict[K, int]:
    """Return the ranks of a verdict as they are stored, without gaps. Refuses what contradicts itself.

    The best of three or more may be ranked alone; the others are then below them, without an order.
    """
    if verdict not in Verdict.values:
        raise InvalidAnswer(
            "unknown_preference",
            _("The preference %(verdict)s is not known; choose one of %(values)s."),
            field="verdict",
            verdict=repr(verdict),
            values=", ".join(Verdict.values),
        )
    completion_ids = list(completion_ids)
    ranks = dict(ranks)
    if verdict in (Verdict.CANNOT_JUDGE, Verdict.NOT_ASKED):
        if ranks:
            raise InvalidAnswer(
                "ranks_without_order",
                _("“%(verdict)s” has no order; remove the ranks or choose another preference."),
                field="ranks",
                verdict=Verdict(verdict).label.capitalize(),
            )
        return {}
    if verdict in NO_WINNER:
        if len(completion_ids) < 2:
            raise InvalidAnswer(
                "single_response_equal", _("A single response cannot be equal to another."), field="verdict"
            )
        ranks = ranks or dict.fromkeys(completion_ids, 1)
    missing, others = set(completion_ids) - set(ranks), set(ranks) - set(completion_ids)
    is_partial = verdict == Verdict.RANKED and bool(ranks) and len(completion_ids) > 2
    if others or (missing and not is_partial):
        raise InvalidAnswer(
            "ranks_incomplete",
            _(
                "Rank every response of this comparison, and no other: %(asked)s are expected, "
                "%(ranked)s of them and %(others)s others are ranked."
            ),
            field="ranks",
            asked=len(completion_ids),
            ranked=len(set(ranks) & set(completion_ids)),
            others=len(others),
        )
    if any(type(rank) is not int or rank < 1 for rank in ranks.values()):
        raise InvalidAnswer("invalid_ranks", _("Ranks are whole numbers from 1, the best."), field="ranks")
    ranks = dense_ranks(ranks, completion_ids)
    tied = max(ranks.values()) == 1
    if verdict in NO_WINNER and not tied:
        raise InvalidAnswer(
            "ranks_contradict_preference",
            _("This preference names no winner, but the ranks do. Rank all responses 1, or choose “ranked”."),
            field="ranks",
        )
    if verdict == Verdict.RANKED and len(completion_ids) == 2 and tied:
        raise InvalidAnswer(
            "winner_missing",
            _("No response is ranked higher. Choose equal, both good, both bad, or cannot judge."),
            field="verdict",
        )
    return ranks


def _check_asked(
    project: Project, answer: JudgmentRecord, criteria: Sequence[Criterion], *, size: int
) -> None:
    """Refuse what the project does not ask, and the lack of the one thing that it does ask."""
    for present, is_asked, name, message in (
        (
            answer.strength is not None,
            project.ask_strength,
            "strength",
            _("This project does not ask how much better the winner is. Leave it out."),
        ),
        (
            bool(answer.spans),
            project.ask_span_flags,
            "span_flags",
            _("This project does not ask for spans. Leave them out."),
        ),
        (
            bool(answer.missing),
            project.ask_missing_info,
            "missing_info",
            _("This project does not ask what is missing. Leave it out."),
        ),
        (
            any(span.relations for span in answer.spans),
            project.ask_span_relations,
            "span_flags",
            _("This project does not ask for relations of spans. Leave them out."),
        ),
        (
            bool(answer.step_labels),
            project.ask_step_labels,
            "step_labels",
            _("This project does not ask for labels of steps. Leave them out."),
        ),
        (
            bool(answer.corrections),
            project.ask_correction,
            "corrections",
            _("This project does not ask for rewrites. Leave them out."),
        ),
        (
            bool(answer.critiques),
            project.ask_critique,
            "critiques",
            _("This project does not ask for critiques of single responses. Leave them out."),
        ),
        (
            bool(answer.comment),
            project.ask_comment,
            "comment",
            _("This project does not ask for a comment. Leave it out."),
        ),
        (
            bool(answer.demonstration),
            project.ask_demonstration,
            "demonstration",
            _("This project does not ask for a response of yours. Leave it out."),
        ),
    ):
        if present and not is_asked:
            raise InvalidAnswer("part_not_asked", message, field=name)
    if project.ask_verdict:
        if answer.verdict == Verdict.NOT_ASKED:
            remedy = Incomplete.PAIR if size > 1 else Incomplete.SEEN
            raise InvalidAnswer("preference_missing", str(remedy), field="verdict")
        return
    if answer.verdict == Verdict.CANNOT_JUDGE:
        return
    if answer.verdict != Verdict.NOT_ASKED:
        raise InvalidAnswer(
            "preference_not_asked",
            _("This project does not ask for a preference. Leave it out."),
            field="verdict",
        )
    if criteria and not answer.ratings:
        raise InvalidAnswer("ratings_missing", str(Incomplete.RATINGS), field="ratings")
    if project.ask_demonstration and not criteria and not answer.demonstration.strip():
        raise InvalidAnswer("demonstration_missing", str(Incomplete.DEMONSTRATION), field="demonstration")


def _check_strength(answer: JudgmentRecord, *, size: int) -> None:
    if answer.strength is None:
        return
    if size != 2 or answer.verdict != Verdict.RANKED:
        raise InvalidAnswer(
            "strength_not_asked",
            _("How much better is asked only of a pair with a winner. Take the strength away."),
            field="strength",
        )
    if type(answer.strength) is not int or not 1 <= answer.strength <= 4:
        raise InvalidAnswer(
            "invalid_strength", _("Strength is a whole number from 1 to 4."), field="strength"
        )

"""Checks of rewrites: edits of a correction with their origins. Nothing here writes."""

from collections.abc import Mapping
from dataclasses import replace

from django.utils.translation import gettext as _

from annotation.errors import InvalidAnswer, StaleAnswer
from annotation.models import Comparison, Completion, Continuation
from annotation.services.judgments.inputs import CorrectionInput, JudgmentAnswer
from annotation.services.judgments.part_checks import check_text
from annotation.text.edits import applied
from annotation.text.rewrites import changing, is_faithful


def check_rewrites(
    answer: JudgmentAnswer, comparison: Comparison, completions: Mapping[int, Completion]
) -> list[CorrectionInput]:
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
    spans = {(s.completion_id, s.category_id, s.start, s.end) for s in answer.span_flags}
    return [
        _checked(correction, completions[correction.completion_id], written, spans)
        for correction in answer.corrections
    ]


def _checked(
    correction: CorrectionInput,
    completion: Completion,
    written: Mapping[int, Continuation],
    spans: set[tuple[int, int, int, int]],
) -> CorrectionInput:
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
        if edit.origin.span is not None and (completion.pk, *edit.origin.span) not in spans:
            raise InvalidAnswer(
                "unknown_span",
                _("A rewrite names a span that this annotation does not have."),
                field="corrections",
            )
    return replace(correction, edits=changing(edits))


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n")

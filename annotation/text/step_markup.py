"""Steps of a trace as pages show them, and their markup.

A page has hundreds of steps, and a template for each takes three times as long as a string.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from annotation.choices import StepLabel, TraceStepKind

# Alignment of two sequences by their longest common subsequence.


def aligned(left: Sequence[Hashable], right: Sequence[Hashable]) -> list[tuple[int | None, int | None]]:
    """Return rows of two sequences: what is equal stands in one row, all else in a row of its own.

    As many rows have both as a longest common subsequence has members. Between them what stands only on the
    left comes first. Hyyrö (2004): a row of the table is the bits of one number, so a thousand members cost
    milliseconds.
    """
    places: dict[Hashable, int] = {}
    for place, member in enumerate(right):
        places[member] = places.get(member, 0) | 1 << place
    whole = (1 << len(right)) - 1
    rows = [whole]
    for member in left:
        row = rows[-1]
        matches = row & places.get(member, 0)
        rows.append(((row + matches) | (row - matches)) & whole)
    pairs: list[tuple[int | None, int | None]] = []
    i, j = len(left), len(right)
    while i and j:
        if rows[i] >> (j - 1) & 1:
            j -= 1
            pairs.append((None, j))
        elif not rows[i - 1] >> (j - 1) & 1:
            i -= 1
            pairs.append((i, None))
        else:
            i, j = i - 1, j - 1
            pairs.append((i, j))
    pairs += [(place, None) for place in reversed(range(i))] if i else []
    pairs += [(None, place) for place in reversed(range(j))] if j else []
    return pairs[::-1]


_STEP = (
    '<div class="step" data-step data-kind="{}" data-column="{}"{}><details class="step__fold"{}>'
    '<summary class="step__head"><span class="step__number number">{}</span> '
    '<span class="step__title">{}</span>'
    '{}{} <span class="step__preview">{}</span></summary>'
    '<div class="step__body"><pre class="step__text" dir="auto">\n{}</pre>{}</div></details>{}{}</div>'
)
_MORE = (
    '<a class="button button--small step__more" href="{}?from={}" data-more>{} <span data-left>{}</span></a>'
)
_LABEL = (
    '<label class="step__label" data-value="{}" title="{}"><input type="radio" name="{}" value="{}" '
    'data-label="{}"{}><span aria-hidden="true">{}</span><span class="visually-hidden">{}</span></label>'
)
_SIGNS = {StepLabel.CORRECT: "✓", StepLabel.WRONG: "✗", StepLabel.UNNECESSARY: "∅"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownStep:
    """One step in a page."""

    index: int
    kind: str
    title: str
    tool: str
    is_error: bool
    preview: str
    """The beginning of its text, on one line."""
    body: str
    left: int
    """Number of characters that are not in the page."""
    address: str
    column: str
    """Names the trace among those of the page."""
    field: str = ""
    """Name of the form's field with its label; empty where none is asked."""
    chosen: str = ""
    labels: Sequence[tuple[str, str, str]] = ()
    """Labels that it got: value, word, names of the annotators."""
    questions: str = ""
    """The markup of the project's questions about it."""

    @property
    def number(self) -> int:
        """The number that people see."""
        return self.index + 1

    @property
    def is_open(self) -> bool:
        """True for messages, which are read; thoughts and tools are looked into."""
        return self.kind == TraceStepKind.MESSAGE

    @property
    def markup(self) -> SafeString:
        """The step, folded unless it is a message; static/js/steps.js walks, folds, labels and loads.

        Without JavaScript it folds all the same, and a long text goes on on a page of its own.
        """
        return _markup(self)


def _markup(step: ShownStep) -> SafeString:
    tool = format_html(' <code class="step__tool">{}</code>', step.tool) if step.tool else ""
    failed = format_html(' <span class="badge badge--bad">{}</span>', _("failed")) if step.is_error else ""
    more = ""
    if step.left:
        more = format_html(_MORE, step.address, len(step.body), _("Show more, characters left:"), step.left)
    return format_html(
        _STEP,
        *(step.kind, step.column, SafeString(" data-error") if step.is_error else ""),
        SafeString(" open") if step.is_open else "",
        *(step.number, step.title, tool, failed, step.preview, step.body, more),
        _fields(step) if step.field else _labels(step),
        format_html('<div class="step__questions" data-of="{}">{}</div>', step.column, step.questions)
        if step.questions
        else "",
    )


def _fields(step: ShownStep) -> SafeString:
    words = [(label, str(label.label)) for label in StepLabel]
    return format_html(
        '<fieldset class="step__labels" data-step-label>'
        '<legend class="visually-hidden">{}</legend>{}</fieldset>',
        _("Step %(number)s, %(title)s") % {"number": step.number, "title": step.title},
        format_html_join(
            "",
            _LABEL,
            (
                (
                    *(label.value, word, step.field, label.value, word),
                    SafeString(" checked") if step.chosen == label else "",
                    *(_SIGNS[label], word),
                )
                for label, word in words
            ),
        ),
    )


def _labels(step: ShownStep) -> SafeString:
    """The labels that the step got, with the names of who gave them."""
    if not step.labels:
        return SafeString()
    return format_html(
        '<p class="step__given">{}</p>',
        format_html_join(
            "",
            '<span class="badge" data-value="{}" title="{}">{}'
            '<span class="visually-hidden"> {}</span></span>',
            ((value, names, word, names) for value, word, names in step.labels),
        ),
    )

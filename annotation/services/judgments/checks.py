"""Checks of a judgment of one comparison.

Nothing here writes. `check_answer` returns the answer as it will be stored or refuses it,
naming the part that is wrong.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from django.utils.translation import gettext as _

from annotation.agreement.records import unordered_among
from annotation.choices import Verdict
from annotation.errors import InvalidAnswer
from annotation.models import Comparison, Completion, Criterion, Project
from annotation.selectors.configuration import configuration_of
from annotation.services.judgments.incomplete import Incomplete
from annotation.services.judgments.inputs import (
    CorrectionInput,
    CritiqueInput,
    EvidencePointer,
    JudgmentAnswer,
    MissingInfoInput,
    RatingInput,
    SpanFlagInput,
    StepLabelInput,
)
from annotation.services.judgments.part_checks import (
    Evidence,
    check_missing,
    check_ratings,
    check_span,
    check_step_labels,
    check_text,
    check_texts,
    evidence_of,
    refuse_doubles,
)
from annotation.services.judgments.rewrite_checks import check_rewrites

__all__ = [
    "NO_WINNER",
    "CorrectionInput",
    "CritiqueInput",
    "Evidence",
    "EvidencePointer",
    "JudgmentAnswer",
    "MissingInfoInput",
    "RatingInput",
    "SpanFlagInput",
    "StepLabelInput",
    "check_answer",
    "check_ranks",
    "dense_ranks",
    "evidence_of",
]

NO_WINNER = (Verdict.EQUAL, Verdict.BOTH_GOOD, Verdict.BOTH_BAD)
"""Verdicts by which all completions share the first rank."""

_LARGEST_SECONDS = 2_147_483_647


def check_answer(
    *,
    comparison: Comparison,
    answer: JudgmentAnswer,
    imported: bool = False,
    shown: Sequence[int] = (),
) -> JudgmentAnswer:
    """The answer as it will be stored, or a refusal: ranks normalised, unchanged texts left out.

    What comes from a published set (`imported`) need not be what the project asks of its annotators.
    Asks the database for the completions, and for the project when its configuration changed. With the
    completions that were `shown`, only an answer that says something of one of them needs their texts.
    """
    needs_texts = not shown or answer.has_details
    completions = Completion.objects.filter(comparisons=comparison).in_bulk() if needs_texts else {}
    completion_ids = sorted(completions) if needs_texts else sorted(shown)
    project = comparison.project
    configured = configuration_of(project)
    categories = {category.pk: category for category in configured.categories}
    if answer.verdict not in Verdict.values:
        raise InvalidAnswer(
            "unknown_preference",
            _("The preference %(verdict)s is not known; choose one of %(values)s."),
            field="verdict",
            verdict=repr(answer.verdict),
            values=", ".join(Verdict.values),
        )
    if not imported:
        _check_asked(project, answer, configured.asked_criteria, size=len(completion_ids))
    ranks = _check_ranks(answer, completion_ids)
    _check_strength(answer, size=len(completion_ids))
    check_text(answer.comment, "comment")
    _check_seconds(answer.active_seconds)
    for number, span in enumerate(answer.span_flags, start=1):
        check_span(span, number, completions, categories, severity_asked=not imported)
    refuse_doubles(
        "span_flags",
        _("Span %(number)s is there twice; take one away."),
        [(s.completion_id, s.category_id, s.start, s.end) for s in answer.span_flags],
    )
    for number, missing in enumerate(answer.missing_info, start=1):
        check_missing(missing, number, comparison.prompt, completions, categories)
    check_step_labels(answer.step_labels, completions)
    check_ratings(answer.ratings, completions, configured.criteria, whole=not imported)
    check_texts(answer, completions)
    corrections = check_rewrites(answer, comparison, completions)
    changed = [c for c in corrections if imported or c.text != completions[c.completion_id].text]
    return replace(answer, ranks=ranks, corrections=tuple(changed))


def dense_ranks(ranks: Mapping[int, int], completion_ids: Iterable[int] = ()) -> dict[int, int]:
    """Return the same weak order with ranks 1, 2, 3, … and no gaps: {a: 1, b: 1, c: 3} → {a: 1, b: 1, c: 2}.

    completion_ids: all that are compared. Where ranks leave out one of them alone, it is the last.
    """
    place = {rank: number for number, rank in enumerate(sorted(set(ranks.values())), start=1)}
    dense = {completion: place[rank] for completion, rank in ranks.items()}
    rest = unordered_among(ranks, completion_ids)
    return {**dense, rest[0]: len(place) + 1} if len(rest) == 1 else dense


def check_ranks(*, verdict: str, ranks: Mapping[int, int], completion_ids: Iterable[int]) -> dict[int, int]:
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
    return _check_ranks(JudgmentAnswer(verdict=verdict, ranks=ranks), sorted(completion_ids))


def _check_asked(
    project: Project, answer: JudgmentAnswer, criteria: Sequence[Criterion], *, size: int
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
            bool(answer.span_flags),
            project.ask_span_flags,
            "span_flags",
            _("This project does not ask for spans. Leave them out."),
        ),
        (
            bool(answer.missing_info),
            project.ask_missing_info,
            "missing_info",
            _("This project does not ask what is missing. Leave it out."),
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


def _check_ranks(answer: JudgmentAnswer, completion_ids: Sequence[int]) -> dict[int, int]:
    ranks = dict(answer.ranks)
    if answer.verdict in (Verdict.CANNOT_JUDGE, Verdict.NOT_ASKED):
        if ranks:
            raise InvalidAnswer(
                "ranks_without_order",
                _("“%(verdict)s” has no order; remove the ranks or choose another preference."),
                field="ranks",
                verdict=Verdict(answer.verdict).label.capitalize(),
            )
        return {}
    if answer.verdict in NO_WINNER:
        if len(completion_ids) < 2:
            raise InvalidAnswer(
                "single_response_equal", _("A single response cannot be equal to another."), field="verdict"
            )
        ranks = ranks or dict.fromkeys(completion_ids, 1)
    missing, others = set(completion_ids) - set(ranks), set(ranks) - set(completion_ids)
    is_partial = answer.verdict == Verdict.RANKED and bool(ranks) and len(completion_ids) > 2
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
    if answer.verdict in NO_WINNER and not tied:
        raise InvalidAnswer(
            "ranks_contradict_preference",
            _("This preference names no winner, but the ranks do. Rank all responses 1, or choose “ranked”."),
            field="ranks",
        )
    if answer.verdict == Verdict.RANKED and len(completion_ids) == 2 and tied:
        raise InvalidAnswer(
            "winner_missing",
            _("No response is ranked higher. Choose equal, both good, both bad, or cannot judge."),
            field="verdict",
        )
    return ranks


def _check_strength(answer: JudgmentAnswer, *, size: int) -> None:
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


def _check_seconds(seconds: int | None) -> None:
    if seconds is not None and (type(seconds) is not int or not 0 <= seconds <= _LARGEST_SECONDS):
        raise InvalidAnswer(
            "invalid_active_time",
            _("Active time is a whole number of seconds, 0 or more."),
            field="active_seconds",
        )

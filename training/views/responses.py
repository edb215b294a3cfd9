"""Responses side by side, as their template shows them: blind until the vote."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from annotation.choices import Verdict
from annotation.models import Completion, Judgment
from annotation.text.edits import DiffPiece, sides
from annotation.text.identity import with_rest
from annotation.text.rendering import render_markdown
from training.models import ArenaBallot, SideBySide, SideBySideAnswer
from training.selectors.base_models import same_tokenizer

_SHADES = 4
_KL_OF_FULL_SHADE = 2.0
"""Nats: a token that the reference took for seven times less likely is as dark as it gets."""
_OF_MANY = {
    Verdict.EQUAL: gettext_lazy("all equal"),
    Verdict.BOTH_GOOD: gettext_lazy("all good"),
    Verdict.BOTH_BAD: gettext_lazy("all bad"),
}
"""Verdicts without a winner, of more than two responses."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """A stretch of a response with a number and its colour."""

    text: str
    value: float | None
    shade: str
    """A class, from shade-n4 (lowest) to shade-p4; empty for none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Response:
    """One of the responses side by side. While names are hidden it holds its position and text only."""

    position: int
    written: bool = True
    html: str = ""
    """The rendered text, in an arena."""
    pieces: Sequence[DiffPiece] = ()
    """The text side by side, with the difference from the first; one piece while hidden."""
    name: str = ""
    url: str = ""
    rank: int | None = None
    """From the vote, 1 best."""
    is_unordered: bool = False
    """True where the vote leaves it below the ranked ones, without an order."""
    answer: SideBySideAnswer | None = None
    """The stored row with its figures."""
    heads: Sequence[tuple[str, Sequence[float]]] = ()
    segments: Sequence[tuple[str, Sequence[Stretch]]] = ()
    tokens: Sequence[Stretch] = ()
    kl_sum: float | None = None
    kl_is_hidden: bool = False
    """True if the divergence was measured and is not shown, because the models have different tokenizers."""


def responses_of(shown: SideBySide) -> list[Response]:
    """Return the responses of a side by side in their order, with their differences and figures."""
    answers = list(shown.answers.select_related("checkpoint__base"))
    if shown.is_hidden:
        return [
            Response(
                position=answer.position, written=answer.written_at is not None, pieces=_plain(answer.text)
            )
            for answer in answers
        ]
    texts = [answer.text for answer in answers]
    ranks = _ranks(shown.judgment)
    # The divergence of one token compares with that of another only where both models have the same tokens.
    comparable = same_tokenizer(*(answer.checkpoint.base for answer in answers))
    return [
        Response(
            position=answer.position,
            written=answer.written_at is not None,
            pieces=_pieces(texts, place),
            name=answer.checkpoint.name,
            url=answer.checkpoint.get_absolute_url(),
            rank=ranks.get(answer.checkpoint.source_id),
            is_unordered=bool(ranks) and answer.checkpoint.source_id not in ranks,
            answer=answer,
            heads=sorted(answer.heads.items()),
            segments=_segments(answer),
            tokens=_stretches(answer.text, answer.token_kl, _KL_OF_FULL_SHADE) if comparable else (),
            kl_sum=sum(token[2] for token in answer.token_kl) if answer.token_kl and comparable else None,
            kl_is_hidden=bool(answer.token_kl) and not comparable,
        )
        for place, answer in enumerate(answers)
    ]


def responses_on(ballot: ArenaBallot) -> list[Response]:
    """Return the two responses on a ballot; the names of their models with the vote and not before."""
    judgment = ballot.judgment
    completions = Completion.objects.select_related("source").in_bulk(ballot.display_order)
    ranks = _ranks(judgment)
    return [
        Response(
            position=position,
            html=render_markdown(completions[pk].text),
            name=completions[pk].source.name if judgment else "",
            rank=ranks.get(completions[pk].source_id),
        )
        for position, pk in enumerate(ballot.display_order, start=1)
    ]


def vote_in_words(judgment: Judgment | None, responses: Sequence[Response]) -> str:
    """Return a vote as "response 1 is better", "2 > 1 = 3", with what it leaves unordered, or "all good";
    empty without one."""
    if judgment is None:
        return ""
    places: dict[int, list[int]] = {}
    for response in responses:
        if response.rank is not None:
            places.setdefault(response.rank, []).append(response.position)
    if judgment.verdict != Verdict.RANKED or not places:
        verdict = Verdict(judgment.verdict)
        return str(_OF_MANY.get(verdict, verdict.label) if len(responses) > 2 else verdict.label)
    tiers = [sorted(positions) for _rank, positions in sorted(places.items())]
    if len(responses) == 2 and len(tiers) == 2:
        return _("response %(number)s is better") % {"number": tiers[0][0]}
    rest = [str(response.position) for response in responses if response.is_unordered]
    return with_rest(" > ".join(" = ".join(map(str, tier)) for tier in tiers), rest)


def _ranks(judgment: Judgment | None) -> dict[int | None, int]:
    """Return source → rank of a ranking. The assignment may hold the order of an earlier page."""
    if judgment is None or judgment.verdict != Verdict.RANKED:
        return {}
    return dict(judgment.ranks.values_list("completion__source_id", "rank"))


def _pieces(texts: Sequence[str], place: int) -> Sequence[DiffPiece]:
    """Return the difference from the first response; of the first, from the second where there are two."""
    if place:
        return sides(texts[0], texts[place])[1]
    if len(texts) == 2 and texts[1]:
        return sides(texts[0], texts[1])[0]
    return _plain(texts[0])


def _plain(text: str) -> Sequence[DiffPiece]:
    return [DiffPiece("same", text)] if text else []


def _segments(answer: SideBySideAnswer) -> list[tuple[str, list[Stretch]]]:
    segments = []
    for head, rewards in sorted(answer.segments.items()):
        largest = max((abs(reward) for _start, _end, reward in rewards), default=0.0)
        segments.append((head, _stretches(answer.text, rewards, largest)))
    return segments


def _stretches(text: str, values: Sequence[Sequence[float]], largest: float) -> list[Stretch]:
    """Return the whole text in stretches, those without a number included."""
    stretches = []
    place = 0
    for start, end, value in values:
        low, high = max(int(start), place), int(end)
        if high <= low:
            continue
        if low > place:
            stretches.append(Stretch(text=text[place:low], value=None, shade=""))
        stretches.append(Stretch(text=text[low:high], value=value, shade=_shade(value, largest)))
        place = high
    if place < len(text):
        stretches.append(Stretch(text=text[place:], value=None, shade=""))
    return stretches


def _shade(value: float, largest: float) -> str:
    level = min(_SHADES, round(abs(value) / largest * _SHADES)) if largest else 0
    return f"shade-{'p' if value >= 0 else 'n'}{level}" if level else ""

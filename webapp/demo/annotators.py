"""Simulated annotators of the demo project: careful, hasty, tired, and one who prefers what stands first."""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from annotation.choices import Verdict
from annotation.models import Assignment, Category, Completion, Project, User
from annotation.record.judgment import JudgmentRecord, MissingPart, SpanPart
from webapp.demo.clock import Clock
from webapp.demo.desk import Desk, shown_in
from webapp.demo.texts import Response, topics_by_question

_TIE = 0.45
"""Responses whose quality seems closer than this share a rank."""
_GOOD, _BAD = 2.6, -0.4
_QUESTIONS = (
    "Does a false claim outweigh a long list of correct tips?",
    "The prompt asks for two sentences. Do we count them strictly?",
    "Is an aside still irrelevant when it is short?",
)
_COMMENTS = (
    "The second half is padding.",
    "Correct, but hard to read.",
    "Both miss the main point.",
    "One claim is plainly wrong.",
    "Clear and to the point.",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Temper:
    """Traits of a simulated annotator."""

    name: str
    noise: float = 0.7
    """Standard deviation of the quality that they perceive."""
    first_bias: float = 0.0
    """Added to the quality of what is shown first."""
    sees_flaw: float = 0.6
    """Probability of marking a flaw."""
    seconds: float = 45.0
    """Median time per comparison."""
    drift: float = 0.0
    """Added to the noise with each round."""
    skips: float = 0.01


TEMPERS = (
    Temper(name="ada", noise=0.45, sees_flaw=0.9, seconds=62),
    Temper(name="bruno", noise=0.6),
    Temper(name="chiara", noise=0.55, sees_flaw=0.75),
    Temper(name="dmitri", first_bias=1.1),
    Temper(name="esra", noise=0.65, seconds=38),
    Temper(name="femi", noise=0.8, skips=0.04),
    Temper(name="greta", noise=0.5, drift=0.9),
    Temper(name="hiro", noise=0.6, seconds=55),
    Temper(name="ines", noise=0.75),
    Temper(name="jonas", noise=4.0, sees_flaw=0.05, seconds=7),
    Temper(name="kiran", noise=0.6, sees_flaw=0.7),
    Temper(name="lena", noise=0.7, seconds=50),
)
"""`jonas` answers nearly at random and in seconds, `greta` gets worse with every round."""


class Annotator:
    """A simulated annotator at work in a project."""

    def __init__(
        self, user: User, temper: Temper, project: Project, responses: Mapping[str, Response], seed: int
    ) -> None:
        self.user = user
        self.temper = temper
        self._project = project
        self._responses = responses
        self._chance = Random(f"{seed}:{temper.name}")  # noqa: S311 - a demo
        self._categories = {category.key: category for category in Category.objects.filter(project=project)}

    def work(self, desk: Desk, clock: Clock, *, most: int, round_number: int) -> int:
        """Annotate up to `most` comparisons, one after the other; return how many there were."""
        done = 0
        while done < most and (assignment := desk.next(self.user)):
            seconds = max(3.0, self.temper.seconds * self._chance.lognormvariate(0, 0.5))
            clock.forward(seconds=seconds)
            done += 1
            if self._chance.random() < self.temper.skips:
                desk.skip(assignment, "I lack the knowledge")
                continue
            if self._chance.random() < 0.004:
                desk.ask(assignment, flag="The prompt is unclear", text=self._chance.choice(_QUESTIONS))
            key = uuid.UUID(int=self._chance.getrandbits(128), version=4)
            desk.submit(assignment, self.answer(assignment, round_number, seconds), key)
            clock.forward(seconds=self._chance.uniform(1, 6))
        return done

    def answer(self, assignment: Assignment, round_number: int, seconds: float) -> JudgmentRecord:
        """Return what they think of a comparison."""
        completions = shown_in(assignment)
        noise = self.temper.noise + self.temper.drift * (round_number - 1)
        perceived = {
            completion.pk: self._responses[completion.text].quality + self._chance.gauss(0, noise)
            for completion in completions
        }
        perceived[completions[0].pk] += self.temper.first_bias
        ranks = _ranks(perceived)
        verdict = Verdict.RANKED
        if len(set(ranks.values())) == 1:
            mean = sum(perceived.values()) / len(perceived)
            verdict = (
                Verdict.BOTH_GOOD if mean > _GOOD else Verdict.BOTH_BAD if mean < _BAD else Verdict.EQUAL
            )
        return JudgmentRecord(
            verdict=verdict,
            ranks={str(pk): rank for pk, rank in ranks.items()},
            spans=tuple(span for completion in completions for span in self._spans(completion)),
            missing=tuple(gap for completion in completions for gap in self._missing(completion, assignment)),
            comment=self._chance.choice(_COMMENTS) if self._chance.random() < 0.08 else "",
            active_seconds=round(seconds),
        )

    def _spans(self, completion: Completion) -> Iterator[SpanPart]:
        for flaw in self._responses[completion.text].flaws:
            if self._chance.random() > self.temper.sees_flaw:
                continue
            # Now and then somebody marks less than the whole sentence.
            end = flaw.end if self._chance.random() < 0.85 else flaw.start + (flaw.end - flaw.start) // 2
            yield SpanPart(
                completion=str(completion.pk),
                category=flaw.category,
                start=flaw.start,
                end=end,
                quote=completion.text[flaw.start : end],
                text_hash=completion.text_hash,
            )

    def _missing(self, completion: Completion, assignment: Assignment) -> Iterator[MissingPart]:
        topic = topics_by_question()[assignment.comparison.prompt.last_question]
        missing = [fact for fact in topic.facts if fact not in completion.text]
        if len(missing) > 2 and self._chance.random() < 0.15 * self.temper.sees_flaw:
            yield MissingPart(
                completion=str(completion.pk),
                category="missing",
                text=self._chance.choice(missing),
            )


def _ranks(perceived: Mapping[int, float]) -> dict[int, int]:
    """Return dense ranks, 1 best; neighbours that seem equally good share one."""
    ordered: Sequence[int] = sorted(perceived, key=lambda pk: -perceived[pk])
    ranks, rank = {ordered[0]: 1}, 1
    for better, pk in pairwise(ordered):
        rank += perceived[better] - perceived[pk] > _TIE
        ranks[pk] = rank
    return ranks

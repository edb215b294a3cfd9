"""Showcase of the demo project beside its rounds: a conversation, agent traces, suggestions, a comparison of
checkpoints, a rubric, and feedback of an application's end users."""

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from random import Random

from django.db import transaction

from annotation.choices import (
    JobState,
    SourceKind,
    Split,
    SuggestionDecision,
    SuggestionKind,
    TraceStepKind,
    Verdict,
)
from annotation.exchange.prompts import import_prompts
from annotation.models import (
    Assignment,
    Category,
    Comparison,
    Completion,
    CompletionSource,
    Conversation,
    HelpReveal,
    Project,
    Prompt,
    Suggestion,
    SuggestionSet,
    User,
)
from annotation.record.judgment import JudgmentRecord, MissingPart, SpanPart
from annotation.services.assignments.next import assign_next
from annotation.services.conversations import save_task
from annotation.services.judgments.submission import submit_judgment
from annotation.services.projects.rubrics import RubricCriterionInput, publish_rubric, save_rubric
from annotation.services.suggestions import (
    DecisionInput,
    SuggestionInput,
    finish_help,
    set_help,
    store_suggestions,
)
from annotation.services.texts import create_comparison, write_steps
from annotation.text.identity import content_hash, text_hash
from annotation.text.traces import UnwrittenStep, written
from training.choices import FeedbackKind
from training.models import ApplicationRequest, Checkpoint, SuggestionSource, TurnResponse
from training.selectors.conversations import standing_of
from training.services.conversations import begin, complete_turn, save_conversation_settings, say
from training.services.feedback.recording import NewFeedback, give_feedback
from training.services.feedback.settings import change_settings, create_key
from training.services.side_by_side import SharedSampling, ask_side_by_side, vote_side_by_side, write_answers
from training.services.suggestions import DEFAULT_TEMPLATE
from training.services.voting import VOTES
from webapp.demo.desk import DemoClock, Desk, shown_in
from webapp.demo.model_server import ScriptedModels
from webapp.demo.texts import DemoResponse, rewrite, topics_by_question

# Simulated annotators of the demo project: careful, hasty, tired, and one who prefers what stands first.

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
        self, user: User, temper: Temper, project: Project, responses: Mapping[str, DemoResponse], seed: int
    ) -> None:
        self.user = user
        self.temper = temper
        self._project = project
        self._responses = responses
        self._chance = Random(f"{seed}:{temper.name}")  # noqa: S311 - a demo
        self._categories = {category.key: category for category in Category.objects.filter(project=project)}

    def work(self, desk: Desk, clock: DemoClock, *, most: int, round_number: int) -> int:
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


ROUND = 3
_REQUESTS = 60
_HELPED, _COMPARISONS_WITH_HELP = 10, 6
"""Annotators who work with suggestions, and how many comparisons each."""
_TALK = ("How do I brew green tea?", "Give me three tips on green tea.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Showcase:
    """Parts of the showcase, and the state that they share."""

    project: Project
    manager: User
    visitor: User | None
    """An administrator who tries the demo: a conversation of theirs waits for a preference."""
    annotators: Sequence[Annotator]
    models: ScriptedModels
    clock: DemoClock
    chance: Random

    def add_all(self) -> None:
        """Add every part. Call it while the demo's checkpoints still have their files."""
        self._add_conversations()
        self._add_traces()
        self._add_suggestions()
        self._annotate_with_help()
        self._add_comparing()
        self._add_rubric()
        self._add_feedback()

    # ── conversations ──────────────────────────────────────────────────────────────────

    def _add_conversations(self) -> None:
        policy = Checkpoint.objects.get(project=self.project, name__endswith="round-1-policy")
        checkpoints = [policy.parent or Checkpoint.objects.get(project=None), policy]
        save_conversation_settings(project=self.project, actor=self.manager, checkpoints=checkpoints)
        save_task(
            project=self.project,
            actor=self.manager,
            name="First cup",
            instructions="You have never made green tea. Find out what you need and how long it takes.",
            language="English",
            least_turns=2,
        )
        ada = self.annotators[0]
        conversation = begin(project=self.project, annotator=ada.user)
        for question in _TALK:
            self._say(conversation, question)
            assignment = standing_of(conversation).assignment
            assert assignment is not None  # noqa: S101 - a turn with all its responses waits for a preference
            self.clock.forward(seconds=70)
            submit_judgment(
                assignment=assignment,
                annotator=ada.user,
                answer=ada.answer(assignment, ROUND, 70),
                idempotency_key=self._key(),
            )
        if self.visitor is not None:
            self._say(begin(project=self.project, annotator=self.visitor), _TALK[0])

    @transaction.atomic
    def _say(self, conversation: Conversation, question: str) -> None:
        """Add a turn, with responses as the models of the demo compose them; no worker sees it without."""
        turn = say(conversation=conversation, annotator=conversation.annotator, text=question)
        texts: set[str] = set()
        for response in TurnResponse.objects.filter(turn=turn).select_related("checkpoint"):
            # Two responses that say the same would leave nothing to judge.
            while not response.text or response.text in texts:
                response.seed = self.chance.getrandbits(31)
                body = {
                    "model": response.checkpoint.name,
                    "messages": [{"content": question}],
                    "seed": response.seed,
                }
                response.text = self.models.complete(body)["choices"][0]["message"]["content"]
            texts.add(response.text)
            response.finish_reason, response.written_at = "stop", self.clock.now
            response.save(update_fields=["text", "seed", "finish_reason", "written_at"])
        complete_turn(turn=turn)

    # ── agent traces ───────────────────────────────────────────────────────────────────

    def _add_traces(self) -> None:
        messages = [{"role": "user", "content": "Which train reaches Bern before nine tomorrow?"}]
        line = json.dumps({"prompt": messages, "tags": ["agent"]})
        import_prompts(project=self.project, lines=[line], name="agent.jsonl")
        prompt = Prompt.objects.get(project=self.project, content_hash=content_hash(messages))
        source, _new = CompletionSource.objects.get_or_create(
            name="timetable agent", defaults={"kind": SourceKind.IMPORT}
        )
        traces = []
        for steps in (_careful_trace(), _hasty_trace()):
            text, placed = written(steps)
            trace = Completion.objects.create(
                prompt=prompt, source=source, text=text, text_hash=text_hash(text), step_count=len(placed)
            )
            write_steps([(trace.pk, placed)])
            traces.append(trace)
        create_comparison(prompt=prompt, completions=traces, round_number=ROUND)

    # ── suggestions ────────────────────────────────────────────────────────────────────

    def _add_suggestions(self) -> None:
        """Suggest the flaws and the order that the texts were composed with, for all that is still open."""
        set_help(project=self.project, is_active=True, by=self.manager, control_share=0.2)
        categories = {category.key: category.pk for category in Category.objects.filter(project=self.project)}
        open_ = Comparison.objects.filter(
            project=self.project, round_number=ROUND, open_slots__gt=0, turns=None
        ).prefetch_related("completions")
        for comparison in open_:
            completions = list(comparison.completions.all())
            responses = [self.models.responses.get(completion.text) for completion in completions]
            quality = {
                completion.pk: response.quality
                for completion, response in zip(completions, responses, strict=True)
                if response is not None
            }
            if len(quality) < len(completions):
                continue
            spans = [
                SuggestionInput(
                    kind=SuggestionKind.SPAN,
                    completion_id=completion.pk,
                    category_id=categories[flaw.category],
                    start=flaw.start,
                    end=flaw.end,
                    quote=completion.text[flaw.start : flaw.end],
                    confidence=round(self.chance.uniform(0.55, 0.95), 2),
                )
                for completion, response in zip(completions, responses, strict=True)
                if response is not None
                for flaw in response.flaws
            ]
            ordered = sorted(quality.values(), reverse=True)
            preference = SuggestionInput(
                kind=SuggestionKind.PREFERENCE,
                verdict="ranked",
                ranks={pk: 1 + ordered.index(value) for pk, value in quality.items()},
                text="Fewer false claims and less padding.",
                confidence=0.7,
            )
            suggestions = [*spans, preference] if len(set(ordered)) > 1 else spans
            store_suggestions(comparison=comparison, source="demo judge", suggestions=suggestions)

    def _annotate_with_help(self) -> None:
        """Let some annotators work with the suggestions: most accept what is right."""
        policy = Checkpoint.objects.get(project=self.project, name__endswith="round-1-policy")
        sets = SuggestionSet.objects.filter(comparison__project=self.project)
        SuggestionSource.objects.create(
            project=self.project,
            checkpoint=policy,
            template=DEFAULT_TEMPLATE,
            is_active=False,
            state=JobState.FINISHED,
            compared=sets.count(),
            suggested=Suggestion.objects.filter(suggestion_set__in=sets).count(),
        )
        for annotator in self.annotators[:_HELPED]:
            for _turn in range(_COMPARISONS_WITH_HELP):
                assignment = assign_next(project=self.project, annotator=annotator.user)
                if assignment is None or assignment.comparison.completions.filter(step_count__gt=0).exists():
                    break
                seconds = annotator.temper.seconds * self.chance.uniform(0.7, 1.4)
                self.clock.forward(seconds=seconds)
                answer = annotator.answer(assignment, ROUND, seconds)
                submit_judgment(
                    assignment=assignment,
                    annotator=annotator.user,
                    answer=answer,
                    idempotency_key=self._key(),
                )
                reveal = HelpReveal.objects.filter(assignment=assignment, finished_at=None).first()
                if reveal is not None:
                    self._decide(reveal, annotator, answer)

    def _decide(self, reveal: HelpReveal, annotator: Annotator, answer: JudgmentRecord) -> None:
        """Submit the final pass with a decision on each suggestion."""
        marked = {(span.completion, span.start) for span in answer.spans}
        decisions = []
        for suggestion in Suggestion.objects.filter(suggestion_set__comparison=reveal.assignment.comparison):
            seconds = self.chance.uniform(1.5, 9)
            self.clock.forward(seconds=seconds)
            is_new = (
                suggestion.kind == SuggestionKind.SPAN
                and (str(suggestion.completion_id), suggestion.start) not in marked
            )
            accepts = is_new and self.chance.random() < annotator.temper.sees_flaw
            decision = SuggestionDecision.ACCEPTED if accepts else SuggestionDecision.REJECTED
            decisions.append(DecisionInput(suggestion_id=suggestion.pk, decision=decision, seconds=seconds))
        finish_help(
            reveal=reveal,
            annotator=annotator.user,
            answer=answer,
            decisions=decisions,
            idempotency_key=self._key(),
        )

    def _key(self) -> uuid.UUID:
        return uuid.UUID(int=self.chance.getrandbits(128), version=4)

    # ── compare ────────────────────────────────────────────────────────────────────────

    def _add_comparing(self) -> None:
        """Compare two policies on a training prompt, and vote."""
        checkpoints = Checkpoint.objects.filter(project=self.project)
        policies = [checkpoints.get(name__endswith=f"round-{number}-policy") for number in (1, 2)]
        prompt = Prompt.objects.filter(project=self.project, split=Split.TRAIN).order_by("pk").first()
        assert prompt is not None  # noqa: S101 - the demo has hundreds
        with transaction.atomic():
            shown = ask_side_by_side(
                project=self.project,
                created_by=self.manager,
                checkpoints=policies,
                question=prompt,
                sampling=SharedSampling(),
                seed=7,
                scorer=checkpoints.get(name__endswith="round-2-reward"),
            )
            write_answers(shown=shown)
        vote_side_by_side(shown=shown, voter=self.manager, vote=VOTES["first"])

    # ── rubric ─────────────────────────────────────────────────────────────────────────

    def _add_rubric(self) -> None:
        criteria = (
            RubricCriterionInput(
                name="Accuracy",
                text="Are all claims true?",
                levels="1: a false claim\n3: true, but vague\n5: true and precise",
                weight=3,
            ),
            RubricCriterionInput(
                name="Completeness", text="Does it say what a beginner needs to know?", weight=2
            ),
            RubricCriterionInput(
                name="Brevity", text="Is it free of asides and repetition?", scale="thumbs", weight=1
            ),
        )
        version = save_rubric(
            project=self.project, name="Everyday answers", criteria=criteria, saved_by=self.manager
        )
        publish_rubric(version=version, published_by=self.manager)

    # ── feedback of applications ───────────────────────────────────────────────────────

    def _add_feedback(self) -> None:
        change_settings(
            project=self.project,
            changes={"stores_requests": True, "origins": ["https://help.example.org"]},
            changed_by=self.manager,
        )
        key = create_key(project=self.project, name="help centre", created_by=self.manager)
        policy = Checkpoint.objects.get(project=self.project, name__endswith="round-1-policy")
        questions = list(topics_by_question())
        ends = self.clock.now
        for number in range(_REQUESTS):
            self.clock.now = ends - timedelta(hours=4 * (_REQUESTS - number))
            question = self.chance.choice(questions)
            messages = [{"role": "user", "content": question}]
            body = {"model": policy.name, "messages": messages, "seed": number}
            text = self.models.complete(body)["choices"][0]["message"]["content"]
            quality = self.models.responses[text].quality
            request = ApplicationRequest.objects.create(
                project=self.project,
                key=f"chatcmpl-demo-{number}",
                checkpoint=policy,
                token_name="help centre",  # noqa: S106 - a name
                messages=messages,
                content_hash=content_hash(messages),
                sampling={"temperature": 0.7},
                choices=[{"text": text, "seed": number, "finish_reason": "stop", "token_count": None}],
            )
            ApplicationRequest.objects.filter(pk=request.pk).update(created_at=self.clock.now)
            self.clock.forward(minutes=self.chance.uniform(1, 30))
            if self.chance.random() < 0.75:
                give_feedback(
                    source=key,
                    new=NewFeedback(
                        completion=request.key,
                        kind=FeedbackKind.THUMB,
                        value=int(quality + self.chance.gauss(0, 1) > 1.5),
                        user=f"visitor-{self.chance.randrange(25)}",
                    ),
                )
            if number % 12 == 5 or (quality < 0.5 and self.chance.random() < 0.5):
                written_again = rewrite(topics_by_question()[question], text)
                give_feedback(
                    source=key,
                    new=NewFeedback(
                        completion=request.key, kind=FeedbackKind.REWRITE, text=written_again, user="editor"
                    ),
                )
        self.clock.now = ends


def _careful_trace() -> list[UnwrittenStep]:
    return [
        UnwrittenStep(
            kind=TraceStepKind.REASONING,
            content="I need tomorrow's departures from Zürich and their arrival in Bern.",
        ),
        UnwrittenStep(
            kind=TraceStepKind.TOOL_CALL,
            tool="timetable",
            call="c1",
            arguments={"from": "Zürich HB", "to": "Bern", "arrive_before": "09:00"},
        ),
        UnwrittenStep(
            kind=TraceStepKind.TOOL_RESULT,
            role="tool",
            tool="timetable",
            call="c1",
            content="IC 1  07:32 → 08:28\nIC 8  08:02 → 08:58\nIR 16 07:06 → 08:24",
        ),
        UnwrittenStep(
            kind=TraceStepKind.MESSAGE,
            content="The IC 8 at 08:02 arrives at 08:58. To be safe, take the IC 1 at 07:32 (08:28).",
        ),
    ]


def _hasty_trace() -> list[UnwrittenStep]:
    return [
        UnwrittenStep(
            kind=TraceStepKind.TOOL_CALL,
            tool="timetable",
            call="c1",
            arguments={"from": "Zürich HB", "to": "Berne"},
        ),
        UnwrittenStep(
            kind=TraceStepKind.TOOL_RESULT,
            role="tool",
            tool="timetable",
            call="c1",
            content="Unknown station: Berne. Did you mean Bern?",
            is_error=True,
        ),
        UnwrittenStep(
            kind=TraceStepKind.TOOL_CALL,
            tool="timetable",
            call="c2",
            arguments={"from": "Zürich HB", "to": "Bern"},
        ),
        UnwrittenStep(
            kind=TraceStepKind.TOOL_RESULT,
            role="tool",
            tool="timetable",
            call="c2",
            content="IC 8  08:02 → 08:58\nIC 1  08:32 → 09:28",
        ),
        UnwrittenStep(kind=TraceStepKind.MESSAGE, content="Take the IC 1 at 08:32."),
    ]

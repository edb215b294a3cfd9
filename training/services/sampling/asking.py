"""Asks model servers for answers with given seeds, some at once, and records them.

An answer is known by prompt, source and seed: what is there already is not asked for again.
"""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace

from django.utils.translation import gettext as _

from annotation.choices import FinishReason
from annotation.errors import Refusal
from annotation.models import Completion, Prompt
from annotation.services.texts.completions import NewCompletion, record_completions
from training.engine import (
    Answer,
    Engine,
    EngineError,
    Engines,
    EngineUnavailableError,
    EngineUnknownModelError,
)
from training.models import Checkpoint
from training.recipe import SamplingSettings
from training.selectors.chats import chat_of
from training.services.jobs.step_heartbeat import StepHeartbeat
from training.services.sampling.patience import Patience

ANSWERS_AT_ONCE = 8
"""Answers in flight. The model server writes them together and reads its weights once for all, so that eight
take about twice as long as one. More would make a person on the Compare page wait longer."""
REQUESTS_AT_ONCE = 2
"""Requests in flight at least, however many answers they ask for: one waits at the door."""


@dataclass(frozen=True, slots=True)
class Draw:
    """One answer that is to be sampled: by whom, with which seed, and how."""

    checkpoint: Checkpoint
    seed: int
    sampling: SamplingSettings

    @property
    def key(self) -> tuple[int | None, int]:
        """Return the key of its completion among those of one prompt: source and seed."""
        return self.checkpoint.source_id, self.seed


@dataclass(slots=True)
class Question:
    """One prompt of a round and the answers that will stand beside each other."""

    prompt: Prompt
    draws: list[Draw]
    spares: list[Draw]
    """Further draws, for answers that turn out equal to the letter."""
    completions: dict[tuple[int | None, int], Completion] = field(default_factory=dict)
    """Answers that are there, by the key of their draw."""

    def missing(self, *, together: bool) -> list[list[Draw]]:
        """Return the missing draws, grouped by request."""
        groups: list[list[Draw]] = []
        for draw in self.draws:
            if draw.key in self.completions:
                continue
            before = groups[-1][-1] if groups else None
            if together and before == replace(draw, seed=draw.seed - 1):
                groups[-1].append(draw)
            else:
                groups.append([draw])
        return groups

    def replace_repetitions(self) -> bool:
        """Give every answer that repeats another a spare draw; False once none is left to replace."""
        seen: set[str] = set()
        for place, draw in enumerate(self.draws):
            text = self.completions[draw.key].text.strip()
            if text in seen:
                alike = (draw.checkpoint, draw.sampling)
                spare = next((s for s in self.spares if (s.checkpoint, s.sampling) == alike), None)
                if spare is not None:
                    self.spares.remove(spare)
                    self.draws[place] = spare
                    return True
            seen.add(text)
        return False

    def distinct(self) -> list[Completion]:
        """Return the responses in the order of their draws, each text once."""
        by_text: dict[str, Completion] = {}
        for draw in self.draws:
            completion = self.completions[draw.key]
            by_text.setdefault(completion.text.strip(), completion)
        return list(by_text.values())


class Asking:
    """Keeps some requests in flight; all of the database stays in the calling thread.

    Answers that are there already are not asked for again. `on_answered` is called with each question
    once all of its answers are there, in the thread that called `ask_all`.
    """

    def __init__(
        self,
        engine: Engine,
        heartbeat: StepHeartbeat,
        *,
        total: int,
        on_answered: Callable[[Question], None],
        message: str = "answering the prompts",
    ) -> None:
        """engine: the client of our own server; checkpoints that name another server are asked there.

        total: questions, of which progress is told. message: what is being done, for people.
        """
        self.on_answered = on_answered
        self.message = message
        self.engines = Engines(engine)
        self.heartbeat = heartbeat
        self.total = total
        self.done = 0
        self._patience = Patience(self._tell)
        self._together = True
        self._waiting: deque[tuple[Question, list[Draw]]] = deque()
        self._flying: dict[Future[list[Answer]], tuple[Question, list[Draw]]] = {}

    def ask_all(self, questions: Sequence[Question]) -> None:
        """Answer every question, the first ones first."""
        ahead = deque(questions)
        pool = ThreadPoolExecutor(max_workers=ANSWERS_AT_ONCE, thread_name_prefix="ask")
        try:
            while ahead or self._waiting or self._flying:
                while ahead and _has_room(*self._waiting, *self._flying.values()):
                    self._take_up(ahead.popleft())
                while self._waiting and _has_room(*self._flying.values()):
                    question, draws = self._waiting.popleft()
                    engine = self.engines.of(draws[0].checkpoint)
                    self._flying[pool.submit(self._ask, engine, question, draws)] = (question, draws)
                self._land()
        finally:
            # Requests that are on their way end by themselves; nobody waits for them.
            pool.shutdown(wait=False, cancel_futures=True)
            self.engines.close()

    def _take_up(self, question: Question) -> None:
        known = Completion.objects.filter(
            prompt=question.prompt,
            source__in={draw.checkpoint.source_id for draw in question.draws + question.spares},
            seed__in=[draw.seed for draw in question.draws + question.spares],
        )
        question.completions = {
            (completion.source_id, completion.seed): completion
            for completion in known
            if completion.seed is not None
        }
        self._go_on(question)

    def _go_on(self, question: Question) -> None:
        """Ask for what is missing, or hand the question over once nothing is."""
        while True:
            if missing := question.missing(together=self._together):
                # Before all else: a question once begun is finished first.
                self._waiting.extendleft((question, draws) for draws in reversed(missing))
                return
            if not question.replace_repetitions():
                break
        self.on_answered(question)
        self.done += 1
        self._tell(self.message)

    @staticmethod
    def _ask(engine: Engine, question: Question, draws: list[Draw]) -> list[Answer]:
        return engine.complete(
            model=draws[0].checkpoint.name,
            messages=chat_of(question.prompt),
            seed=draws[0].seed,
            n=len(draws),
            **asdict(draws[0].sampling),
        )

    def _land(self) -> None:
        """Record what came back; after a failure that may pass, wait and ask again."""
        landed, _flying = wait(self._flying, timeout=0.5, return_when=FIRST_COMPLETED)
        trouble: EngineError | None = None
        for future in landed:
            question, draws = self._flying.pop(future)
            try:
                answers = future.result()
            except (EngineUnavailableError, EngineUnknownModelError) as error:
                trouble = error
                self._waiting.appendleft((question, draws))
            except EngineError as error:
                raise Refusal(
                    "model_server_refused",
                    _("The model server refused to answer %(prompt)s: %(error)s"),
                    prompt=question.prompt,
                    error=error,
                ) from error
            else:
                self._patience.reset()
                self._record(question, draws, answers)
        if trouble is not None:
            self._patience.wait(trouble)
        elif not landed:
            self._tell(self.message)

    def _record(self, question: Question, draws: list[Draw], answers: list[Answer]) -> None:
        if [answer.seed for answer in answers] == [draw.seed for draw in draws]:
            source = draws[0].checkpoint.source
            assert source is not None  # noqa: S101 - constraint checkpoint_source_where_it_writes
            stored = record_completions(
                prompt=question.prompt,
                source=source,
                answers=[_completion(answer, draws[0].sampling) for answer in answers],
            )
            question.completions |= {
                draw.key: completion for draw, completion in zip(draws, stored, strict=True)
            }
        else:
            # A server that does not say how it seeded each answer: ask one by one, so that
            # the recorded seed is the one that gives this very text again.
            self._together = False
        if not any(other is question for other, _ in (*self._waiting, *self._flying.values())):
            self._go_on(question)

    def _tell(self, message: str) -> None:
        self.heartbeat(current=self.done, total=self.total, message=message)


def _has_room(*requests: tuple[Question, list[Draw]]) -> bool:
    """Return whether one more request may be in flight beside these."""
    return len(requests) < REQUESTS_AT_ONCE or sum(len(draws) for _, draws in requests) < ANSWERS_AT_ONCE


def _completion(answer: Answer, sampling: SamplingSettings) -> NewCompletion:
    return NewCompletion(
        text=answer.text,
        # What the server does not know had no effect, and is no part of where the answer comes from.
        sampling={name: value for name, value in asdict(sampling).items() if name not in answer.ignored},
        seed=answer.seed,
        finish_reason=FinishReason(answer.finish_reason),
        token_count=answer.token_count,
    )

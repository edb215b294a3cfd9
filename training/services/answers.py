"""A checkpoint answers a project's prompts, and the answers become comparisons as they come.

Which answers a round needs follows from its prompts and its recipe, and each answer's seed
from prompt, checkpoint and index: asking twice gives the same rows, and what is there
already is not asked for again.
"""

import hashlib
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field

from annotation.choices import FinishReason
from annotation.errors import Refusal
from annotation.models import Completion, Prompt
from annotation.services.completions import NewCompletion, create_comparison, record_completions
from training.chats import chat_of
from training.engine import Answer, Engine, EngineError, EngineUnavailableError, EngineUnknownModelError
from training.models import Checkpoint, Round
from training.services.claims import Pulse

REQUESTS_AT_ONCE = 2
"""Requests in flight: one that the model server computes and one that waits at its door. More
would only make a person on the Compare page wait longer."""

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 10.0
_KNOWN_WITHIN_SECONDS = 60.0
_SPARE_DRAWS = 4


@dataclass(frozen=True, slots=True)
class Draw:
    """One answer that is to be sampled: by whom, and with which seed."""

    checkpoint: Checkpoint
    seed: int


@dataclass(slots=True)
class Question:
    """One prompt of a round and the answers that will stand beside each other."""

    prompt: Prompt
    draws: list[Draw]
    spares: list[Draw]
    """Further draws, for answers that turn out equal to the letter."""
    completions: dict[int, Completion] = field(default_factory=dict)
    """Answers that are there, by seed."""

    def missing(self, *, together: bool) -> list[list[Draw]]:
        """What must still be sampled: draws that one request can give stand together."""
        groups: list[list[Draw]] = []
        for draw in self.draws:
            if draw.seed in self.completions:
                continue
            before = groups[-1][-1] if groups else None
            if together and before == Draw(draw.checkpoint, draw.seed - 1):
                groups[-1].append(draw)
            else:
                groups.append([draw])
        return groups

    def replace_repetitions(self) -> bool:
        """Give every answer that repeats another a spare draw; False once none is left to replace."""
        seen: set[str] = set()
        for place, draw in enumerate(self.draws):
            text = self.completions[draw.seed].text.strip()
            if text in seen:
                spare = next((s for s in self.spares if s.checkpoint == draw.checkpoint), None)
                if spare is not None:
                    self.spares.remove(spare)
                    self.draws[place] = spare
                    return True
            seen.add(text)
        return False

    def distinct(self) -> list[Completion]:
        """The answers in the order of their draws, each text once."""
        by_text: dict[str, Completion] = {}
        for draw in self.draws:
            completion = self.completions[draw.seed]
            by_text.setdefault(completion.text.strip(), completion)
        return list(by_text.values())


def seed_of(recipe_seed: int, prompt: Prompt, checkpoint: Checkpoint, index: int) -> int:
    """The seed of one answer, below 2³¹: the same wherever and whenever it is drawn.

    The seeds of one prompt's answers by one checkpoint count up from the first: that is how
    the model server seeds several answers to one request, and each can be drawn again alone.
    """
    named = f"{recipe_seed}/{prompt.project_id}/{prompt.content_hash}/{checkpoint.name}"
    return (int.from_bytes(hashlib.sha256(named.encode()).digest()[:4], "big") >> 2) + index


def questions_of(round_: Round, rival: Checkpoint | None) -> Iterator[Question]:
    """What a round asks, in the order in which annotators meet it.

    Every second prompt gets a ranking, those between a pair. With a `rival` its answers and
    those of the round's policy share the places, the policy having the odd one.
    """
    recipe = round_.parsed_recipe
    for position, prompt in enumerate(prompts_of(round_)):
        size = recipe.ranking_size if position % 2 else 2
        by_rival = size // 2 if rival else 0
        draws, spares = [], []
        for checkpoint, count in ((round_.policy, size - by_rival), (rival, by_rival)):
            if checkpoint is not None and count:
                drawn = [
                    Draw(checkpoint, seed_of(recipe.seed, prompt, checkpoint, index))
                    for index in range(count + _SPARE_DRAWS)
                ]
                draws += drawn[:count]
                spares += drawn[count:]
        yield Question(prompt, draws, spares)


def prompts_of(round_: Round) -> list[Prompt]:
    """The prompts that a round asks; where it asks only some, each round takes the next ones."""
    recipe = round_.parsed_recipe
    prompts = list(Prompt.objects.filter(project=round_.project_id).select_related("project").order_by("pk"))
    if recipe.prompts is None or recipe.prompts >= len(prompts):
        return prompts
    first = (round_.number - 1) * recipe.prompts % len(prompts)
    return (prompts + prompts)[first : first + recipe.prompts]


def answer_prompts(
    *,
    round_: Round,
    rival: Checkpoint | None,
    pulse: Pulse,
    engine: Engine,
    first: int | None = None,
) -> str:
    """Answer a round's prompts and create its comparisons; return what came of it, for people.

    With `first` only so many, those that annotators meet first. What is answered already
    costs nothing, so the rest can be asked for later by the same call without it.
    A model server that is down or still loads is waited for, as long as nobody cancels.
    Refuses where the project has no prompts or the server refuses a request for good.
    """
    questions = list(questions_of(round_, rival))[:first]
    if not questions:
        raise Refusal(f"{round_.project} has no prompts: import some, then start again.")
    asking = _Asking(round_, engine, pulse, total=len(questions))
    asking.ask_all(questions)
    if asking.repeated:
        return (
            f"{len(questions)} prompts answered; {asking.repeated} of them with one and the same text "
            "each time, which leaves nothing to compare"
        )
    return f"{len(questions)} prompts answered"


class _Asking:
    """Keeps some requests in flight; all of the database stays in the calling thread."""

    def __init__(self, round_: Round, engine: Engine, pulse: Pulse, *, total: int) -> None:
        self.round = round_
        self.sampling = asdict(round_.parsed_recipe.sampling)
        self.engine = engine
        self.pulse = pulse
        self.total = total
        self.done = 0
        self.repeated = 0
        self._pause = _FIRST_PAUSE_SECONDS
        self._unknown_since: float | None = None
        self._together = True
        self._waiting: deque[tuple[Question, list[Draw]]] = deque()
        self._flying: dict[Future[list[Answer]], tuple[Question, list[Draw]]] = {}

    def ask_all(self, questions: Sequence[Question]) -> None:
        """Answer every question, the first ones first."""
        ahead = deque(questions)
        pool = ThreadPoolExecutor(max_workers=REQUESTS_AT_ONCE, thread_name_prefix="ask")
        try:
            while ahead or self._waiting or self._flying:
                while ahead and len(self._waiting) + len(self._flying) < REQUESTS_AT_ONCE:
                    self._take_up(ahead.popleft())
                while self._waiting and len(self._flying) < REQUESTS_AT_ONCE:
                    question, draws = self._waiting.popleft()
                    self._flying[pool.submit(self._ask, question, draws)] = (question, draws)
                self._land()
        finally:
            # Requests that are on their way end by themselves; nobody waits for them.
            pool.shutdown(wait=False, cancel_futures=True)

    def _take_up(self, question: Question) -> None:
        known = Completion.objects.filter(
            prompt=question.prompt,
            source__in={draw.checkpoint.source_id for draw in question.draws + question.spares},
            seed__in=[draw.seed for draw in question.draws + question.spares],
        )
        question.completions = {one.seed: one for one in known if one.seed is not None}
        self._go_on(question)

    def _go_on(self, question: Question) -> None:
        """Ask for what is missing, or create the comparison once nothing is."""
        while True:
            if missing := question.missing(together=self._together):
                # Before all else: a question once begun is finished first.
                self._waiting.extendleft((question, draws) for draws in reversed(missing))
                return
            if not question.replace_repetitions():
                break
        completions = question.distinct()
        if len(completions) > 1:
            create_comparison(prompt=question.prompt, completions=completions, round_number=self.round.number)
        else:
            self.repeated += 1
        self.done += 1
        self._tell("answering the prompts")

    def _ask(self, question: Question, draws: list[Draw]) -> list[Answer]:
        return self.engine.complete(
            model=draws[0].checkpoint.name,
            messages=chat_of(question.prompt),
            seed=draws[0].seed,
            n=len(draws),
            **self.sampling,
        )

    def _land(self) -> None:
        """Record what came back; after a failure that may pass, wait and ask again."""
        landed, _ = wait(self._flying, timeout=0.5, return_when=FIRST_COMPLETED)
        trouble: EngineError | None = None
        for future in landed:
            question, draws = self._flying.pop(future)
            try:
                answers = future.result()
            except (EngineUnavailableError, EngineUnknownModelError) as error:
                trouble = error
                self._waiting.appendleft((question, draws))
            except EngineError as error:
                raise Refusal(f"The model server refused to answer {question.prompt!s}: {error}") from error
            else:
                self._pause = _FIRST_PAUSE_SECONDS
                self._unknown_since = None
                self._record(question, draws, answers)
        if trouble is not None:
            self._wait_for_server(trouble)
        elif not landed:
            self._tell("answering the prompts")

    def _record(self, question: Question, draws: list[Draw], answers: list[Answer]) -> None:
        if [answer.seed for answer in answers] == [draw.seed for draw in draws]:
            source = draws[0].checkpoint.source
            assert source is not None  # noqa: S101 - constraint checkpoint_source_where_it_writes
            stored = record_completions(
                prompt=question.prompt, source=source, answers=[self._completion(one) for one in answers]
            )
            question.completions |= {draw.seed: one for draw, one in zip(draws, stored, strict=True)}
        else:
            # A server that does not say how it seeded each answer: ask one by one, so that
            # the recorded seed is the one that gives this very text again.
            self._together = False
        if not any(asked is question for asked, _ in (*self._waiting, *self._flying.values())):
            self._go_on(question)

    def _completion(self, answer: Answer) -> NewCompletion:
        known = answer.finish_reason in FinishReason.values
        return NewCompletion(
            text=answer.text,
            sampling=self.sampling,
            seed=answer.seed,
            finish_reason=answer.finish_reason if known else FinishReason.UNKNOWN,
            token_count=answer.token_count,
        )

    def _wait_for_server(self, trouble: EngineError) -> None:
        now = time.monotonic()
        if isinstance(trouble, EngineUnknownModelError):
            self._unknown_since = self._unknown_since or now
            if now - self._unknown_since > _KNOWN_WITHIN_SECONDS:
                raise Refusal(
                    f"The model server does not know the checkpoint: {trouble} Look into its log, then "
                    "start again."
                )
        self._tell(f"waiting for the model server: {trouble}")
        until = now + self._pause
        self._pause = min(self._pause * 2, _LONGEST_PAUSE_SECONDS)
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.25))
            self._tell(f"waiting for the model server: {trouble}")

    def _tell(self, message: str) -> None:
        self.pulse(current=self.done, total=self.total, message=message)

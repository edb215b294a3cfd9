"""The demo project from its first prompt to its third round.

The services that people use write it, but for the annotations of its rounds: `desk` stores those in bulk.
"""

import fcntl
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from random import Random

from django.conf import settings
from django.db import transaction
from django.db.models import ProtectedError
from django.urls import get_resolver
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.choices import Role, Split
from annotation.errors import Refusal
from annotation.exchange.prompts import import_prompts
from annotation.models import Assignment, Comment, Completion, Project, User
from annotation.services.inbox import post_comment
from annotation.services.jobs import no_messages
from annotation.services.projects.projects import add_member
from annotation.services.projects.removal import remove_project
from annotation.services.projects.templates import create_from_template
from annotation.services.quality import create_gold_item
from training.choices import CAN_DECIDE, IS_DECIDED, RoundState, StepKind
from training.models import Checkpoint, Evaluation, Round, Run
from training.recipe.recipe import Recipe
from training.services.rounds.controls import open_first_round, start_round
from training.services.rounds.deciding import promote_round
from training.services.rounds.executor import advance_round
from webapp.demo.desk import DemoClock, Desk
from webapp.demo.model_server import ScriptedModels, scripted_model_server
from webapp.demo.showcase import TEMPERS, Annotator, Showcase
from webapp.demo.texts import prompt_rows

SLUG = "demo"
NAME = "Demo: everyday questions"
PROMPTS = 300
STEPS = 11
"""Lines of progress that its creation tells: before, in each of three rounds three, after."""
_WORKING_DAYS = 10
"""Days of labelling in a round."""
_DAYS_OF_A_ROUND = _WORKING_DAYS + 2
_GOLD_ITEMS = 10
_LABELLED = (0.97, 0.95, 0.8)
"""Share of each round's work that is done when its training starts."""
_SECONDS = {
    StepKind.FREEZE_SNAPSHOT: 6,
    StepKind.TRAIN_REWARD_MODEL: 840,
    StepKind.TRAIN_EVALUATOR: 830,
    StepKind.TRAIN_POLICY: 1310,
    StepKind.REGISTER_CHECKPOINTS: 9,
    StepKind.EVALUATE: 540,
    StepKind.DECIDE: 1,
    StepKind.ANSWER_PROMPTS: 1900,
}
"""Time that each step of a round is said to have taken."""
Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Demo:
    """State that the steps of the demo's creation share."""

    project: Project
    manager: User
    annotators: Sequence[Annotator]
    clock: DemoClock
    chance: Random
    models: ScriptedModels
    annotations: int
    tell: Progress


def create_demo(*, annotations: int = 2000, seed: int = 0, tell: Progress = lambda line: None) -> Project:
    """Create the demo project: prompts, people, three rounds, about so many annotations.

    Every active superuser manages it, beside a manager of its own. It is written in short transactions, so
    that others can write meanwhile; no page lists it before it is complete. After a failure it is removed;
    what a killed process left is removed by the next call. Refuses where a project or an account of the demo
    exists, and while another process writes it.
    """
    with _alone():
        remove_incomplete(SLUG)
        if Project.objects.filter(slug=SLUG).exists():
            raise Refusal(
                "demo_exists", _("There is a project %(slug)r already. Open /projects/%(slug)s/."), slug=SLUG
            )
        usernames = [username(name) for name in (MANAGER, *(temper.name for temper in TEMPERS))]
        if taken := sorted(
            account.username
            for account in User.objects.filter(username__in=usernames)
            if not is_left_over(account)
        ):
            raise Refusal(
                "accounts_exist",
                _("These accounts exist already: %(names)s. Rename them first."),
                names=", ".join(taken),
            )
        _remove_files(runs=True)
        try:
            project = _write(annotations, seed, tell)
        except BaseException:
            remove_incomplete(SLUG)
            _remove_files(runs=True)
            raise
        _remove_files(runs=False)
        return project


def _write(annotations: int, seed: int, tell: Progress) -> Project:
    """Write the project, incomplete until its last transaction."""
    began = timezone.now() - timedelta(days=3 * _DAYS_OF_A_ROUND + 1)
    clock = DemoClock(began.replace(hour=8, minute=0, second=0, microsecond=0))
    # The first notification would load all pages while it holds the database.
    get_resolver().url_patterns  # noqa: B018 - loads them
    with clock.in_charge(), no_messages(), _scripted() as models:
        demo = _prepared(clock, models, annotations, seed, tell)
        for number in (1, 2, 3):
            _go_round(demo, number)
        tell("conversation, traces, suggestions, rubric and feedback")
        Showcase(
            project=demo.project,
            manager=demo.manager,
            visitor=User.objects.filter(is_superuser=True, is_active=True).first(),
            annotators=demo.annotators,
            models=models,
            clock=clock,
            chance=demo.chance,
        ).add_all()
        with transaction.atomic():
            Checkpoint.objects.filter(project=demo.project).update(files_deleted_at=clock.now)
            Project.objects.filter(pk=demo.project.pk).update(is_incomplete=False)
    demo.project.refresh_from_db()
    return demo.project


@contextmanager
def _alone() -> Iterator[None]:
    """Hold a lock file, which the kernel releases when the process ends. Refuses while another holds it."""
    with (Path(settings.RONDO_HOME) / "demo.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refusal(
                "demo_under_way", _("Another process is writing the demo. Wait for its end.")
            ) from None
        yield


@contextmanager
def _scripted() -> Iterator[ScriptedModels]:
    """Let this process's rounds ask the scripted model server and start the scripted trainer."""
    url, key, command = (
        settings.RONDO_MODEL_SERVER_URL,
        settings.RONDO_MODEL_SERVER_KEY,
        settings.RONDO_TRAINER_COMMAND,
    )
    with scripted_model_server() as (address, models):
        settings.RONDO_MODEL_SERVER_URL, settings.RONDO_MODEL_SERVER_KEY = address, ""
        settings.RONDO_TRAINER_COMMAND = (*command[:-1], "webapp.demo.trainer")
        try:
            yield models
        finally:
            settings.RONDO_MODEL_SERVER_URL, settings.RONDO_MODEL_SERVER_KEY = url, key
            settings.RONDO_TRAINER_COMMAND = command


def _prepared(clock: DemoClock, models: ScriptedModels, annotations: int, seed: int, tell: Progress) -> _Demo:
    """Create the project, its prompts and its people, and open the first round."""
    tell("project, prompts and people")
    chance = Random(seed)  # noqa: S311 - a demo
    overlap = max(2, round(annotations / 600))
    with transaction.atomic():
        manager = _account(MANAGER)
        project = create_from_template(
            template="fine-grained",
            name=NAME,
            slug=SLUG,
            description="Simulated: texts, people, annotations and curves. Nothing was trained.",
            created_by=User.objects.filter(is_superuser=True, is_active=True).first()
            or _lent_rights(manager),
        )
        add_member(project=project, user=manager, role=Role.MANAGER)
        Project.objects.filter(pk=project.pk).update(is_incomplete=True)
    Project.objects.filter(pk=project.pk).update(
        overlap=overlap,
        gold_share=0.04,
        retest_share=0.03,
        review_random_share=0.01,
        ask_comment=True,
        hourly_wage=22,
    )
    project.refresh_from_db()
    for superuser in User.objects.filter(is_superuser=True, is_active=True):
        add_member(project=project, user=superuser, role=Role.MANAGER)
    import_prompts(project=project, lines=prompt_rows(PROMPTS, chance), name="topics.jsonl")
    annotators = []
    for temper in TEMPERS:
        with transaction.atomic():
            user = _account(temper.name)
            add_member(project=project, user=user, role=Role.ANNOTATOR)
        annotators.append(Annotator(user, temper, project, models.responses, seed))
    recipe = Recipe.from_json({"prompts": max(12, annotations // (3 * overlap))})
    open_first_round(project=project, started_by=manager, recipe=recipe.to_json())
    return _Demo(
        project=project,
        manager=manager,
        annotators=annotators,
        clock=clock,
        chance=chance,
        models=models,
        annotations=annotations,
        tell=tell,
    )


def _account(name: str) -> User:
    """Return an account that nobody can sign in with, new or left by a demo that was removed."""
    user = User.objects.filter(username=username(name)).first()
    if user is None:
        return User.objects.create_user(username=username(name))
    user.is_active = True
    user.save(update_fields=["is_active"])
    return user


def _lent_rights(user: User) -> User:
    """Return the user with the right to create projects, for an installation without an administrator."""
    user.is_superuser = True
    return user


def _go_round(demo: _Demo, number: int) -> None:
    """Take the project through a round: responses, annotations, training, decision."""
    round_ = Round.objects.get(project=demo.project, number=number)
    if number == 2:
        values = {**round_.recipe, "policy": {"method": "policy_gradient", "context": True}}
        Round.objects.filter(pk=round_.pk).update(recipe=Recipe.from_json(values).to_json())
    demo.tell(f"round {number}: responses")
    opened = demo.clock.now
    advance_round(round_.pk)
    if number == 1:
        _add_gold(demo)
    demo.tell(f"round {number}: annotations")
    _annotate(demo, number)
    _answer_questions(demo)
    demo.tell(f"round {number}: training")
    round_.refresh_from_db()
    started = demo.clock.now
    start_round(round_=round_, started_by=demo.manager)
    advance_round(round_.pk)
    _date(round_, opened, started)
    round_.refresh_from_db()
    if number == 1 and round_.state in CAN_DECIDE:
        note = "Blind reading of twenty pairs confirms the win rate."
        promote_round(round_=round_, actor=demo.manager, note=note)
        Round.objects.filter(pk=round_.pk).update(finished_at=started + timedelta(hours=2))
    elif number < 3 and round_.state not in (*IS_DECIDED, RoundState.NOT_ENOUGH_EVIDENCE):
        raise Refusal(
            "demo_failed",
            _("%(round)s of the demo ended as %(state)s. See the worker's log."),
            round=round_,
            state=round_.state,
        )
    demo.clock.forward(hours=3)


def _annotate(demo: _Demo, number: int) -> None:
    """Let everybody work on the days of a round until its share of the work is done."""
    quota = demo.annotations * _LABELLED[number - 1] / 3
    morning = demo.clock.now.replace(hour=8, minute=0) + timedelta(days=1)
    done, days, desk = 0.0, _WORKING_DAYS, Desk(demo.project, demo.clock)
    for day in range(days):
        for annotator in demo.chance.sample(demo.annotators, len(demo.annotators)):
            if demo.chance.random() < 0.25 or done >= quota:
                continue
            demo.clock.now = morning + timedelta(days=day, minutes=demo.chance.uniform(0, 500))
            share = quota / (0.7 * days * len(demo.annotators))
            most = max(1, round(share * demo.chance.uniform(0.6, 1.5)))
            done += annotator.work(desk, demo.clock, most=most, round_number=number)
    demo.clock.now = morning + timedelta(days=days, hours=2)
    desk.write()


def _add_gold(demo: _Demo) -> None:
    """Make gold items of pairs whose true quality differs clearly."""
    rounds = Completion.objects.filter(prompt__project=demo.project, prompt__split=Split.TRAIN)
    by_prompt: dict[int, list[Completion]] = {}
    for completion in rounds.select_related("prompt__project").order_by("pk"):
        by_prompt.setdefault(completion.prompt_id, []).append(completion)
    made = 0
    for completions in by_prompt.values():
        ordered = sorted(completions, key=lambda candidate: demo.models.responses[candidate.text].quality)
        worst, best = ordered[0], ordered[-1]
        gap = demo.models.responses[best.text].quality - demo.models.responses[worst.text].quality
        if gap < 2.5 or made == _GOLD_ITEMS or len(completions) < 3:
            continue
        create_gold_item(
            prompt=best.prompt,
            completions=[best, worst],
            verdict="ranked",
            ranks={best.pk: 1, worst.pk: 2},
            created_by=demo.manager,
            explanation="The weaker response makes a false claim or wanders off.",
        )
        made += 1


def _answer_questions(demo: _Demo) -> None:
    """Let the manager answer what annotators asked."""
    assignments = Assignment.objects.filter(comparison__project=demo.project, comments__isnull=False)
    for assignment in assignments.exclude(comments__author=demo.manager).order_by("pk").distinct():
        demo.clock.forward(minutes=3)
        text = "Yes. The guidelines say so now."
        answer = post_comment(assignment=assignment, author=demo.manager, text=text)
        Comment.objects.filter(pk=answer.pk).update(created_at=demo.clock.now)


def _date(round_: Round, opened: datetime, started: datetime) -> None:
    """Give a round's steps and runs the times that such work takes; the database wrote its own."""
    at = {True: opened, False: started}
    for step in round_.steps.select_related("run").order_by("position"):
        begins = at[step.position == 0]
        ends = begins + timedelta(seconds=_SECONDS[StepKind(step.kind)])
        at[step.position == 0] = ends
        times = {"started_at": begins, "finished_at": ends}
        if step.finished_at is None:
            continue
        type(step).objects.filter(pk=step.pk).update(**times, seconds_worked=_SECONDS[StepKind(step.kind)])
        if step.run is not None:
            Run.objects.filter(pk=step.run.pk).update(**times)
    Evaluation.objects.filter(round=round_).update(finished_at=at[False])
    ended = Round.objects.filter(pk=round_.pk, finished_at__isnull=False)
    Round.objects.filter(pk=round_.pk).update(started_at=started)
    ended.update(finished_at=at[False])


def _remove_files(*, runs: bool) -> None:
    """Remove the demo's checkpoints, and of one that failed its runs, too."""
    for folder in (settings.RONDO_CHECKPOINTS, *((settings.RONDO_RUNS,) if runs else ())):
        for path in Path(folder).glob(f"{SLUG}-round-*"):
            shutil.rmtree(path, ignore_errors=True)


# Removal of a demo that is not complete: its rows, in short transactions, and its accounts.

MANAGER = "manager"


def username(name: str) -> str:
    """Return the name of an account of the demo."""
    return f"demo-{name}"


def is_left_over(account: User) -> bool:
    """Return whether a removed demo left this account, because the audit log names it: nobody can sign in."""
    return not account.is_active and not account.has_usable_password()


def remove_incomplete(slug: str) -> None:
    """Remove the incomplete project with this slug, if there is one, and the accounts of the demo in it.

    The audit log keeps its entries, as of every project that is deleted, and the accounts that it names.
    Tables are emptied before those that they refer to, a batch a transaction.
    """
    project = Project.objects.filter(slug=slug, is_incomplete=True, deleted_at__isnull=True).first()
    if project is None:
        return
    members = User.objects.filter(memberships__project=project, username__startswith=username(""))
    accounts = [account.pk for account in members if not account.has_usable_password()]
    remove_project(project)
    for user in User.objects.filter(pk__in=accounts):
        try:
            with transaction.atomic():
                user.delete()
        except ProtectedError:
            user.is_active = False
            user.save(update_fields=["is_active"])

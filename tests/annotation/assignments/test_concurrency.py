"""Many annotators at once: nobody too many on an item, no item lost, nothing twice to one person.

The same scenes run on SQLite (a file, several processes that start from one signal) and on
PostgreSQL (threads with connections of their own; marked `postgres`).
"""

import contextlib
import os
import random
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from django.db import connection, connections, transaction

from annotation.choices import AssignmentState, Purpose, Split, Verdict, WithholdingState
from annotation.errors import LeaseLost, Refusal
from annotation.exchange.prompts import import_prompts
from annotation.models import Assignment, Comparison, Judgment, Project, User, Withholding
from annotation.selectors.progress import progress_of
from annotation.services.assignments.leases import expire_leases, release_assignment, skip_assignment
from annotation.services.assignments.next import assign_ahead, assign_next
from annotation.services.judgments.submission import submit_and_get_next, submit_judgment
from annotation.services.projects.projects import publish_guideline
from annotation.services.texts import decide_withholding
from tests import factories
from tests.records import judgment_record
from tests.refusals import refused

REPOSITORY = Path(__file__).resolve().parents[3]


def at_once(*calls: Callable[[], object]) -> list[object]:
    """Run the calls in threads that wait for each other first; results or exceptions in order."""
    gate = threading.Barrier(len(calls))
    results: list[object] = [None] * len(calls)

    def run(index: int) -> None:
        try:
            gate.wait()
            results[index] = calls[index]()
        except Exception as error:
            results[index] = error
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive(), "a thread hangs: two wait for each other"
    return results


def work_through(project_id: int, annotator_id: int) -> int:
    """Take and submit everything that there is for one person; how many that was."""
    project, annotator = Project.objects.get(pk=project_id), User.objects.get(pk=annotator_id)
    done = 0
    while (assignment := assign_next(project=project, annotator=annotator)) is not None:
        first, second = assignment.display_order
        answer = judgment_record(verdict=Verdict.RANKED, ranks={first: 1, second: 2})
        submit_judgment(
            assignment=assignment, annotator=annotator, answer=answer, idempotency_key=uuid.uuid4()
        )
        done += 1
    return done


def muddle_through(project_id: int, annotator_id: int) -> int:
    """As people are: skip, give back, load ahead, submit twice, submit too late. Until nothing is left."""
    project, annotator = Project.objects.get(pk=project_id), User.objects.get(pk=annotator_id)
    dice = random.Random(annotator_id)
    mine = Assignment.objects.filter(annotator=annotator, state=AssignmentState.LEASED)
    done = 0
    while (assignment := assign_next(project=project, annotator=annotator)) is not None:
        if dice.random() < 0.4:
            assign_ahead(project=project, annotator=annotator, after=assignment)
        assert mine.count() <= 2
        does = dice.choices(["submit", "twice", "late", "release", "skip"], [60, 10, 10, 15, 5])[0]
        if does == "release":
            release_assignment(assignment=assignment, annotator=annotator)
            continue
        if does == "skip":
            skip_assignment(assignment=assignment, annotator=annotator, reason="as it comes")
            continue
        if does == "late":
            Assignment.objects.filter(pk=assignment.pk).update(lease_expires_at="2020-01-01T00:00Z")
            expire_leases(project=project)
        first, second = assignment.display_order
        answer = judgment_record(verdict=Verdict.RANKED, ranks={first: 1, second: 2})
        key = uuid.uuid4()
        for _ in range(2 if does == "twice" else 1):
            # Who is too late may find the place taken; nothing is written then.
            with contextlib.suppress(LeaseLost):
                submit = submit_judgment if dice.random() < 0.5 else submit_and_get_next
                submit(assignment=assignment, annotator=annotator, answer=answer, idempotency_key=key)
                done += 1
    return done


def check_muddle(project: Project) -> None:
    """Whatever people did at once: nobody too many anywhere, nothing lost, every count right."""
    assert not Assignment.objects.filter(state=AssignmentState.LEASED).exists()
    submitted = Assignment.objects.filter(state=AssignmentState.SUBMITTED)
    of_work = submitted.filter(comparison__purpose=Purpose.WORK, retest_of__isnull=True)
    slots = {
        pk: set(range(overlap))
        for pk, overlap in project.comparisons.filter(purpose=Purpose.WORK).values_list("pk", "overlap")
    }
    held: dict[int, list[int | None]] = {pk: [] for pk in slots}
    for pk, slot in of_work.values_list("comparison_id", "slot"):
        held[pk].append(slot)
    assert {pk: sorted(held_slots, key=str) for pk, held_slots in held.items()} == {
        pk: sorted(places, key=str) for pk, places in slots.items()
    }
    assert set(project.comparisons.values_list("open_slots", flat=True)) == {0}
    # Nobody twice, one first judgment for each, and nothing without a place but what takes none.
    for kind in (of_work, submitted.exclude(comparison__purpose=Purpose.WORK)):
        pairs = Counter(kind.values_list("comparison_id", "annotator_id"))
        assert set(pairs.values()) <= {1}
    assert submitted.filter(slot__isnull=False).count() == of_work.count()
    firsts = Judgment.objects.filter(supersedes__isnull=True)
    assert sorted(firsts.values_list("assignment_id", flat=True)) == sorted(
        submitted.values_list("pk", flat=True)
    )
    retests = Assignment.objects.filter(retest_of__isnull=False)
    for again in retests.select_related("retest_of"):
        assert again.retest_of is not None
        assert again.retest_of.state == AssignmentState.SUBMITTED
        assert (again.annotator_id, again.slot) == (again.retest_of.annotator_id, None)
        assert again.display_order == again.retest_of.display_order[::-1]
    for tally in project.annotator_tallies.select_related("annotator"):
        mine = of_work.filter(annotator=tally.annotator)
        assert tally.submitted == mine.count()
        assert progress_of(project, tally.annotator, 1).done == mine.count()
        assert tally.retests <= project.retest_share * tally.submitted


def make_muddle(*, comparisons: int, overlap: int, people: int) -> tuple[Project, list[User]]:
    """A scene with gold and retests among the work."""
    project, annotators = make_scene(comparisons=comparisons, overlap=overlap, people=people)
    Project.objects.filter(pk=project.pk).update(
        gold_share=0.1, retest_share=0.2, review_disagreements=True, review_random_share=0.3
    )
    for _ in range(5):
        factories.make_gold_item(project)
    project.refresh_from_db()
    return project, annotators


def finish_and_check_muddle(project: Project, *, comparisons: int, overlap: int, people: int) -> None:
    """Let everybody work once more, as comparisons given back late may be left over, and check the result."""
    for annotator in User.objects.filter(username__startswith="annotator-"):
        work_through(project.pk, annotator.pk)
    assert project.comparisons.filter(purpose=Purpose.WORK, overlap=overlap).count() == comparisons
    assert project.annotator_tallies.count() == people
    check_muddle(project)


def check_invariants(project: Project, *, comparisons: int, overlap: int, people: int) -> None:
    """Everything was judged by exactly as many people as it should, once by each."""
    assert Comparison.objects.filter(project=project).count() == comparisons
    per_comparison = Counter(Judgment.objects.values_list("comparison_id", flat=True))
    assert set(per_comparison.values()) == {min(overlap, people)}
    assert len(per_comparison) == comparisons
    per_person = Counter(Judgment.objects.values_list("comparison_id", "annotator_id"))
    assert set(per_person.values()) == {1}
    left = set(Comparison.objects.values_list("open_slots", flat=True))
    assert left == {overlap - min(overlap, people)}
    assert not Assignment.objects.filter(state=AssignmentState.LEASED).exists()
    # Of all that were drawn none is skipped or drawn twice: within a lane both orders come equally often.
    drawn = sum(project.display_tallies.filter(size=2).values_list("drawn", flat=True))
    assert drawn == Assignment.objects.count()


def make_scene(*, comparisons: int, overlap: int, people: int) -> tuple[Project, list[User]]:
    annotators = [factories.make_user(f"annotator-{number}") for number in range(people)]
    project = factories.make_project(annotators=annotators, overlap=overlap)
    for _ in range(comparisons):
        factories.make_comparison(project)
    return project, annotators


def remove_scene() -> None:
    """So that the next scene of the same test can use the same names."""
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE annotation_user, annotation_project CASCADE")


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
class TestOnPostgres:
    @pytest.mark.parametrize(("overlap", "people"), [(1, 6), (2, 6), (3, 2)])
    def test_annotators_at_once_judge_everything_exactly_as_often_as_asked(self, overlap: int, people: int):
        project, annotators = make_scene(comparisons=15, overlap=overlap, people=people)
        done = at_once(*(partial(work_through, project.pk, annotator.pk) for annotator in annotators))
        assert sum(n for n in done if isinstance(n, int)) == 15 * min(overlap, people), done
        check_invariants(project, comparisons=15, overlap=overlap, people=people)

    def test_thirty_two_who_skip_give_back_load_ahead_and_come_late_leave_everything_right(self):
        project, annotators = make_muddle(comparisons=32, overlap=3, people=32)
        done = at_once(*(partial(muddle_through, project.pk, annotator.pk) for annotator in annotators))
        assert all(isinstance(number, int) for number in done), done
        finish_and_check_muddle(project, comparisons=32, overlap=3, people=32)
        assert Assignment.objects.filter(comparison__purpose=Purpose.GOLD).exists()

    def test_one_person_in_many_tabs_never_holds_three(self):
        project, (alice,) = make_scene(comparisons=8, overlap=1, people=1)
        in_hand = assign_next(project=project, annotator=alice)
        assert in_hand is not None
        at_once(*[lambda: assign_ahead(project=project, annotator=alice, after=in_hand)] * 6)
        assert Assignment.objects.filter(state=AssignmentState.LEASED).count() == 2

    def test_two_managers_who_decide_at_once_decide_once(self):
        managers = [factories.make_user(f"manager-{number}") for number in range(4)]
        project = factories.make_project(managers=managers, overlap=2)
        withholding = factories.make_comparison(project, ["As SmolLM, I say two.", "Two."]).withholding
        got = at_once(
            *(
                partial(
                    decide_withholding,
                    withholding=Withholding.objects.get(pk=withholding.pk),
                    decided_by=manager,
                    release=bool(number % 2),
                )
                for number, manager in enumerate(managers)
            )
        )
        assert sum(isinstance(result, Withholding) for result in got) == 1, got
        assert sum(isinstance(result, Refusal) for result in got) == 3, got
        released = Withholding.objects.get(pk=withholding.pk).state == WithholdingState.RELEASED
        assert Comparison.objects.get().open_slots == (2 if released else 0)

    def test_a_submit_waits_for_nobody_to_get_the_next(self):
        project, (alice, bob) = make_scene(comparisons=2, overlap=2, people=2)
        assignment = assign_next(project=project, annotator=alice)
        assert assignment is not None
        first, second = assignment.display_order
        answer = judgment_record(verdict=Verdict.RANKED, ranks={first: 1, second: 2})
        got: list[object] = []
        with transaction.atomic():
            # Someone has all comparisons locked; the answer is stored all the same, without a next.
            list(Comparison.objects.select_for_update(no_key=True))
            got += at_once(
                partial(
                    submit_and_get_next,
                    assignment=assignment,
                    annotator=alice,
                    answer=answer,
                    idempotency_key=uuid.uuid4(),
                )
            )
        assert got == [None]
        assert Judgment.objects.count() == 1
        assert assign_next(project=project, annotator=alice) is not None
        assert assign_next(project=project, annotator=bob) is not None

    def test_the_last_comparison_goes_to_as_many_as_it_has_places(self):
        for _ in range(5):
            project, annotators = make_scene(comparisons=1, overlap=2, people=5)
            got = at_once(
                *(partial(assign_next, project=project, annotator=annotator) for annotator in annotators)
            )
            assert sum(isinstance(result, Assignment) for result in got) == 2, got
            assert sum(result is None for result in got) == 3, got
            remove_scene()

    def test_two_tabs_of_one_person_get_the_same_comparison(self):
        project, (alice,) = make_scene(comparisons=5, overlap=1, people=1)
        got = at_once(*[lambda: assign_next(project=project, annotator=alice)] * 4)
        assert len({result.pk for result in got if isinstance(result, Assignment)}) == 1, got
        assert Assignment.objects.count() == 1

    def test_a_submit_sent_four_times_at_once_is_one_judgment(self):
        project, (alice,) = make_scene(comparisons=1, overlap=1, people=1)
        assignment = assign_next(project=project, annotator=alice)
        assert assignment is not None
        first, second = assignment.display_order
        answer = judgment_record(verdict=Verdict.RANKED, ranks={first: 1, second: 2})
        key = uuid.uuid4()
        got = at_once(
            *[
                lambda: submit_judgment(
                    assignment=assignment, annotator=alice, answer=answer, idempotency_key=key
                )
            ]
            * 4
        )
        assert {result.pk for result in got if isinstance(result, Judgment)} == {Judgment.objects.get().pk}, (
            got
        )

    def test_a_late_submit_and_a_new_lease_at_once_do_not_both_get_the_last_place(self):
        for _ in range(5):
            project, (alice, bob) = make_scene(comparisons=1, overlap=1, people=2)
            late = assign_next(project=project, annotator=alice)
            assert late is not None
            Assignment.objects.update(lease_expires_at="2020-01-01T00:00Z")
            expire_leases(project=project)
            first, second = late.display_order
            answer = judgment_record(verdict=Verdict.RANKED, ranks={first: 1, second: 2})
            at_once(
                partial(
                    submit_judgment,
                    assignment=late,
                    annotator=alice,
                    answer=answer,
                    idempotency_key=uuid.uuid4(),
                ),
                partial(assign_next, project=project, annotator=bob),
            )
            held = Assignment.objects.filter(
                comparison__project=project, state__in=[AssignmentState.LEASED, AssignmentState.SUBMITTED]
            )
            assert held.count() == 1
            assert Comparison.objects.get(project=project).open_slots == 0
            remove_scene()

    def test_leases_that_ran_out_are_taken_back_once_by_many_at_once(self):
        project, annotators = make_scene(comparisons=6, overlap=1, people=6)
        for annotator in annotators:
            assert assign_next(project=project, annotator=annotator) is not None
        Assignment.objects.update(lease_expires_at="2020-01-01T00:00Z")
        came_back = at_once(*[lambda: expire_leases(project=project)] * 6)
        assert sum(n for n in came_back if isinstance(n, int)) == 6, came_back
        assert set(Comparison.objects.values_list("open_slots", flat=True)) == {1}

    def test_two_imports_of_one_file_at_once_add_it_once(self):
        project, _ = make_scene(comparisons=0, overlap=1, people=1)
        lines = [f'{{"prompt": "question {number}"}}\n' for number in range(30)]
        reports = at_once(
            *[lambda: import_prompts(project=project, lines=iter(lines), name="prompts.jsonl")] * 3
        )
        assert sorted(report.added for report in reports) == [0, 0, 30]  # type: ignore[attr-defined]
        assert project.prompts.count() == 30

    def test_imports_at_once_hold_out_no_more_and_no_less_than_one_after_the_other(self):
        project, _ = make_scene(comparisons=0, overlap=1, people=1)
        batches = [
            [f'{{"prompt": "question {number}"}}\n' for number in range(first, first + 30)]
            for first in (0, 30, 60)
        ]
        at_once(
            *[
                partial(import_prompts, project=project, lines=batch, name="prompts.jsonl")
                for batch in batches
            ]
        )
        assert project.prompts.count() == 90
        assert project.prompts.filter(split=Split.HELD_OUT).count() >= 20

    def test_two_guidelines_published_at_once_get_two_versions(self):
        project, (alice,) = make_scene(comparisons=0, overlap=1, people=1)
        at_once(
            *(
                partial(publish_guideline, project=project, text=text, author=alice)
                for text in ("Be kind.", "Be brief.", "Be right.")
            )
        )
        assert list(project.guidelines.order_by("version").values_list("version", flat=True)) == [1, 2, 3, 4]


_SCENE = """
import multiprocessing, sys, django
django.setup()
from django.core.management import call_command
from django.db import connections
from tests.annotation.assignments import test_concurrency as scenes
make, work, check = (getattr(scenes, name) for name in sys.argv[1:4])
comparisons, overlap, people = map(int, sys.argv[4:])
call_command("migrate", verbosity=0)
project, annotators = make(comparisons=comparisons, overlap=overlap, people=people)
# No connection goes into two processes: each opens its own.
connections.close_all()
processes = multiprocessing.get_context("fork")
gate, failed = processes.Barrier(people), processes.Value("i", people)
def run(annotator):
    gate.wait()
    work(project.pk, annotator)
    with failed.get_lock():
        failed.value -= 1
workers = [processes.Process(target=run, args=[annotator.pk]) for annotator in annotators]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
assert failed.value == 0, f"{failed.value} processes failed"
check(project, comparisons=comparisons, overlap=overlap, people=people)
print("checked")
"""


def in_processes(folder: Path, make: str, work: str, check: str, *scene: int) -> None:
    """Play a scene in processes that share one SQLite file and start from one signal, then check it."""
    environment = {
        **os.environ,
        "DATABASE_URL": f"sqlite:///{folder / 'rondo.sqlite3'}",
        "RONDO_HOME": str(folder / "home"),
        "DJANGO_SETTINGS_MODULE": "webapp.settings",
        "PYTHONPATH": str(REPOSITORY),
    }
    played = subprocess.run(
        [sys.executable, "-c", _SCENE, make, work, check, *map(str, scene)],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert played.stdout.splitlines()[-1:] == ["checked"], played.stderr


def test_processes_on_one_sqlite_file_judge_everything_exactly_as_often_as_asked(tmp_path: Path):
    in_processes(tmp_path, "make_scene", "work_through", "check_invariants", 12, 2, 3)


@pytest.mark.long
def test_eight_processes_that_skip_give_back_and_come_late_leave_everything_right(tmp_path: Path):
    in_processes(tmp_path, "make_muddle", "muddle_through", "finish_and_check_muddle", 30, 2, 8)


@pytest.mark.django_db
def test_the_scenes_checker_sees_a_lost_comparison():
    """The check above is worth something: it fails when one comparison is left."""
    project, (alice,) = make_scene(comparisons=2, overlap=1, people=1)
    factories.make_judgment(Comparison.objects.first(), alice)
    with pytest.raises(AssertionError):
        check_invariants(project, comparisons=2, overlap=1, people=1)
    with refused("not_an_annotator"):
        assign_next(project=project, annotator=factories.make_user("oscar"))

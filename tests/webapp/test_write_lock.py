"""SQLite has one write lock: what the product does holds it for a second at most, whatever its size."""

import sqlite3
import threading
import time
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection
from django.utils import timezone

from annotation.choices import Split
from annotation.models import BulkChange, Candidate, Comparison, Completion, Project, Prompt, User
from annotation.services import bulk
from annotation.services.changes import forget_changes, undo_change
from annotation.services.saved_views import assign_view, end_queue, save_view
from annotation.text.identity import content_hash, text_hash
from tests import factories
from tests.write_lock import measured_write_lock
from webapp.backup import databases

pytestmark = pytest.mark.django_db(transaction=True)

LONGEST = 1.0
"""Seconds of the processor; a busy machine makes them no more."""
LONGEST_ON_THE_CLOCK = 10.0
"""A transaction that waits for a process or a server; generous, because four may share two cores."""
ROWS = 10_000
"""The most that one bulk action changes."""


def make_rows(project: Project) -> list[int]:
    """Write comparisons of two responses, each of a prompt of its own; return their keys."""
    source = factories.make_source()
    asked = [[{"role": "user", "content": f"Question {number}?"}] for number in range(ROWS)]
    prompts = Prompt.objects.bulk_create(
        Prompt(project=project, messages=chat, content_hash=content_hash(chat), split=Split.TRAIN)
        for chat in asked
    )
    responses = Completion.objects.bulk_create(
        Completion(prompt=prompt, source=source, text=text, text_hash=text_hash(text))
        for prompt in prompts
        for text in ("yes", "no")
    )
    comparisons = Comparison.objects.bulk_create(
        Comparison(
            project=project,
            prompt=prompt,
            round_number=1,
            size=2,
            overlap=1,
            open_slots=1,
            completion_set=prompt.content_hash,
        )
        for prompt in prompts
    )
    Candidate.objects.bulk_create(
        Candidate(comparison=comparisons[place // 2], completion=response, index=place % 2)
        for place, response in enumerate(responses)
    )
    return [comparison.pk for comparison in comparisons]


def test_no_bulk_action_on_ten_thousand_rows_holds_the_write_lock_for_long(project: Project, carol: User):
    comparisons = make_rows(project)
    prompts = list(project.prompts.values_list("pk", flat=True))
    longest = {}
    for name, chosen, values in (
        ("raise_overlap", comparisons, {"value": "3"}),
        ("set_priority", comparisons, {"value": "5"}),
        ("reserve", comparisons, {"value": "alice, bob"}),
        ("close", comparisons, {}),
        ("requeue", comparisons, {}),
        ("quarantine", comparisons, {}),
        ("release", comparisons, {}),
        ("add_tag", prompts, {"value": "new"}),
        ("remove_tag", prompts, {"value": "new"}),
        ("delete_comparisons", comparisons, {}),
        ("delete_prompts", prompts, {}),
    ):
        with measured_write_lock() as lock:
            effect = getattr(bulk, name)(project=project, actor=carol, chosen=chosen, **values)
        assert effect.changed == ROWS, name
        assert max(lock.seconds) < LONGEST_ON_THE_CLOCK, name
        longest[name] = round(max(lock.processor_seconds), 2)
        if name == "delete_comparisons":
            # Each prompt goes with its comparison.
            undo_change(change=BulkChange.objects.order_by("-pk")[0], undone_by=carol)
    for change in BulkChange.objects.filter(undone_at__isnull=True).order_by("-pk"):
        with measured_write_lock() as lock:
            undo_change(change=change, undone_by=carol)
        longest[f"undo of {change.action}"] = round(max(lock.processor_seconds), 2)
    assert max(longest.values()) < LONGEST, longest


def test_neither_a_queue_nor_what_is_deleted_for_good_holds_the_write_lock_for_long(
    project: Project, carol: User
):
    comparisons = make_rows(project)
    Comparison.objects.update(open_slots=0)
    view = save_view(project=project, owner=carol, name="all", table="comparisons", query="")
    alice = project.members.get(username="alice")
    longest = {}
    with measured_write_lock() as lock:
        queue, effect = assign_view(view=view, member=alice, assigned_by=carol)
    assert (queue is not None, effect.changed) == (True, ROWS)
    longest["assign"] = round(max(lock.processor_seconds), 2)
    with measured_write_lock() as lock:
        assert end_queue(queue=queue, ended_by=carol) == ROWS
    longest["end"] = round(max(lock.processor_seconds), 2)
    bulk.delete_comparisons(project=project, actor=carol, chosen=comparisons)
    with measured_write_lock() as lock:
        assert forget_changes(now=timezone.now() + timedelta(days=2)) == ROWS
    longest["forget"] = round(max(lock.processor_seconds), 2)
    assert max(longest.values()) < LONGEST, longest


def test_a_back_up_lets_others_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "large.sqlite3"
    with closing(sqlite3.connect(file)) as large:
        large.execute("PRAGMA journal_mode=WAL")
        large.execute("CREATE TABLE django_migrations (app TEXT, name TEXT)")
        large.execute("CREATE TABLE texts (id INTEGER PRIMARY KEY, text BLOB)")
        large.executemany("INSERT INTO texts (text) VALUES (randomblob(100000))", [()] * 1000)
        large.commit()
    monkeypatch.setitem(connection.settings_dict, "NAME", str(file))
    waits: list[float] = []
    is_over = threading.Event()

    def write() -> None:
        with closing(sqlite3.connect(file, timeout=60, isolation_level=None)) as other:
            while not is_over.is_set():
                began = time.perf_counter()
                other.execute("BEGIN IMMEDIATE")
                waits.append(time.perf_counter() - began)
                other.execute("COMMIT")
                time.sleep(0.002)

    writer = threading.Thread(target=write)
    writer.start()
    began = time.perf_counter()
    with databases.dumped():
        took = time.perf_counter() - began
        is_over.set()
    writer.join()
    assert len(waits) > 5
    assert max(waits) < max(LONGEST, took / 2)

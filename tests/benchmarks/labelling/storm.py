"""Many annotators at once who do what people do: submit, submit twice, give up, come back too late.

    python -m tests.benchmarks.labelling.storm [--database postgres://…] [--seconds 60] [--kill]

With `--kill` a web worker, and later all of them with their master, are killed by SIGKILL in the
middle. Says what must be nothing: comparisons annotated too often, acknowledged answers that are not
there or are there twice, places that do not add up, answers with status 5xx.
"""

import argparse
import json
import os
import random
import re
import signal
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import urlencode

import psutil

from tests.benchmarks.labelling.annotator import ACTION, CHOICE, KEY, TOKEN, Annotator
from tests.benchmarks.labelling.server import Served, flush, serving

CHECK = """
import json, sys
import django
django.setup()
from collections import Counter
from django.db.models import Count, F, Q
from annotation.models import Assignment, Comparison, Judgment
holds = Q(assignments__state__in=["leased", "submitted"], assignments__slot__isnull=False)
held = Comparison.objects.annotate(held=Count("assignments", filter=holds))
current = Judgment.objects.filter(superseded_by__isnull=True)
per_item = Counter(current.values_list("comparison_id", flat=True))
overlap = dict(Comparison.objects.values_list("pk", "overlap"))
by_person = Counter(current.values_list("comparison_id", "annotator_id"))
json.dump({
    "judged_too_often": sum(n > overlap[pk] for pk, n in per_item.items()),
    "judged_twice_by_one": sum(n > 1 for n in by_person.values()),
    "places_wrong": held.exclude(open_slots=F("overlap") - F("held")).count(),
    "keys": [str(key) for key in Judgment.objects.values_list("idempotency_key", flat=True)],
}, sys.stdout)
"""

# Leases are counted in minutes; here some of them end at once, so that others get the comparison.
AGE = """
import sys, random
import django
django.setup()
from datetime import timedelta
from django.utils import timezone
from annotation.models import Assignment
import time
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    leased = list(Assignment.objects.filter(state="leased").values_list("pk", flat=True))
    old = random.sample(leased, len(leased) // 4)
    Assignment.objects.filter(pk__in=old, state="leased").update(
        lease_expires_at=timezone.now() - timedelta(seconds=1))
    time.sleep(0.5)
"""


@dataclass
class Verdict:
    """The result of a storm. All counts except those of the work done must be zero."""

    acknowledged: int = 0
    submitted_twice: int = 0
    given_up: int = 0
    late: int = 0
    late_refused: int = 0
    judged_too_often: int = 0
    judged_twice_by_one: int = 0
    places_wrong: int = 0
    lost: int = 0
    doubled: int = 0
    server_errors: int = 0
    notes: list[str] = field(default_factory=list)

    def faults(self) -> dict[str, int]:
        """Return the counts that must be zero and are not."""
        names = (
            "judged_too_often",
            "judged_twice_by_one",
            "places_wrong",
            "lost",
            "doubled",
            "server_errors",
        )
        return {name: getattr(self, name) for name in names if getattr(self, name)}


class Stormy(Annotator):
    """An annotator who now and then gives up, sends twice, or comes back with a page of long ago."""

    def __init__(self, port: int, session: str, seed: int) -> None:
        super().__init__(port, session, seed)
        self.verdict = Verdict()
        self.kept: list[str] = []

    def storm(self, enough: threading.Event) -> None:
        """Work until it is enough."""
        while not enough.is_set():
            page = self._ask("GET", "/projects/load/label/")
            if not ACTION.search(page):
                time.sleep(0.05)
                continue
            what = self.chance.random()
            if what < 0.10:
                self._give_up(page)
            elif what < 0.20:
                self._submit_twice(page)
            elif what < 0.25:
                self.kept.append(page)
                self._give_up(page)
            else:
                self._submit(page)
            if self.kept and self.chance.random() < 0.1:
                self.verdict.late += 1
                if not self._submit(self.kept.pop(0)):
                    self.verdict.late_refused += 1

    def _form(self, page: str) -> tuple[str, str, dict[str, str]]:
        key = KEY.search(page)[1]
        form = {
            "csrfmiddlewaretoken": TOKEN.search(page)[1],
            "idempotency_key": key,
            "guideline": "1",
            "active_seconds": "1",
            "span_flags": "[]",
            "choice": self.chance.choice(CHOICE.findall(page)),
        }
        return ACTION.search(page)[1], key, form

    def _submit(self, page: str) -> bool:
        address, key, form = self._form(page)
        stored = bool(self._ask("POST", address, urlencode(form)))
        if stored:
            self.outcome.acknowledged.append(key)
        return stored

    def _submit_twice(self, page: str) -> None:
        """Both at once, on two connections, as a retry does."""
        address, key, form = self._form(page)
        self.verdict.submitted_twice += 1
        twin = Annotator(self.port, self.session, 0)
        with ThreadPoolExecutor(2) as pool:
            sent = [
                pool.submit(annotator._ask, "POST", address, urlencode(form)) for annotator in (self, twin)
            ]
        if any(future.result() for future in sent):
            self.outcome.acknowledged.append(key)
        self.outcome.errors += twin.outcome.errors

    def _give_up(self, page: str) -> None:
        self.verdict.given_up += 1
        if self.chance.random() < 0.3:
            address = ACTION.search(page)[1].replace("/submit/", "/skip/")
            token = TOKEN.search(page)[1]
            self._ask("POST", address, urlencode({"csrfmiddlewaretoken": token, "reason": "broken"}))


def storm(served: Served, *, seconds: float, kills: bool = False) -> Verdict:
    """Let everyone work for so many seconds, then look at what is stored."""
    people = [Stormy(served.port, key, seed) for seed, key in enumerate(served.sessions)]
    enough = threading.Event()
    threads = [threading.Thread(target=person.storm, args=(enough,)) for person in people]
    threads.append(threading.Thread(target=served.python, args=(AGE, str(max(1.0, seconds - 2)))))
    for thread in threads:
        thread.start()
    if kills:
        _kill(served, seconds / 4)
        time.sleep(seconds / 2)
    else:
        time.sleep(seconds)
    enough.set()
    for thread in threads:
        thread.join()
    return _look(served, people)


def _kill(served: Served, pause: float) -> None:
    """One worker after a pause, all and their master after another; then start the server again."""
    chance = random.Random(1)
    time.sleep(pause)
    workers = psutil.Process(served.process.pid).children()
    chance.choice(workers).send_signal(signal.SIGKILL)
    time.sleep(pause)
    master = psutil.Process(served.process.pid)
    for process in [master, *master.children()]:
        process.send_signal(signal.SIGKILL)
    served.restart()


def _look(served: Served, people: list[Stormy]) -> Verdict:
    figures = json.loads(served.python(CHECK))
    stored = figures.pop("keys")
    verdict = Verdict(**figures)
    acknowledged = [key for annotator in people for key in annotator.outcome.acknowledged]
    verdict.acknowledged = len(set(acknowledged))
    verdict.lost = len(set(acknowledged) - set(stored))
    verdict.doubled = len(stored) - len(set(stored))
    for person in people:
        for name in ("submitted_twice", "given_up", "late", "late_refused"):
            setattr(verdict, name, getattr(verdict, name) + getattr(person.verdict, name))
        verdict.server_errors += sum(
            bool(re.fullmatch(r"\w+ 5\d\d", error)) for error in person.outcome.errors
        )
        verdict.notes += person.outcome.errors
    return verdict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--database", default="")
    parser.add_argument("--annotators", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--kill", action="store_true")
    options = parser.parse_args()
    if options.database:
        flush(options.database)
    with (
        tempfile.TemporaryDirectory(prefix="rondo-storm-") as folder,
        serving(
            Path(folder),
            database_url=options.database,
            tasks=5_000,
            annotators=options.annotators,
            overlap=2,
            workers=options.workers,
            threads=8,
        ) as served,
    ):
        verdict = storm(served, seconds=options.seconds, kills=options.kill)
    notes = verdict.notes
    report = {**asdict(verdict), "notes": {note: notes.count(note) for note in sorted(set(notes))}}
    print(json.dumps({**report, "load": os.getloadavg()[0]}))


if __name__ == "__main__":
    main()

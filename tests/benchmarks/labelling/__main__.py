"""Labels a second, and the wait for the next comparison: a closed loop of annotators.

    python -m tests.benchmarks.labelling [--database URL] [--annotators 1,8,16] [--seconds 30]
    python -m tests.benchmarks.labelling --database URL --annotators 200 --think 5 --seconds 120
    python -m tests.benchmarks.labelling --database URL --annotators 50 --think 5 --soak 15

On SQLite unless a PostgreSQL database is named (its tables are made; give it an empty one). Says one
line of JSON per number of annotators. The client's processor time is part of the machine's, as it
is in the script for Label Studio. `cpu_ms_per_label` is what the web processes computed, in user and in
system mode: other work on the machine changes it far less than the labels a second.

`--think` seconds pass on average between a comparison and its answer, each time between half and one and a
half of that, and people come one after the other within that time. `--soak` is in minutes, instead of
`--seconds`. What each web process holds for itself is sampled, and the slope is printed with its interval.
"""

import argparse
import collections
import json
import math
import os
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path

from tests.benchmarks.labelling.annotator import Annotator
from tests.benchmarks.labelling.growth import Growth, MemoryWatch
from tests.benchmarks.labelling.server import Served, flush, serving
from tests.webapp.running import free_port

COUNT = """
import json, sys
import django
django.setup()
from django.db.models import Count
from annotation.models import Comparison, Judgment, QuestionAnswer
keys = {str(k) for k in Judgment.objects.values_list("idempotency_key", flat=True)}
over = Comparison.objects.annotate(n=Count("judgments")).filter(n__gt=1).count()
answers = QuestionAnswer.objects.count()
json.dump({"keys": sorted(keys), "over": over, "answers": answers}, sys.stdout)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--database", default="")
    parser.add_argument("--annotators", default="1,8,16")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--think", type=float, default=0.0, help="mean seconds before each answer")
    parser.add_argument("--warm-up", type=float, default=0.0, help="first seconds that no latency counts of")
    parser.add_argument("--soak", type=float, help="minutes, instead of --seconds; tells growth of memory")
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--own-questions", action="store_true", help="the project asks four of its own")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    for number in map(int, options.annotators.split(",")):
        with tempfile.TemporaryDirectory(prefix="rondo-load-") as folder:
            if options.database:
                flush(options.database)
            with serving(
                Path(folder),
                database_url=options.database,
                tasks=options.tasks,
                annotators=number,
                has_questions=options.own_questions,
                port=free_port(),
                workers=options.workers,
                threads=options.threads,
            ) as served:
                seconds = 60 * options.soak if options.soak else options.seconds
                report = measure(served, seconds=seconds, think=options.think, warm_up=options.warm_up)
        print(json.dumps(report), flush=True)


def measure(served: Served, *, seconds: float, think: float, warm_up: float) -> dict[str, object]:
    """Let every annotator of a server work for so long; what came of it, latencies without the warm-up."""
    people = [Annotator(served.port, key, seed) for seed, key in enumerate(served.sessions)]
    memory = MemoryWatch(served.process.pid)
    memory.start()
    began = time.monotonic()
    before, computed = os.times(), served.cpu_seconds()
    until = began + seconds
    threads = [
        threading.Thread(
            target=person.work,
            args=(until,),
            kwargs={"think": think, "wait": think * place, "count_from": began + warm_up},
        )
        for place, person in ((number / len(people), person) for number, person in enumerate(people))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall = time.monotonic() - began
    after, computed = os.times(), served.cpu_seconds() - computed
    growth = memory.stop()
    stored = json.loads(served.python(COUNT))
    return _report(wall, people, stored, after.user - before.user, computed, growth)


def _report(
    wall: float,
    people: list[Annotator],
    stored: dict[str, object],
    client: float,
    computed: float,
    growth: list[Growth],
) -> dict[str, object]:
    latencies = sorted(latency for person in people for latency in person.outcome.latencies)
    acknowledged = [key for person in people for key in person.outcome.acknowledged]
    handed = collections.Counter(address for person in people for address in person.outcome.handed)
    errors = collections.Counter(error for person in people for error in person.outcome.errors)
    return {
        "annotators": len(people),
        "labels_per_s": round(len(acknowledged) / wall, 1),
        "next_and_submit_p50_ms": round(1000 * _share(latencies, 0.5), 1),
        "next_and_submit_p95_ms": round(1000 * _share(latencies, 0.95), 1),
        "next_and_submit_p99_ms": round(1000 * _share(latencies, 0.99), 1),
        "cpu_ms_per_label": round(1000 * computed / max(1, len(acknowledged)), 1),
        "labels": len(acknowledged),
        "answers": stored["answers"],
        "lost": len(set(acknowledged) - set(stored["keys"])),  # type: ignore[call-overload]
        "judged_twice": stored["over"],
        "handed_twice": sum(count > 1 for count in handed.values()),
        "errors": dict(errors),
        "client_cores": round(client / wall, 2),
        "memory": [{**asdict(process), "grows": process.grows} for process in growth],
        "load": os.getloadavg()[0],
    }


def _share(ordered: list[float], share: float) -> float:
    """The value below which so much of a sorted list lies."""
    return ordered[int(share * (len(ordered) - 1))] if ordered else math.nan


if __name__ == "__main__":
    main()

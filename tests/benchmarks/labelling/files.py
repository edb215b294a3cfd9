"""The time to import 10,000 pairs and to export 5,000 answers.

    python -m tests.benchmarks.labelling.files [--database postgres://…]

As in `../shared/peers/label_studio` (`setup_ls.py`, `export_ls.py`): the same sizes of text, and the time
of the work alone, without the start of a process. Median of three, each in a fresh project.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

from tests.benchmarks.labelling.server import ROOT, flush, prepare

MEASURE = """
import json, statistics, sys, tempfile, time, uuid
import django
django.setup()
from annotation.choices import AssignmentState
from annotation.exchange.records import as_line, records
from annotation.models import Assignment, Candidate, Comparison, Judgment, RankedCompletion, User
from annotation.selectors.access import judgments_current
from annotation.services.projects.projects import create_project
from annotation.exchange.prompts import import_prompts
from django.utils import timezone
from tests.benchmarks.labelling.tasks import make_tasks

pairs = int(sys.argv[1])
person = User.objects.create_user(username="one")
seconds = {"import": [], "export": []}
for turn in range(3):
    project = create_project(name=f"Files {turn}", slug=f"files-{turn}", guideline="Prefer what helps.")
    path = tempfile.mktemp()
    with open(path, "w") as stream:
        for task in make_tasks(pairs, seed=turn):
            stream.write(json.dumps({"prompt": task.prompt, "completions": task.answers}) + "\\n")
    began = time.perf_counter()
    with open(path) as lines:
        report = import_prompts(project=project, lines=lines, name="tasks.jsonl")
    seconds["import"].append(time.perf_counter() - began)
    assert report.comparisons == pairs
    now = timezone.now()
    comparisons = list(Comparison.objects.filter(project=project).order_by("pk")[: pairs // 2])
    members = {}
    found = Candidate.objects.filter(comparison__project=project).values_list("comparison", "completion")
    for pk, completion in found:
        members.setdefault(pk, []).append(completion)
    assignments = Assignment.objects.bulk_create([
        Assignment(comparison=c, annotator=person, slot=0, state=AssignmentState.SUBMITTED,
                   display_order=members[c.pk], leased_at=now, lease_expires_at=now, closed_at=now)
        for c in comparisons], batch_size=500)
    judgments = Judgment.objects.bulk_create([
        Judgment(assignment=a, comparison=a.comparison, annotator=person, verdict="ranked", strength=2,
                 active_seconds=12, idempotency_key=uuid.uuid4()) for a in assignments], batch_size=500)
    RankedCompletion.objects.bulk_create([
        RankedCompletion(judgment=j, completion_id=pk, rank=rank)
        for j in judgments for rank, pk in enumerate(members[j.comparison_id], start=1)], batch_size=500)
    began = time.perf_counter()
    with open(path, "w") as stream:
        count = 0
        for line in map(as_line, records(judgments_current(project))):
            stream.write(line)
            count += 1
    seconds["export"].append(time.perf_counter() - began)
    assert count == pairs // 2
json.dump({name: round(statistics.median(found), 2) for name, found in seconds.items()}, sys.stdout)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--database", default="")
    parser.add_argument("--pairs", type=int, default=10_000, help="in; half as many answers out")
    options = parser.parse_args()
    if options.database:
        flush(options.database)
    with tempfile.TemporaryDirectory(prefix="rondo-files-") as folder:
        environment = prepare(folder, options.database)
        command = [sys.executable, "-c", MEASURE, str(options.pairs)]
        done = subprocess.run(command, env=environment, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    print(json.dumps({**json.loads(done.stdout), "load": os.getloadavg()[0]}))


if __name__ == "__main__":
    main()

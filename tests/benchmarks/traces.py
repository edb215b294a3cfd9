"""Server time and size of the pages of a long trace.

    python -m tests.benchmarks.traces [--steps 200] [--megabytes 2] [--requests 10]

Makes projects with one and with two such traces in a database of its own (SQLite), and opens the labelling
screen, the comparison's page and a part of a step with Django's test client.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--megabytes", type=float, default=2)
    parser.add_argument("--requests", type=int, default=10)
    options = parser.parse_args()
    home = tempfile.mkdtemp(prefix="rondo-traces-")
    os.environ |= {"RONDO_HOME": home, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    try:
        _measure(options)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _measure(options: argparse.Namespace) -> None:
    import django

    django.setup()
    from django.conf import settings
    from django.core.management import call_command

    settings.ALLOWED_HOSTS = ["testserver"]
    call_command("migrate", verbosity=0)
    from annotation.services.assignments.display_order import candidate_token
    from annotation.services.assignments.next import assign_next
    from annotation.services.texts import create_comparison
    from tests import factories

    alice, carol = factories.make_user("alice"), factories.make_user("carol")
    size = int(options.megabytes * 1_000_000)
    for slug, count in (("one", 1), ("two", 2)):
        project = factories.make_project(
            slug=slug, annotators=[alice], managers=[carol], ask_step_labels=True
        )
        prompt = factories.make_prompt(project)
        traces = [
            factories.make_trace(prompt, _steps(options.steps, size, shift=shift)) for shift in range(count)
        ]
        comparison = create_comparison(prompt=prompt, completions=traces, round_number=1)
        held = assign_next(project=project, annotator=alice)
        assert held is not None
        length = len(traces[0].text.encode())
        print(f"{count} trace(s) of {traces[0].step_count} steps, {length:,} bytes each")
        _open("labelling screen", alice, options.requests, "label", slug)
        _open("comparison", carol, options.requests, "statistics-item", slug, comparison.pk)
        token = candidate_token(held, traces[0].pk)
        _open("part of a step", alice, options.requests, "label-step", slug, held.pk, token, 2)


def _steps(number: int, size: int, *, shift: int) -> list[Any]:
    """Steps in rounds of thought, call, result and message; results hold nearly all of the text."""
    from annotation.choices import TraceStepKind
    from annotation.text.traces import UnwrittenStep

    long = ("row 17: 80 °C, two minutes\n" * size)[: size * 4 // number]
    tools = ("search", "read_file", "run")
    made: list[UnwrittenStep] = []
    while len(made) < number:
        tool = tools[(len(made) // 4 + shift) % 3]
        made += [
            UnwrittenStep(kind=TraceStepKind.REASONING, content="I look it up, then I compare both."),
            UnwrittenStep(
                kind=TraceStepKind.TOOL_CALL, tool=tool, arguments={"query": "green tea", "limit": 10}
            ),
            UnwrittenStep(kind=TraceStepKind.TOOL_RESULT, role="tool", tool=tool, content=long),
            UnwrittenStep(
                kind=TraceStepKind.MESSAGE, content="It says two minutes at 80 °C. I check another source."
            ),
        ]
    return made[:number]


def _open(what: str, user: Any, requests: int, name: str, *args: Any) -> None:
    """Print the times of requests, the size of the answer and the number of its elements."""
    from django.test import Client
    from django.urls import reverse

    client = Client()
    client.force_login(user)
    times, busy = [], []
    for _ in range(requests + 1):
        began, worked = time.perf_counter(), time.process_time()
        answer = client.get(reverse(name, args=args))
        times.append((time.perf_counter() - began) * 1000)
        busy.append((time.process_time() - worked) * 1000)
        assert answer.status_code == 200, answer.status_code
    first, *rest = times
    print(
        f"  {what}: first {first:.0f} ms, median {statistics.median(rest):.0f} ms, "
        f"slowest {max(rest):.0f} ms, processor {statistics.median(busy[1:]):.0f} ms, "
        f"{len(answer.content) / 1000:,.0f} kB, "
        f"{answer.content.count(b'</'):,} elements that close"
    )


if __name__ == "__main__":
    main()

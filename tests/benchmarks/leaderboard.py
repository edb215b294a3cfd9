"""The leaderboard's page with 1,000,000 judgments on PostgreSQL.

    python -m tests.benchmarks.leaderboard postgres://user:password@host/database [--judgments N]

Makes a database `<name>_leaderboard`, fills it by SQL, counts all votes from the beginning, and asks for the
pages as a signed-in manager in this process: `cold` after a vote has come, when everything is refitted,
`warm` as it was asked for before. Drops the database at the end.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg

SOURCES, ROUNDS, TAGS, PEOPLE, OVERLAP, PROMPTS = 24, 5, 8, 40, 4, 10_000

_FILL = """
SET session_replication_role = replica;
INSERT INTO annotation_completionsource (id, name, kind, created_at)
  SELECT n, 'checkpoint-' || n, 'checkpoint', now() FROM generate_series(1, %(sources)s) n;
INSERT INTO annotation_prompt (id, project_id, messages, context, "references", tags, content_hash, split,
    created_at)
  SELECT n, %(project)s, jsonb_build_array(jsonb_build_object('role', 'user', 'content', 'Question ' || n)),
    '[]', '[]', jsonb_build_array('tag' || n %% %(tags)s), md5('p' || n), 'train', now()
  FROM generate_series(1, %(prompts)s) n;
INSERT INTO annotation_completion (id, prompt_id, source_id, text, text_hash, sampling, seed, finish_reason,
    created_at)
  SELECT (p - 1) * %(sources)s + s, p, s, repeat('word ', 5 + (p * 7 + s * 13) %% 60),
    md5(p || ' ' || s), '{}', s, 'stop', now()
  FROM generate_series(1, %(prompts)s) p, generate_series(1, %(sources)s) s;
CREATE TEMPORARY TABLE pair AS
  SELECT n AS id, prompt, (prompt - 1) * %(sources)s + a + 1 AS one,
    (prompt - 1) * %(sources)s + b + 1 AS other, a, b, n %% %(rounds)s + 1 AS round
  FROM (SELECT n, prompt, a, (a + 1 + (n / %(prompts)s * 5 + n) %% (%(sources)s - 1)) %% %(sources)s AS b
    FROM (SELECT n, n %% %(prompts)s + 1 AS prompt, (n * 7 + n / %(prompts)s) %% %(sources)s AS a
      FROM generate_series(1, %(comparisons)s) n) x) y;
INSERT INTO annotation_comparison (id, project_id, prompt_id, round_number, purpose, size, overlap,
    open_slots, priority, acquisition_score, shuffle, completion_set, created_at)
  SELECT id, %(project)s, prompt, round, 'work', 2, %(overlap)s, 0, 0, 0, 0, md5('c' || id), now() FROM pair;
INSERT INTO annotation_candidate (comparison_id, completion_id, index)
  SELECT id, one, 0 FROM pair UNION ALL SELECT id, other, 1 FROM pair;
CREATE TEMPORARY TABLE said AS
  SELECT (p.id - 1) * %(overlap)s + k AS id, p.id AS comparison, one, other, k, random() AS luck,
    1 / (1 + exp((p.b - p.a) * 0.12)) AS chance, 1 + (p.id * 3 + k) %% %(people)s AS person
  FROM pair p, generate_series(1, %(overlap)s) k;
INSERT INTO annotation_assignment (id, comparison_id, annotator_id, slot, arm, state, display_order, reason,
    leased_at, lease_expires_at, closed_at)
  SELECT id, comparison, person, k - 1, '', 'submitted',
    CASE WHEN floor(luck * 1000)::int %% 2 = 0 THEN jsonb_build_array(one, other)
      ELSE jsonb_build_array(other, one) END,
    '', now(), now(), now()
  FROM said;
INSERT INTO annotation_judgment (id, assignment_id, comparison_id, annotator_id, verdict, comment,
    idempotency_key, created_at)
  SELECT id, id, comparison, person,
    CASE WHEN luck < 0.06 THEN 'equal' WHEN luck > 0.96 THEN 'both_bad' ELSE 'ranked' END, '',
    gen_random_uuid(), now()
  FROM said;
INSERT INTO annotation_rankedcompletion (judgment_id, completion_id, rank)
  SELECT id, one, CASE WHEN luck < 0.06 OR luck > 0.96 OR luck < chance THEN 1 ELSE 2 END FROM said
  UNION ALL
  SELECT id, other, CASE WHEN luck < 0.06 OR luck > 0.96 OR luck >= chance THEN 1 ELSE 2 END FROM said;
SET session_replication_role = origin;
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("url", help="of a PostgreSQL server whose user may make databases")
    parser.add_argument("--judgments", type=int, default=1_000_000)
    parser.add_argument("--times", type=int, default=40, help="how often each page is asked for")
    options = parser.parse_args()
    parts = urlsplit(options.url)
    name = f"{parts.path.strip('/')}_leaderboard"
    with psycopg.connect(options.url, autocommit=True) as server:
        server.execute(f'DROP DATABASE IF EXISTS "{name}"')
        server.execute(f'CREATE DATABASE "{name}"')
        try:
            os.environ["DATABASE_URL"] = urlunsplit(parts._replace(path=f"/{name}"))
            os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
            json.dump(measure(options.judgments, options.times), sys.stdout, indent=2)
            print()
        finally:
            from django.db import connections

            connections.close_all()
            server.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def measure(judgments: int, times: int) -> dict[str, object]:
    """Seconds of filling and counting, milliseconds of each page."""
    import django

    django.setup()
    from django.core.management import call_command
    from django.db import connection

    call_command("migrate", verbosity=0)
    from annotation.models import User
    from training.models import VoteCount
    from training.services.leaderboard import count_votes

    figures: dict[str, object] = {"judgments": judgments, "models": SOURCES, "rounds": ROUNDS, "tags": TAGS}
    began = time.monotonic()
    manager, project = _fill(judgments)
    figures["seconds_to_fill"] = round(time.monotonic() - began, 1)
    print(f"filled in {figures['seconds_to_fill']} s", file=sys.stderr)
    began = time.monotonic()
    assert count_votes() == judgments
    figures["seconds_to_count_all"] = round(time.monotonic() - began, 1)
    print(f"counted in {figures['seconds_to_count_all']} s", file=sys.stderr)
    figures["rows_of_counts"] = VoteCount.objects.count()
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    client = _client(User.objects.get(pk=manager))
    base = f"/projects/{project.slug}/leaderboard/"
    pages = {
        "page": "",
        "page, style control": "?style=on",
        "page of a round": "?part=round:2",
        "by round": "groups/",
        "by tag": "groups/?by=tag",
        "items of a pair": "items/?left=3&right=4",
        "items of a model": "items/?left=3",
    }
    for label, path in pages.items():
        ask = _asker(client, base + path)
        ask()
        warm = [ask() for _ in range(times)]
        cold = [_after_a_vote(project, ask) for _ in range(times)]
        figures[label] = {"cold_ms": _quantiles(cold), "warm_ms": _quantiles(warm)}
    return figures


def _fill(judgments: int) -> tuple[int, Any]:
    from django.db import connection

    from annotation.choices import Role
    from annotation.models import Membership, Project, User

    comparisons = judgments // OVERLAP
    project = Project.objects.create(name="Load", slug="load")
    # A quarter of the voters are guests.
    User.objects.bulk_create(
        User(pk=number, username=f"person{number}", password="!", is_guest=number > PEOPLE * 3 // 4)
        for number in range(1, PEOPLE + 1)
    )
    sizes = {
        **{"people": PEOPLE, "sources": SOURCES, "project": project.pk, "tags": TAGS, "prompts": PROMPTS},
        **{"rounds": ROUNDS, "comparisons": comparisons, "overlap": OVERLAP},
    }
    filled = _FILL
    for key, value in sizes.items():
        filled = filled.replace(f"%({key})s", str(value))
    with connection.cursor() as cursor:
        cursor.execute(filled.replace("%%", "%"))
    manager = User.objects.create(pk=PEOPLE + 1, username="manager")
    Membership.objects.create(project=project, user=manager, role=Role.MANAGER)
    return manager.pk, project


def _client(manager: Any) -> Any:
    from django.test import Client

    client = Client(SERVER_NAME="localhost")
    client.force_login(manager)
    return client


def _asker(client: Any, path: str) -> Callable[[], float]:
    def ask() -> float:
        began = time.perf_counter()
        answer = client.get(path)
        took = time.perf_counter() - began
        assert answer.status_code == 200, answer.status_code
        return took * 1000

    return ask


def _after_a_vote(project: Any, ask: Callable[[], float]) -> float:
    """As after a vote: what was fitted before is of no use."""
    from django.db.models import F

    from training.models import VoteTotals

    VoteTotals.objects.filter(project=project).update(version=F("version") + 1)
    return ask()


def _quantiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "median": round(statistics.median(ordered), 1),
        "p95": round(ordered[int(0.95 * (len(ordered) - 1))], 1),
        "most": round(ordered[-1], 1),
    }


if __name__ == "__main__":
    main()

"""Server time of every page of a project that holds a million annotations, on PostgreSQL.

    DATABASE_URL=postgres://postgres@127.0.0.1:5432/million \
        python -m tests.benchmarks.million [--annotations 1000000] [--times 5] [--only data]

The database must be empty or filled by this script before. Rows are written by SQL, without foreign keys
being checked: half as many comparisons as annotations with two annotators each, a quarter as many prompts,
as many responses, in 20 rounds by 20 annotators. Pages are asked for through Django's test client, which
leaves out the network: the first request, then the least and the median of the others.
"""

import argparse
import os
import statistics
import time
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

SLUG = "million"
ROUNDS = 20
PEOPLE = 20
WORDS = (
    "tea water kettle minutes steep leaf cup boil green black "
    "sugar milk lemon honey spoon pot cold warm fresh mint"
)
"""Twenty words, of which every text holds some: what search looks for."""

_TEXT = (
    "(SELECT string_agg((string_to_array('{words}', ' '))[1 + (n * k * 7 + k) % 20], ' ') "
    "FROM generate_series(1, 40) k)"
)

FILL = f"""
SET session_replication_role = replica;
INSERT INTO annotation_prompt
    (id, messages, context, "references", tags, content_hash, split, created_at, project_id)
SELECT n,
       jsonb_build_array(jsonb_build_object('role', 'user', 'content', 'Question ' || n || ': ' || {{text}})),
       '[]', '[]', CASE n % 10 WHEN 0 THEN '["hard"]' WHEN 1 THEN '["easy", "tea"]' ELSE '[]' END::jsonb,
       md5('p' || n), CASE n % 10 WHEN 0 THEN 'held-out' ELSE 'train' END,
       now() - n * interval '1 second', {{project}}
FROM generate_series(1, {{prompts}}) n;
INSERT INTO annotation_completion
    (id, text, text_hash, sampling, seed, finish_reason, token_count, created_at, source_id, prompt_id)
SELECT n, 'Response ' || n || ': ' || {{text}}, md5('c' || n), '{{{{}}}}', n, 'stop', 100 + n % 200, now(),
       {{source}} + n % 2, 1 + (n - 1) / 4
FROM generate_series(1, {{prompts}} * 4) n;
INSERT INTO annotation_comparison
    (id, round_number, purpose, size, overlap, open_slots, priority, acquisition_score, shuffle,
     completion_set, agreement, created_at, project_id, prompt_id)
SELECT n, 1 + n * {ROUNDS} / ({{comparisons}} + 1), 'work', 2, 2, CASE WHEN n % 50 = 0 THEN 2 ELSE 0 END,
       0, 0, (n::bigint * 7919) % 2147483647, md5('s' || n),
       CASE WHEN n % 50 = 0 THEN NULL WHEN (2 * n) % 7 = 0 OR (2 * n - 1) % 7 = 0 THEN 0 ELSE 1 END,
       now(), {{project}}, 1 + (n - 1) / 2
FROM generate_series(1, {{comparisons}}) n;
INSERT INTO annotation_candidate (id, index, comparison_id, completion_id)
SELECT 2 * (n - 1) + k + 1, k, n, 2 * (n - 1) + k + 1
FROM generate_series(1, {{comparisons}}) n, generate_series(0, 1) k;
INSERT INTO annotation_assignment
    (id, slot, arm, state, display_order, reason, leased_at, lease_expires_at, closed_at, annotator_id,
     comparison_id)
SELECT n, (n - 1) % 2, '', 'submitted',
       jsonb_build_array(2 * ((n - 1) / 2) + 1, 2 * ((n - 1) / 2) + 2), '',
       at_, at_ + interval '30 minutes', at_ + interval '30 seconds',
       {{person}} + (((n - 1) / 2) % ({PEOPLE} / 2)) * 2 + (n - 1) % 2, 1 + (n - 1) / 2
FROM (SELECT n, now() - ({{annotations}} - n) * interval '10 seconds' AS at_
      FROM generate_series(1, {{annotations}}) n) leased WHERE (1 + (n - 1) / 2) % 50 <> 0;
INSERT INTO annotation_judgment
    (id, verdict, strength, comment, active_seconds, idempotency_key, created_at, annotator_id, assignment_id,
     comparison_id, blind)
SELECT id, 'ranked', 1 + id % 4, CASE id % 100 WHEN 0 THEN 'clearer about the kettle' ELSE '' END,
       10 + id % 60, md5('j' || id)::uuid, closed_at, annotator_id, id, comparison_id, true
FROM annotation_assignment;
INSERT INTO annotation_rankedcompletion (id, rank, judgment_id, completion_id)
SELECT 2 * j.id + k, 1 + (k + CASE WHEN j.id % 7 = 0 THEN 1 ELSE 0 END) % 2, j.id,
       2 * (j.comparison_id - 1) + k + 1
FROM annotation_judgment j, generate_series(0, 1) k;
SET session_replication_role = DEFAULT;
"""
"""Fills the tables. Every seventh annotation ranks the other way round."""

TABLES = ("prompt", "completion", "comparison", "candidate", "assignment", "judgment", "rankedcompletion")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--annotations", type=int, default=1_000_000)
    parser.add_argument("--times", type=int, default=5, help="requests of which the median is shown")
    parser.add_argument("--only", default="", help="measure addresses that contain this text")
    arguments = parser.parse_args()
    import django

    django.setup()
    from django.test.utils import setup_test_environment

    setup_test_environment()
    project = _filled(arguments.annotations)
    _measure(project, arguments.times, arguments.only)


def _filled(annotations: int) -> Any:
    from django.core.management import call_command
    from django.db import connection

    from annotation.models import CompletionSource, Judgment, Project, User
    from tests.factories import make_project

    call_command("migrate", verbosity=0)
    if project := Project.objects.filter(slug=SLUG).first():
        return project
    if Judgment.objects.exists():
        raise SystemExit("The database holds another project's annotations. Name an empty one.")
    people = User.objects.bulk_create(User(username=f"annotator{n:02}") for n in range(PEOPLE))
    carol = User.objects.create(username="carol", is_superuser=True, is_staff=True)
    project = make_project(slug=SLUG, name="Million", managers=[carol], annotators=people)
    first, _ = (CompletionSource.objects.create(name=name, kind="imported") for name in ("first", "second"))
    began = time.perf_counter()
    statement = FILL.format(
        text=_TEXT.format(words=WORDS),
        project=project.pk,
        source=first.pk,
        person=people[0].pk,
        prompts=annotations // 4,
        comparisons=annotations // 2,
        annotations=annotations,
    )
    with connection.cursor() as cursor:
        cursor.execute(statement.replace("%", "%%"), [])
        for table in TABLES:
            cursor.execute(
                f"SELECT setval(pg_get_serial_sequence('annotation_{table}', 'id'), max(id)) "
                f"FROM annotation_{table}"
            )
        cursor.execute("VACUUM ANALYZE")
    print(f"filled in {time.perf_counter() - began:.0f} s")
    return project


def _addresses() -> dict[str, str]:
    """Return every page of a project, by name: those that its slug leads to, searches and filters."""
    from django.urls import URLPattern, get_resolver

    home = f"/projects/{SLUG}"
    addresses = {"home": "/", "search": "/search/?text=kettle", "inbox": "/inbox/", "status": "/status/"}

    def walk(patterns: Any, before: str) -> None:
        for pattern in patterns:
            path = before + str(pattern.pattern)
            if not isinstance(pattern, URLPattern):
                walk(pattern.url_patterns, path)
            elif pattern.name and path.startswith(("projects/<slug:slug>", "api/v1/projects/<slug:slug>")):
                address = "/" + path.replace("<slug:slug>", SLUG)
                if "<" not in address:
                    addresses.setdefault(pattern.name, address)

    walk(get_resolver().url_patterns, "")
    tables = {name: f"{home}/data/{name}/" for name in ("prompts", "comparisons", "annotations", "responses")}
    for name, address in tables.items():
        addresses[f"data-{name}, search"] = f"{address}?text=kettle+mint"
        addresses[f"data-{name}, search without a match"] = f"{address}?text=zebra"
        addresses[f"data-{name}, search of one"] = f"{address}?text=123457"
        addresses[f"data-{name}, search of what old rows have"] = f"{address}?text=12"
        addresses[f"data-{name}, oldest first"] = f"{address}?order=oldest"
        addresses[f"data-{name}, tag"] = f"{address}?tag=hard"
        addresses[f"data-{name}, held-out"] = f"{address}?split=held-out"
    for name, query in (
        ("round", "round=2"),
        ("agreement", "agreement=50"),
        ("agreement in a round", "agreement=50&round=2"),
        ("annotator", "annotator={person}"),
        ("model", "source={source}"),
        ("open", "state=open"),
        ("annotated", "state=annotated"),
        ("quarantined", "state=quarantined"),
        ("flagged", "state=flagged"),
        ("page in the middle", "after=250000"),
    ):
        addresses[f"data-comparisons, {name}"] = f"{tables['comparisons']}?{query}"
    for name, query in (
        ("round", "round=2"),
        ("annotator", "annotator={person}"),
        ("preference", "preference=equal"),
    ):
        addresses[f"data-annotations, {name}"] = f"{tables['annotations']}?{query}"
    addresses["data-responses, model"] = f"{tables['responses']}?source={{source}}"
    addresses["a comparison"] = f"{home}/items/1234/"
    addresses["a prompt"] = f"{home}/prompts/1234/"
    addresses["an annotator"] = f"{home}/annotators/{{person}}/"
    addresses["a response"] = "/completions/1234/"
    return addresses


def _measure(project: Any, times: int, only: str) -> None:
    from django.test import Client

    from annotation.models import CompletionSource, User

    names = {
        "person": User.objects.get(username="annotator00").pk,
        "source": CompletionSource.objects.get(name="first").pk,
    }
    client = Client(raise_request_exception=False)
    client.force_login(User.objects.get(username="carol"))
    client.get("/")
    print("| page | first, ms | least, ms | median, ms | status |\n|---|---|---|---|---|")
    for name, address in _addresses().items():
        address = address.format(**names) if "{" in address else address
        if only not in name and only not in address:
            continue
        seconds = []
        for _ in range(times + 1):
            began = time.perf_counter()
            answer = client.get(address)
            seconds.append(time.perf_counter() - began)
            if answer.status_code == 405 or seconds[0] > 20:
                break
        if answer.status_code == 405:
            continue
        later = seconds[1:] or seconds
        print(
            f"| {name} | {seconds[0] * 1e3:.0f} | {min(later) * 1e3:.0f} "
            f"| {statistics.median(later) * 1e3:.0f} | {answer.status_code} |",
            flush=True,
        )


if __name__ == "__main__":
    main()

"""Nobody sees a vote of a calibration session before its reveal: pages, their source, the API, files.

Noninterference: in two worlds a participant votes differently, and another participant, the manager and a
reviewer read every address that is open to them in both. What they get is the same, character by character.
"""

import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import product
from typing import Any

import pytest
from django.apps import apps
from django.core.cache import cache
from django.core.management.color import no_style
from django.db import connection, transaction
from django.test import Client
from django.urls import NoReverseMatch, reverse
from pytest_django import Settings

from annotation.choices import Role, Verdict
from annotation.models import Assignment, Comparison, Membership, Project, SpanFlag, User
from annotation.record.judgment import CritiquePart, SpanPart
from annotation.services.assignments.next import assign_next
from annotation.services.calibration import create_session, reveal_session
from annotation.services.judgments.submission import submit_judgment
from annotation.text.identity import text_hash
from tests import factories
from tests.api.scene import Asker
from tests.api.test_who_may import ROLES as API_ROLES
from tests.api.test_who_may import TABLE as API_TABLE
from tests.architecture.address_table import ROLES, TABLE, our_patterns
from tests.records import judgment_record
from webapp.api.urls import document

pytestmark = pytest.mark.django_db
MARKER = "zxqmarker"
Answers = Mapping[tuple[str, str], str]

_VOLATILE = re.compile(
    r"[A-Za-z0-9]{64}"  # masked tokens against forgery
    r"|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*(?:Z|[+-]\d\d:?\d\d)?"
    r"|\d\d?:\d\d(?::\d\d)?(?: [ap]\.m\.)?"
    r"|rondo_\w+"
    r"|\b\d+\.\d s\b"  # how long something was computed
)

_UNASKED = {
    # Sign-ins, and what is about the reader alone.
    "logout",
    # Streams without an end, numbers of the process, and times of the machine.
    *("metrics", "status", "health-live", "health-ready"),
}


_OF_ACCOUNTS = ("account_", "mfa_", "socialaccount_", "github_", "google_", "guide", "login", "language")
"""Beginnings of names of addresses that know no project."""

_OF_REVIEWERS = ("review", "comment", "comparison", "statistics-item")

READERS = ("bob", "rita", "carol")


@pytest.fixture
def scene(project: Project, alice: User, bob: User, carol: User, rita: User) -> Comparison:
    """A session of one comparison with both annotators, and an ordinary comparison that is annotated."""
    Project.objects.update(overlap=2, review_disagreements=True, ask_span_flags=True, ask_critique=True)
    project.refresh_from_db()
    other = factories.make_comparison(project)
    for person in (alice, bob):
        factories.make_judgment(other, person)
    comparison = factories.make_comparison(project, ["Two minutes are enough.", "Ten hours."])
    create_session(
        project=project,
        created_by=carol,
        name="Spring",
        participants=[alice.pk, bob.pk],
        comparisons=[comparison.pk],
    )
    project.refresh_from_db()
    return comparison


def vote(project: Project, person: User, *, first: bool, text: str, spans: bool) -> None:
    assignment = assign_next(project=project, annotator=person)
    assert assignment is not None
    assert assignment.comparison.is_sealed
    left, right = sorted(assignment.display_order)
    marked = SpanPart(
        completion=str(left),
        category="untruthful",
        start=0,
        end=3,
        quote="Two",
        note=f"{MARKER} {text}",
        text_hash=text_hash("Two minutes are enough."),
    )
    submit_judgment(
        assignment=assignment,
        annotator=person,
        answer=judgment_record(
            verdict=Verdict.RANKED,
            ranks={left: 1 if first else 2, right: 2 if first else 1},
            strength=4 if first else 1,
            comment=f"{MARKER} comment {text}",
            critiques=(CritiquePart(completion=str(left), text=f"{MARKER} critique {text}"),),
            spans=(marked,) if spans else (),
        ),
        idempotency_key=uuid.UUID(int=7),
    )


def addresses(project: Project, comparison: Comparison) -> Iterator[tuple[str, str]]:
    """Every address of a page with every key that could be meant, and searches for the vote; with who reads.

    Whom the table of addresses refuses is not sent there once more.
    """
    sessions = project.calibrations.values_list("pk", flat=True)
    voter = Assignment.objects.filter(comparison=comparison).values_list("annotator", "pk")
    values: Mapping[str, list[Any]] = {
        "slug": [project.slug],
        "pk": sorted({1, comparison.pk, *sessions, *(pk for both in voter for pk in both)}),
        "index": [0],
        "format_name": ["jsonl", "csv", "trl-preference", "label-studio", "argilla"],
        "name": ["all"],
        "key": ["untruthful"],
        "number": [1],
        "token": ["none"],
        "table": ["comparisons"],
    }
    for pattern in our_patterns():
        name = str(pattern.name)
        if name not in TABLE or TABLE[name][0] != "GET" or name in _UNASKED or name.startswith(_OF_ACCOUNTS):
            continue
        parameters = list(pattern.pattern.converters)
        if any(parameter not in values for parameter in parameters):
            continue
        of_annotators = dict(zip(ROLES, TABLE[name][1], strict=True))["bob"] != 403
        readers = (
            READERS if of_annotators else ("rita", "carol") if name.startswith(_OF_REVIEWERS) else ("carol",)
        )
        for chosen in product(*(values[parameter] for parameter in parameters)):
            # Conversations and pages side by side have keys of another form.
            with suppress(NoReverseMatch):
                address = reverse(name, kwargs=dict(zip(parameters, chosen, strict=True)))
                yield from ((who, address) for who in readers)
    for table in ("comparisons", "annotations", "prompts", "responses"):
        page = reverse(f"data-{table}", args=[project.slug])
        for query in (
            f"text={MARKER}",
            "preference=ranked",
            "state=annotated",
            "order=-annotations",
            "order=agreement",
            "category=1",
            "columns=comment&columns=agreement&columns=annotations&columns=preference",
        ):
            yield "carol", f"{page}?{query}"
    yield "carol", f"{reverse('statistics-items', args=[project.slug])}?show=disagree"
    for view in ("side", "a1", "a2", "together"):
        yield "carol", f"{reverse('statistics-item', args=[project.slug, comparison.pk])}?view={view}"


def operations(project: Project, comparison: Comparison) -> Iterator[tuple[str, str]]:
    """Every operation of the API that reads, with who may."""
    for path, methods in document()["paths"].items():
        # The machine's state has the free space of its disk.
        if "get" not in methods or path.endswith("/v1/status/"):
            continue
        row = dict(zip(API_ROLES, API_TABLE[methods["get"]["operationId"]], strict=True))
        readers = [
            who for who, like in (("bob", "alice"), ("rita", "rita"), ("carol", "carol")) if row[like] != 403
        ]
        address = (
            path.replace("{slug}", project.slug).replace("{format_name}", "jsonl").replace("{index}", "0")
        )
        for pk in (1, 2, comparison.pk):
            filled = re.sub(r"\{\w*(?:id|pk|number|version)\w*\}", str(pk), address)
            if "{" not in filled:
                yield from ((who, filled) for who in readers)
            if "{" not in filled and "{" not in address:
                break


def read(project: Project, comparison: Comparison, readers: Mapping[str, tuple[Client, Asker]]) -> Answers:
    cache.clear()
    got = {}
    for who, address in addresses(project, comparison):
        answer = readers[who][0].get(address)
        got[who, address] = f"{answer.status_code} {_text(answer)}"
    for who, address in operations(project, comparison):
        answer = readers[who][1].get(address)
        got[who, f"API {address}"] = f"{answer.status_code} {_text(answer)}"
    return got


def _text(answer: Any) -> str:
    body = b"".join(answer.streaming_content) if answer.streaming else answer.content
    return _VOLATILE.sub("·", body.decode("utf-8", "replace"))


class _UndoneError(Exception):
    """The world in which a vote was made ends."""


def in_world(
    project: Project, comparison: Comparison, readers: Mapping[str, tuple[Client, Asker]], **voted: Any
) -> Answers:
    """Return the answers to everybody where Alice votes so; nothing of it stays."""
    answers: Answers = {}
    try:
        with transaction.atomic():
            # What a world writes gets the same keys in both: PostgreSQL does not take a key back.
            with connection.cursor() as cursor:
                for statement in connection.ops.sequence_reset_sql(no_style(), apps.get_models()):
                    cursor.execute(statement)
            vote(project, User.objects.get(username="alice"), **voted)
            answers = read(project, comparison, readers)
            raise _UndoneError
    except _UndoneError:
        return answers


@pytest.fixture
def readers(
    scene: Comparison, bob: User, carol: User, rita: User, settings: Settings
) -> dict[str, tuple[Client, Asker]]:
    # The walk is faster than any limit.
    settings.RONDO_API_REQUESTS_PER_MINUTE = settings.RONDO_TOKEN_REQUESTS_PER_MINUTE = 1_000_000
    readers = {}
    for user in (bob, carol, rita):
        client = Client()
        client.force_login(user)
        readers[user.username] = client, Asker(user)
    return readers


def test_no_page_and_no_operation_differs_by_a_hidden_vote(
    scene: Comparison, project: Project, readers: dict[str, tuple[Client, Asker]]
):
    one = in_world(project, scene, readers, first=True, text="alpha", spans=True)
    two = in_world(project, scene, readers, first=False, text="omega", spans=False)
    assert sum(answer.startswith("200") for answer in one.values()) > 200
    for who in READERS:
        assert sum(answer.startswith("200") for (reader, _at), answer in one.items() if reader == who) > 15, (
            who
        )
    assert not [where for where, answer in one.items() if MARKER in answer and "text=" not in where[1]]
    assert not [
        where for where in one if "alpha" in one[where].replace("alphabet", "") and "omega" in two[where]
    ]
    assert {where: _difference(one[where], two[where]) for where in one if one[where] != two[where]} == {}


def _difference(one: str, two: str) -> str:
    place = next((at for at, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), -1)
    return f"{one[max(place - 80, 0) : place + 80]!r} against {two[max(place - 80, 0) : place + 80]!r}"


def test_the_walk_sees_the_vote_once_it_is_revealed(
    scene: Comparison, project: Project, alice: User, carol: User, readers: dict[str, tuple[Client, Asker]]
):
    vote(project, alice, first=True, text="alpha", spans=True)
    session = scene.calibration_items.get().session
    reveal_session(session=session, revealed_by=carol)
    bob, lead = readers["bob"], readers["carol"]
    for client, address in (
        (bob[0], reverse("calibration-item", args=[project.slug, session.pk, 0])),
        (lead[0], reverse("statistics-item", args=[project.slug, scene.pk])),
        (lead[0], f"{reverse('data-annotations', args=[project.slug])}?columns=comment"),
        (bob[1], f"/projects/{project.slug}/calibrations/{session.pk}/items/0/"),
        (lead[1], f"/projects/{project.slug}/comparisons/{scene.pk}/judgments/"),
        (lead[1], f"/projects/{project.slug}/exports/jsonl/"),
    ):
        answer = client.get(address)
        assert answer.status_code == 200, address
        assert MARKER in _text(answer), address
    assert SpanFlag.objects.exists()
    assert Membership.objects.filter(project=project, role=Role.REVIEWER).exists()

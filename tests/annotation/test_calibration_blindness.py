"""Nobody sees a vote of a calibration session before its reveal: pages, their source, the API, files.

Noninterference: in two worlds a participant votes differently, and another participant, the manager and a
reviewer read every address in both. What they get is the same, character by character.
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
from annotation.models import Comparison, Membership, Project, SpanFlag, User
from annotation.record.judgment import CritiquePart, SpanPart
from annotation.services.assignments.next import assign_next
from annotation.services.calibration import create_session, reveal_session
from annotation.services.judgments.submission import submit_judgment
from annotation.text.identity import text_hash
from tests import factories
from tests.api.scene import Asker
from tests.architecture.address_table import TABLE, our_patterns
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


def addresses(project: Project, comparison: Comparison) -> Iterator[str]:
    """Every address of a page with every key that could be meant, and searches for the vote."""
    users = User.objects.values_list("pk", flat=True)
    sessions = project.calibrations.values_list("pk", flat=True)
    values: Mapping[str, list[Any]] = {
        "slug": [project.slug],
        "pk": sorted({1, comparison.pk, *users, *sessions}),
        "index": [0, 1],
        "format_name": ["jsonl", "csv", "trl-preference", "label-studio", "argilla"],
        "name": ["starter", "all"],
        "key": ["untruthful", "helpful"],
        "number": [1],
        "token": ["none"],
        "table": ["comparisons"],
    }
    for pattern in our_patterns():
        name = str(pattern.name)
        if name not in TABLE or TABLE[name][0] != "GET" or name in _UNASKED:
            continue
        parameters = list(pattern.pattern.converters)
        if any(parameter not in values for parameter in parameters):
            continue
        for chosen in product(*(values[parameter] for parameter in parameters)):
            # Conversations and pages side by side have keys of another form.
            with suppress(NoReverseMatch):
                yield reverse(name, kwargs=dict(zip(parameters, chosen, strict=True)))
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
            yield f"{page}?{query}"
    yield f"{reverse('statistics-items', args=[project.slug])}?show=disagree"
    for view in ("side", "a1", "a2", "together"):
        yield f"{reverse('statistics-item', args=[project.slug, comparison.pk])}?view={view}"


def operations(project: Project, comparison: Comparison) -> Iterator[str]:
    """Every operation of the API that reads."""
    for path, methods in document()["paths"].items():
        # The machine's state has the free space of its disk.
        if "get" not in methods or path.endswith("/v1/status/"):
            continue
        address = path.replace("{slug}", project.slug).replace("{format}", "jsonl")
        for pk in (1, 2, comparison.pk):
            filled = re.sub(r"\{\w*(?:id|pk|number|index|version)\w*\}", str(pk), address)
            if "{" not in filled:
                yield filled
            if "{" not in filled and "{" not in address:
                break


def read(project: Project, comparison: Comparison, readers: Mapping[str, tuple[Client, Asker]]) -> Answers:
    cache.clear()
    got = {}
    for who, (client, asker) in readers.items():
        for address in addresses(project, comparison):
            answer = client.get(address)
            got[who, address] = f"{answer.status_code} {_text(answer)}"
        for address in operations(project, comparison):
            answer = asker.get(address)
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
    assert len(one) > 500
    assert sum(answer.startswith("200") for answer in one.values()) > 250
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
    answers = read(project, scene, {name: readers[name] for name in ("bob", "carol")})
    seen = {where for where, answer in answers.items() if MARKER in answer}
    assert ("bob", reverse("calibration-item", args=[project.slug, session.pk, 0])) in seen
    assert ("carol", reverse("statistics-item", args=[project.slug, scene.pk])) in seen
    assert any(where[1].startswith("API ") for where in seen)
    assert SpanFlag.objects.exists()
    assert Membership.objects.filter(project=project, role=Role.REVIEWER).exists()

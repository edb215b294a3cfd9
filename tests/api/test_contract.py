"""The OpenAPI document holds: it is valid, complete, and what is answered is what it says."""

import json
import os
import re
from collections import Counter
from typing import Any

import pytest
import schemathesis
from django.core.wsgi import get_wsgi_application
from django.db import transaction
from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.validation import validate_schema
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from annotation.models import User
from tests.api.scene import Asker, Scene
from webapp.api import document

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
"""No fault of ours, no status, media type or answer that the document does not name."""


def test_the_document_is_valid_openapi_3_1_and_was_written_without_a_warning():
    GENERATOR_STATS.reset()
    told = SchemaGenerator(api_version="v1").get_schema(request=None, public=True)
    validate_schema(told)
    assert told["openapi"].startswith("3.1")
    assert not GENERATOR_STATS
    assert json.dumps(told, sort_keys=True) == json.dumps(document(), sort_keys=True)


def test_every_operation_says_what_it_does_and_what_it_may_answer():
    for path, methods in document()["paths"].items():
        for method, operation in methods.items():
            where = f"{method} {path}"
            assert len(operation["description"].split()) >= 3, where
            assert operation["tags"][0] in {tag["name"] for tag in document()["tags"]}, where
            assert {"401", "403", "404", "429"} <= set(operation["responses"]), where
            for parameter in operation["parameters"]:
                assert "schema" in parameter, f"{where}: {parameter['name']}"


def test_every_object_and_every_field_of_ours_is_described():
    undescribed = [
        name for name, one in document()["components"]["schemas"].items() if not _is_told(name, one)
    ]
    assert undescribed == []


def _is_told(name: str, schema: dict[str, Any]) -> bool:
    # Lists of choices name their values; pages of a list are all alike.
    return bool(schema.get("description")) or "enum" in schema or name.startswith("Paginated")


class Sender:
    """Sends drawn requests in somebody's name, undoes what each did, holds each answer to the document."""

    def __init__(self, asker: Asker, scene: Scene) -> None:
        self.asker = asker
        self.scene = scene
        self.sent = 0
        self.statuses: Counter[int] = Counter()
        self.schema = schemathesis.openapi.from_dict(document())
        self.schema.app = get_wsgi_application()

    def send(self, case: schemathesis.Case[Any]) -> None:
        """One request."""
        with transaction.atomic():
            answer = case.call(headers=self.asker.headers)
            transaction.set_rollback(True)
        self.sent += 1
        self.statuses[answer.status_code] += 1
        case.validate_response(answer, checks=CHECKS)

    def known(self, path: str) -> dict[str, str]:
        """Parts of an address that name rows of the scene, so that what lies behind it is reached."""
        names = re.findall(r"{(\w+)}", path)
        pattern = re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", path)
        found = re.fullmatch(pattern, self.scene.address(path))
        assert found is not None, path
        return {name: found[name] for name in names}


def draw(sender: Sender, *, cases: int, wrong: bool) -> None:
    """For each operation so many cases as the document wants them; with `wrong`, others against it too."""
    for result in sender.schema.get_all_operations():
        operation = result.ok()
        known = sender.known(operation.path)
        kinds: list[tuple[GenerationMode, dict[str, str] | None]] = [(GenerationMode.POSITIVE, known)]
        if wrong:
            kinds.append((GenerationMode.NEGATIVE, known))
        if wrong and known:
            kinds.append((GenerationMode.POSITIVE, None))
        for mode, parts in kinds:

            @hypothesis_seed(cases)
            @settings(
                max_examples=cases,
                database=None,
                deadline=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(mode, path_parameters=parts))
            def send(case: schemathesis.Case[Any]) -> None:
                sender.send(case)

            try:
                send()
            except Unsatisfiable:
                # Nothing that the operation takes can be wrong.
                assert mode == GenerationMode.NEGATIVE


@pytest.mark.slow
@pytest.mark.django_db
@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")
def test_drawn_requests_meet_no_fault_and_no_answer_that_the_document_does_not_name(
    scene: Scene, admin: User, alice: User
):
    """Of who may do everything, and of who labels. API_CASES=14 draws more than 5,000 instead."""
    cases = int(os.environ.get("API_CASES", "1"))
    senders = [Sender(Asker(user), scene) for user in (admin, alice)]
    draw(senders[0], cases=cases, wrong=True)
    draw(senders[1], cases=cases, wrong=cases > 1)
    sent = sum(sender.sent for sender in senders)
    print(f"{sent} cases; by status: {sorted(sum((s.statuses for s in senders), Counter()).items())}")
    assert sent >= 2 * len(document()["paths"])
    # Had every request been refused at the door, nothing would have been looked at.
    assert {200, 403, 404, 422} <= set().union(*(sender.statuses for sender in senders))

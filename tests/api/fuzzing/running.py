"""A run of Schemathesis against the API over HTTP; each request is undone, so that none spoils the next."""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import schemathesis
from django.core.wsgi import get_wsgi_application
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from schemathesis.engine import events, from_schema

from annotation.models import User
from tests.api.fuzzing.exceptions import REFUSALS
from tests.api.scene import Asker, Scene
from webapp.api.urls import document

CHECKS = {
    *("not_a_server_error", "status_code_conformance", "content_type_conformance"),
    *("response_headers_conformance", "response_schema_conformance", "negative_data_rejection"),
    *("positive_data_acceptance", "missing_required_header", "unsupported_method"),
    *("allow_header_conformance", "use_after_free", "ensure_resource_availability", "ignored_auth"),
    *("object_level_authorization", "max_response_time"),
}
"""Every check that this Schemathesis has. A version with another one fails until it is listed here."""
ACCEPTED = ["2xx", "3xx", "401", "403", "404", "409", "412", "429"]
"""Answers to a request that fits the document: the person, the row or its version may be another's."""
REJECTED = ["400", "401", "403", "404", "405", "406", "409", "412", "415", "422", "428", "429", "5xx"]
"""Answers to one that does not: Schemathesis's own, and 412: a precondition is looked at before the body."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run: the requests of each operation, their statuses, the checks that ran, and the faults."""

    sent: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    checks: set[str] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)

    def add(self, recorder: Any) -> None:
        """Count the requests of one operation and keep the faults of their answers."""
        for id_, exchange in recorder.interactions.items():
            self.sent[recorder.cases[id_].value.operation.label] += 1
            if exchange.response is not None:
                self.statuses[exchange.response.status_code] += 1
        for results in recorder.checks.values():
            for result in results:
                self.checks.add(result.name)
                if result.failure_info is not None:
                    failure = result.failure_info
                    self.faults.append(f"{result.name}: {failure.failure}\n{failure.code_sample}")


def configuration(
    scene: Scene,
    people: Mapping[str, User],
    folder: Path,
    *,
    who: str,
    phase: str,
    operations: set[str],
    examples: int = 2,
) -> schemathesis.Config:
    """Return the settings of one phase in somebody's name, with the same requests each time.

    `examples` of each operation are drawn.
    """
    users = [
        {
            "name": name,
            "fixedHeaders": [{"name": "Authorization", "value": Asker(user).headers["Authorization"]}],
        }
        for name, user in people.items()
    ]
    path = folder / "people.json"
    path.write_text(json.dumps({"auth": users}))
    accepting = {"positive_data_acceptance": {"expected-statuses": [*ACCEPTED, "422"]}}
    return schemathesis.Config.from_dict(
        {
            "seed": 1,
            "workers": 1,
            "continue-on-failure": True,
            "suppress-health-check": ["all"],
            "cache": {"enabled": False},
            # A NUL in an address is refused whatever the parameter: tests/webapp/test_nul.py.
            "generation": {
                **{"deterministic": True, "database": "none", "allow-x00": False},
                # A refused request makes nothing that a later one could build on.
                "mode": "positive" if phase == "stateful" else "all",
                **{"max-examples": examples, "with-security-parameters": False},
            },
            "phases": {"enabled": False, phase: {"enabled": True}},
            "checks": {
                "max_response_time": 10,
                "positive_data_acceptance": {"expected-statuses": ACCEPTED},
                "negative_data_rejection": {"expected-statuses": REJECTED},
            },
            "auth": {"wfc": {"path": str(path), "user": who, "peers": ["member", "outsider"]}},
            "operations": [
                {
                    "include-name": (label := f"{method.upper()} {path}"),
                    "enabled": label in operations,
                    "parameters": _rows(scene, path),
                    **({"checks": accepting} if label in REFUSALS else {}),
                }
                for path, methods in document()["paths"].items()
                for method in methods
            ],
        }
    )


def labels(*, only: Collection[str] = (), without: Collection[str] = ()) -> set[str]:
    """Return the operations that bear one of the tags `only`, and none of `without`."""
    return {
        f"{method.upper()} {path}"
        for path, methods in document()["paths"].items()
        for method, operation in methods.items()
        if (not only or operation["tags"][0] in only) and operation["tags"][0] not in without
    }


def run(config: schemathesis.Config) -> Outcome:
    """Send the requests, each undone at once, and hold every answer to every check."""
    schema = schemathesis.openapi.from_dict(deepcopy(document()), config=config)
    outcome = Outcome()
    with _served() as address:
        schema.config.update(base_url=address)
        for event in from_schema(schema).execute():
            if isinstance(event, events.NonFatalError):
                outcome.faults.append(f"{event.label}: {event.info.format()}")
            elif isinstance(event, events.ScenarioFinished):
                outcome.add(event.recorder)
    print(f"{outcome.sent.total()} requests; by status: {sorted(outcome.statuses.items())}")
    return outcome


def _rows(scene: Scene, path: str) -> dict[str, Any]:
    """Return the parts of an address that name rows of the scene, so that what lies behind it is reached."""
    pattern = re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", path)
    parts = re.fullmatch(pattern, scene.address(path)).groupdict()
    return {f"path.{name}": int(part) if part.isdigit() else part for name, part in parts.items()}


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Write nothing."""


@contextmanager
def _served() -> Iterator[str]:
    """Serve the application on the connection whose transaction holds the scene, undoing each request."""
    application = get_wsgi_application()
    shared = connections[DEFAULT_DB_ALIAS]

    def undone(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        connections[DEFAULT_DB_ALIAS] = shared
        with transaction.atomic():
            answer = application(environ, start_response)
            body = b"".join(answer)
            answer.close()
            transaction.set_rollback(True)
        return [body]

    server = make_server("127.0.0.1", 0, undone, handler_class=_Quiet)
    thread = Thread(target=server.serve_forever)
    shared.inc_thread_sharing()
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        shared.dec_thread_sharing()

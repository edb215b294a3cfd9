"""Requests that build on each other; what a sequence revokes opens the API all the same."""

from collections import Counter
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from django.core.wsgi import get_wsgi_application
from django.db import transaction
from hypothesis import HealthCheck, Phase, settings

from annotation.api import authentication
from annotation.choices import TokenScope
from annotation.models import ApiToken, User
from annotation.services.people.accounts import use_token
from tests.api.fuzzing.running import configuration, labels
from tests.api.scene import Scene
from webapp.api.urls import document

PROJECTS = "/api/v1/projects/"


@pytest.fixture
def lasting_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that was good once stays good, whatever a sequence does to its row."""
    held: dict[str, ApiToken] = {}

    def use(*, secret: str, scope: TokenScope) -> ApiToken | None:
        if secret not in held and (token := use_token(secret=secret, scope=scope)):
            held[secret] = token
        return held.get(secret)

    monkeypatch.setattr(authentication, "use_token", use)


def run_sequences(
    scene: Scene, people: dict[str, User], folder: Path, paths: dict[str, Any], *, sequences: int, steps: int
) -> Counter[tuple[str, str, int]]:
    """Send sequences of requests to these addresses; the answers by method, address and status."""
    config = configuration(scene, people, folder, who="manager", phase="stateful", operations=labels())
    schema = schemathesis.openapi.from_dict({**deepcopy(document()), "paths": paths}, config=config)
    schema.app = get_wsgi_application()
    answers: Counter[tuple[str, str, int]] = Counter()

    class Sequence(schema.as_state_machine()):  # type: ignore[misc]  # made at run time
        def setup(self) -> None:
            self.rows = transaction.atomic()
            self.rows.__enter__()

        def teardown(self) -> None:
            transaction.set_rollback(True)
            self.rows.__exit__(None, None, None)

        def after_call(self, response: schemathesis.Response, case: schemathesis.Case[Any]) -> None:
            super().after_call(response, case)
            answers[case.method, case.operation.path, response.status_code] += 1

    settings_of_run = settings(
        max_examples=sequences,
        stateful_step_count=steps,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    Sequence.run(settings=settings_of_run)
    print(sorted(answers.items()))
    return answers


@pytest.mark.slow
@pytest.mark.django_db
@pytest.mark.usefixtures("lasting_tokens")
def test_revoking_tokens_of_a_list_is_answered_as_the_document_says(
    scene: Scene, people: dict[str, User], tmp_path: Path
):
    described = deepcopy(document())["paths"]
    paths = {path: methods for path, methods in described.items() if "/tokens/" in path}
    paths[PROJECTS] = {"get": described[PROJECTS]["get"]}
    answers = run_sequences(scene, people, tmp_path, paths, sequences=25, steps=6)
    assert [path for method, path, status in answers if (method, status) == ("DELETE", 204)]
    assert not [status for _method, _path, status in answers if status == 401]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.django_db
@pytest.mark.usefixtures("lasting_tokens")
def test_sequences_of_any_operations_are_answered_as_the_document_says(
    scene: Scene, people: dict[str, User], tmp_path: Path
):
    paths = deepcopy(document())["paths"]
    answers = run_sequences(scene, people, tmp_path, paths, sequences=60, steps=12)
    # What is drawn depends on the modules that a process has loaded.
    assert 200 in {status for _method, _path, status in answers}
    assert not [status for _method, _path, status in answers if status in (401, 500)]

"""The bound on a prompt's messages holds wherever a prompt comes in."""

import json
from collections.abc import Callable

import pytest
from django.test import Client

from annotation.exchange.formats.fields import FieldError, prompt
from annotation.models import Project, Prompt, User
from annotation.text.identity import MOST_TURNS
from annotation.views.data import PromptForm
from tests import factories


def chat(messages: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"{n}"} for n in range(messages)]


def test_an_import_refuses_a_prompt_of_too_many_messages():
    assert len(prompt(chat(MOST_TURNS), "prompt")) == MOST_TURNS
    for value in (chat(MOST_TURNS + 1), json.dumps(chat(100_000)), {"messages": chat(100_000)}):
        with pytest.raises(FieldError) as refused:
            prompt(value, "prompt")
        assert refused.value.field == "prompt"


@pytest.mark.django_db
def test_the_api_refuses_a_prompt_of_too_many_messages(
    project: Project, carol: User, client_of: Callable[[User], Client]
):
    body = json.dumps({"items": [{"prompt": chat(MOST_TURNS + 1)}]})
    address = f"/api/v1/projects/{project.slug}/prompts/"
    answer = client_of(carol).post(address, body, content_type="application/json")
    assert answer.status_code == 422
    assert any("prompt" in error["field"] for error in answer.json()["errors"])
    assert not Prompt.objects.exists()


@pytest.mark.django_db
def test_the_form_refuses_to_add_a_message_to_a_prompt_that_is_full(project: Project):
    copied = factories.make_prompt(project, "Last?")
    copied.messages = chat(MOST_TURNS)
    form = PromptForm({"question": "One more?", "system": "Be short."}, copied=copied)
    assert not form.is_valid()
    assert form.has_error("__all__", code="too_many_turns")

"""OpenAI's own client against our web server and our model server, both as they run for people."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import openai
import pytest

from tests.guide_blocks import block
from tests.migrated import give_database
from tests.model_server import ROOT, RunningServer, running_model_server
from tests.openai_fields import CHAT_FIELDS, COMPLETION_FIELDS, chat_of_nulls
from tests.tiny import tiny_model_folder
from tests.webapp.running import free_port

pytestmark = pytest.mark.slow

BASE = "SmolLM2-135M-Instruct"
CHAT: Any = [{"role": "user", "content": "why does the sun rise"}]
LONG = 1500

_SET_UP = """
from annotation.models import User
from annotation.services.people.accounts import create_token
from training.services.checkpoints import register_starter
admin = User.objects.create_superuser("admin", password="x")
from annotation.services.projects.projects import create_project
create_project(name="Tea", slug="tea", guideline="Be right.")
register_starter()
print("SECRET", create_token(user=admin, name="test", scopes=["read", "generate"]).secret)
"""


@dataclass(frozen=True, kw_only=True)
class Site:
    """A web server with one user's token, and the model server behind it."""

    url: str
    secret: str
    models: RunningServer


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    home = tmp_path_factory.mktemp("site")
    tiny_model_folder(home / "models" / BASE)
    port = free_port()
    with running_model_server(home / "models", home / "checkpoints") as models:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("RONDO_", "DJANGO_"))}
        inherited.pop("DATABASE_URL", None)
        environment = {
            **inherited,
            "RONDO_HOME": str(home),
            "RONDO_MODEL_SERVER_URL": models.url,
            "RONDO_MODEL_SERVER_KEY": models.key,
            "RONDO_WEB_PROCESSES": "1",
        }

        def manage(*arguments: str) -> str:
            command = [sys.executable, "manage.py", *arguments]
            done = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
            )
            return done.stdout

        give_database(home)
        secret = manage("shell", "-v", "0", "-c", _SET_UP).split("SECRET ")[1].split()[0]
        # What `manage.py up` starts.
        printed = manage(
            "shell",
            "-v",
            "0",
            "-c",
            f"from webapp.supervision.programs import web; print('|'.join(web('127.0.0.1', {port}).command))",
        )
        log = (home / "web.log").open("wb")
        web = subprocess.Popen(printed.strip().split("|"), cwd=ROOT, env=environment, stdout=log, stderr=log)
        try:
            wait_for(lambda: b"Listening" in (home / "web.log").read_bytes())
            yield Site(url=f"http://127.0.0.1:{port}/v1", secret=secret, models=models)
        finally:
            web.terminate()
            web.wait(30)
            log.close()


@pytest.fixture
def client(site: Site) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=site.url, api_key=site.secret, max_retries=0, timeout=60) as openai_client:
        yield openai_client


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_the_client_lists_the_models(client: openai.OpenAI):
    assert [model.id for model in client.models.list()] == [BASE]
    assert client.models.retrieve(BASE).owned_by == "rondo"


def test_a_streamed_answer_is_the_whole_answer_piece_by_piece(client: openai.OpenAI):
    arguments: dict[str, Any] = {"model": BASE, "messages": CHAT, "max_tokens": 20, "seed": 5}
    whole = client.chat.completions.create(**arguments)
    chunks = list(client.chat.completions.create(**arguments, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content != ""
    assert len(chunks) > 3
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_pieces_come_while_the_answer_is_still_being_written(client: openai.OpenAI, site: Site):
    with client.chat.completions.create(
        model=BASE, messages=CHAT, max_tokens=LONG, seed=1, stream=True, extra_body={"n": 8}
    ) as stream:
        next(iter(stream))
        assert site.models.health()["computing"]
    wait_for(lambda: not site.models.health()["computing"], 20)


def test_a_text_is_continued(client: openai.OpenAI):
    answer = client.completions.create(model=BASE, prompt="the sun", max_tokens=5, seed=1)
    assert answer.choices[0].text


def test_every_field_that_the_client_knows_may_be_null(client: openai.OpenAI):
    nulls = dict.fromkeys(CHAT_FIELDS) | {"max_completion_tokens": 4}
    answer = client.chat.completions.create(model=BASE, messages=chat_of_nulls(), extra_body=nulls)
    # Without a seed the four tokens may be any, an end or half a letter among them: their text can be empty.
    assert answer.usage is not None
    assert 1 <= answer.usage.completion_tokens <= 4
    again = [*CHAT, answer.choices[0].message, *CHAT]
    assert client.chat.completions.create(model=BASE, messages=again, max_tokens=4).choices
    nulls = dict.fromkeys(COMPLETION_FIELDS) | {"max_tokens": 4}
    written = client.completions.create(model=BASE, prompt="the sun", extra_body=nulls)
    assert written.usage is not None
    assert 1 <= written.usage.completion_tokens <= 4


def test_a_prompt_is_echoed_with_its_log_probabilities(client: openai.OpenAI):
    answer = client.completions.create(model=BASE, prompt="the sun", max_tokens=0, echo=True, logprobs=1)
    [choice] = answer.choices
    assert choice.text == "the sun"
    assert choice.logprobs.token_logprobs[0] is None
    assert all(value < 0 for value in choice.logprobs.token_logprobs[1:])


def test_the_guides_programs_ask_the_models(client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch):
    # All of the programs is the guide's, but for the way to the server and the checkpoint that there is.
    monkeypatch.setattr("openai.OpenAI", lambda base_url, api_key: client)
    namespace: dict[str, Any] = {}
    exec(block("how-to/serve-models.md", "from openai"), namespace)
    assert [model.id for model in namespace["client"].models.list()] == [BASE]
    program = block("tutorials/hh-rlhf-to-policy.md", "from openai")
    assert "helpful-round-1-policy" in program
    create, answers = client.chat.completions.create, []
    monkeypatch.setattr(
        client.chat.completions, "create", lambda **arguments: answers.append(create(**arguments))
    )
    exec(program.replace("helpful-round-1-policy", BASE), {})
    assert [bool(answer.choices[0].message.content) for answer in answers] == [True]


def test_errors_are_those_that_the_client_knows(client: openai.OpenAI, site: Site):
    with pytest.raises(openai.NotFoundError, match="nobody"):
        client.chat.completions.create(model="nobody", messages=CHAT)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model=BASE, messages=CHAT, temperature=9)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model=BASE, messages=CHAT, temperature=9, stream=True)
    stranger = openai.OpenAI(base_url=site.url, api_key="rondo_wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        stranger.models.list()
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model=BASE, input="x")


def test_a_whole_answer_whose_client_leaves_is_called_off(client: openai.OpenAI, site: Site):
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=1.0).chat.completions.create(
            model=BASE, messages=CHAT, max_tokens=LONG, n=16, seed=1
        )
    wait_for(lambda: not site.models.health()["computing"], 20)
    assert client.completions.create(model=BASE, prompt="the", max_tokens=1).choices

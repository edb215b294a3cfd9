"""Chat templates that hang, grow or break: a child process with bounds renders them, no request does."""

import json
import os
import sys
from pathlib import Path

import pytest
from pytest_django import Settings

from annotation.errors import Refusal
from annotation.models import Project
from tests import factories
from tests.chat_templates import template
from training.choices import RoundState
from training.models import Round
from training.services import chat_templates
from training.services.base_models import _inspect_folder
from training.services.checkpoints import register_starter
from training.services.rounds.controls import open_first_round, open_round
from training.services.rounds.dry_run import dry_run
from training.services.runs.launcher import TIMED_OUT, run_process

pytestmark = pytest.mark.django_db

_LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
_ENDS = "{% endfor %}" * 3
BEHIND_A_DATE = f"{{% if strftime_now('%Y') == '2026-01-01' %}}{_LOOPS}{_ENDS}{{% endif %}}"
TOO_MUCH = {
    "time": BEHIND_A_DATE,
    "memory": (
        "{% set ns = namespace(x='x' * 1000) %}"
        "{% for a in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"
    ),
    "one product": "{{ 'x' * 99999999999 }}",
}
FIT = (
    "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


@pytest.fixture
def base(settings: Settings) -> Path:
    """The folder of the starter's base, to put a template in."""
    folder = Path(settings.RONDO_MODELS) / register_starter().base_model
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child as it is, but for its seconds of processor time: one or two in place of four or five."""
    program = (
        "import sys; from training.files import chat_templates as check; "
        "check.CPU_SECONDS = 0; sys.exit(check.main())"
    )
    monkeypatch.setattr(chat_templates, "CHECK_COMMAND", (sys.executable, "-c", program))


@pytest.fixture
def draft(project: Project) -> Round:
    """A round that nobody opened yet, with one prompt."""
    factories.make_prompt(project, "What is 1?", split="train")
    return Round.objects.create(project=project, policy=register_starter(), recipe={})


def write_template(folder: Path, template: str) -> None:
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "</s>", "chat_template": template})
    )


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("template", TOO_MUCH.values(), ids=TOO_MUCH)
def test_a_template_that_takes_too_much_is_refused_within_seconds_and_then_at_once(
    draft: Round, base: Path, monkeypatch: pytest.MonkeyPatch, template: str
):
    write_template(base, template)
    with pytest.raises(Refusal) as refused:
        open_round(round_=draft, opened_by=None)
    assert refused.value.field == "recipe"
    assert "too much time or memory" in refused.value.message
    # No child can be started now.
    monkeypatch.setattr(chat_templates, "CHECK_COMMAND", ("/nowhere/at/all",))
    with pytest.raises(Refusal, match="too much time or memory"):
        open_round(round_=draft, opened_by=None)
    assert len(dry_run(round_=draft).problems) == 1
    draft.refresh_from_db()
    assert draft.state == RoundState.DRAFT


@pytest.mark.usefixtures("impatient")
def test_a_base_whose_template_takes_too_much_is_refused_before_it_is_inspected(base: Path):
    write_template(base, BEHIND_A_DATE)
    with pytest.raises(Refusal, match="too much time or memory"):
        _inspect_folder(base, lambda **_: None, with_weights=False)  # type: ignore[arg-type]


def test_a_process_that_takes_too_long_is_killed_with_what_it_started(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    command = ("sh", "-c", f"(echo started; exec sleep 600) > {pipe} & sleep 600")
    ended = run_process(command, environment={"PATH": "/usr/bin:/bin"}, beat=lambda: None, seconds=2)
    assert ended.code == TIMED_OUT
    # Only the grandchild has the other end: reading ends when it is gone.
    os.set_blocking(reader, True)
    with os.fdopen(reader) as output:
        assert output.read() == "started\n"


def test_one_child_checks_a_template_and_every_later_request_reads_its_result(
    draft: Round, base: Path, monkeypatch: pytest.MonkeyPatch
):
    # The dearest of those of reasoning models.
    write_template(base, template("gptoss"))
    assert dry_run(round_=draft).problems == []
    # No child can be started now.
    monkeypatch.setattr(chat_templates, "CHECK_COMMAND", ("/nowhere/at/all",))
    assert dry_run(round_=draft).problems == []
    open_round(round_=draft, opened_by=None)
    assert draft.state == RoundState.SAMPLING


def test_another_template_in_the_same_folder_is_checked_again(draft: Round, base: Path):
    write_template(base, FIT)
    assert dry_run(round_=draft).problems == []
    write_template(base, FIT.replace("m['content']", "m['content'] | upper"))
    assert len(dry_run(round_=draft).problems) == 1


@pytest.mark.parametrize("command", [("/nowhere/at/all",), ("false",)])
def test_a_check_that_cannot_run_refuses_and_is_not_taken_for_a_result(
    draft: Round, base: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
):
    write_template(base, FIT)
    with monkeypatch.context() as patch:
        patch.setattr(chat_templates, "CHECK_COMMAND", command)
        with pytest.raises(Refusal) as refused:
            open_round(round_=draft, opened_by=None)
        assert refused.value.field == "recipe"
    open_round(round_=draft, opened_by=None)
    assert draft.state == RoundState.SAMPLING


def test_a_first_round_is_checked_before_its_transaction(
    project: Project, base: Path, monkeypatch: pytest.MonkeyPatch
):
    write_template(base, FIT)
    within: list[bool] = []
    check = chat_templates._check_in_child

    def watched(asked: str):
        from django.db import connection

        # The test itself is one transaction; a service's is a savepoint in it.
        within.append(bool(connection.savepoint_ids))
        return check(asked)

    monkeypatch.setattr(chat_templates, "_check_in_child", watched)
    open_first_round(project=project)
    assert within == [False]


@pytest.mark.parametrize("kind", ["list", "deep", "large"])
def test_a_configuration_of_another_shape_breaks_no_page(draft: Round, base: Path, kind: str):
    contents = {
        "list": "[1, 2]",
        "deep": "[" * 200_000,
        "large": json.dumps({"chat_template": "x" * 1_000_001}),
    }
    (base / "tokenizer_config.json").write_text(contents[kind])
    assert len(dry_run(round_=draft).problems) == (1 if kind == "large" else 0)

"""Every code block of the guide and the README is run or read here, or named with the test that runs it."""

import ast
import configparser
import json
import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable
from datetime import datetime
from io import BytesIO, StringIO
from pathlib import Path

import pytest
from babel.messages.pofile import read_po
from django.core.management import call_command
from django.urls import resolve

from annotation.choices import WebhookEvent
from annotation.exchange.file_imports import plan_of
from annotation.models import Project, Prompt, User
from tests.architecture import test_commands
from tests.architecture.test_house import ROOT
from tests.guide_blocks import Block, blocks
from tests.webapp.test_guide import options_of
from training.api.applications import NewFeedbackSerializer
from training.api.base_models import NewBaseModelSerializer
from training.recipe import Recipe
from webapp.environment import read_environment
from webapp.environment.table import TABLE
from webapp.operations.requests import LATENCY

RUN_BY = {
    **test_commands.RUN_BY,
    "migrate": ("tests/training/engine/test_v1_client.py", "test_the_client_lists_the_models"),
    "createsuperuser": ("tests/webapp/test_guide_blocks.py", "test_an_administrator_is_created"),
    "changepassword": ("tests/architecture/test_commands.py", "test_a_password_is_set_anew"),
    "collectstatic": ("tests/webapp/test_storage.py", "test_every_import_of_a_hashed_script_names"),
    "makemigrations": ("tests/webapp/test_guide_blocks.py", "test_models_and_migrations_agree"),
    ".ci/reference.py": ("tests/webapp/test_guide.py", "test_the_generated_pages_are_those"),
    ".ci/messages.py": ("tests/architecture/test_languages.py", "test_no_german_message_is_missing"),
    "training.rlhf.examples.grid_world": (
        "tests/rlhf/policy_gradient/test_examples.py",
        "test_both_methods_find_the_best_way_through_the_grid_world",
    ),
    "gunicorn": ("tests/webapp/test_deploy.py", "test_the_services_are_told_what_the_programs"),
    "celery": ("tests/webapp/test_deploy.py", "test_the_services_are_told_what_the_programs"),
    "torchrun": ("tests/rlhf/loop/test_distributed.py", "test_two_processes_draw_the_loss_curve_of_one"),
    "accelerate": ("tests/rlhf/loop/test_distributed.py", "test_accelerate_starts_a_run_unchanged"),
    "pipx": ("tests/webapp/test_wheel.py", "test_rondo_starts_and_its_commands_work"),
    "rondo": ("tests/webapp/test_wheel.py", "test_rondo_starts_and_its_commands_work"),
}
OF_THE_SYSTEM = {"useradd", "install", "git", "cd", "set", "python3"}
"""Programs of an administrator's own machine; their syntax is read here."""
PROGRAMS = {
    ("how-to/train-with-your-trainer.md", '"""A trainer of'): (
        "tests/training/launchers/test_outside_trainer.py",
        "test_its_run_is_shown_as_finished_and_its_checkpoint_is_loaded",
    ),
    ("how-to/train-on-a-cluster.md", '"""Slurm by'): (
        "tests/training/launchers/test_guide_programs.py",
        "test_a_round_trains_to_its_end",
    ),
    ("how-to/train-on-a-cluster.md", '"""Kubernetes by'): (
        "tests/training/launchers/test_guide_programs.py",
        "test_a_round_trains_to_its_end",
    ),
    ("how-to/add-a-format.md", "from annotation.exchange.formats.writers"): (
        "tests/webapp/test_guide.py",
        "test_the_format_that_the_guide_adds_writes_pairs",
    ),
    ("how-to/add-a-format.md", "from annotation.exchange.formats.registry"): (
        "tests/annotation/exchange/formats/test_writers.py",
        "test_a_format_of_another_package_goes_out_by_its_name",
    ),
    ("how-to/add-a-loss.md", "register_dpo_loss"): (
        "tests/rlhf/losses/test_losses.py",
        "test_a_loss_on_pairs_is_added_by_its_name",
    ),
    ("how-to/add-a-reward.md", "def politeness"): (
        "tests/webapp/test_guide.py",
        "test_the_reward_that_the_guide_adds_is_a_reward",
    ),
    ("how-to/contribute.md", "from rest_framework"): (
        "tests/api/test_operations.py",
        "test_the_guides_operation_reads_and_sets_a_row",
    ),
    ("how-to/collect-feedback.md", "from webapp.api.client"): (
        "tests/api/test_client.py",
        "test_a_server_gives_feedback_in_one_line",
    ),
    ("how-to/receive-webhooks.md", "from webapp.api.client"): (
        "tests/api/test_client.py",
        "test_a_receiver_verifies_what_it_is_told",
    ),
    ("how-to/use-the-api.md", "from webapp.api.client"): (
        "tests/api/test_client.py",
        "test_the_guides_program_labels_all_there_is",
    ),
    ("how-to/use-the-api.md", "rondo.import_file"): (
        "tests/api/test_client.py",
        "test_the_guides_lines_bring_a_file_in_and_take_one_out",
    ),
    ("tutorials/team-of-twenty.md", "from webapp.api.client"): (
        "tests/api/test_client.py",
        "test_the_guides_program_changes_the_settings_for_a_team",
    ),
    ("how-to/serve-models.md", "from openai"): (
        "tests/training/engine/test_v1_client.py",
        "test_the_guides_programs_ask_the_models",
    ),
    ("tutorials/hh-rlhf-to-policy.md", "from openai"): (
        "tests/training/engine/test_v1_client.py",
        "test_the_guides_programs_ask_the_models",
    ),
    ("how-to/use-checkpoints-elsewhere.md", "import torch"): (
        "tests/rlhf/model/test_plain_loading.py",
        "test_the_guides_snippet_computes_the_same_without_rondo",
    ),
}
"""Page and beginning of a program → the test that runs it as it stands there."""
BEGINNINGS = {
    "[Service]": "unit",
    "histogram_quantile": "query",
    "msgid": "messages",
    "webapp/ ": "folders",
    '{"prompt"': "prompt",
    "{": "data",
    '"': "data",
    "curl ": "requests",
    "prompt: read as": "account",
}
DRAWINGS = set("│─→▲↑└")
_ASSIGNMENT = re.compile(r"[A-Z_]+=")
_PROGRAM = re.compile(r"(?:\S+=\S+ )*(?:runuser -u rondo -- )?(?:\.venv/bin/|\./)?(\S+)")


def kind_of(block: Block) -> str:
    """Name the kind of a block by its looks."""
    text = block.text.strip()
    if any(block.page == page and text.startswith(begins) for page, begins in PROGRAMS):
        return "program"
    for begins, kind in BEGINNINGS.items():
        if text.startswith(begins):
            return kind
    if "reverse_proxy" in text:
        return "proxy"
    if DRAWINGS & set(text):
        return "drawing"
    assigns = all(_ASSIGNMENT.match(line) and " make " not in line for line in block.lines)
    return "settings" if assigns else "commands"


# ── what each kind has to hold ─────────────────────────────────────────────────────────


def read_drawing(block: Block) -> None:
    assert max(map(len, block.lines)) <= 100


def read_folders(block: Block) -> None:
    for line in block.lines:
        names = re.findall(r"(?:^|(?<=\s))[.a-z]+/(?=\s|$)", line)
        assert names
        for name in names:
            below = "training/" if line.startswith("  ") else ""
            assert (ROOT / f"{below}{name}").is_dir(), name


def read_unit(block: Block) -> None:
    unit = configparser.ConfigParser()
    unit.read_string(block.text)
    python, manage, command, *options = unit["Service"]["ExecStart"].split()
    assert python == f"{unit['Service']['WorkingDirectory']}/.venv/bin/python"
    assert manage == "manage.py"
    assert set(options) <= options_of(command)


def read_proxy(block: Block) -> None:
    """It is the proxy that we ship, for one machine."""
    shipped = {line.strip() for line in (ROOT / ".deploy" / "Caddyfile").read_text().splitlines()}
    ours = block.text.replace("rondo.example.org", "{$RONDO_DOMAIN}").replace("127.0.0.1:8000", "web:8000")
    assert [line for line in ours.splitlines() if line.strip() not in shipped] == []


def read_query(block: Block) -> None:
    names = set(re.findall(r"rondo_[a-z_]+", block.text))
    assert names == {f"{LATENCY}_bucket"}


def read_messages(block: Block) -> None:
    assert str(read_po(BytesIO(block.text.encode())).locale) == "fr"


def read_settings(block: Block) -> None:
    """Names are settings, and values are ones that they take."""
    values = dict(line.split("=", 1) for line in block.lines)
    read_environment({name: value.replace("…", "x") for name, value in values.items()})
    known = {setting.name for setting in TABLE}
    # The one file that other projects take reads these by itself.
    alone = (ROOT / "training" / "serving" / "rondo_reward.py").read_text(encoding="utf-8")
    assert [name for name in values if name not in known and f'"{name}"' not in alone] == []


def read_data(block: Block) -> None:
    text = block.text.strip()
    values = json.loads(text if text.startswith("{") else f"{{{text}}}")
    if "thumb" in values:
        assert NewFeedbackSerializer(data=values).is_valid()
    elif "timestamp" in values:
        assert set(values) == {"type", "timestamp", "data"}
        assert values["type"] in WebhookEvent.values
        datetime.fromisoformat(values["timestamp"])
        resolve(values["data"]["path"])
    elif "kind" in values:
        Recipe.from_json({"policy": {"method": "policy_gradient", "rewards": [values]}})
    elif "rollout" in values:
        Recipe.from_json({"policy": {"method": "policy_gradient", "context": True, **values}})
    else:
        Recipe.from_json(values)


def import_prompt(block: Block, project: Project, folder: Path) -> None:
    path = folder / "prompts.jsonl"
    path.write_text(block.text.strip() + "\n", encoding="utf-8")
    call_command("import_prompts", str(path), project=project.slug, stdout=StringIO())
    prompt = Prompt.objects.get()
    row = json.loads(block.text)
    assert prompt.completions.count() == len(row.get("completions", ()))
    assert len(prompt.context) == len(row.get("context", ()))


def read_requests(block: Block) -> None:
    for line in block.lines:
        words = shlex.split(line)
        (address,) = [word for word in words if word.startswith("https://HOST")]
        resolve(address.removeprefix("https://HOST").partition("?")[0])
        if "-d" in words:
            serializer = NewBaseModelSerializer(data=json.loads(words[words.index("-d") + 1]))
            assert serializer.is_valid(), serializer.errors


def read_program(block: Block) -> None:
    compile(block.text, block.page, "exec")


def read_commands(block: Block) -> None:
    """The shell can read it, and each command is run by a test."""
    filled = re.sub(r"…", "x", block.text)
    subprocess.run(["bash", "-n"], input=filled, text=True, check=True)
    for line in block.lines:
        command = re.sub(r"\s+#.*", "", line)
        match = _PROGRAM.match(command)
        assert match is not None
        program, rest = match[1], command[match.end(1) :].split()
        if program in OF_THE_SYSTEM:
            continue
        if program == "make":
            targets = [f"make {word}" for word in rest if "=" not in word]
            known = {*RUN_BY, *test_commands.HERE, *test_commands.BY_CI, *test_commands.LAID_OUT}
            assert set(targets) <= known | {"make install-dev"}
        elif program in ("python", "manage.py"):
            name = rest[1] if rest[0] in ("-m", "manage.py") else rest[0]
            assert name in RUN_BY, name
        else:
            assert program in RUN_BY, program


def read_account(block: Block) -> None:
    """The account of a file's columns, as an import of such a file prints it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        rows = (
            {
                "prompt": f"Tea {n}?",
                "response_0": "Yes.",
                "response_1": "No.",
                "better_response_id": int(n >= 81),
                "domain": "drinks",
            }
            for n in range(200)
        )
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        assert [column.line for column in plan_of(path).account] == block.lines


CHECKS: dict[str, Callable[[Block], None]] = {
    name.removeprefix("read_"): function
    for name, function in list(globals().items())
    if name.startswith("read_") and name not in ("read_environment", "read_po")
}


@pytest.mark.parametrize("block", [block for block in blocks() if kind_of(block) != "prompt"], ids=str)
def test_every_block_is_what_the_page_says(block: Block):
    CHECKS[kind_of(block)](block)


@pytest.mark.django_db
@pytest.mark.parametrize("block", [block for block in blocks() if kind_of(block) == "prompt"], ids=str)
def test_prompts_of_the_guide_are_imported(block: Block, project: Project, tmp_path: Path):
    import_prompt(block, project, tmp_path)


def test_blocks_of_all_kinds_are_found():
    kinds = [kind_of(block) for block in blocks()]
    assert set(kinds) == {*CHECKS, "prompt"}
    assert len(kinds) > 90


def test_every_program_is_named_once_with_a_test_that_is_there():
    for page, begins in PROGRAMS:
        assert len([block for block in blocks() if block.page == page and block.text.startswith(begins)]) == 1
    for path, name in {*PROGRAMS.values(), *RUN_BY.values()}:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        names = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        assert [test_name for test_name in names if test_name.startswith(name)], (path, name)


@pytest.mark.django_db
def test_an_administrator_is_created(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DJANGO_SUPERUSER_PASSWORD", "a kettle of four words")
    call_command("createsuperuser", "--no-input", username="root", email="", stdout=StringIO())
    root = User.objects.get(username="root")
    assert root.is_superuser
    assert root.check_password("a kettle of four words")


@pytest.mark.django_db
def test_models_and_migrations_agree():
    output = StringIO()
    call_command("makemigrations", "annotation", check=True, dry_run=True, stdout=output)
    assert "No changes detected in app 'annotation'" in output.getvalue()

"""Every code block of the guide and the README is of a kind, and what a block of its kind must be."""

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
from annotation.models import Project, Prompt
from tests.architecture.test_house import ROOT
from tests.guide_blocks import Block, blocks
from tests.webapp.test_guide import options_of
from training.api.applications import NewFeedbackSerializer
from training.api.base_models import NewBaseModelSerializer
from training.recipe.recipe import Recipe
from webapp.environment import read_environment
from webapp.environment.table import TABLE
from webapp.operations.requests import LATENCY

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


def kind_of(block: Block) -> str:
    """Name the kind of a block by its looks."""
    text = block.text.strip()
    if is_program(text):
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


def is_program(text: str) -> bool:
    """Return whether Python can read a text that imports or calls something."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return False
    return any(isinstance(node, ast.Import | ast.ImportFrom | ast.Call) for node in ast.walk(tree))


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
    subprocess.run(["bash", "-n"], input=block.text.replace("…", "x"), text=True, check=True)


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

"""Every setting is declared once, documented from there, and refused in one line where its value is wrong."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from webapp.environment import documentation, read_environment
from webapp.environment.table import TABLE, Kind, Setting

ROOT = Path(__file__).resolve().parents[2]
WRONG = {
    Kind.WHOLE_NUMBER: ["abc", "1.5", "1e3", "-1000000000", "9" * 30, "٣", "nan"],
    Kind.NUMBER: ["abc", "nan", "inf", "-1", "0", "1e99"],
    Kind.BOOLEAN: ["maybe", "2", "tru"],
    Kind.CHOICE: ["LOUD", "0"],
    Kind.TIME_ZONE: ["Mars/X", "../../etc/passwd", "/etc/localtime"],
    Kind.ADDRESS: ["localhost", "://x", "host:80/x"],
}
OF_THE_ISSUE = {
    "RONDO_HTTPS": "maybe",
    "RONDO_WEB_PROCESSES": "-3",
    "RONDO_BROKER_URL": "foo://x",
    "RONDO_SIGN_IN_ATTEMPTS": "0",
    "RONDO_PORT": "abc",
    "RONDO_IMPORT_MAX_MB": "x",
    "RONDO_TIME_ZONE": "Mars/X",
    "RONDO_LOG_LEVEL": "LOUD",
}


@pytest.mark.parametrize("setting", TABLE, ids=lambda setting: setting.name)
def test_a_wrong_value_of_any_setting_is_named_in_one_line_with_a_remedy(setting: Setting):
    for value in WRONG.get(setting.kind, []):
        with pytest.raises(ImproperlyConfigured) as refused:
            read_environment({setting.name: value})
        [line] = str(refused.value).splitlines()
        shown = "a value that is not shown here" if setting.is_secret else repr(value)
        assert line.startswith(f"{setting.name} is {shown}. Write ")


@pytest.mark.parametrize("setting", TABLE, ids=lambda setting: setting.name)
def test_the_bounds_and_the_default_of_any_setting_are_values_of_it(setting: Setting):
    assert read_environment({})[setting.name] == setting.default
    assert read_environment({setting.name: ""})[setting.name] == setting.default
    if setting.kind in (Kind.WHOLE_NUMBER, Kind.NUMBER):
        for bound in (setting.low, setting.high):
            assert read_environment({setting.name: f"{bound:.15g}"})[setting.name] == bound
        assert setting.default is None or setting.low <= setting.default <= setting.high
    if setting.kind is Kind.CHOICE:
        assert setting.default in setting.choices


def test_all_wrong_settings_are_listed_at_once():
    with pytest.raises(ImproperlyConfigured) as refused:
        read_environment(OF_THE_ISSUE)
    assert {line.split()[0] for line in str(refused.value).splitlines()} == set(OF_THE_ISSUE)


def test_no_message_shows_a_password():
    with pytest.raises(ImproperlyConfigured) as refused:
        read_environment({"DATABASE_URL": "foo://rondo:opensesame@host/x"})
    assert "opensesame" not in str(refused.value)


def test_the_guide_has_the_table_that_is_printed():
    page = ROOT / "webapp" / "guide" / "reference" / "settings.md"
    assert documentation() in page.read_text(encoding="utf-8")


def test_every_setting_that_the_code_reads_is_declared():
    declared = {setting.name for setting in TABLE}
    settings = ast.parse((ROOT / "webapp" / "settings.py").read_text(encoding="utf-8"))
    read = {
        node.slice.value
        for node in ast.walk(settings)
        if isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id == "env"
        and isinstance(node.slice, ast.Constant)
    }
    assert len(read) > 40
    assert read <= declared
    # The last two are read by rondo_reward.py, which is copied beside other trainers.
    elsewhere = {
        "RONDO_MODEL_SERVER_MORE_KEYS",
        *("RONDO_REWARD_POPULATION", "RONDO_REWARD_GROUPS"),
    }
    pattern = re.compile(r'environ(?:\.get\(|\[)"(RONDO_\w+)"|= "(RONDO_[A-Z_]+[A-Z])"$', re.MULTILINE)
    for package in ("annotation", "training", "webapp"):
        for path in (ROOT / package).rglob("*.py"):
            for groups in pattern.findall(path.read_text(encoding="utf-8")):
                assert (groups[0] or groups[1]) in declared | elsewhere, path


@pytest.mark.parametrize(
    "words",
    [
        ("manage.py", "up"),
        ("manage.py", "check"),
        ("-m", "celery", "--app", "webapp", "worker", "--concurrency", "1"),
        ("-m", "gunicorn", "webapp.wsgi", "--bind", "127.0.0.1:0"),
    ],
    ids=["up", "check", "worker", "web"],
)
def test_no_program_starts_with_wrong_settings_nor_shows_a_traceback_of_them(words, tmp_path: Path):
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("RONDO_", "DJANGO_"))
    }
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**inherited, **OF_THE_ISSUE, "RONDO_HOME": str(tmp_path), "RONDO_LOG_FORMAT": "xml"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode != 0
    for name, value in OF_THE_ISSUE.items():
        assert f"{name} is {value!r}. Write " in done.stderr
    assert "Rondo is not set up right" in done.stderr
    if "gunicorn" not in words:
        assert "Traceback" not in done.stderr


def test_a_misspelt_variable_is_reported_with_the_name_that_is_meant():
    with pytest.raises(ImproperlyConfigured, match=r"^RONDO_TIMEZONE is no setting"):
        read_environment({"RONDO_TIMEZONE": "Europe/Berlin"})
    # Tools around Rondo have variables of their own.
    read_environment({"RONDO_OF_ANOTHER_TOOL": "1"})

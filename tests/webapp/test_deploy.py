"""`.deploy/`: what the Compose file says holds for this checkout, as far as can be checked without Docker."""

import json
import re
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from django.core.management import get_commands
from django.urls import resolve
from pytest_django import Settings

from training.services.workers import ALIVE_FILE
from webapp.environment.table import TABLE
from webapp.supervision import programs

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / ".deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"].startswith("rondo:")}
THEIRS = {name: service for name, service in SERVICES.items() if name not in OURS}


def test_it_is_what_the_compose_specification_asks_for():
    schema = files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    specification = json.loads(schema.read_text(encoding="utf-8"))
    validator = jsonschema.validators.validator_for(specification)(specification)
    assert [error.message for error in validator.iter_errors(COMPOSE)] == []
    # The schema is one: it refuses a word that it does not know.
    assert list(validator.iter_errors({"services": {"web": {"imagination": "x"}}}))


def test_the_parts_of_a_team_are_there():
    workers = {"worker", "short-worker", "gpu-worker"}
    assert set(SERVICES) == {"db", "broker", "release", "web", "model-server", "proxy"} | workers


def test_every_variable_is_one_that_something_reads():
    read = {setting.name for setting in TABLE}
    foreign = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_DEFAULT_REGION"}
    for name, service in OURS.items():
        assert set(service["environment"]) - foreign <= read, name
    # What a person is told to write down is what is asked for, and no more is.
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    documented = set(re.findall(r"^#          (\w+)=", text, flags=re.M))
    assert set(re.findall(r"\$\{(\w+):\?", text)) == documented
    caddy = (DEPLOY / "Caddyfile").read_text(encoding="utf-8")
    assert set(re.findall(r"\{\$(\w+)\}", caddy)) <= set(SERVICES["proxy"]["environment"])


NOT_FOR_A_TEAM = {
    # The file says itself where the programs listen, and how many there are.
    *("RONDO_HOST", "RONDO_PORT", "RONDO_WEB_PROCESSES", "RONDO_MODEL_SERVER_PORT"),
    # The model server's command names the starter.
    *("RONDO_STARTER_MODEL", "RONDO_STARTER_MODEL_NAME"),
    # For development.
    "RONDO_DEBUG",
}


def test_every_setting_that_a_team_may_need_reaches_the_programs():
    passed = set(SERVICES["web"]["environment"])
    assert {setting.name for setting in TABLE} - passed == NOT_FOR_A_TEAM


def test_every_program_that_stays_has_a_health_check():
    assert [name for name, service in SERVICES.items() if "healthcheck" not in service] == ["release"]
    for name in ("worker", "short-worker", "gpu-worker"):
        program = SERVICES[name]["healthcheck"]["test"][-1]
        (place,) = re.findall(r"os\.stat\('([^']+)'\)", program)
        assert place == f"{SERVICES[name]['environment']['RONDO_HOME']}/{ALIVE_FILE}"


def test_the_image_installs_the_locks_with_hashes_and_nothing_else():
    dockerfile = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    installs = re.findall(r"pip install (.*?)(?:\\\n|$)", dockerfile, flags=re.M)
    copied = re.search(r"^COPY (.+) /tmp/locks/$", dockerfile, flags=re.M)
    assert copied is not None
    locks = copied[1].split()
    wanted = " ".join(f"--requirement /tmp/locks/{Path(lock).name}" for lock in locks)
    assert [install.strip() for install in installs] == [f"--no-cache-dir --require-hashes {wanted}"]
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    pins: dict[str, str] = {}
    for lock in locks:
        assert f"!{lock}" in ignored
        for entry in re.split(r"\n(?=[A-Za-z0-9])", (ROOT / lock).read_text(encoding="utf-8")):
            if match := re.match(r"([A-Za-z0-9._-]+)==(\S+)", entry):
                assert "--hash=sha256:" in entry, match[0]
                pins.setdefault(match[1], match[2])
                # Of one package two versions for other platforms, and never two for the same.
                assert pins[match[1]] == match[2] or ";" in entry, match[0]
    assert "s3fs" in pins


@pytest.mark.parametrize("name", sorted(OURS))
def test_ours_run_as_nobody_special_and_write_only_where_they_must(name: str):
    service = OURS[name]
    assert not service["user"].startswith(("0", "root"))
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    dockerfile = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    assert f"USER {service['user']}" in dockerfile
    # A volume that root owns could not be written.
    made = re.findall(r"(/[\w/-]+)", dockerfile.partition("install --directory")[2].partition("\n")[0])
    assert {volume.split(":")[1] for volume in service["volumes"]} <= set(made)


def test_images_are_pinned_and_volumes_named():
    assert all(re.search(r":\d+\.\d+(\.\d+)?(-\w+)?$", service["image"]) for service in THEIRS.values())
    assert re.search(r"^FROM python:3\.\d+\.\d+-", (DEPLOY / "Dockerfile").read_text(), flags=re.M)
    used = {volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])}
    assert {volume for volume in used if not volume.startswith(".")} == set(COMPOSE["volumes"])
    assert (DEPLOY / "Caddyfile").is_file()


def test_nothing_but_the_proxy_is_reached_from_outside():
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["proxy"]


def test_health_is_asked_at_addresses_that_exist():
    health_checks = {
        name: re.findall(r"http://127\.0\.0\.1:(\d+)(/[\w/]+)", " ".join(service["healthcheck"]["test"]))
        for name, service in OURS.items()
        if "healthcheck" in service
    }
    ((web_port, web_path),) = health_checks["web"]
    assert resolve(web_path).url_name == "health-ready"
    assert f"--bind=0.0.0.0:{web_port}" in SERVICES["web"]["command"]
    ((model_port, model_path),) = health_checks["model-server"]
    assert f'Route("{model_path}"' in (ROOT / "training" / "serving" / "app.py").read_text(encoding="utf-8")
    assert f"--port={model_port}" in SERVICES["model-server"]["command"]
    caddy = (DEPLOY / "Caddyfile").read_text(encoding="utf-8")
    assert f"reverse_proxy web:{web_port}" in caddy
    assert f"health_uri {web_path}" in caddy


def test_the_commands_are_those_of_this_checkout():
    assert {"migrate", "collectstatic", "backup", "restore"} <= set(get_commands())
    for name, service in OURS.items():
        command = service["command"]
        if command[0] == "sh":
            assert set(re.findall(r"manage\.py (\w+)", command[2])) <= set(get_commands())
            continue
        assert command[:2] == ["python", "-m"], name
        assert command[2] in ("gunicorn", "celery", "training.serving.router")


def options(command: Iterable[str]) -> dict[str, str]:
    """Of a command line, however it separates names and values."""
    values, name = {}, ""
    for word in (part for argument in command for part in argument.split("=", 1)):
        if word.startswith("--"):
            values[name := word] = ""
        elif name:
            values[name] = word
    return values


def test_the_services_are_told_what_the_programs_of_one_machine_are_told():
    exempt = {
        "--bind",
        "--workers",
        "--worker-tmp-dir",
        "--models",
        "--checkpoints",
        "--base",
        "--host",
        "--port",
    }
    for name, program in {
        "web": programs.web("127.0.0.1", 8000),
        "worker": programs.worker(),
        "short-worker": programs.short_worker(),
        "model-server": programs.model_server(),
    }.items():
        here, there = options(program.command), options(SERVICES[name]["command"])
        assert {n: v for n, v in there.items() if n not in exempt} == {
            n: v for n, v in here.items() if n not in exempt
        }
        assert here.keys() <= there.keys()


def test_exactly_one_worker_has_the_scheduler_and_the_other_takes_the_queue_of_rounds(settings: Settings):
    with_beat = [name for name, service in OURS.items() if "--beat-thread" in service["command"]]
    assert with_beat == ["worker"]
    assert "--queues=gpu" in SERVICES["gpu-worker"]["command"]
    assert settings.CELERY_TASK_ROUTES["training.tasks.advance_round"] == {"queue": "celery"}

"""Chat templates of base models, checked before anybody judges the responses of a base.

A template is a program of strangers. A child process with bounds on time, memory and output renders it
(`training.files.chat_templates`); this process reads the stored result, one small file for each template.
"""

import hashlib
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings
from django.utils.translation import gettext as _

from annotation.errors import Unavailable
from training.contract.files import write_atomically
from training.models import Checkpoint

logger = logging.getLogger(__name__)

CHECK_COMMAND: tuple[str, ...] = (sys.executable, "-m", "training.files.chat_templates")
WALL_SECONDS = 15.0
"""A child that takes longer is killed. Its processor time is bounded by itself, to less."""
MAX_FILE_BYTES = 32 * 1024**2
MAX_TEMPLATE_CHARACTERS = 1_000_000
_VERSION = 1
"""Part of the digest: raise it when the check changes, and stored results count no more."""
_TOO_MUCH = "bounds"
"""The child ran into a bound: as it says itself, or as the kernel that ended it does."""
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")
_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)

_one_at_a_time = threading.Lock()
"""Requests that ask for the same template at once cost one child, not one each."""


@dataclass(frozen=True, slots=True)
class TemplateCheck:
    """The result of a check: a reason, empty where responses can be trained on."""

    is_within_bounds: bool = True
    reason: str = ""


def untrainable_template(policy: Checkpoint) -> Iterator[str]:
    """Yield why responses of a policy's base could be judged and not trained on.

    Nothing where its files are not on this machine: the model server looks at them when it loads them.
    """
    if policy.server_url or not policy.base_model:
        return
    try:
        check = check_template(Path(settings.RONDO_MODELS) / policy.base_model)
    except Unavailable as unavailable:
        yield unavailable.message
        return
    if check.reason:
        yield _(
            "Responses of %(name)s could be annotated but not trained on: %(reason)s. Choose "
            "another base model."
        ) % {"name": policy.base_model, "reason": check.reason}


def check_template(folder: Path) -> TemplateCheck:
    """Return the check of the chat template in a base's folder, which is done once and then stored.

    A folder without a template passes. Raises `Unavailable` where no child could check it now.
    """
    try:
        tokenizer = json.loads(_read(folder / "tokenizer_config.json"))
        source = _template_in(folder, tokenizer)
        special = {name: _text(tokenizer.get(name)) for name in _SPECIAL}
    except _UNREADABLE:
        return TemplateCheck()
    if not source:
        return TemplateCheck()
    if len(source) > MAX_TEMPLATE_CHARACTERS:
        reason = _("its chat template has more than %(count)s characters") % {
            "count": MAX_TEMPLATE_CHARACTERS
        }
        return TemplateCheck(is_within_bounds=False, reason=reason)
    result = _stored_or_checked(json.dumps({"source": source, "special": special}))
    if result.get("code") == _TOO_MUCH:
        reason = _("its chat template takes too much time or memory for a short chat")
        return TemplateCheck(is_within_bounds=False, reason=reason)
    return TemplateCheck(reason=str(result.get("problem", "")))


def _stored_or_checked(asked: str) -> Mapping[str, Any]:
    digest = hashlib.sha256(f"{_VERSION}\n{asked}".encode()).hexdigest()
    file = Path(settings.RONDO_HOME) / "cache" / "chat-templates" / f"{digest}.json"
    if (stored := _stored(file)) is not None:
        return stored
    if not _one_at_a_time.acquire(timeout=WALL_SECONDS):
        raise _unavailable()
    try:
        if (stored := _stored(file)) is not None:
            return stored
        result = _check_in_child(asked)
        with suppress(OSError):
            write_atomically(file, json.dumps(result))
        return result
    finally:
        _one_at_a_time.release()


def _stored(file: Path) -> Mapping[str, Any] | None:
    try:
        result = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return result if isinstance(result, dict) else None


def _check_in_child(asked: str) -> Mapping[str, Any]:
    """Return the child's result, or that it broke its bounds. Raises `Unavailable` if it could not run."""
    try:
        ended = subprocess.run(
            CHECK_COMMAND,
            input=asked.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=settings.BASE_DIR,
            # A template needs nothing of our environment, and gets none of its secrets.
            env={"PYTHONDONTWRITEBYTECODE": "1", "PYTHONIOENCODING": "utf-8"},
            timeout=WALL_SECONDS,
            start_new_session=True,
            check=False,
        )
    except (subprocess.TimeoutExpired, OSError) as error:
        # Its processor time is bounded by less: this machine is too busy, and the template not to blame.
        logger.warning("The check of a chat template did not run: %s", error)
        raise _unavailable() from error
    if ended.returncode < 0:
        return {"code": _TOO_MUCH}
    try:
        result = json.loads(ended.stdout)
        return {"problem": str(result["problem"]), "code": str(result["code"])}
    except (ValueError, LookupError, TypeError) as error:
        logger.error("The check of a chat template ended with status %s", ended.returncode)
        raise _unavailable() from error


def _unavailable() -> Unavailable:
    return Unavailable(
        "chat_template_not_checked",
        _("The base model’s chat template could not be checked now. Try again."),
        field="recipe",
    )


def _read(file: Path) -> str:
    if file.stat().st_size > MAX_FILE_BYTES:
        raise ValueError(f"{file.name} is too large")
    return file.read_text(encoding="utf-8")


def _template_in(folder: Path, tokenizer: Mapping[str, Any]) -> str:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return _read(file)
    template = tokenizer.get("chat_template") or ""
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default", "")
    return str(template)


def _text(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token or "")

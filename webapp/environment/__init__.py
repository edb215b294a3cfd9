"""The environment variables of Rondo: one table with the kind, bounds, default and help of each.

`.ci/reference.py` writes the guide's table from it. `read_environment` reads all variables and
reports every wrong one at once, each with its name, its value and a remedy.
"""

import math
import os
import re
import secrets
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from celery.schedules import crontab
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from training.contract.files import make_private_folder
from webapp.environment.table import REMOVED, TABLE, Kind, Setting

# Rondo's home: folders that only its owner may enter, and secrets that are made once and kept there.


def writable_folder(path: Path) -> Path:
    """Return the folder, created if missing. Raise `ImproperlyConfigured` with a remedy if that fails."""
    try:
        make_private_folder(path)
    except OSError as error:
        raise ImproperlyConfigured(
            f"Rondo keeps its files in RONDO_HOME, and {path} cannot be made ({error.strerror}). "
            "Change the folder's owner or permissions, or set RONDO_HOME to a folder that you may write."
        ) from error
    return path


def stored_secret(path: Path) -> str:
    """Return the secret of a file that only its owner can read; write a random one if it is missing."""
    writable_folder(path.parent)
    if not path.exists():
        # Two processes may start at once: each writes a whole file (mode 0600) under its own name,
        # and only one of them gets the final name.
        descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        with os.fdopen(descriptor, "w") as stream:
            stream.write(secrets.token_urlsafe(48) + "\n")
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
        finally:
            os.unlink(draft)
    return path.read_text().strip()


if TYPE_CHECKING:
    from packaging.requirements import Requirement

BASE_DIR = Path(__file__).resolve().parents[2]
IS_CHECKOUT = (BASE_DIR / "manage.py").is_file()
ASSETS = BASE_DIR if IS_CHECKOUT else BASE_DIR / "webapp" / "assets"


def default_home() -> Path:
    """Return the folder of database, models, runs and logs where RONDO_HOME names none."""
    if IS_CHECKOUT:
        return BASE_DIR / "var"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "rondo"


def required_packages() -> "list[Requirement]":
    """Return what Rondo needs at run time, from requirements.txt or the metadata of the wheel."""
    # Commands ask; a web process never does, and keeps the memory.
    from packaging.requirements import Requirement

    if IS_CHECKOUT:
        lines = (BASE_DIR / "requirements.txt").read_text(encoding="utf-8").splitlines()
    else:
        lines = [line for line in metadata.requires("rondo") or [] if "extra ==" not in line]
    return [Requirement(line) for raw in lines if (line := raw.partition("#")[0].strip())]


def manage(words: str) -> str:
    """Return the command line of a management command, as one types it here."""
    if IS_CHECKOUT:
        return f".venv/bin/python manage.py {words}"
    return f"{Path(sys.argv[0]).name if sys.argv[0].endswith('rondo') else 'rondo'} manage {words}"


_WRONG_SETTINGS = 3
_TRUE = {"true", "on", "ok", "y", "yes", "1"}
_FALSE = {"false", "off", "n", "no", "0"}
_WITH_HOST = {
    *("http", "https", "redis", "rediss", "amqp", "amqps", "pyamqp"),
    *("smtp", "smtp+tls", "smtp+ssl"),
}
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_PASSWORD = re.compile(r"(://[^:/@\s]*:)[^@\s]*@")


class _WrongValueError(Exception):
    """A value that its setting refuses. The message says what to write."""


def read_environment(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return the value of every setting; None if it is unset and has no fixed default.

    An empty variable counts as unset. Raise `ImproperlyConfigured` with a line for each wrong value and for
    each misspelt variable.
    """
    values: dict[str, Any] = {}
    problems = _misspelt(environment)
    for setting in TABLE:
        text = environment.get(setting.name, "").strip()
        try:
            values[setting.name] = _READERS[setting.kind](setting, text) if text else setting.default
        except _WrongValueError as error:
            problems.append(_problem(setting, text, str(error)))
    if problems:
        raise ImproperlyConfigured("\n".join(problems))
    return values


def load_settings_or_exit() -> None:
    """Load Django's settings, or report what is wrong in them and exit, without a traceback.

    For programs that do not start through manage.py. gunicorn does not retry after this exit status.
    """
    try:
        _ = settings.INSTALLED_APPS
    except ImproperlyConfigured as error:
        print(f"Rondo is not set up right:\n{error}", file=sys.stderr)
        raise SystemExit(_WRONG_SETTINGS) from None


def _misspelt(environment: Mapping[str, str]) -> list[str]:
    """Return a line for each `RONDO_` variable that is almost the name of a setting."""
    names = {setting.name for setting in TABLE}
    known = names | REMOVED.keys()
    odd = sorted(name for name in environment if name.startswith("RONDO_") and name not in known)
    near = {name: get_close_matches(name, names, n=1, cutoff=0.9) for name in odd}
    return [f"{name} is no setting. Write {matches[0]}." for name, matches in near.items() if matches]


def _problem(setting: Setting, text: str, remedy: str) -> str:
    shown = "a value that is not shown here" if setting.is_secret else repr(_PASSWORD.sub(r"\1…@", text))
    default = f", or leave it unset for {setting.documented_default}" if setting.documented_default else ""
    return f"{setting.name} is {shown}. Write {remedy}{default}."


def _text(setting: Setting, text: str) -> str:
    return text


def _names(setting: Setting, text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _whole_number(setting: Setting, text: str) -> int:
    if not _WHOLE.fullmatch(text) or not setting.low <= int(text) <= setting.high:
        raise _WrongValueError(f"a whole number from {setting.low:g} to {setting.high:.15g}")
    return int(text)


def _number(setting: Setting, text: str) -> float:
    remedy = f"a number from {setting.low:g} to {setting.high:.15g}"
    try:
        value = float(text)
    except ValueError:
        raise _WrongValueError(remedy) from None
    if not math.isfinite(value) or not setting.low <= value <= setting.high:
        raise _WrongValueError(remedy)
    return value


def _boolean(setting: Setting, text: str) -> bool:
    if text.lower() not in _TRUE | _FALSE:
        raise _WrongValueError("true or false")
    return text.lower() in _TRUE


def _choice(setting: Setting, text: str) -> str:
    for choice in setting.choices:
        if text.lower() == choice.lower():
            return choice
    raise _WrongValueError(_alternatives(setting.choices))


def _time_zone(setting: Setting, text: str) -> str:
    try:
        ZoneInfo(text)
    except (ValueError, LookupError, OSError):
        raise _WrongValueError("the name of a time zone such as Europe/Berlin") from None
    return text


def _address(setting: Setting, text: str) -> str:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise _WrongValueError("an address with a host and a port that is a number") from None
    schemes = setting.choices
    # Files and folders have no host; without listed schemes any scheme of fsspec is valid.
    if (schemes and parts.scheme not in schemes) or not parts.scheme or "://" not in text or port == 0:
        examples = _alternatives([f"{scheme}://" for scheme in schemes]) if schemes else "s3:// or file:///"
        raise _WrongValueError(f"an address that begins with {examples}")
    if parts.scheme in _WITH_HOST and not parts.hostname:
        raise _WrongValueError(f"an address with a host, such as {parts.scheme}://host")
    return text


def _alternatives(choices: Sequence[str]) -> str:
    return choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"


_READERS: dict[Kind, Callable[[Setting, str], Any]] = {
    Kind.TEXT: _text,
    Kind.NAMES: _names,
    Kind.WHOLE_NUMBER: _whole_number,
    Kind.NUMBER: _number,
    Kind.BOOLEAN: _boolean,
    Kind.CHOICE: _choice,
    Kind.TIME_ZONE: _time_zone,
    Kind.ADDRESS: _address,
}


def documentation() -> str:
    """Return the settings table of the guide."""
    rows = [f"| `{setting.name}` |{_shown_default(setting)} | {setting.help} |" for setting in TABLE]
    return "\n".join(["| variable | default | what it sets |", "|---|---|---|", *rows])


def _shown_default(setting: Setting) -> str:
    if setting.default_note:
        return f" {setting.default_note}"
    return f" `{setting.documented_default}`" if setting.documented_default else ""


# The schedule of recurring tasks. It is these few lines, so the scheduler stores no state on disk.


def beat_schedule(*, sweep_seconds: float) -> dict[str, dict[str, Any]]:
    """Return the tasks that Celery's scheduler sends; clock times are those of CELERY_TIMEZONE."""
    # A sweep that was not executed in time expires: the next one covers the same rows.
    sweep = {"schedule": sweep_seconds, "options": {"expires": sweep_seconds}}
    return {
        "sweep_imports": {"task": "annotation.tasks.sweep", **sweep},
        "sweep": {"task": "training.tasks.sweep", **sweep},
        # Before working hours.
        "retention": {"task": "training.tasks.retention", "schedule": crontab(hour=3, minute=30)},
        "digests": {"task": "annotation.tasks.send_digests", "schedule": crontab(hour=6, minute=0)},
    }


# Identity providers for sign-in. The settings import this module, so it imports no Django.

Client = tuple[str, str]
"""Client id and client secret."""


def providers(
    *, github: Client, google: Client, openid: Client, openid_url: str, openid_name: str
) -> dict[str, Any]:
    """Return `SOCIALACCOUNT_PROVIDERS` for the providers with a client."""
    apps: dict[str, Any] = {}
    for name, (client_id, secret) in (("github", github), ("google", google)):
        if client_id and secret:
            apps[name] = {"APPS": [{"client_id": client_id, "secret": secret}], "OAUTH_PKCE_ENABLED": True}
    if openid_url and all(openid):
        apps["openid_connect"] = {
            "OAUTH_PKCE_ENABLED": True,
            "APPS": [
                {
                    "provider_id": "openid",
                    "name": openid_name,
                    "client_id": openid[0],
                    "secret": openid[1],
                    "settings": {"server_url": openid_url},
                }
            ],
        }
    return apps

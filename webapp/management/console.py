"""The command `rondo` of an installed wheel: the management commands that people use most, by short names."""

import os
import sys
from collections.abc import Sequence

COMMANDS = {
    "up": ("up", "start web, worker and model server; Ctrl-C stops them"),
    "demo": ("demo", "add a simulated project for trying every page"),
    "import": ("import_judgments", "import annotations; `rondo import prompts FILE` imports prompts"),
    "export": ("export_judgments", "write annotations in one of the formats"),
    "doctor": ("doctor", "report what is wrong and what to do"),
    "backup": ("backup", "copy database and files into a folder or a bucket"),
    "restore": ("restore", "bring a back-up into an empty installation"),
}
_KINDS = {"prompts": "import_prompts", "annotations": "import_judgments"}


def main() -> None:
    """Run a command of `rondo`; the rest of its command line is the management command's."""
    words = _management_command(sys.argv[1:])
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    try:
        execute_from_command_line(["rondo", *words])
    except ImproperlyConfigured as error:
        raise SystemExit(f"Rondo is not set up right:\n{error}") from error


def _management_command(words: Sequence[str]) -> list[str]:
    """Return the management command that the words of a command line ask for."""
    if not words or words[0] in ("help", "-h", "--help"):
        print(_usage())
        raise SystemExit(0)
    first, *rest = words
    if first in ("version", "--version"):
        from webapp import __version__

        print(f"rondo {__version__}")
        raise SystemExit(0)
    if first == "import" and rest and rest[0] in _KINDS:
        return [_KINDS[rest[0]], *rest[1:]]
    if first in COMMANDS:
        return [COMMANDS[first][0], *rest]
    if first == "manage" and rest:
        return list(rest)
    raise SystemExit(f"rondo has no command {first!r}.\n\n{_usage()}")


def _usage() -> str:
    lines = [f"  rondo {name:<8} {text}" for name, (_command, text) in COMMANDS.items()]
    return "\n".join(
        [
            "Usage: rondo COMMAND [OPTIONS]; `rondo COMMAND --help` lists the options.",
            "",
            *lines,
            "  rondo manage   run any other management command: rondo manage changepassword NAME",
            "",
            "Data lies in RONDO_HOME, by default ~/.local/share/rondo.",
        ]
    )

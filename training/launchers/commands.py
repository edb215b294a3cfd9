"""Programs of a scheduler: run without a shell, with a limit of time, their errors in plain words."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from training.launchers.protocol import LauncherError, LauncherUnreachableError

_SECONDS = 30.0
_MOST_CHARACTERS = 400


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """The output of a program, and its exit status."""

    code: int
    text: str
    error: str

    @property
    def error_text(self) -> str:
        """Return what it wrote, the error first, in one short line."""
        words = " ".join((self.error or self.text).split())
        return words[:_MOST_CHARACTERS] or f"nothing, exit status {self.code}"


def run(
    command: Sequence[str],
    *,
    launcher: str,
    text: str = "",
    environment: Mapping[str, str] | None = None,
    seconds: float = _SECONDS,
) -> Output:
    """Run a program. Raises `LauncherUnreachableError` for one that does not end, `LauncherError` without it.

    environment: the variables that it gets in addition to this process's.
    """
    try:
        done = subprocess.run(
            list(command),
            input=text,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            env={**os.environ, **(environment or {})},
        )
    except FileNotFoundError:
        raise LauncherError(
            f"{launcher}: the program {command[0]} is not on this machine; install it, or choose another "
            "launcher in the recipe or in RONDO_LAUNCHER"
        ) from None
    except subprocess.TimeoutExpired:
        raise LauncherUnreachableError(
            f"{launcher}: {command[0]} did not answer within {seconds:.0f} seconds; it is tried again"
        ) from None
    except OSError as error:
        raise LauncherError(f"{launcher}: {command[0]} cannot be run ({error.strerror})") from None
    return Output(code=done.returncode, text=done.stdout, error=done.stderr)

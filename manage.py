#!/usr/bin/env python
"""Django's command line for Rondo. `manage.py up` starts everything."""

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")
    try:
        from django.core.exceptions import ImproperlyConfigured
        from django.core.management import execute_from_command_line
    except ImportError as error:
        raise SystemExit(_missing(error)) from error
    try:
        execute_from_command_line(sys.argv)
    except ModuleNotFoundError as error:
        # One of ours that is missing is a mistake in the code: its traceback is what helps.
        if error.name is None or error.name.split(".")[0] in ("annotation", "training", "webapp", "tests"):
            raise
        raise SystemExit(_missing(error)) from error
    except ImproperlyConfigured as error:
        raise SystemExit(f"Rondo is not set up right:\n{error}") from error


def _missing(error: ImportError) -> str:
    return (
        f"{error}. A package that Rondo needs is not installed here: run `make install`, "
        "then use .venv/bin/python manage.py, or activate .venv."
    )


if __name__ == "__main__":
    main()

"""Scores texts by rules in a process of its own: some run programs, and the web side imports no torch."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from django.conf import settings
from django.utils.translation import gettext as _

from annotation.errors import Refusal
from training.contract import RewardPart
from training.services.runs.launcher import trainer_environment

RULES_COMMAND: tuple[str, ...] = (sys.executable, "-m", "training.rlhf.rewards")
START_SECONDS = 120.0
SECONDS_PER_TEXT = 30.0
"""For one text and one rule; every rule bounds itself well below that."""
_TELL_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class RuledText:
    """One answer that is to be scored."""

    messages: list[dict[str, str]]
    completion: str
    reference: Any
    """A text, a list of several that are all right, or None."""


def score_by_rules(
    *, rules: Sequence[RewardPart], texts: Sequence[RuledText], tell: Callable[[], object]
) -> dict[str, list[float | None]]:
    """Return the score of each text by name of the rule; None where a rule has no verdict.

    `tell` is called while the process works, and may raise to stop it. Refuses rules that cannot be built
    and a process that fails or overruns.
    """
    if not rules or not texts:
        return {rule.name: [] for rule in rules}
    request = json.dumps(
        {"rules": [asdict(rule) for rule in rules], "rows": [asdict(text) for text in texts]}
    )
    answer = _ask(request, START_SECONDS + SECONDS_PER_TEXT * len(rules) * len(texts), tell)
    if "error" in answer:
        raise Refusal(
            "rule_not_usable",
            _(
                "A rule of the evaluation cannot be used: %(error)s. Correct it in the recipe, "
                "then start again."
            ),
            field="evaluation",
            error=answer["error"],
        )
    return {name: [score["value"] for score in scores] for name, scores in answer["scores"].items()}


def _ask(request: str, seconds: float, tell: Callable[[], object]) -> dict[str, Any]:
    until = time.monotonic() + seconds
    process = subprocess.Popen(
        RULES_COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=settings.BASE_DIR,
        # Rules run what a model wrote: no secret of this process goes there.
        env={name: value for name, value in _environment().items() if not name.startswith("RONDO_")},
    )
    try:
        payload: bytes | None = request.encode()
        while time.monotonic() < until:
            with contextlib.suppress(subprocess.TimeoutExpired):
                output, errors = process.communicate(payload, timeout=_TELL_SECONDS)
                break
            # What was given stays given: a second call goes on with the first one's input.
            payload = None
            tell()
        else:
            raise Refusal(
                "rules_too_slow",
                _(
                    "The rules of the evaluation took more than %(seconds).0f seconds. Take out "
                    "the slow one, then start again."
                ),
                seconds=seconds,
            )
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    if process.returncode:
        last = errors.decode(errors="replace").strip().splitlines()[-1:] or ["nothing"]
        raise Refusal(
            "rules_failed",
            _("The rules of the evaluation failed with status %(status)s; they said last: %(line)s"),
            status=process.returncode,
            line=last[0],
        )
    result: dict[str, Any] = json.loads(output)
    return result


def _environment() -> dict[str, str]:
    return trainer_environment(os.environ)

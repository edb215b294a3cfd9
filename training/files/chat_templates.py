"""Render a base's chat template in a process with hard bounds, and print what its chats lack.

python -m training.files.chat_templates < {"source": …, "special": {…}}

A template is a program that a stranger wrote: no other process renders one for a page. Prints one JSON
object: `problem` is empty where responses can be trained on, else the reason; `code` is "bounds" where memory
ran out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from training.contract import ContractError
from training.contract.chat_template import Chat, ChatTemplate, Render

CPU_SECONDS = 3
"""Processor time of all renderings together; the chats of a check take milliseconds."""
MEMORY_BYTES = 1024**3
MAX_CHARACTERS = 1_000_000
"""Of one rendered chat."""
_MAX_REASON = 500


def find_problem(source: str, special: Mapping[str, str]) -> str:
    """Return why responses cannot be placed in the template's chats; empty where they can."""
    try:
        ChatTemplate(_renderer(source, special), source).check()
    except ContractError as error:
        return " ".join(str(error).split())[:_MAX_REASON]
    return ""


def _renderer(source: str, special: Mapping[str, str]) -> Render:
    """Return the template as transformers would render it, without importing transformers."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    environment.globals |= {"raise_exception": _refuse, "strftime_now": lambda form: "2026-01-01"}

    def render(chat: Chat, generation_prompt: bool, variables: Mapping[str, Any]) -> str:
        try:
            return _joined(
                environment.from_string(source).generate(
                    messages=chat,
                    add_generation_prompt=generation_prompt,
                    tools=None,
                    documents=None,
                    **special,
                    **variables,
                )
            )
        except (ContractError, MemoryError):
            raise
        except Exception as error:  # a program of strangers may raise anything
            raise ContractError(f"the base model's chat template refuses this chat ({error})") from error

    return render


def _joined(pieces: Iterable[str]) -> str:
    written, length = [], 0
    for piece in pieces:
        length += len(piece)
        if length > MAX_CHARACTERS:
            raise ContractError(
                f"the base model's chat template renders a short chat to over {MAX_CHARACTERS} characters"
            )
        written.append(piece)
    return "".join(written)


def _refuse(message: str) -> str:
    raise TemplateError(message)


class _Generation(Extension):
    """The tag around an assistant's turn, which marks and writes nothing."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Leave what stands in it."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _bound_this_process() -> None:
    """Let the kernel end this process where a template takes too much."""
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + 1 + CPU_SECONDS
    limits = {
        resource.RLIMIT_CPU: (seconds, seconds),
        resource.RLIMIT_AS: (MEMORY_BYTES, MEMORY_BYTES),
        resource.RLIMIT_FSIZE: (0, 0),
        resource.RLIMIT_CORE: (0, 0),
    }
    for limit, values in limits.items():
        try:
            resource.setrlimit(limit, values)
        except (OSError, ValueError):
            # macOS knows no bound on the address space; the clock of the parent holds there, too.
            continue


def main() -> int:
    """Check the template that stands on the standard input."""
    asked = json.load(sys.stdin)
    _bound_this_process()
    try:
        result = {"problem": find_problem(asked["source"], asked["special"]), "code": ""}
    except MemoryError:
        result = {"problem": "", "code": "bounds"}
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Chat templates of base models, looked at before anybody judges what a base answers."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from django.conf import settings
from django.utils.translation import gettext as _
from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from training.contract import ContractError
from training.contract.chat_template import Chat, ChatTemplate, Render
from training.models import Round

_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


def untrainable_template(round_: Round) -> Iterator[str]:
    """Yield why responses of the round's base could be judged and not trained on.

    Nothing where its files are not on this machine: the model server looks at them when it loads them.
    """
    policy = round_.policy
    folder = Path(settings.RONDO_MODELS) / policy.base_model
    if policy.server_url or not policy.base_model:
        return
    try:
        tokenizer = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        source = _template_in(folder, tokenizer)
    except (OSError, ValueError, KeyError):
        return
    try:
        if source:
            ChatTemplate(_renderer(source, tokenizer), source).check()
    except ContractError as error:
        yield _(
            "Responses of %(name)s could be annotated but not trained on: %(reason)s. Choose "
            "another base model."
        ) % {"name": policy.base_model, "reason": error}


def _template_in(folder: Path, tokenizer: Mapping[str, Any]) -> str:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = tokenizer.get("chat_template") or ""
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default", "")
    return str(template)


def _renderer(source: str, tokenizer: Mapping[str, Any]) -> Render:
    """Return the template as transformers would render it, without importing transformers."""
    special = {name: _text(tokenizer.get(name)) for name in _SPECIAL}
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    environment.globals |= {"raise_exception": _refuse, "strftime_now": lambda form: "2026-01-01"}

    def render(chat: Chat, generation_prompt: bool, variables: Mapping[str, bool]) -> str:
        try:
            return environment.from_string(source).render(
                messages=chat,
                add_generation_prompt=generation_prompt,
                tools=None,
                documents=None,
                **special,
                **variables,
            )
        except (TemplateError, TypeError) as error:
            raise ContractError(f"the base model's chat template refuses this chat ({error})") from error

    return render


def _text(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token or "")


def _refuse(message: str) -> str:
    raise TemplateError(message)


class _Generation(Extension):
    """The tag around an assistant's turn, which marks and writes nothing."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Leave what stands in it."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)

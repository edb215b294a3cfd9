"""Every format by name, in and out, and the one that a file seems to be.

A format is a module of this folder with `READERS`, `WRITERS` or both. Name it in `_MODULES`; another package
calls `register`.
"""

from collections.abc import Mapping, Sequence

from annotation.exchange.formats import (
    argilla,
    chatbot_arena,
    feedback_tools,
    label_studio,
    observability,
    otel_traces,
    potato,
    prompts_jsonl,
    public_sets,
    qa_feedback,
    rondo_csv,
    rondo_jsonl,
    spans,
    tables,
    traces,
    trl,
)
from annotation.exchange.formats.columns import Profile
from annotation.exchange.formats.items import Reader
from annotation.exchange.formats.plans import Parts, Plan, Stated, make_plan
from annotation.exchange.formats.writers import Writer

READERS: dict[str, Reader] = {}
"""In the order in which they are guessed, any table last."""
WRITERS: dict[str, Writer] = {}
_MODULES = (
    *(rondo_jsonl, rondo_csv, qa_feedback, public_sets, chatbot_arena, feedback_tools, potato, observability),
    *(label_studio, argilla, trl, otel_traces, traces, spans, prompts_jsonl, tables),
)
_GUESSED = (
    *("jsonl", "csv", "qa-feedback", "hh-rlhf", "ultrafeedback", "chatbot-arena", "chatbot-arena-55k"),
    *("openassistant", "open-webui", "promptfoo", "summarize-from-feedback", "potato"),
    *("langfuse", "langsmith", "phoenix", "label-studio", "argilla"),
    *("trl-preference", "trl-stepwise", "trl-unpaired", "trl-prompt-completion", "trl-prompt"),
    *("otel_traces", "openai-preference", "openai-messages", "anthropic_traces", "openai_traces"),
    *("prompts", "table"),
)
"""The readers of this folder in the order in which they are guessed: more telling names come first."""


def register(*formats: Reader | Writer) -> None:
    """Add formats, each under its name. Readers are guessed in this order, a table last."""
    for file_format in formats:
        if isinstance(file_format, Writer):
            WRITERS[file_format.name] = file_format
        else:
            READERS[file_format.name] = file_format
            if "table" in READERS:
                READERS["table"] = READERS.pop("table")


for _module in _MODULES:
    register(*getattr(_module, "WRITERS", ()))
register(
    *sorted(
        (reader for module in _MODULES for reader in getattr(module, "READERS", ())),
        key=lambda reader: _GUESSED.index(reader.name),
    )
)


def plan_for(
    profile: Profile,
    *,
    name: str = "",
    mapping: Stated | None = None,
    leave_out: Sequence[str] = (),
    meanings: Mapping[str, str] | None = None,
    parts: Parts | None = None,
) -> Plan:
    """Return the plan for a file by its columns: see `plans.make_plan`."""
    return make_plan(
        profile=profile,
        readers=READERS,
        name=name,
        mapping=mapping,
        leave_out=leave_out,
        meanings=meanings,
        parts=parts,
    )

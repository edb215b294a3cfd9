"""Every format by name, in and out, and the one that a file seems to be.

A format is a module of this folder with `READERS`, `WRITERS` or both. Name it in `_MODULES`; another package
calls `register`.
"""

from collections.abc import Mapping, Sequence

from annotation.exchange.formats import (
    argilla,
    chatbot_arena,
    label_studio,
    label_studio_tasks,
    llama_factory,
    observability,
    open_webui,
    openai,
    openassistant,
    openrlhf,
    otel_traces,
    potato,
    promptfoo,
    prompts_jsonl,
    qa_feedback,
    rondo_csv,
    rondo_jsonl,
    spans,
    summaries,
    tables,
    trace_messages,
    transcripts,
    trl,
    ultrafeedback,
    verl,
)
from annotation.exchange.formats.items import Reader
from annotation.exchange.formats.plans import Parts, Plan, Stated, make_plan
from annotation.exchange.formats.profiles import Profile
from annotation.exchange.formats.writers import Writer

READERS: dict[str, Reader] = {}
"""In the order in which they are guessed: more telling names come first, and any table last."""
WRITERS: dict[str, Writer] = {}
_MODULES = (
    *(rondo_jsonl, rondo_csv, qa_feedback, transcripts, ultrafeedback, chatbot_arena, openassistant),
    *(open_webui, promptfoo, summaries, potato, observability),
    *(label_studio, label_studio_tasks, argilla, trl, otel_traces, openai, trace_messages, openrlhf),
    *(llama_factory, verl, spans, prompts_jsonl, tables),
)


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
    register(*getattr(_module, "READERS", ()), *getattr(_module, "WRITERS", ()))


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

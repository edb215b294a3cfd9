"""Boundaries of the steps of a response that nobody cut: what a process reward model scores.

Labelled steps come with their places, from the trace that was imported. Generated text is cut by the same
rule where it is written as a trace, and as a person would read it elsewhere:

1. A trace has headings, as `annotation.text.traces` writes them: `[assistant]`, `[reasoning]`,
   `[tool call NAME]`, each on a line of its own, first or after an empty line. From one to the next is a
   step. Tool results and turns of others are no steps of the agent: nobody labels them, nothing scores them.
2. Paragraphs, which empty lines end.
3. Of one paragraph, sentences, which line breaks end too.

A heading inside a tool's output cannot be told from one that the agent wrote; in labelled data it does not
matter, because there the places are known.
"""

from __future__ import annotations

import re

from training.contract.segmentation import Segment, segment

_HEADING = re.compile(
    r"(?:\A|(?<=\n\n))\[(?:(?P<agents>assistant|reasoning|tool call)|user|system|tool|tool result|tool error)"
    r"(?: [^\[\]\n]+)?\](?=\n|\Z)"
)
_EMPTY_LINE = re.compile(r"\n[^\S\n]*\n")


def steps(text: str) -> list[Segment]:
    """Cut a text into steps: [start, end) in code points, in order, without the white space around them."""
    segments = _of_trace(text)
    if not segments:
        sentences = segment(text, "sentence")
        segments = _paragraphs(text, sentences)
        if len(segments) < 2:
            segments = sentences
    return [_trimmed(text, part) for part in segments if text[slice(*part)].strip()]


def _of_trace(text: str) -> list[Segment]:
    """The agent's steps of a trace; none of a text without headings."""
    headings = list(_HEADING.finditer(text))
    if not headings:
        return []
    # What stands before the first heading goes on where the prompt ended: it is the agent's.
    starts = [(0, True), *((heading.start(), heading.group("agents") is not None) for heading in headings)]
    ends = [start for start, _ in starts[1:]] + [len(text)]
    return [(start, end) for (start, agents), end in zip(starts, ends, strict=True) if agents]


def _paragraphs(text: str, sentences: list[Segment]) -> list[Segment]:
    """Sentences joined until an empty line: so none is cut within a block of code."""
    segments: list[Segment] = []
    for start, end in sentences:
        space = text[start : end - len(text[start:end].lstrip())]
        if segments and not _EMPTY_LINE.search(space):
            start = segments.pop()[0]
        segments.append((start, end))
    return segments


def _trimmed(text: str, stretch: Segment) -> Segment:
    start, end = stretch
    quote = text[start:end]
    return end - len(quote.lstrip()), start + len(quote.rstrip())

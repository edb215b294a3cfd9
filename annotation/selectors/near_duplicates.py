"""Prompts of a project that say almost the same."""

import re
from collections.abc import Iterable, Set
from dataclasses import dataclass

from annotation.models import Project, Prompt

COMPARED = 5_000
"""So many of a project's newest prompts are compared."""
SIMILAR = 0.5
"""Jaccard similarity of two prompts' shingles from which on they are shown as near-duplicates."""
_SHOWN = 10
_READ = 4_000
"""So many characters at the end of a chat are compared."""
_SHINGLE = 3
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True, kw_only=True)
class NearDuplicate:
    """Another prompt, and the share of shingles that both have."""

    prompt: Prompt
    similarity: float

    @property
    def percent(self) -> int:
        """Return the similarity as a whole number of percent."""
        return round(100 * self.similarity)


def shingles(text: str) -> Set[str]:
    """Return the runs of three words of `text`, without case and punctuation; of fewer words, all of them."""
    words = _WORD.findall(text[-_READ:].casefold())
    if len(words) < _SHINGLE:
        return {" ".join(words)} if words else set()
    return {" ".join(words[start : start + _SHINGLE]) for start in range(len(words) - _SHINGLE + 1)}


def near_duplicates(
    project: Project, messages: Iterable[dict[str, str]], *, besides: Prompt | None = None
) -> list[NearDuplicate]:
    """Return the project's prompts that are most like `messages`, the most similar first.

    Similarity is that of Jaccard over shingles of three words (Broder 1997). The newest `COMPARED` prompts
    are compared; `besides` is left out.
    """
    prompt_shingles = shingles(_text(messages))
    if not prompt_shingles:
        return []
    rows = project.prompts.order_by("-pk")
    if besides is not None:
        rows = rows.exclude(pk=besides.pk)
    similar: list[tuple[float, int]] = []
    for pk, other in rows.values_list("pk", "messages")[:COMPARED]:
        other_shingles = shingles(_text(other))
        similarity = len(prompt_shingles & other_shingles) / len(prompt_shingles | other_shingles)
        if similarity >= SIMILAR:
            similar.append((similarity, pk))
    similar.sort(key=lambda entry: (-entry[0], entry[1]))
    prompts = project.prompts.in_bulk([pk for _similarity, pk in similar[:_SHOWN]])
    return [NearDuplicate(prompt=prompts[pk], similarity=value) for value, pk in similar[:_SHOWN]]


def _text(messages: Iterable[dict[str, str]]) -> str:
    return "\n".join(message["content"] for message in messages if message["role"] != "system")

"""A model card in Markdown, generated from facts. Uses no database."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from training.figures.held_out import HeldOutFigure

_MARKUP = re.compile(r"([\\`*_{}\[\]<>()#+!|~-])")


@dataclass(frozen=True, kw_only=True, slots=True)
class CardFacts:
    """The facts of a checkpoint. Everything but names is plain text written by Rondo."""

    name: str
    kind: str
    """starter, policy or reward."""
    base_model: str
    base_digest: str
    digest: str
    method: str
    settings: Mapping[str, Any]
    steps: int
    seed: int
    commit: str
    versions: Mapping[str, str]
    snapshot_digest: str
    counts: Mapping[str, Any]
    """Of the snapshot: judgments, annotators, decided pairs by split."""
    rounds: Sequence[int]
    """Rounds whose judgments it learned from."""
    project: str
    figures: Sequence[HeldOutFigure]
    """Held-out figures with intervals."""
    ancestors: Sequence[str]
    """Its ancestors, nearest first; without the base model."""
    ancestor_digests: Sequence[str]
    dropped: Sequence[tuple[str, int]]
    """Reason and count of what could not be learned from."""
    warnings: Sequence[str]
    heads: Sequence[str]
    tags: Sequence[str]
    evaluation: Sequence[str] = ()
    """Results of an evaluation against its parent, a sentence each."""


def model_card(facts: CardFacts, *, merged: bool = False) -> str:
    """Return the card, beginning with the metadata that hubs read."""
    parts = [_metadata(facts, merged), f"# {plain(facts.name)}", _what_it_is(facts, merged)]
    parts += [_section("How it was made", _made(facts))]
    parts += [_section("What it learned from", _data(facts))]
    parts += [_section("Held-out prompts", _figures(facts))]
    if facts.evaluation:
        parts.append(
            _section("Against its parent", "\n".join(f"- {plain(sentence)}" for sentence in facts.evaluation))
        )
    parts += [_section("Descent", _descent(facts)), _section("Limits", _limits(facts))]
    if facts.heads:
        parts.append(_section("Scores", _scores(facts)))
    return "\n\n".join(parts) + "\n"


def plain(text: str) -> str:
    """Return user text as Markdown that shows it verbatim, on one line."""
    return _MARKUP.sub(r"\\\1", " ".join(str(text).split()))


def _metadata(facts: CardFacts, merged: bool) -> str:
    kind = "reward-model" if facts.kind == "reward" else "text-generation"
    lines = [
        f"library_name: {'transformers' if merged else 'peft'}",
        # JSON is YAML: a name with a colon or a quote stays a string.
        f"base_model: {json.dumps(facts.base_model)}",
        f"tags: {json.dumps(['rondo', kind, *facts.tags], ensure_ascii=False)}",
    ]
    return "\n".join(["---", *lines, "---"])


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n{text}"


def _table(rows: Sequence[Sequence[object]], *, head: Sequence[str]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def _what_it_is(facts: CardFacts, merged: bool) -> str:
    base = plain(facts.base_model)
    if facts.kind == "starter":
        return f"The base model {base} as it came; nothing was trained."
    what = "reward model" if facts.kind == "reward" else "language model"
    form = f"A {what} with merged weights" if merged else f"An adapter that makes a {what} of {base}"
    return f"{form}, trained from human judgments with Rondo. The licence of {base} holds for it too."


def _made(facts: CardFacts) -> str:
    rows: list[tuple[str, str]] = [
        ("base model", f"{plain(facts.base_model)}, `{facts.base_digest or 'unknown'}`")
    ]
    if facts.kind != "starter":
        rows += [
            ("method", f"{facts.method}, {facts.steps} steps, seed {facts.seed}"),
            ("settings", f"`{json.dumps(facts.settings, sort_keys=True)}`".replace("|", "\\|")),
            ("code", f"Rondo {facts.commit or 'of unknown version'}"),
            (
                "libraries",
                ", ".join(f"{name} {version}" for name, version in sorted(facts.versions.items()))
                or "unknown",
            ),
            ("digest of the manifest", f"`{facts.digest}`"),
        ]
    return _table(rows, head=("fact", "value"))


def _data(facts: CardFacts) -> str:
    if facts.kind == "starter":
        return "Nothing here: see the card of the base model."
    rows: list[tuple[str, object]] = [
        ("project", plain(facts.project)),
        ("judgments", facts.counts.get("judgments", "unknown")),
    ]
    if "annotators" in facts.counts:
        rows.append(("people who judged", facts.counts["annotators"]))
    pairs = facts.counts.get("decided_pairs", {})
    rows += [(f"decided pairs, {split.replace('-', ' ')}", count) for split, count in sorted(pairs.items())]
    rows.append(("rounds", ", ".join(map(str, facts.rounds)) or "unknown"))
    rows.append(("snapshot", f"`{facts.snapshot_digest}`"))
    return _table(rows, head=("fact", "value"))


def _figures(facts: CardFacts) -> str:
    if not facts.figures:
        return "None were measured."
    rows = [
        (
            figure.title,
            f"{figure.value:.4g}",
            f"{figure.low:.4g} – {figure.high:.4g}" if _bounded(figure) else "",
        )
        for figure in facts.figures
    ]
    return _table(rows, head=("figure", "value", "95 % interval"))


def _bounded(figure: HeldOutFigure) -> bool:
    return figure.low is not None and figure.high is not None


def _descent(facts: CardFacts) -> str:
    line = [plain(facts.name), *map(plain, facts.ancestors), f"{plain(facts.base_model)} (base)"]
    if facts.kind == "starter":
        return f"{plain(facts.name)} is where others begin."
    digests = "".join(
        f"\n- {plain(name)}: `{digest}`"
        for name, digest in zip(facts.ancestors, facts.ancestor_digests, strict=True)
    )
    return " ← ".join(line) + (f"\n{digests}" if digests else "")


def _limits(facts: CardFacts) -> str:
    limits = [
        f"{count} entries could not be learned from: {plain(reason)}." for reason, count in facts.dropped
    ]
    limits += [plain(warning) for warning in facts.warnings]
    held_out = facts.counts.get("decided_pairs", {}).get("held-out", 0)
    if facts.kind != "starter":
        limits.append(
            f"The held-out figures rest on {held_out} decided pairs of the same project: they say nothing of "
            "other prompts, languages or people."
            if held_out
            else "Nothing was held out: how well it does on prompts that it never saw is unknown."
        )
    if facts.kind == "reward":
        limits.append("A score ranks answers to one prompt. It means nothing by itself, nor across prompts.")
    return "\n".join(f"- {limit}" for limit in limits) or "None are known."


def _scores(facts: CardFacts) -> str:
    heads = ", ".join(f"`{head}`" for head in facts.heads)
    return (
        f"`heads.safetensors` holds a matrix (outputs, hidden) for each of the heads {heads}. A score is the "
        "last hidden state, after the final norm, at the last token of prompt and answer (the token that "
        "ends the turn), times that matrix; the mean where a head has several outputs. Names with a dot are "
        "what was learned beside a head. Where `score.reads` is there, the score reads the block that it "
        "names first, from 1, over the completion's tokens: their mean where it names 1 second, else the "
        "last; `score.offset` is added."
    )

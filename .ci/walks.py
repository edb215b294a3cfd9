"""Draw the two walks of the architecture page from the code: static/guide/walk-NAME-light.svg and -dark.svg.

    .venv/bin/python .ci/walks.py

A box is a function, with its module and the first sentence of its docstring. An arrow from a box to one
below and further in is a call, direct or through functions that are not shown. A dashed line is a hand-over
between processes. `tests/training/test_walks.py` takes both walks, records every call, and fails where a
picture shows another.
"""

from __future__ import annotations

import ast
import re
import textwrap
from dataclasses import dataclass
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "static" / "guide"


@dataclass(frozen=True)
class Step:
    """A function on a walk. depth: how many of the functions above it, in the same part, have called it."""

    name: str
    depth: int = 0


@dataclass(frozen=True)
class Part:
    """The calls of one process. trace: the recording in which the test looks for them."""

    process: str
    trace: str
    steps: tuple[Step, ...]
    hands_over: str = ""
    """Place where the next part reads its result."""


_TRAINER = "training.rlhf.train.train_run"
_LOOP = "training.rlhf.loop.run.train_on_judgments"
WALKS = {
    "judgment": (
        Part(
            "web",
            "label",
            (
                Step("annotation.views.labelling.pages.submit"),
                Step("annotation.services.judgments.submission.submit_and_get_next", 1),
                Step("annotation.services.judgments.storing.store_parts", 2),
            ),
            hands_over="database: the judgment and its parts",
        ),
        Part(
            "worker",
            "round",
            (
                Step("training.services.snapshots.freeze_snapshot"),
                Step("training.contract.snapshot.write_snapshot", 1),
                Step("training.services.snapshots.snapshot_rows", 2),
            ),
            hands_over="folder: snapshots/DIGEST/judgments.jsonl",
        ),
        Part(
            "trainer",
            "train",
            (
                Step(_LOOP),
                Step("training.rlhf.data.build_examples", 1),
                Step("training.rlhf.loop.training_loop.SteppingLoop.run", 1),
                Step("training.rlhf.methods.reward.RewardModelling.outcome", 2),
                Step("training.rlhf.methods.objectives.rankings.costs_of_rankings", 3),
                Step("training.rlhf.losses.bradley_terry", 4),
            ),
        ),
    ),
    "checkpoint": (
        Part(
            "web",
            "round",
            (
                Step("training.views.rounds.act"),
                Step("training.services.rounds.controls.start_round", 1),
                Step("annotation.services.jobs.send_after_commit", 2),
            ),
            hands_over="database: the steps of the round; a message wakes a worker",
        ),
        Part(
            "worker",
            "round",
            (
                Step("training.services.rounds.executor.advance_round"),
                Step("training.services.rounds.executor.do_step", 1),
                Step("training.services.runs.runs.create_run", 2),
                Step("training.services.runs.runs.drive_run", 2),
                Step("training.services.runs.launcher.run_trainer", 3),
            ),
            hands_over="folder: runs/NAME/spec.json; a process starts",
        ),
        Part(
            "trainer",
            "train",
            (Step(_TRAINER), Step(_LOOP, 1), Step("training.rlhf.loop.run.save_checkpoint", 1)),
            hands_over="folder: runs/NAME/checkpoint/manifest.json",
        ),
        Part("worker", "round", (Step("training.services.checkpoints.register_checkpoint"),)),
    ),
}
"""Name of a picture → the parts of the walk."""

_WIDTH, _INDENT, _HEIGHT, _GAP, _MARGIN, _BAND = 820, 34, 62, 14, 16, 44
_THEMES = {
    "light": {
        "ground": "#ffffff",
        "box": "#f4f5f7",
        "line": "#8a919e",
        "text": "#1a1d23",
        "quiet": "#535b69",
    },
    "dark": {"ground": "#14161a", "box": "#22262d", "line": "#7d8796", "text": "#eceef2", "quiet": "#aab2bf"},
}


def first_sentence(name: str) -> str:
    """Return the first sentence of a function's docstring, without markup of code."""
    text = " ".join((ast.get_docstring(_function(name)) or "").split()).replace("`", "")
    return re.sub(r";$", ".", re.split(r"(?<=[.;])\s", text)[0])


def module_of(name: str) -> str:
    """Return the module that a dotted name begins with."""
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        path = ROOT.joinpath(*parts[:length])
        if path.with_suffix(".py").is_file() or (path / "__init__.py").is_file():
            return ".".join(parts[:length])
    raise LookupError(name)


def _function(name: str) -> ast.FunctionDef:
    module = module_of(name)
    path = ROOT.joinpath(*module.split("."))
    file = path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"
    node: ast.AST = ast.parse(file.read_text(encoding="utf-8"))
    for part in name.removeprefix(f"{module}.").split("."):
        node = next(
            child
            for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.FunctionDef | ast.ClassDef) and child.name == part
        )
    if not isinstance(node, ast.FunctionDef):
        raise LookupError(name)
    return node


def draw(walk: tuple[Part, ...], theme: str) -> str:
    """Return the picture of a walk as SVG."""
    colours = _THEMES[theme]
    shapes: list[str] = []
    top = _MARGIN
    for part in walk:
        shapes.append(_text(_MARGIN, top + 16, part.process, colours["quiet"], size=14, weight=700))
        top += 28
        feet: dict[int, int] = {}
        for step in part.steps:
            left = _MARGIN + step.depth * _INDENT
            shapes.append(
                f'<rect x="{left}" y="{top}" width="{_WIDTH - left - _MARGIN}" height="{_HEIGHT}" rx="8" '
                f'fill="{colours["box"]}" stroke="{colours["line"]}"/>'
            )
            if step.depth:
                start = feet[step.depth - 1]
                shapes.append(
                    f'<path d="M{left - _INDENT + 14} {start}V{top + 22}H{left - 2}" fill="none" '
                    f'stroke="{colours["line"]}" stroke-width="1.5" marker-end="url(#head)"/>'
                )
            module = module_of(step.name)
            called = step.name.removeprefix(f"{module}.")
            shapes.append(_text(left + 14, top + 25, called, colours["text"], size=16, weight=600, mono=True))
            shapes.append(
                _text(_WIDTH - _MARGIN - 14, top + 25, module, colours["quiet"], size=12, mono=True, end=True)
            )
            said = textwrap.shorten(first_sentence(step.name), (_WIDTH - left - 60) // 7, placeholder=" …")
            shapes.append(_text(left + 14, top + 48, said, colours["text"], size=14))
            feet[step.depth] = top + _HEIGHT
            top += _HEIGHT + _GAP
        if part.hands_over:
            line = _MARGIN + 14
            shapes.append(
                f'<path d="M{line} {top - _GAP}V{top + _BAND - 12}" fill="none" stroke="{colours["line"]}" '
                'stroke-width="1.5" stroke-dasharray="5 4" marker-end="url(#head)"/>'
            )
            shapes.append(_text(line + 16, top + 16, part.hands_over, colours["text"], size=14))
            top += _BAND - 8
    height = top - _GAP + _MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'height="{height}" font-family="Inter, system-ui, sans-serif">\n'
        f'<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        f'orient="auto"><path d="M0 0 8 4 0 8Z" fill="{colours["line"]}"/></marker></defs>\n'
        f'<rect width="{_WIDTH}" height="{height}" fill="{colours["ground"]}"/>\n'
        + "\n".join(shapes)
        + "\n</svg>\n"
    )


def _text(
    x: int,
    y: int,
    text: str,
    colour: str,
    *,
    size: int,
    weight: int = 400,
    mono: bool = False,
    end: bool = False,
) -> str:
    family = ' font-family="JetBrains Mono, ui-monospace, monospace"' if mono else ""
    anchor = ' text-anchor="end"' if end else ""
    return (
        f'<text x="{x}" y="{y}" fill="{colour}" font-size="{size}" font-weight="{weight}"{family}{anchor}>'
        f"{escape(text)}</text>"
    )


def pictures() -> dict[Path, str]:
    """Return the content of every picture by its path."""
    return {
        PICTURES / f"walk-{name}-{theme}.svg": draw(walk, theme)
        for name, walk in WALKS.items()
        for theme in _THEMES
    }


if __name__ == "__main__":
    for path, content in pictures().items():
        path.write_text(content, encoding="utf-8")
        print(path.relative_to(ROOT))

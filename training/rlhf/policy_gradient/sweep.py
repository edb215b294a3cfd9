"""The same run under several weights of its rewards, and the Pareto front of the outcomes (Wu et al. 2023).

    python -m training.rlhf.policy_gradient.sweep RUN_DIR --into FOLDER \
        --weights people=1,short=0 --weights people=1,short=0.5 --weights people=0,short=1

RUN_DIR holds the `spec.json` of a policy_gradient run, which is left as it is. Each set of weights becomes a
run in FOLDER, trained one after the other; called again, it goes on where it was. A part that a set does not
name keeps the weight of the spec. The figures compared are the rewards of each part on held-out prompts, from
the last evaluation. `pareto.json` and `pareto.svg` are written once all runs have them; until then the exit
status is that of the first run that did not finish.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from training.contract import ContractError
from training.contract.files import write_atomically
from training.contract.methods.policy import PolicyGradientSettings, RewardPart
from training.contract.run import EXIT_FINISHED, RunSpec, read_evaluation, read_spec, write_spec
from training.rlhf.policy_gradient.guard import part_figure

_SIDE, _EDGE = 360, 60
"""Width and height of the plot, and of the room for its axes, in pixels."""


def non_dominated(points: Sequence[Sequence[float]]) -> list[int]:
    """Places of the points that no other one is at least as good as in every figure and better in one.

    points: (N, D), more is better; equal points are kept all. Raises `ValueError` for a figure that is not
    finite and for points of different length.
    """
    if len({len(point) for point in points}) > 1:
        raise ValueError(f"points must have equally many figures; got {points}")
    if not all(math.isfinite(figure) for point in points for figure in point):
        raise ValueError(f"figures must be finite; got {points}")
    return [
        place for place, point in enumerate(points) if not any(_dominates(other, point) for other in points)
    ]


def _dominates(point: Sequence[float], other: Sequence[float]) -> bool:
    return all(a >= b for a, b in zip(point, other, strict=True)) and tuple(point) != tuple(other)


def front_svg(
    points: Sequence[tuple[float, float]], names: Sequence[str], front: Sequence[int], axes: tuple[str, str]
) -> str:
    """Points of two rewards as an SVG of its own: those of the front filled, and the numbers in titles.

    points: (x, y) of each run. names: of the runs. front: places of the runs on the front.
    """
    xs, ys = [x for x, _ in points], [y for _, y in points]
    shapes = []
    for place, ((x, y), name) in enumerate(zip(points, names, strict=True)):
        kind = "front" if place in front else "behind"
        left, top = _placed(x, xs), _EDGE // 2 + _SIDE - (_placed(y, ys) - _EDGE)
        shapes.append(
            f'<circle class="{kind}" cx="{left:.1f}" cy="{top:.1f}" r="5"><title>{escape(name)}: '
            f"{escape(axes[0])} {x:.4g}, {escape(axes[1])} {y:.4g}</title></circle>"
            f'<text x="{left + 8:.1f}" y="{top - 8:.1f}">{escape(name)}</text>'
        )
    bottom = _SIDE + _EDGE // 2
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_SIDE + 2 * _EDGE} {bottom + _EDGE}">',
            "<style>text{font:12px sans-serif}.front{fill:#4347c9}.behind{fill:none;stroke:#878994}"
            "path{stroke:#878994;fill:none}</style>",
            f'<path d="M{_EDGE},{_EDGE // 2}V{bottom}H{_SIDE + _EDGE}"/>',
            f'<text x="{_EDGE}" y="{bottom + 36}">{escape(axes[0])}: {min(xs):.4g} to {max(xs):.4g}</text>',
            f'<text x="8" y="16">{escape(axes[1])}: {min(ys):.4g} to {max(ys):.4g}</text>',
            *shapes,
            "</svg>\n",
        ]
    )


def _placed(value: float, among: Sequence[float]) -> float:
    """Pixels from the left edge; the middle where all values are one."""
    span = max(among) - min(among)
    return _EDGE + (_SIDE * (value - min(among)) / span if span else _SIDE / 2)


Weights = Mapping[str, float]
Train = Callable[[Path], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="folder of the run whose spec is taken")
    parser.add_argument("--into", type=Path, required=True, help="folder of the runs to be")
    parser.add_argument(
        "--weights", type=parse_weights, action="append", required=True, help="NAME=WEIGHT,NAME=WEIGHT"
    )
    parser.add_argument("--axes", help="two parts of the reward to plot; the first two unless told otherwise")
    options = parser.parse_args(arguments)
    try:
        axes = options.axes.split(",") if options.axes else None
        return sweep(options.run, options.into, options.weights, axes=axes)
    except ContractError as error:
        sys.stderr.write(f"{error}\n")
        return 2


def parse_weights(text: str) -> dict[str, float]:
    """`people=1,short=0.5` as numbers by name. Raises `argparse.ArgumentTypeError`."""
    weights: dict[str, float] = {}
    for entry in text.split(","):
        name, _, weight = entry.partition("=")
        try:
            weights[name.strip()] = float(weight)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{entry!r} is not NAME=WEIGHT") from None
    return weights


def start_trainer(folder: Path) -> int:
    """Train a run in a process of its own; its exit status."""
    return subprocess.run([sys.executable, "-m", "training.rlhf", str(folder)], check=False).returncode


def sweep(
    run: Path,
    into: Path,
    weights: Sequence[Weights],
    *,
    axes: Sequence[str] | None = None,
    train: Train = start_trainer,
) -> int:
    """Train `run`'s spec under each set of weights and write the front; the exit status (see above).

    Raises `ContractError` for another method, an unknown part, fewer than two parts, sets of weights that are
    the same, and a run without held-out figures.
    """
    spec = read_spec(run)
    settings = spec.settings
    if not isinstance(settings, PolicyGradientSettings):
        raise ContractError(
            f"{run}: the method is {spec.method!r}; only policy_gradient has weights to sweep"
        )
    parts = [part.name for part in settings.rewards]
    chosen = _axes(parts, axes)
    folders = []
    for weighting in weights:
        weighed = _weighed(run, spec, settings, weighting)
        folder = into / run_name(weighed)
        if folder in folders:
            raise ContractError(f"weights {folder.name}: given twice; name each set once")
        write_spec(folder, _moved(run, spec, weighed))
        folders.append(folder)
    for folder in folders:
        status = train(folder)
        if status != EXIT_FINISHED:
            sys.stderr.write(
                f"{folder}: the run did not finish; see its log.txt, then start the sweep again\n"
            )
            return status
    _write_front(into, folders, parts, chosen)
    return EXIT_FINISHED


def run_name(settings: PolicyGradientSettings) -> str:
    """Return the name of a run by its weights: `people-1_short-0.5`."""
    return "_".join(f"{part.name}-{part.weight:g}" for part in settings.rewards)


def _axes(parts: Sequence[str], axes: Sequence[str] | None) -> tuple[str, str]:
    if len(parts) < 2:
        raise ContractError(f"rewards: a front needs at least two parts; the spec has {', '.join(parts)}")
    chosen = parts[:2] if axes is None else axes
    if len(chosen) != 2 or not set(chosen) <= set(parts):
        raise ContractError(f"axes: name two of {', '.join(parts)}")
    return chosen[0], chosen[1]


def _weighed(
    run: Path, spec: RunSpec, settings: PolicyGradientSettings, weights: Weights
) -> PolicyGradientSettings:
    """Return the settings under other weights; folders of reward models no longer relative."""
    if odd := sorted(set(weights) - {part.name for part in settings.rewards}):
        raise ContractError(f"weights: the spec in {run} has no reward {', '.join(odd)}")

    def placed(part: RewardPart) -> RewardPart:
        if part.checkpoint is None:
            return part
        return dataclasses.replace(part, checkpoint=str((run / part.checkpoint).resolve()))

    rewards = tuple(
        dataclasses.replace(placed(part), weight=weights.get(part.name, part.weight))
        for part in settings.rewards
    )
    held_out = tuple(placed(part) for part in settings.watch.held_out)
    watch = dataclasses.replace(settings.watch, held_out=held_out)
    return dataclasses.replace(settings, rewards=rewards, watch=watch)


def _moved(run: Path, spec: RunSpec, settings: PolicyGradientSettings) -> RunSpec:
    """The spec with these settings, fit for any folder: what was relative to its own is so no longer."""
    return dataclasses.replace(
        spec,
        settings=settings,
        snapshot=str((run / spec.snapshot).resolve()),
        cache=str((run / (spec.cache or "cache")).resolve()),
    )


def _write_front(into: Path, folders: Sequence[Path], parts: Sequence[str], axes: tuple[str, str]) -> None:
    rows = [_held_out(folder, parts) for folder in folders]
    front = non_dominated(rows)
    names = [folder.name for folder in folders]
    report = {
        "figures": "rewards of each part on held-out prompts, answered greedily; more is better",
        "runs": [
            {"name": name, "held_out": dict(zip(parts, row, strict=True)), "on_front": place in front}
            for place, (name, row) in enumerate(zip(names, rows, strict=True))
        ],
    }
    write_atomically(into / "pareto.json", json.dumps(report, indent=2) + "\n")
    where = [parts.index(axis) for axis in axes]
    points = [(row[where[0]], row[where[1]]) for row in rows]
    write_atomically(into / "pareto.svg", front_svg(points, names, front, axes))


def _held_out(folder: Path, parts: Sequence[str]) -> list[float]:
    report = read_evaluation(folder)
    figures = {} if report is None else report.figures
    values = [figures.get(f"held_out_{part_figure(part)}") for part in parts]
    lacking = [part for part, figure in zip(parts, values, strict=True) if figure is None]
    if lacking:
        raise ContractError(
            f"{folder}: no held-out figure of {', '.join(lacking)}; the snapshot needs held-out prompts that "
            "this reward can score, and evaluation_prompts must not be 0"
        )
    return [figure for figure in values if figure is not None]


if __name__ == "__main__":
    sys.exit(main())

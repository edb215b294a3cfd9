"""Teach a model to spell names backwards: `python -m training.rlhf.examples.reverse`, or `make reverse`.

First by imitation (method sft), then by reward alone (method policy_gradient), all weights trained, each as a
run folder that `python -m training.rlhf` trains; a second call goes on where the first was stopped.

Writes to --out: `curve.svg`, the mean reward of a step's answers over steps; `results.txt` and
`results.json`, the share of names of the dev split, those that stand in train left out, that are reversed
without a mistake, greedily and at temperature 0.1, after each of the two runs.

Without --model: a character-level model of 660,000 parameters, drawn from the seed. With --model FOLDER:
the course's setting, for SmolLM2-135M: 500 names, one epoch of imitation, three of reinforcement. On a GPU:

    python -m training.rlhf.examples.reverse --model FOLDER --device cuda --seeds 0

On a CPU a step of that takes tens of seconds; --sft-steps 10 --rl-steps 10 --prompts 4 tries
it out.

The example of CMU 11-711 (spring 2026, lecture 17).
"""

from __future__ import annotations

import argparse
import json
import string
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from training.contract import ContractError, read_metrics
from training.contract.methods import Settings, settings_from_json
from training.contract.methods.policy import PolicyGradientSettings, SftSettings
from training.contract.run import CHECKPOINT_FOLDER, EXIT_FINISHED, LOG_FILE, RunSpec, write_spec
from training.contract.snapshot import (
    Message,
    SnapshotCompletion,
    SnapshotHeader,
    SnapshotPrompt,
    SnapshotRow,
    Split,
    write_snapshot,
)
from training.rlhf.model.backbone import Backbone
from training.rlhf.rollout.generate import rollout
from training.rlhf.runtime.run_folder import resolve_device
from training.rlhf.sampling import SamplingParameters
from training.rlhf.tokens.encoding import Encoder

# ── The names, and a snapshot of them: demonstrations to imitate, prompts with the right answer ──


@dataclass(frozen=True, slots=True)
class Names:
    """Names to learn from, and names to be asked about that are not among them."""

    train: tuple[str, ...]
    """As they stand in the file: a frequent name stands there more than once."""
    dev: tuple[str, ...]
    """Each once, in the file's order."""
    known: int
    """Different names of the file's dev split that are left out because they stand in train too."""


def read_names(path: Path) -> Names:
    """Both splits, without the names of dev that stand in train. Raises `ContractError` without the file."""
    if not path.is_file():
        raise ContractError(
            f"{path}: the names are not here; name the file with --data. They come with the "
            "string-reversal example of CMU 11-711 (github: cmu-l3/anlp-spring2026-code)"
        )
    stored = json.loads(path.read_text(encoding="utf-8"))
    train, dev = tuple(stored["train"]), tuple(dict.fromkeys(stored["dev"]))
    there = set(train)
    unknown = tuple(name for name in dev if name not in there)
    return Names(train, unknown, known=len(dev) - len(unknown))


def freeze_names(folder: Path, names: Names, *, wording: str, held_out: int) -> SnapshotHeader:
    """Write the snapshot that both runs learn from.

    wording: the question, with `{name}` in it. held_out: number of names of dev, the first ones, that
    the runs are evaluated on while they train.
    """
    some: list[tuple[Split, Sequence[str]]] = [("train", names.train), ("held-out", names.dev[:held_out])]
    return write_snapshot(
        folder,
        (row for split, chosen in some for row in _rows(split, chosen, wording)),
        project="string reversal",
        rounds=(1,),
        prompts=(prompt for split, chosen in some for prompt in _prompts(split, chosen, wording)),
    )


def question(name: str, wording: str) -> tuple[Message, ...]:
    """Return the chat that asks for a name's reversal."""
    return (Message(role="user", content=wording.format(name=name)),)


def _rows(split: Split, names: Sequence[str], wording: str) -> Iterator[SnapshotRow]:
    for index, name in enumerate(names):
        yield SnapshotRow(
            judgment=f"{split}-{index}",
            comparison=f"{split}-{index}",
            annotator="names",
            round=1,
            prompt=f"{split}-{name}",
            split=split,
            messages=question(name, wording),
            completions=(SnapshotCompletion(id=f"{split}-{index}.0", text=name[::-1], source="names"),),
            verdict="not_asked",
            ranks={},
            demonstration=name[::-1],
        )


def _prompts(split: Split, names: Sequence[str], wording: str) -> Iterator[SnapshotPrompt]:
    for index, name in enumerate(names):
        yield SnapshotPrompt(
            id=f"{split}-{index}", split=split, messages=question(name, wording), reference=name[::-1]
        )


# ── A character-level language model, small enough to be trained from nothing, in a folder like any base's ──

_BEGIN, _ASKED, _END, _UNKNOWN = "<|begin|>", "<|asked|>", "<|end|>", "<|unknown|>"
_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ message['content'] + ('<|asked|>' if message['role'] == 'user' else eos_token) }}"
    "{% endfor %}"
)
_CONTEXT = 64
"""Tokens of a chat at most."""


def character_tokenizer() -> PreTrainedTokenizerFast:
    """Return one token for each of a to z, and four of its own."""
    vocabulary = {
        token: id for id, token in enumerate([_BEGIN, _ASKED, _END, _UNKNOWN, *string.ascii_lowercase])
    }
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=_UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=_BEGIN,
        eos_token=_END,
        pad_token=_END,
        unk_token=_UNKNOWN,
        additional_special_tokens=[_ASKED],
        chat_template=_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def character_model(folder: Path, *, seed: int, width: int = 128, blocks: int = 4) -> int:
    """Write an untrained model to `folder`; how many parameters it has.

    A Llama of `blocks` blocks with heads of width 32, drawn from `seed` alone.
    """
    tokenizer = character_tokenizer()
    ends = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=blocks,
        num_attention_heads=width // 32,
        num_key_value_heads=width // 32,
        max_position_embeddings=_CONTEXT,
        tie_word_embeddings=True,
        **ends,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(**ends)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(weight.numel() for weight in model.parameters())


# ── The curve of a task's runs: an SVG with one line for each seed, and the same as a table of text ──

_WIDTH, _HEIGHT, _MARGIN = 640, 360, 48
_COLOURS = ("#1f6feb", "#d1603d", "#2f855a", "#8a5cc2", "#b7791f")
Curve = Sequence[tuple[float, float]]
"""Points (step, share of right answers)."""


def draw(curves: Mapping[str, Curve], *, title: str, goal: float) -> str:
    """Return an SVG of shares over steps, with a dashed line where the goal is."""
    steps = max((step for curve in curves.values() for step, _ in curve), default=1.0) or 1.0
    lowest = min([goal, *(share for curve in curves.values() for _, share in curve)])
    floor = max(0.0, int(lowest * 10) / 10)

    def x(step: float) -> float:
        return round(_MARGIN + step / steps * (_WIDTH - 2 * _MARGIN), 1)

    def y(share: float) -> float:
        return round(_HEIGHT - _MARGIN - (share - floor) / (1 - floor) * (_HEIGHT - 2 * _MARGIN), 1)

    parts = [_text(_WIDTH / 2, _MARGIN / 2, title, "middle")]
    for tenth in range(round(floor * 10), 11):
        parts.append(_line(x(0), y(tenth / 10), x(steps), y(tenth / 10), "#8884"))
        parts.append(_text(_MARGIN - 6, y(tenth / 10) + 4, f"{tenth * 10} %", "end"))
    for quarter in range(5):
        parts.append(_text(x(steps * quarter / 4), _HEIGHT - _MARGIN + 18, f"{steps * quarter / 4:.0f}"))
    parts.append(_text(_WIDTH / 2, _HEIGHT - 8, "steps"))
    parts.append(_line(x(0), y(goal), x(steps), y(goal), "#888", "6 4"))
    for index, (name, curve) in enumerate(curves.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        points = " ".join(f"{x(step)},{y(share)}" for step, share in curve)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(
            _text(_WIDTH - _MARGIN - 4, _HEIGHT - _MARGIN - 10 - 16 * index, name, "end", colour=colour)
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'font-family="sans-serif" font-size="12">\n'
        f"<title>{escape(title)}</title>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def smoothed(curve: Curve, window: int) -> list[tuple[float, float]]:
    """Return each value with the mean of the last `window` up to it."""
    values = [value for _, value in curve]
    return [
        (step, sum(values[max(0, index + 1 - window) : index + 1]) / min(window, index + 1))
        for index, (step, _) in enumerate(curve)
    ]


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return rows of the same columns as aligned text, the columns' names above."""
    columns = list(rows[0])
    lines = [columns, *([row[column] for column in columns] for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    return "".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) + "\n"
        for line in lines
    )


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, dashes: str = "") -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}" stroke-dasharray="{dashes}"/>'


def _text(x: float, y: float, words: str, anchor: str = "middle", *, colour: str = "#666") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colour}">{escape(words)}</text>'


# ── The two settings of the task: a character-level model from scratch, and the course's model and recipe ──

GOAL = 0.926
"""Exact match that the course's recipe ends with (CMU 11-711, lecture 17)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Task: reverse a name, with its examples and settings."""

    wording: str
    """The question, with `{name}` in it."""
    max_tokens: int
    """Longest prompt + answer."""
    answer_tokens: int
    """Longest answer, its end token included."""
    asked: int | None
    """Number of names of dev it is measured on, the first ones; None takes all."""
    imitation: dict[str, Any] = field(default_factory=dict)
    """Steps of the supervised run."""
    reinforcement: dict[str, Any] = field(default_factory=dict)
    """Steps of the sampled run; batch_size counts prompts."""
    letters: float = 0.0
    """Weight of chrF, which rewards letters that stand together rightly, in addition to 1 for a right answer:
    so the answers to a name that is never reversed differ, too."""
    inner_epochs: int = 3
    """Passes over a step's answers."""

    def sft(self, **changed: int | None) -> SftSettings:
        """Settings of the supervised run; `changed` are optimiser settings, those that are not None."""
        settings = settings_from_json(
            "sft",
            {
                "adapter": "none",
                "max_tokens": self.max_tokens,
                "optimiser": _steps(self.imitation, changed),
            },
        )
        assert isinstance(settings, SftSettings)  # noqa: S101 - for the type checker
        return settings

    def policy_gradient(self, **changed: int | None) -> PolicyGradientSettings:
        """Settings of the sampled run: GRPO with the whole batch's deviation, a clip that leaves the unlikely
        room to grow, and nothing that holds the policy near where it began.

        `changed` are optimiser settings, those that are not None.
        """
        settings = settings_from_json(
            "policy_gradient",
            {
                "adapter": "none",
                "max_tokens": self.max_tokens,
                "optimiser": _steps(self.reinforcement, changed),
                "rewards": [
                    {"name": "exact", "kind": "exact_match"},
                    *([{"name": "letters", "kind": "chrf", "weight": self.letters}] if self.letters else []),
                ],
                "rollout": {"samples": 8, "max_tokens": self.answer_tokens},
                "advantage": {"kind": "group_relative", "scale": False, "whiten": True},
                "kl": {"place": "none"},
                "update": {"inner_epochs": self.inner_epochs, "clip_low": 0.2, "clip_high": 1.0},
            },
        )
        assert isinstance(settings, PolicyGradientSettings)  # noqa: S101 - for the type checker
        return settings


def _steps(steps: dict[str, Any], changed: dict[str, int | None]) -> dict[str, Any]:
    return {**steps, **{name: value for name, value in changed.items() if value is not None}}


CHARACTERS = Task(
    wording="{name}",
    max_tokens=48,
    answer_tokens=17,
    asked=None,
    imitation={
        "learning_rate": 2e-3,
        "weight_decay": 0.01,
        "warmup_steps": 50,
        "batch_size": 64,
        "micro_batch_tokens": 4096,
        "epochs": 100,
        "max_steps": 145,
        "save_every": 200,
        "evaluate_every": 0,
        "keep_best": False,
    },
    reinforcement={
        "learning_rate": 4e-4,
        "warmup_steps": 20,
        "batch_size": 128,
        "micro_batch_tokens": 16384,
        "epochs": 100,
        "max_steps": 800,
        "save_every": 100,
        "evaluate_every": 100,
        "keep_best": False,
    },
    letters=0.5,
    inner_epochs=1,
)
"""660,000 parameters, drawn at random; minutes on two cores."""

COURSE = Task(
    wording="Reverse the name: {name}.",
    max_tokens=96,
    answer_tokens=10,
    asked=500,
    imitation={
        "learning_rate": 5e-5,
        "warmup_steps": 0,
        "batch_size": 16,
        "micro_batch_tokens": 4096,
        "epochs": 1,
        "save_every": 400,
        "evaluate_every": 0,
        "keep_best": False,
    },
    reinforcement={
        "learning_rate": 1e-5,
        "warmup_steps": 0,
        "batch_size": 32,
        "micro_batch_tokens": 8192,
        "epochs": 3,
        "save_every": 200,
        "evaluate_every": 200,
        "keep_best": False,
    },
)
"""SmolLM2-135M as the course trained it: one epoch of imitation, three of reinforcement, all weights."""


# ── Share of names that a model reverses without a mistake ──

_AT_ONCE = 256
"""Names that are answered together."""


def exact_match(
    backbone: Backbone,
    names: Sequence[str],
    *,
    adapter: str | None,
    wording: str,
    temperature: float,
    max_tokens: int,
    seed: int = 0,
) -> float:
    """Share of the names whose one answer is right, drawn at `temperature`; 0 is greedy."""
    encoder = Encoder(backbone.tokenizer)
    parameters = SamplingParameters(temperature=temperature, max_tokens=max_tokens)
    right = 0
    for start in range(0, len(names), _AT_ONCE):
        batch = names[start : start + _AT_ONCE]
        prompts = [encoder.encode_prompt(question(name, wording), max_tokens=1_000_000)[0] for name in batch]
        seeds = range(seed + start, seed + start + len(batch))
        answers = rollout(backbone, prompts, parameters, adapter=adapter, seeds=list(seeds))
        right += sum(
            samples[0].text.strip() == name[::-1] for name, samples in zip(batch, answers, strict=True)
        )
    return right / len(names)


_HELD_OUT = 256
"""Names that a run is evaluated on while it trains."""
_WINDOW = 20
"""Steps that a point of the curve is the mean of."""


def main() -> int:
    """Parse the command line, train and measure; 0 when all runs ended, 1 with the reason when not."""
    arguments = _arguments()
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(arguments.threads)
    task = CHARACTERS if arguments.model is None else COURSE
    out: Path = arguments.out
    try:
        names = read_names(arguments.data)
        header = freeze_names(out / "snapshot", names, wording=task.wording, held_out=_HELD_OUT)
        results = [_Seed(seed, arguments, task, names, header).results() for seed in arguments.seeds]
    except (ContractError, RuntimeError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    _write(out, results, names, name_count=len(names.dev[: task.asked]))
    return 0


class _Seed:
    """The two runs of one seed, and what they came to."""

    def __init__(
        self, seed: int, arguments: argparse.Namespace, task: Task, names: Names, header: SnapshotHeader
    ) -> None:
        self._seed = seed
        self._arguments = arguments
        self._task = task
        self._asked = names.dev[: task.asked]
        self._digest = header.digest
        self._folder: Path = arguments.out.resolve() / f"seed-{seed}"

    def results(self) -> dict[str, Any]:
        """Train what is not trained yet, and measure."""
        base: Path | None = self._arguments.model
        if base is None:
            base = self._folder / "model"
            if not (base / "config.json").is_file():
                count = character_model(base, seed=self._seed)
                _say(f"seed {self._seed}: a model of {count:,} parameters")
        sft, rl = self._folder / "sft", self._folder / "rl"
        arguments = self._arguments
        seconds = [self._train(sft, base.resolve(), self._task.sft(max_steps=arguments.sft_steps))]
        imitated = self._measured("after imitation", sft)
        settings = self._task.policy_gradient(max_steps=arguments.rl_steps, batch_size=arguments.prompts)
        seconds.append(self._train(rl, sft / CHECKPOINT_FOLDER, settings))
        reinforced = self._measured("after reinforcement", rl)
        return {
            "seed": self._seed,
            "imitation": {**imitated, "seconds": seconds[0]},
            "reinforcement": {**reinforced, "seconds": seconds[1]},
            "reward": [(row["step"], row["reward/exact"]) for row in read_metrics(rl)],
        }

    def _train(self, folder: Path, base: Path, settings: Settings) -> float:
        """Train a run in a process of its own; the seconds that it took, in earlier calls too."""
        write_spec(
            folder,
            RunSpec(
                method=settings.method,
                base_model=str(base),
                snapshot=str(self._arguments.out.resolve() / "snapshot"),
                snapshot_digest=self._digest,
                settings=settings,
                seed=self._seed,
                name=f"reverse-{folder.name}-{self._seed}",
                device=self._arguments.device,
            ),
        )
        clock = folder / "seconds.json"
        before = json.loads(clock.read_text()) if clock.is_file() else 0.0
        if (folder / CHECKPOINT_FOLDER).is_dir():
            return float(before)
        started = time.monotonic()
        status = subprocess.run(
            [sys.executable, "-m", "training.rlhf", str(folder)], stdin=subprocess.DEVNULL
        )
        if status.returncode != EXIT_FINISHED:
            raise RuntimeError(f"{folder}: the run did not finish; {folder / LOG_FILE} says why")
        seconds = float(before + time.monotonic() - started)
        clock.write_text(json.dumps(seconds))
        return seconds

    def _measured(self, when: str, run: Path) -> dict[str, float]:
        backbone = Backbone.load(
            run / CHECKPOINT_FOLDER, device=resolve_device(self._arguments.device), dtype=torch.float32
        )
        shares = {
            name: exact_match(
                backbone,
                self._asked,
                adapter=None,
                wording=self._task.wording,
                temperature=temperature,
                max_tokens=self._task.answer_tokens,
                seed=self._seed,
            )
            for name, temperature in (("greedy", 0.0), ("at 0.1", 0.1))
        }
        _say(f"seed {self._seed}, {when}: greedy {shares['greedy']:.1%}, at T = 0.1 {shares['at 0.1']:.1%}")
        return shares


def _write(out: Path, results: list[dict[str, Any]], names: Names, *, name_count: int) -> None:
    rows = [
        {
            "seed": str(result["seed"]),
            "after": when,
            "greedy": f"{result[when]['greedy']:.1%}",
            "T = 0.1": f"{result[when]['at 0.1']:.1%}",
            "minutes": f"{result[when]['seconds'] / 60:.1f}",
        }
        for result in results
        for when in ("imitation", "reinforcement")
    ]
    summary = (
        f"Names reversed without a mistake, of {name_count} of the dev split; {names.known} others of it "
        f"stand in train too and are left out. The course's recipe ends at {GOAL:.1%}.\n\n{table(rows)}"
    )
    (out / "results.txt").write_text(summary, encoding="utf-8")
    (out / "results.json").write_text(
        json.dumps({"goal": GOAL, "asked": name_count, "seeds": results}, indent=2)
    )
    curves = {f"seed {result['seed']}": smoothed(result["reward"], _WINDOW) for result in results}
    title = f"Right answers among the samples of a step, mean of {_WINDOW} steps"
    (out / "curve.svg").write_text(draw(curves, title=title, goal=GOAL), encoding="utf-8")
    _say(f"\n{summary}\n{out / 'curve.svg'}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m training.rlhf.examples.reverse",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, default=Path("names.json"), metavar="FILE", help="names.json")
    parser.add_argument("--out", type=Path, default=Path("var/reverse"), metavar="FOLDER")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], metavar="N")
    parser.add_argument(
        "--model", type=Path, metavar="FOLDER", help="the course's setting, with this base model"
    )
    parser.add_argument("--sft-steps", type=int, metavar="N", help="optimiser steps of imitation")
    parser.add_argument("--rl-steps", type=int, metavar="N", help="steps of reinforcement")
    parser.add_argument("--prompts", type=int, metavar="N", help="prompts of a step of reinforcement")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda", "mps"], default="auto")
    parser.add_argument(
        "--threads", type=int, default=torch.get_num_threads(), metavar="N", help="of measuring"
    )
    return parser.parse_args()


def _say(words: str) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

"""Sixteen streaming clients at once on a model server, beside the same requests one after the other.

OMP_WAIT_POLICY=PASSIVE python -m tests.benchmarks.serving /tmp/models/SmolLM2-135M-Instruct
python -m tests.benchmarks.serving MODEL --peer /tmp/tfserve/bin/python   # transformers serve in the same run
python -m tests.benchmarks.serving MODEL --memory                         # with one checkpoint and with eight

Every answer is drawn greedily, to full length unless the model ends it before, and compared with what that
server wrote when nobody else asked. Tokens are counted by the model's own tokenizer from the texts that came,
for both servers alike.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import psutil
from transformers import AutoTokenizer

from tests.benchmarks.serving.checkpoints import write_checkpoints
from tests.benchmarks.serving.peer import transformers_serve
from tests.model_server import RunningServer, running_model_server

TOPICS = (
    "the sky is blue", "bread rises", "birds fly south", "iron rusts", "the sea is salty", "leaves turn red",
    "the moon has phases", "volcanoes erupt", "cats purr", "glass breaks", "rivers bend", "stars twinkle",
    "metals conduct electricity", "soap cleans", "ice floats", "thunder follows lightning",
)  # fmt: skip
"""Subjects of the questions of the sixteen clients."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One way of asking."""

    seconds: float
    first: float
    """Seconds to the first text of an answer, on average."""
    answers: tuple[str, ...]


def main() -> None:
    """Print a line for each way of asking."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=48, help="at most so many for each answer")
    parser.add_argument("--threads", type=int, default=2, help="of either server")
    parser.add_argument(
        "--checkpoints", type=int, default=0, help="ask so many checkpoints in turn, 0: the base"
    )
    parser.add_argument(
        "--peer", type=Path, help="a Python that has transformers[serving]: its server beside"
    )
    parser.add_argument("--memory", action="store_true", help="measure memory instead")
    options = parser.parse_args()
    print(f"load average before: {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        names = write_checkpoints(options.model, folder, 8 if options.memory else options.checkpoints)
        if options.memory:
            memory(options.model, folder, names)
        else:
            speed(options, folder, names)


# ── Speed ─────────────────────────────────────────────────────────────────────────────


def speed(options: argparse.Namespace, checkpoints: Path, names: Sequence[str]) -> None:
    """Total tokens per second of both servers, and how many times as fast together is as one by one."""
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    count = lambda text: len(tokenizer(text, add_special_tokens=False)["input_ids"])  # noqa: E731
    with rondo(options, checkpoints) as server:
        models = list(names) or [options.model.name]
        ours = compare("Rondo", f"{server.url}/v1", server.key, models, options.tokens, count)
    if options.peer:
        with transformers_serve(options.peer, options.model, threads=options.threads) as url:
            theirs = compare("transformers serve", url, "none", [str(options.model)], options.tokens, count)
        print(f"together: Rondo {ours / theirs:.2f} times as fast as transformers serve", flush=True)


@contextmanager
def rondo(options: argparse.Namespace, checkpoints: Path) -> Iterator[RunningServer]:
    """Our model server over the model, with as many threads as the peer."""
    with running_model_server(
        options.model.parent,
        checkpoints,
        arguments=["--base", options.model.name],
        environment={"OMP_NUM_THREADS": str(options.threads), "OMP_WAIT_POLICY": "PASSIVE"},
        forked=False,
    ) as server:
        yield server


def compare(
    name: str, url: str, key: str, models: Sequence[str], tokens: int, count: Callable[[str], int]
) -> float:
    """Ask one after the other, then all at once; total tokens per second of the latter."""
    with openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=300) as client:

        def ask(number: int) -> tuple[str, float]:
            return streamed(client, models[number % len(models)], TOPICS[number], tokens)

        ask(0)
        alone = measured(ask, workers=1)
        together = measured(ask, workers=len(TOPICS))
    rates = [sum(map(count, way.answers)) / way.seconds for way in (alone, together)]
    same = sum(answer == other for answer, other in zip(alone.answers, together.answers, strict=True))
    for label, way, rate in (("one by one", alone, rates[0]), ("together", together, rates[1])):
        written = sum(map(count, way.answers))
        print(
            f"{name}, {label}: {rate:.1f} tokens/s ({written} tokens in {way.seconds:.1f} s), "
            f"first text after {way.first:.2f} s",
            flush=True,
        )
    summary = f"{same} of {len(TOPICS)} answers the same as alone"
    print(
        f"{name}: {rates[1] / rates[0]:.2f} times as many tokens per second together; {summary}", flush=True
    )
    return rates[1]


def measured(ask: Callable[[int], tuple[str, float]], *, workers: int) -> Measured:
    """All requests by so many clients."""
    begun = time.perf_counter()
    with ThreadPoolExecutor(workers) as pool:
        answers = list(pool.map(ask, range(len(TOPICS))))
    seconds = time.perf_counter() - begun
    return Measured(
        seconds, sum(first for _, first in answers) / len(answers), tuple(text for text, _ in answers)
    )


def streamed(client: openai.OpenAI, model: str, topic: str, tokens: int) -> tuple[str, float]:
    """The answer's text, and the seconds to its first piece."""
    begun = time.perf_counter()
    messages: list[Any] = [{"role": "user", "content": f"Explain why {topic}."}]
    chunks = client.chat.completions.create(
        model=model, messages=messages, temperature=0, max_tokens=tokens, stream=True
    )
    text, first = "", 0.0
    for chunk in chunks:
        piece = (chunk.choices[0].delta.content or "") if chunk.choices else ""
        if piece and not text:
            first = time.perf_counter() - begun
        text += piece
    return text, first


# ── Memory ────────────────────────────────────────────────────────────────────────────


def memory(model: Path, checkpoints: Path, names: Sequence[str]) -> None:
    """RSS of the model server after it has answered from one checkpoint, and after it has from all."""
    with (
        running_model_server(
            model.parent, checkpoints, arguments=["--base", model.name], forked=False
        ) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0) as client,
    ):
        process = psutil.Process(server.process.pid)
        sizes = []
        for name in names:
            client.completions.create(model=name, prompt="The sky is", max_tokens=4)
            sizes.append(process.memory_info().rss / 2**20)
        print(json.dumps({"RSS in MB by checkpoints in memory": [round(size) for size in sizes]}))
        print(f"{len(names)} checkpoints: {sizes[-1] / sizes[0]:.3f} times the memory of one", flush=True)


if __name__ == "__main__":
    main()

"""Memory of packed rows of many tokens: peak RSS of forward and backward, and of FlexAttention's block mask.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.long_rows --tokens 16384 32768

A Llama of two blocks of random weights with LoRA, float32, on a processor. A row is a prompt of half the
tokens with two answers. Each measurement is a process of its own (`ru_maxrss`), less what it had before.
`--torch` makes the block mask by torch's `create_block_mask`, for comparison. Linux.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HIDDEN, LAYERS = 128, 2


def main() -> None:
    """Measure each length in a process of its own, or one here."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, nargs="+", default=[16_384, 32_768])
    parser.add_argument("--here", choices=["step", "mask", "torch"], help=argparse.SUPPRESS)
    parser.add_argument("--torch", action="store_true", help="beside: torch's own block mask")
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measure(options.here, options.tokens[0])))
        return
    print("| tokens | part | peak above the start, MB | processor seconds |\n|---|---|---|---|")
    for part in ("step", "mask", *(["torch"] if options.torch else [])):
        for tokens in options.tokens:
            command = [sys.executable, "-m", "tests.benchmarks.long_rows", "--here", part]
            done = subprocess.run(
                [*command, "--tokens", str(tokens)], cwd=ROOT, capture_output=True, text=True, check=True
            )
            peak, seconds = json.loads(done.stdout.splitlines()[-1])
            print(f"| {tokens:,} | {part} | {peak:.0f} | {seconds:.1f} |", flush=True)


def measure(part: str, tokens: int) -> tuple[float, float]:
    """Return the growth of this process's peak in MB, and the seconds of processor time."""
    import torch

    from training.rlhf.model.attention import Layout, Segment

    half, rest = tokens // 2, tokens // 4
    segments = [Segment(0, half), Segment(half, rest, 0), Segment(half + rest, tokens - half - rest, 0)]
    layout = Layout(segments, torch.device("cpu"))
    step = _step(tokens) if part == "step" else None
    before, begun = _peak(), time.process_time()
    if step is not None:
        step(layout)
    elif part == "mask":
        layout.block_mask()
    else:
        from torch.nn.attention.flex_attention import create_block_mask

        create_block_mask(layout.visibility(), None, None, tokens, tokens, device="cpu")
    return _peak() - before, time.process_time() - begun


def _step(tokens: int) -> Any:
    """Return a forward and backward pass of LoRA over a row."""
    import tempfile

    import torch

    from tests.benchmarks.gpu.sizes import Size
    from tests.benchmarks.gpu.work import write_base
    from training.contract.methods.common import LoraSettings
    from training.rlhf.model.attention import Layout
    from training.rlhf.model.backbone import Backbone
    from training.services.runs.memory import Shape

    shape = Shape(
        vocabulary=512,
        hidden=HIDDEN,
        intermediate=2 * HIDDEN,
        layers=LAYERS,
        heads=4,
        key_heads=2,
        head_size=HIDDEN // 4,
        tied=True,
        context=tokens,
    )
    with tempfile.TemporaryDirectory() as scratch:
        write_base(
            Path(scratch), Size(shape=shape, micro_batch_tokens=tokens), device="cpu", dtype=torch.float32
        )
        backbone = Backbone.load(Path(scratch), device="cpu", dtype=torch.float32)
    backbone.add_adapter("it", LoraSettings(), seed=0)
    ids = torch.arange(tokens)[None] % 500

    def run(layout: Layout) -> None:
        places = torch.cat(
            [
                torch.arange(segment.length) + (layout.segments[0].length if segment.after == 0 else 0)
                for segment in layout.segments
            ]
        )
        with backbone.using("it"):
            backbone.packed_states(ids, places[None], layout).sum().backward()

    return run


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()

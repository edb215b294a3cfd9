"""Packed attention on a GPU beside the same on a processor: outputs and gradients of rows of many shapes.

    python -m tests.benchmarks.gpu.exactness                  # on the GPU, compiled
    python -m tests.benchmarks.gpu.exactness --device cpu     # FlexAttention not compiled, on a processor

On a GPU FlexAttention compiles, and may choose another kernel, for every kind of row: short or long, heads
that share keys or not, with a window, with a cap. On a processor it has no gradients, and outputs alone are
compared. Prints a line for each kind and dtype, with the largest difference from float32 on a processor as a
share of the largest value. Ends with 1 where a kind fails or differs by too much.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from training.rlhf.model.attention import Layout, Segment, compiled_flex_attention, flex_attend
from training.rlhf.model.segmented_attention import AttentionScores

TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 3e-2}
CPU = torch.device("cpu")


class Kind(NamedTuple):
    """A row of prompts with answers, and the heads over it."""

    name: str
    prompt: int
    answers: Sequence[int]
    groups: int = 1
    heads: int = 8
    key_heads: int = 2
    width: int = 64
    scores: AttentionScores = AttentionScores()

    def layout(self, device: torch.device) -> Layout:
        """Return its segments: each prompt, and the answers that continue it."""
        segments: list[Segment] = []
        for _ in range(self.groups):
            prompt = len(segments)
            start = segments[-1].end if segments else 0
            segments.append(Segment(start, self.prompt))
            for answer in self.answers:
                segments.append(Segment(segments[-1].end, answer, prompt))
        return Layout(segments, device)


KINDS = (
    Kind("short row", 30, [6, 4]),
    Kind("short row, 8 heads a key", 40, [9], heads=32, key_heads=4),
    Kind("short row, no heads share", 40, [9], heads=4, key_heads=4),
    Kind("one block exactly", 64, [32, 32]),
    Kind("ranking", 512, [128] * 4),
    Kind("rankings packed", 200, [70, 90, 13], groups=6),
    Kind("heads of 128, one key each", 300, [150, 150], heads=4, key_heads=4, width=128),
    Kind("narrow heads", 300, [150, 150], width=16),
    Kind("window", 300, [150, 150], scores=AttentionScores(window=64)),
    Kind("cap", 300, [150, 150], scores=AttentionScores(cap=20.0)),
    Kind("window and cap, short", 50, [20], scores=AttentionScores(window=16, cap=20.0)),
)


def main() -> int:
    """Compare all kinds; 1 where one fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", nargs="*", help="names of kinds")
    options = parser.parse_args()
    device = torch.device(options.device)
    failures = 0
    for kind in KINDS:
        if options.only and kind.name not in options.only:
            continue
        for dtype, most in TOLERANCES.items():
            begun, is_equal = time.perf_counter(), False
            try:
                differs = difference(kind, dtype, device)
            except Exception as error:
                verdict = f"FAILED: {type(error).__name__}: {str(error)[:300]}"
            else:
                is_equal = differs <= most
                verdict = f"{differs:.2e}" if is_equal else f"{differs:.2e}, MORE THAN {most}"
            failures += not is_equal
            name = str(dtype).removeprefix("torch.")
            print(f"{kind.name}, {name}: {verdict} ({time.perf_counter() - begun:.1f} s)", flush=True)
    return 1 if failures else 0


def difference(kind: Kind, dtype: torch.dtype, device: torch.device) -> float:
    """Return the largest difference of output and gradients, as a share of the largest value of each."""
    generator = torch.Generator().manual_seed(0)
    layout = kind.layout(CPU)
    shapes = [(1, heads, layout.tokens, kind.width) for heads in (kind.heads, kind.key_heads, kind.key_heads)]
    inputs = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    weights = torch.randn(1, layout.tokens, kind.heads, kind.width, generator=generator)
    on_gpu = device.type == "cuda"
    plain = [tensor.float() for tensor in inputs]
    expected = _results(layout, plain, weights, kind.scores, _segmented, on_gpu)
    # Each kind compiles for itself: torch computes what it has compiled eight times as if it were not.
    torch.compiler.reset()
    attend = compiled_flex_attention() if on_gpu else _not_compiled()

    def by_flex(row: Layout, query: Tensor, key: Tensor, value: Tensor, scores: AttentionScores) -> Tensor:
        return flex_attend(attend, row, query, key, value, scores)

    moved = [tensor.to(device) for tensor in inputs]
    found = _results(kind.layout(device), moved, weights, kind.scores, by_flex, on_gpu)
    pairs = zip(found, expected, strict=True)
    return max(
        float((ours.float().cpu() - theirs).abs().max() / theirs.abs().max()) for ours, theirs in pairs
    )


def _results(
    layout: Layout,
    inputs: Sequence[Tensor],
    weights: Tensor,
    scores: AttentionScores,
    attend: Callable[..., Tensor],
    has_gradients: bool,
) -> Iterator[Tensor]:
    """Yield the output, then the gradients of query, key and value of its weighted sum."""
    leaves = [tensor.detach().requires_grad_(has_gradients) for tensor in inputs]
    output = attend(layout, *leaves, scores)
    yield output.detach()
    if has_gradients:
        yield from torch.autograd.grad((output * weights.to(output)).sum(), leaves)


def _segmented(layout: Layout, query: Tensor, key: Tensor, value: Tensor, scores: AttentionScores) -> Tensor:
    return layout.attend(torch.nn.Identity(), query, key, value, scores)


def _not_compiled() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention


if __name__ == "__main__":
    sys.exit(main())

"""A rollout: K samples of each of a batch of prompts, all by one adapter, written to their end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from training.rlhf.model.attention import Layout, Segment
from training.rlhf.model.backbone import Backbone
from training.rlhf.model.segmented_attention import AttentionScores, attend
from training.rlhf.rollout.cache import KeptLayer, KeyCache
from training.rlhf.rollout.engine import READ_AT_ONCE as _READ_AT_ONCE
from training.rlhf.rollout.engine import Lane, RolloutEngine
from training.rlhf.rollout.samples import Cancelled, OnDelta, Sample, SampleRequest, SampleRow, end_tokens
from training.rlhf.sampling import MAX_SEED, SamplingParameters


def rollout(
    backbone: Backbone,
    prompts: Sequence[Sequence[int]],
    parameters: SamplingParameters,
    *,
    n: int = 1,
    adapter: str | None = None,
    seeds: Sequence[int] | None = None,
    on_delta: OnDelta | None = None,
    cancelled: Cancelled | None = None,
    max_rows: int | None = None,
    shapes: StaticShapes | None = None,
) -> list[list[Sample]]:
    """Draw `n` samples of every prompt with `adapter` active (None: the base).

    prompts: token ids, rendered chat included; none empty, each shorter than the context.
    seeds: first seed of each prompt; left out, every prompt begins with `parameters.seed`.
    on_delta: called with text as it becomes certain; the last delta of a sample holds the sample.
    cancelled: asked before every token; once it says yes all samples end as "cancelled".
    max_rows: so many samples are written at a time, the others when these end; None writes all at once.
    shapes: writes them in passes of these fixed shapes, at most as many as these have rows.

    Returns samples by prompt. A sample depends on its prompt and its seed, not on the rows
    beside it (in float32 up to rounding, see `draw`). Raises `ValueError` for a bad prompt.
    """
    _check(prompts, n, seeds, max_rows)
    if shapes is not None:
        max_rows = min(max_rows or shapes.rows, shapes.rows)
        _check_width(prompts, parameters, shapes)
    engine = RolloutEngine(
        backbone,
        ends=end_tokens(backbone),
        max_rows=max_rows,
        read_at_once=_READ_AT_ONCE,
        make_lane=None if shapes is None else lambda: StaticLane(shapes),
    )
    handle = engine.submit(_requested_samples(prompts, parameters, n, adapter, seeds), on_delta)
    with backbone.using(adapter):
        while engine.busy:
            if cancelled is not None and cancelled():
                engine.cancel(handle)
                break
            engine.step()
    samples = handle.samples
    return [samples[start : start + n] for start in range(0, len(samples), n)]


def _check(
    prompts: Sequence[Sequence[int]], n: int, seeds: Sequence[int] | None, max_rows: int | None
) -> None:
    if n < 1:
        raise ValueError("n must be at least 1")
    if max_rows is not None and max_rows < 1:
        raise ValueError("max_rows must be at least 1; None sets no bound")
    if seeds is not None and len(seeds) != len(prompts):
        raise ValueError(f"seeds holds {len(seeds)} numbers for {len(prompts)} prompts")


def _check_width(
    prompts: Sequence[Sequence[int]], parameters: SamplingParameters, shapes: StaticShapes
) -> None:
    longest = max(map(len, prompts), default=0)
    if longest + parameters.max_tokens > shapes.width:
        raise ValueError(
            f"a prompt of {longest} tokens and an answer of {parameters.max_tokens} do not fit into fixed "
            f"shapes of {shapes.width} places"
        )


def _requested_samples(
    prompts: Sequence[Sequence[int]],
    parameters: SamplingParameters,
    n: int,
    adapter: str | None,
    seeds: Sequence[int] | None,
) -> Iterator[SampleRequest]:
    for number, prompt in enumerate(prompts):
        first = parameters.seed if seeds is None else seeds[number]
        ids = tuple(prompt)
        for sample in range(n):
            yield SampleRequest(
                prompt=ids,
                parameters=parameters,
                seed=(first + sample) % (MAX_SEED + 1),
                adapter=adapter,
                place=(number, sample),
            )


# ── Writing samples in passes of a few fixed shapes, so that each can be recorded once and played again ──
#
# A GPU that writes one token of each sample spends most of its time waiting for the next kernel to be
# launched. A CUDA graph launches all kernels of a pass at once, provided that every pass has the same
# shapes and the same places in memory. So every row keeps the keys of its prompt and of its own tokens
# together, in memory that is taken once; a pass has as many rows, and sees as many places, as the next
# bucket has; what is too much is hidden. The samples are those of the other way, up to rounding. It costs
# memory: what the samples of a prompt share is kept once for each of them.
#
# The recording is apart from the shapes (`Record`): on a CPU the same passes are simply computed. They are
# what the tests hold to the other way. Recording ran on an H100 (`tests/benchmarks/gpu.md`).


Compute = Callable[[], Tensor]
Record = Callable[[Compute], Compute]
"""Makes of a computation one that does the same again, on what then lies in the same places of memory."""

_LEAST_WIDTH = 128
"""Places of the smallest bucket: below, a pass costs the same whatever it sees."""


def shapes_for(backbone: Backbone, *, rows: int, width: int) -> StaticShapes | None:
    """Shapes whose passes are recorded as CUDA graphs; None where the backbone is on no such GPU, or packs no
    rows."""
    if backbone.device.type != "cuda" or not backbone.packs:
        return None
    return StaticShapes(backbone, rows=rows, width=width, record=cuda_graph)


def as_it_is(compute: Compute) -> Compute:
    """Records nothing: the pass is computed each time."""
    return compute


def cuda_graph(compute: Compute) -> Compute:
    """Records the pass as a CUDA graph. Computes it a few times first, as torch asks for; that writes the
    same keys into the same places."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            compute()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = compute()

    def play() -> Tensor:
        graph.replay()
        return outputs

    return play


class StaticShapes:
    """Memory for so many rows of so many places, and the passes over it that were recorded.

    Outlives a rollout: an optimiser changes weights where they lie, and the recorded passes find them there.
    For one rollout at a time.
    """

    def __init__(self, backbone: Backbone, *, rows: int, width: int, record: Record = as_it_is) -> None:
        """rows: samples that are written at a time. width: places of each, its prompt's among them."""
        if rows < 1 or width < 2:
            raise ValueError(f"rows {rows} must be at least 1 and width {width} at least 2")
        self.backbone = backbone
        self.rows, self.width = rows, width
        self._record = record
        self._ids = torch.zeros(rows, dtype=torch.long, device=backbone.device)
        self._places = torch.zeros(rows, dtype=torch.long, device=backbone.device)
        self._kept: dict[int, list[Tensor]] = {}
        self._recorded: dict[tuple[str | None, int, int], Compute] = {}

    @property
    def shapes(self) -> set[tuple[int, int]]:
        """Return rows and places of the passes that there have been."""
        return {(rows, width) for _, rows, width in self._recorded}

    def kept(self, layer: int, key: Tensor, value: Tensor) -> list[Tensor]:
        """Keys and values of an attention layer, (rows, heads, width, head's width) each."""
        if layer not in self._kept:
            self._kept[layer] = [
                tensor.new_zeros(self.rows, tensor.shape[1], self.width, tensor.shape[3])
                for tensor in (key, value)
            ]
        return self._kept[layer]

    def clear(self) -> None:
        """Forget all keys: a NaN that a rollout left would reach the next, for 0 times NaN is NaN."""
        for tensor in (buffer for layer in self._kept.values() for buffer in layer):
            tensor.zero_()

    def write(self, adapter: str | None, ids: Sequence[int], places: Sequence[int]) -> Tensor:
        """Run a token of each row, each at its place; the logits after it, (rows, vocabulary).

        They lie where those of the next pass of this shape will lie.
        """
        count = len(ids)
        rows = bucket(count, least=1, most=self.rows)
        width = bucket(max(places) + 1, least=_LEAST_WIDTH, most=self.width)
        for buffer, tensor in ((self._ids, ids), (self._places, places)):
            # Rows that are too much write to their first place, which the next sample there overwrites.
            buffer[:rows] = torch.tensor([*tensor, *[0] * (rows - count)], device=buffer.device)
        key = adapter, rows, width
        if key not in self._recorded:
            self._recorded[key] = self._record(lambda: self._pass(rows, width))
        return self._recorded[key]()[:count]

    def _pass(self, rows: int, width: int) -> Tensor:
        ids, places = self._ids[:rows], self._places[:rows]
        states = self.backbone.packed_states(ids[None], places[None], _StaticWriting(self, places, width))
        return self.backbone.logits(states)


def bucket(count: int, *, least: int, most: int) -> int:
    """The smallest of `least`, twice that and so on, and `most` that holds so many. Raises `ValueError` for
    more than `most`."""
    if count > most:
        raise ValueError(f"{count} do not fit into {most}")
    size = least
    while size < count:
        size *= 2
    return min(size, most)


class _StaticWriting(Layout):
    """One token of every row: each sees the places of its row up to its own."""

    def __init__(self, shapes: StaticShapes, places: Tensor, width: int) -> None:
        super().__init__([Segment(row, 1) for row in range(len(places))], places.device)
        self._shapes = shapes
        self._places = places
        self._width = width
        self._rows = torch.arange(len(places), device=places.device)
        self._seen: dict[int | None, Tensor] = {}

    def _seen_under(self, window: int | None) -> Tensor:
        """Return the places that each row sees, (rows, 1, 1, width)."""
        if window not in self._seen:
            behind = self._places[:, None] - torch.arange(self._width, device=self.device)
            seen = (behind >= 0) if window is None else (behind >= 0) & (behind < window)
            self._seen[window] = seen[:, None, None]
        return self._seen[window]

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scores: AttentionScores
    ) -> Tensor:
        layer = self._shapes.kept(int(module.layer_idx), key, value)  # type: ignore[arg-type]
        for place, new in zip(layer, (key, value), strict=True):
            place[self._rows, :, self._places] = new[0].transpose(0, 1).to(place.dtype)
        keys, values = (place[: len(self._rows), :, : self._width] for place in layer)
        queries = query[0].transpose(0, 1)[:, :, None].to(keys.dtype)
        mixed = attend(queries, keys, values, self._seen_under(scores.window), scores)
        # (rows, heads, 1, width) to (1, rows, heads, width)
        return mixed[:, :, 0][None].to(query.dtype)


class _StaticCache(KeyCache):
    """Prompts are read as ever; a row has its prompt's keys copied before its own."""

    def __init__(self, shapes: StaticShapes) -> None:
        super().__init__(shapes.backbone.device)
        self._shapes = shapes
        shapes.clear()

    def layer(self, module: nn.Module, key: Tensor, value: Tensor) -> KeptLayer:
        layer_cache = super().layer(module, key, value)
        layer_cache.own = self._shapes.kept(int(module.layer_idx), *layer_cache.own)  # type: ignore[arg-type]
        return layer_cache

    def add_rows(self, prompts: Sequence[int]) -> None:
        first = len(self.row_prompts)
        super().add_rows(prompts)
        for row, prompt in enumerate(prompts, first):
            length = self.row_lengths[row] = self.prompt_lengths[prompt]
            for layer in self._layers.values():
                for target, read in zip(layer.own, layer.prompts, strict=True):
                    target[row, :, :length] = read[prompt, :, :length]

    def wrote(self) -> None:
        """Every row has one token more."""
        self.row_lengths = [length + 1 for length in self.row_lengths]


class StaticLane(Lane):
    """Rows of one adapter that are written in passes of fixed shapes."""

    def __init__(self, shapes: StaticShapes) -> None:
        super().__init__(shapes.backbone)
        self._shapes = shapes
        self._cache: _StaticCache = _StaticCache(shapes)

    def write(self) -> tuple[list[SampleRow], Tensor]:
        """Run the token that each row drew last. Raises `ValueError` where they are of several adapters."""
        adapters = {row.wanted.adapter for row in self.rows}
        if len(adapters) > 1:
            raise ValueError("passes of fixed shapes are of one adapter")
        [adapter] = adapters
        with self._under([(adapter, len(self.rows))]):
            logits = self._shapes.write(
                adapter, [row.tokens[-1].id for row in self.rows], self._cache.row_lengths
            )
        self._cache.wrote()
        return list(self.rows), logits

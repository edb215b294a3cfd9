"""A rollout: K samples of each of a batch of prompts, all by one adapter, written to their end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from training.rlhf.model.backbone import Backbone
from training.rlhf.rollout.engine import READ_AT_ONCE as _READ_AT_ONCE
from training.rlhf.rollout.engine import Engine
from training.rlhf.rollout.samples import Cancelled, OnDelta, Sample, SampleRequest, end_tokens
from training.rlhf.rollout.static_shapes import StaticLane, StaticShapes
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
    on_delta: told of text as it becomes certain; the last delta of a sample holds the sample.
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
    engine = Engine(
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

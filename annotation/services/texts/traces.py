"""Steps of traces as rows, written with the completion that they belong to."""

from collections.abc import Iterable, Sequence

from annotation.models import TraceStep, bulk
from annotation.text.traces import PlacedStep


def write_steps(traces: Iterable[tuple[int, Sequence[PlacedStep]]]) -> None:
    """Write the steps of new completions, by id. Call it in the transaction that writes the completions."""
    bulk.insert_numbered(
        TraceStep,
        [
            *("completion_id", "index", "kind", "role", "tool", "call", "is_error"),
            *("start", "body", "end", "arguments"),
        ],
        [
            (
                *(completion, index, str(step.kind), step.role, step.tool, step.call, step.is_error),
                *(step.start, step.body, step.end),
                None if step.arguments is None else bulk.json_value(step.arguments),
            )
            for completion, steps in traces
            for index, step in enumerate(steps)
        ],
    )

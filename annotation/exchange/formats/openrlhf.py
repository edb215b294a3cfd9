"""OpenRLHF's preference pairs in Parquet: out.

`openrlhf/datasets/reward_dataset.py` of https://github.com/OpenRLHF/OpenRLHF (messages, with
`--apply_chat_template --prompt_key prompt`).
"""

from annotation.exchange.formats.trl import preference_rows
from annotation.exchange.formats.writers import Dropped, Record, Scene, Writer, Written


def _rows(record: Record, scene: Scene) -> Written:
    for row in preference_rows(record, scene):
        yield row if isinstance(row, Dropped) else {**row, "margin": record["strength"] or 0}


WRITERS = (
    Writer(
        name="openrlhf",
        sentence="Preference pairs in Parquet for OpenRLHF, the strength as margin.",
        container="parquet",
        rows=_rows,
        columns={
            "prompt": "messages",
            "chosen": "messages",
            "rejected": "messages",
            "margin": "whole number",
        },
        carries="decided pairs, the strength as a margin",
        loses="ties, preferences without a winner",
    ),
)

"""Prompts in Parquet for verl: out. `docs/preparation/prepare_data.rst` of https://github.com/volcengine/verl."""

from annotation.exchange.formats.writers import Record, Scene, Writer, Written


def _rows(record: Record, scene: Scene) -> Written:
    references = record["references"]
    yield {
        "data_source": f"rondo/{scene.slug}",
        "prompt": record["messages"],
        "ability": (record["tags"] or ["chat"])[0],
        "reward_model": {"style": "rule" if references else "model", "ground_truth": (references or [""])[0]},
        "extra_info": {"split": record["split"], "index": record["prompt"]},
    }


WRITERS = (
    Writer(
        name="verl",
        sentence="Prompts in Parquet for verl's policy optimisation, with the reference as ground truth.",
        container="parquet",
        rows=_rows,
        columns={
            "data_source": "text",
            "prompt": "messages",
            "ability": "text",
            "reward_model": "struct:style,ground_truth",
            "extra_info": "struct:split,index",
        },
        once_per_prompt=True,
        carries="prompts with references",
        loses="judgments; it goes out alone",
    ),
)

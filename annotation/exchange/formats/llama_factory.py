"""LLaMA-Factory's preference files in the form of ShareGPT, which axolotl reads too: out.

From `data/dpo_en_demo.json` of https://github.com/hiyouga/LLaMA-Factory: `conversations` of `from`
(`human`, `gpt`) and `value`, `chosen` and `rejected` as one message of `gpt` each, and `system`.
`trl-preference` reads them.
"""

from annotation.exchange.formats.writers import Dropped, Record, Scene, Writer, Written, pairs

_FROM = {"user": "human", "assistant": "gpt"}


def _rows(record: Record, scene: Scene) -> Written:
    system = next((m["content"] for m in record["messages"] if m["role"] == "system"), "")
    conversations = [
        {"from": _FROM[message["role"]], "value": message["content"]}
        for message in record["messages"]
        if message["role"] != "system"
    ]
    for pair in pairs(record):
        if isinstance(pair, Dropped):
            yield pair
        else:
            chosen, rejected = ({"from": "gpt", "value": completion["text"]} for completion in pair)
            yield {
                "conversations": conversations,
                "chosen": chosen,
                "rejected": rejected,
                **({"system": system} if system else {}),
            }


WRITERS = (
    Writer(
        name="llama-factory",
        sentence="LLaMA-Factory's preference pairs (ShareGPT): conversations, chosen, rejected.",
        container="json",
        rows=_rows,
        carries="decided pairs",
        loses="ties, preferences without a winner, strength",
    ),
)

"""Files of yardsticks: JSON, JSON Lines (plain or gzip) and Parquet, as their authors publish them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from training.contract import ContractError, Message
from training.rlhf.yardsticks.items import Item

Row = Mapping[str, Any]
TIES = "Ties"
"""RewardBench 2's subset of questions with several right answers."""
STYLES = 3
"""RM-Bench writes every response three times: concise, detailed, detailed with Markdown."""


def read_items(path: Path, reader: Callable[[Row, str], Item | None]) -> list[Item]:
    """Return the items of a file; rows in which people found both responses alike are left out.

    Raises `ContractError` that names file and row for one that cannot be read, and for a file without items.
    """
    items = []
    for number, row in enumerate(_rows(path), start=1):
        where = f"{path.name}: row {number}"
        try:
            item = reader(row, str(number))
        except KeyError as error:
            raise ContractError(f"{where}: field {error} is missing; is it a file of another set?") from None
        except (TypeError, ValueError, AttributeError) as error:
            raise ContractError(f"{where}: {error}") from None
        if item is not None:
            items.append(item)
    if not items:
        raise ContractError(f"{path.name} holds no item with a preference")
    return items


def reward_bench_2(row: Row, number: str) -> Item:
    """RewardBench 2 (Malik et al. 2025, arXiv 2506.01937): the best of four, and ties."""
    return Item(
        name=str(row.get("id", number)),
        subset=str(row["subset"]),
        prompt=_messages(row["prompt"]),
        chosen=_texts(row["chosen"], "chosen"),
        rejected=_texts(row["rejected"], "rejected"),
    )


def rm_bench(row: Row, number: str) -> Item:
    """RM-Bench (Liu et al. 2024, arXiv 2410.16184): a right and a wrong response in three styles each."""
    chosen, rejected = _texts(row["chosen"], "chosen"), _texts(row["rejected"], "rejected")
    if not len(chosen) == len(rejected) == STYLES:
        raise ValueError(f"fields 'chosen' and 'rejected' need {STYLES} styles each")
    domain = str(row["domain"])
    # Two kinds of safety are one domain in the published figures.
    return Item(
        name=str(row.get("id", number)),
        subset="safety" if domain.startswith("safety") else domain,
        prompt=_messages(row["prompt"]),
        chosen=chosen,
        rejected=rejected,
    )


def ppe_preference(row: Row, number: str) -> Item | None:
    """The human preferences of PPE (Frick et al. 2024, arXiv 2410.14872); ties are left out."""
    winner = str(row["winner"])
    responses = (str(row["response_1"]), str(row["response_2"]))
    if winner.startswith("tie"):
        return None
    if winner not in ("model_a", "model_b"):
        raise ValueError(f"field 'winner' is {winner!r}; it is model_a, model_b or a tie")
    best = winner == "model_b"
    return Item(
        name=str(row.get("question_id", number)),
        subset=str(row.get("language") or "all"),
        prompt=_messages(row["prompt"]),
        chosen=(responses[best],),
        rejected=(responses[not best],),
    )


def alpaca_pairs(row: Row, number: str) -> Item | None:
    """Pairs in AlpacaEval's format: `preference` is 1 for the first output, 2 for the second, else a tie."""
    preference = row["preference"]
    if preference is None or float(preference) not in (1.0, 2.0):
        return None
    second = float(preference) == 2.0
    outputs = (str(row["output_1"]), str(row["output_2"]))
    instruction = "\n\n".join(part for part in (str(row["instruction"]), str(row.get("input") or "")) if part)
    return Item(
        name=number,
        subset=str(row.get("dataset") or "all"),
        prompt=_messages(instruction),
        chosen=(outputs[second],),
        rejected=(outputs[not second],),
    )


def _messages(prompt: Any) -> tuple[Message, ...]:
    """Return a prompt as messages: a text, or a list of turns with `role` and `content`."""
    if isinstance(prompt, str):
        return (Message(role="user", content=prompt),)
    return tuple(Message(role=turn["role"], content=str(turn["content"])) for turn in prompt)


def _texts(values: Sequence[Any], field: str) -> tuple[str, ...]:
    if isinstance(values, str) or not values:
        raise ValueError(f"field {field!r} must be a list of responses")
    return tuple(map(str, values))


def _rows(path: Path) -> Iterator[Row]:
    if not path.is_file():
        raise ContractError(f"{path} is no file")
    if path.suffix == ".parquet":
        from pyarrow import parquet

        yield from parquet.read_table(path).to_pylist()
        return
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    try:
        text = content.decode("utf-8")
        if text.lstrip().startswith("["):
            yield from json.loads(text)
        else:
            for line in text.splitlines():
                if line.strip():
                    yield json.loads(line)
    except ValueError as error:
        raise ContractError(f"{path.name} is neither JSON nor JSON Lines: {error}") from None

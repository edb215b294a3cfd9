"""TRL's dataset types, standard (texts) and conversational (messages): in.

From https://huggingface.co/docs/trl/dataset_formats:

| type                | columns                                             |
|---------------------|-----------------------------------------------------|
| preference          | `prompt`, `chosen`, `rejected`                      |
| preference, implicit prompt | `chosen`, `rejected`, which share a beginning |
| unpaired preference | `prompt`, `completion`, `label` (true or false)     |
| prompt-only         | `prompt`                                            |
| prompt-completion   | `prompt`, `completion`                              |
| stepwise supervision | `prompt`, `completions` (steps), `labels`          |

A label of an unpaired row is a thumb on the criterion `desirable`. Steps are joined by a line feed,
TRL's own separator for them, and each is marked `correct-step` or `wrong-step`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from annotation.choices import RatingScale, Verdict
from annotation.formats import fields
from annotation.formats.fields import FieldError
from annotation.formats.items import (
    ImportedCompletion,
    ImportedItem,
    ImportedJudgment,
    ImportedRating,
    ImportedSpan,
    Reader,
    Row,
)

DESIRABLE = "desirable"
CORRECT_STEP, WRONG_STEP = "correct-step", "wrong-step"
STEP_SEPARATOR = "\n"
_OTHERS = {"chosen", "rejected", "prompt", "margin", "score_chosen", "score_rejected"}


def preference(
    prompt: list[dict[str, str]], chosen: str, rejected: str, row: Row, *, known: set[str] = _OTHERS
) -> ImportedItem:
    """A pair of which the first is better; what else the row says stays with the judgment."""
    return ImportedItem(
        messages=prompt,
        completions=(
            ImportedCompletion(text=chosen, source=_source(row, "chosen")),
            ImportedCompletion(text=rejected, source=_source(row, "rejected")),
        ),
        judgments=(
            ImportedJudgment(
                verdict=Verdict.RANKED, ranks=(1, 2), annotator=_annotator(row), more=_more(row, known)
            ),
        ),
    )


def _source(row: Row, side: str) -> str:
    for name in (f"{side}-model", f"{side}_model", f"model_{side}"):
        if isinstance(row.get(name), str):
            return str(row[name])
    return ""


def _annotator(row: Row) -> str:
    value = row.get("annotator")
    return value if isinstance(value, str) else ""


def _more(row: Row, known: set[str]) -> Mapping[str, Any]:
    """Small values beside the format's own columns."""
    return {
        name: value
        for name, value in row.items()
        if name not in known and isinstance(value, (bool, int, float, str)) and len(str(value)) <= 500
    }


def _preference(row: Row) -> Iterator[ImportedItem]:
    chosen, rejected = fields.required(row, "chosen"), fields.required(row, "rejected")
    if row.get("prompt") is not None:
        prompt = fields.prompt(row["prompt"], "prompt")
        chosen, rejected = _after(prompt, chosen), _after(prompt, rejected)
    else:
        prompt, chosen, rejected = _implicit(chosen, rejected)
    chosen_text, rejected_text = fields.answer(chosen, "chosen"), fields.answer(rejected, "rejected")
    yield preference(prompt, chosen_text, rejected_text, row)


def _after(prompt: list[dict[str, str]], answer: Any) -> Any:
    """A conversation that repeats its prompt, as many sets on the hub do, without it."""
    if isinstance(answer, list) and len(answer) == len(prompt) + 1 and len(answer) > 1:
        beginning = fields.messages(answer[:-1], "chosen or rejected")
        if [m for m in beginning if m["role"] != "system"] == [m for m in prompt if m["role"] != "system"]:
            return answer[-1:]
    return answer


def _implicit(chosen: Any, rejected: Any) -> tuple[list[dict[str, str]], Any, Any]:
    if not isinstance(chosen, list) or not isinstance(rejected, list):
        raise FieldError(
            "prompt",
            "is missing; in texts alone nobody can tell where the question ends and the answer begins",
        )
    if len(chosen) < 2 or len(rejected) < 2 or chosen[:-1] != rejected[:-1]:
        raise FieldError(
            "rejected", "does not share all but its last message with 'chosen'; write a 'prompt'"
        )
    return fields.prompt(chosen[:-1], "chosen"), chosen[-1:], rejected[-1:]


def _unpaired(row: Row) -> Iterator[ImportedItem]:
    label = row.get("label")
    if type(label) is not bool and label not in (0, 1):
        raise FieldError("label", f"true or false is expected, not {fields.kind_of(label)}")
    prompt = fields.prompt(fields.required(row, "prompt"), "prompt")
    completion = fields.answer(_after(prompt, fields.required(row, "completion")), "completion")
    yield ImportedItem(
        messages=prompt,
        completions=(ImportedCompletion(text=completion),),
        judgments=(
            ImportedJudgment(
                verdict=Verdict.NOT_ASKED,
                annotator=_annotator(row),
                ratings=(
                    ImportedRating(
                        completion=0, criterion=DESIRABLE, scale=RatingScale.THUMBS, value=int(bool(label))
                    ),
                ),
                more=_more(row, {"prompt", "completion", "label"}),
            ),
        ),
    )


def _prompt_only(row: Row) -> Iterator[ImportedItem]:
    yield ImportedItem(messages=fields.prompt(fields.required(row, "prompt"), "prompt"))


def _prompt_completion(row: Row) -> Iterator[ImportedItem]:
    """A demonstration is the prompt's reference answer: nobody compared it with another."""
    prompt = fields.prompt(fields.required(row, "prompt"), "prompt")
    answer = fields.answer(_after(prompt, fields.required(row, "completion")), "completion")
    yield ImportedItem(messages=prompt, references=[answer])


def _stepwise(row: Row) -> Iterator[ImportedItem]:
    steps = fields.items_of(fields.required(row, "completions"), "completions")
    labels = fields.items_of(fields.required(row, "labels"), "labels")
    if not steps or len(steps) != len(labels):
        raise FieldError("labels", f"{len(labels)} labels for {len(steps)} steps; write one for each")
    texts = [fields.text(step, f"completions[{number}]") for number, step in enumerate(steps)]
    spans, start = [], 0
    for number, (step, label) in enumerate(zip(texts, labels, strict=True)):
        if type(label) is not bool and label not in (0, 1):
            raise FieldError(f"labels[{number}]", f"true or false is expected, not {fields.kind_of(label)}")
        category = CORRECT_STEP if label else WRONG_STEP
        spans.append(ImportedSpan(completion=0, category=category, start=start, end=start + len(step)))
        start += len(step) + len(STEP_SEPARATOR)
    yield ImportedItem(
        messages=fields.prompt(fields.required(row, "prompt"), "prompt"),
        completions=(ImportedCompletion(text=STEP_SEPARATOR.join(texts)),),
        judgments=(
            ImportedJudgment(verdict=Verdict.NOT_ASKED, annotator=_annotator(row), spans=tuple(spans)),
        ),
    )


READERS = (
    Reader(
        name="trl-preference",
        sentence="TRL's preference pairs: prompt, chosen, rejected, as texts or as messages.",
        read=_preference,
        matches=lambda row: "chosen" in row and "rejected" in row,
    ),
    Reader(
        name="trl-stepwise",
        sentence="TRL's stepwise supervision: prompt, completions (steps), labels.",
        read=_stepwise,
        matches=lambda row: {"prompt", "completions", "labels"} <= row.keys(),
    ),
    Reader(
        name="trl-unpaired",
        sentence="TRL's unpaired preferences: prompt, completion, label.",
        read=_unpaired,
        matches=lambda row: {"prompt", "completion", "label"} <= row.keys(),
    ),
    Reader(
        name="trl-prompt-completion",
        sentence="TRL's prompt and completion: each completion becomes the prompt's reference.",
        read=_prompt_completion,
        matches=lambda row: {"prompt", "completion"} <= row.keys(),
    ),
    Reader(
        name="trl-prompt",
        sentence="Prompts alone, TRL's prompt-only type.",
        read=_prompt_only,
        matches=lambda row: set(row) == {"prompt"},
    ),
)

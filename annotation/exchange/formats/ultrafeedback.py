"""UltraFeedback (Cui et al. 2023; https://github.com/OpenBMB/UltraFeedback): in.

`instruction`, `completions` with `response`, `model`, `annotations` (a `Rating` from 1 to 5 or "N/A" on each
of four aspects) and `critique`. GPT-4 judged, so the judgment is a program's. The ranking is by the mean of
the four ratings: `overall_score` was wrong in the first release (issue 8 there).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from annotation.choices import RatingScale, Verdict
from annotation.exchange.formats import fields
from annotation.exchange.formats.columns import VERDICT_LIKE, words_of
from annotation.exchange.formats.items import (
    ImportedCompletion,
    ImportedItem,
    ImportedJudgment,
    Kind,
    Part,
    Reader,
    Row,
    dense,
    key_of,
    ranks_by_place,
    verdict_of,
)
from annotation.record.judgment import CritiquePart, RatingPart

_ASPECTS = ("helpfulness", "honesty", "instruction_following", "truthfulness")


def _ultrafeedback(row: Row) -> Iterator[ImportedItem]:
    listed = fields.items_of(fields.required(row, "completions"), "completions")
    completions, ratings, critiques, means = [], [], [], []
    for number, value in enumerate(listed):
        where = f"completions[{number}]"
        completion = fields.object_of(value, where)
        completions.append(
            ImportedCompletion(
                text=fields.text(completion.get("response"), f"{where}.response"),
                source=fields.optional_text(completion.get("model"), f"{where}.model"),
            )
        )
        aspect_ratings = _aspects(number, completion, where)
        ratings += aspect_ratings
        means.append(
            sum(rating.value for rating in aspect_ratings) / len(aspect_ratings) if aspect_ratings else None
        )
        if critique := fields.optional_text(completion.get("critique"), f"{where}.critique").strip():
            critiques.append(CritiquePart(completion=str(number), text=critique))
    rated = all(mean is not None for mean in means) and len(completions) > 1
    ranks = dense([-float(mean or 0) for mean in means]) if rated else ()
    judgment = ImportedJudgment(
        verdict=verdict_of(ranks) if rated else Verdict.NOT_ASKED,
        ranks=ranks_by_place(ranks),
        annotator="gpt-4",
        is_machine=True,
        ratings=tuple(ratings),
        critiques=tuple(critiques),
    )
    tags = [row["source"]] if isinstance(row.get("source"), str) and row["source"] else []
    yield ImportedItem(
        messages=fields.prompt(fields.required(row, "instruction"), "instruction"),
        references=[answer for answer in row.get("correct_answers") or [] if _is_answer(answer)],
        tags=tags,
        completions=tuple(completions),
        judgments=(judgment,) if completions else (),
    )


def _is_answer(value: Any) -> bool:
    return isinstance(value, str) and value.strip() not in ("", "None")


def _aspects(number: int, completion: Mapping[str, Any], where: str) -> list[RatingPart]:
    annotations = completion.get("annotations") or {}
    ratings = []
    for aspect in _ASPECTS:
        annotation = annotations.get(aspect)
        value = annotation.get("Rating") if isinstance(annotation, dict) else None
        if value is None or str(value).strip().upper() == "N/A":
            continue
        if str(value).strip() not in ("1", "2", "3", "4", "5"):
            raise fields.out_of_range(value, 1, 5, f"{where}.annotations.{aspect}.Rating")
        ratings.append(
            RatingPart(
                completion=str(number), criterion=key_of(aspect), scale=RatingScale.FIVE, value=int(value)
            )
        )
    return ratings


_UNREAD = {
    "overall_score": "the mean of the four ratings ranks; this was wrong in the first release",
    "fine-grained_score": "it is the mean of the four ratings, which are read",
    "principle": "a part of how the completion was sampled",
    "custom_system_prompt": "a part of how the completion was sampled",
}


def _survey(row: Row) -> Iterator[Part]:
    """Account for what completions hold besides."""
    for completion in row.get("completions") or ():
        for name, value in completion.items() if isinstance(completion, dict) else ():
            if name in _UNREAD and value not in (None, ""):
                yield Part(f"completions[].{name}", value, "not_read", _UNREAD[name])
            elif name == "annotations" and isinstance(value, dict):
                for aspect, annotation in value.items():
                    if aspect not in _ASPECTS:
                        reason = f"Rondo reads {', '.join(_ASPECTS)}"
                        yield Part(f"completions[].annotations.{aspect}", annotation, "question", reason)
                    elif isinstance(annotation, dict) and "Rationale" in annotation:
                        name = "completions[].annotations.*.Rationale"
                        yield Part(name, annotation["Rationale"], "not_read", "the critique is read")
            elif name not in ("response", "model", "critique", "annotations") and value not in (None, ""):
                is_verdict = bool(VERDICT_LIKE.search(words_of(name)))
                kind: Kind = "question" if is_verdict else "not_read"
                yield Part(f"completions[].{name}", value, kind, "UltraFeedback does not have it")


READERS = (
    Reader(
        name="ultrafeedback",
        sentence="UltraFeedback: four completions with ratings and critiques by GPT-4.",
        read=_ultrafeedback,
        matches=lambda row: "instruction" in row and isinstance(row.get("completions"), list),
        reads={
            "instruction": "the prompt",
            "completions": "the responses, with ratings and critiques",
            "source": "a tag of the prompt",
            "correct_answers": "reference answers",
        },
        keeps=frozenset({"incorrect_answers"}),
        ignores={"models": "each completion names its model"},
        completion_fields=tuple(f"completions[{number}]" for number in range(10)),
        survey=_survey,
        loses="rationales, principles, system prompts, overall scores",
    ),
)

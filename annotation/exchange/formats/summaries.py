"""OpenAI's summarize-from-feedback (Stiennon et al. 2020): comparisons and axis evaluations, in.

From https://github.com/openai/summarize-from-feedback: a comparison has `info` (`post`, `title`, `subreddit`,
or `article`), two `summaries` (`text`, `policy`, `note`), `choice` (0 the first, 1 the second), `worker` and
`extra.confidence`. An axis evaluation has one `summary` with `axes`, ratings from 1 to 7.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from django.utils.translation import gettext as _

from annotation.choices import RatingScale, Verdict
from annotation.exchange.formats import fields
from annotation.exchange.formats.fields import FieldError, excerpt
from annotation.exchange.formats.items import (
    ImportedCompletion,
    ImportedItem,
    ImportedJudgment,
    Reader,
    Row,
    key_of,
    ranks_by_place,
)
from annotation.record.judgment import CritiquePart, RatingPart


def _summaries(row: Row) -> Iterator[ImportedItem]:
    info = fields.object_of(fields.required(row, "info"), "info")
    if "summaries" in row:
        listed = fields.items_of(row["summaries"], "summaries")
    else:
        listed = [fields.required(row, "summary")]
    summaries = [fields.object_of(each, f"summaries[{number}]") for number, each in enumerate(listed)]
    notes = [fields.optional_text(each.get("note"), "summaries.note").strip() for each in summaries]
    subreddit = fields.optional_text(info.get("subreddit"), "info.subreddit")
    extra = row.get("extra") if isinstance(row.get("extra"), dict) else {}
    yield ImportedItem(
        messages=fields.prompt(_prompt(info), "info.post"),
        tags=[subreddit] if subreddit else [],
        completions=tuple(
            ImportedCompletion(
                text=fields.text(each.get("text"), f"summaries[{number}].text").strip(),
                source=fields.optional_text(each.get("policy"), f"summaries[{number}].policy"),
            )
            for number, each in enumerate(summaries)
        ),
        judgments=(
            ImportedJudgment(
                verdict=Verdict.RANKED if "summaries" in row else Verdict.NOT_ASKED,
                ranks=ranks_by_place(_ranks(row, len(summaries))) if "summaries" in row else {},
                annotator=fields.person(row.get("worker"), "worker"),
                ratings=tuple(_axes(summaries[0])) if "summaries" not in row else (),
                critiques=tuple(
                    CritiquePart(completion=str(place), text=note) for place, note in enumerate(notes) if note
                ),
                more={name: value for name, value in (extra or {}).items() if value is not None},
            ),
        ),
        metadata={
            name: value
            for name, value in info.items()
            if name not in ("post", "article", "title", "subreddit") and value not in (None, "")
        },
    )


def _prompt(info: Mapping[str, Any]) -> str:
    title = fields.optional_text(info.get("title"), "info.title").strip()
    body = fields.text(info.get("post") or info.get("article"), "info.post").strip()
    return f"{title}\n\n{body}" if title else body


def _ranks(row: Row, count: int) -> tuple[int, ...]:
    choice = fields.whole_number(fields.required(row, "choice"), "choice")
    if count != 2 or choice not in (0, 1):
        raise FieldError(
            "value_unknown",
            _("%(value)s is neither 0, the first summary, nor 1, the second."),
            field="choice",
            value=excerpt(choice),
        )
    return (1, 2) if choice == 0 else (2, 1)


def _axes(summary: Mapping[str, Any]) -> Iterator[RatingPart]:
    for name, value in fields.object_of(summary.get("axes") or {}, "summary.axes").items():
        if value is not None:
            yield RatingPart(
                completion="0",
                criterion=key_of(name),
                scale=RatingScale.SEVEN,
                value=fields.whole_number(value, f"summary.axes.{name}"),
            )


READERS = (
    Reader(
        name="summarize-from-feedback",
        sentence="OpenAI's summarize-from-feedback: two summaries and a choice, or one with ratings on axes.",
        read=_summaries,
        matches=lambda row: (
            isinstance(row.get("info"), dict)
            and (
                {"summaries", "choice"} <= row.keys()
                or (isinstance(row.get("summary"), dict) and "axes" in row["summary"])
            )
        ),
        reads={
            "info": "the prompt, its title first, and metadata",
            "summaries": "the responses, with notes",
            "summary": "the response, with ratings and a note",
            "choice": "the preference, counted from 0",
            "worker": "the annotator",
            "extra": "kept with the annotation",
        },
        completion_fields=("summaries[0]", "summaries[1]"),
    ),
)

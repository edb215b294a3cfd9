"""The form of an uploaded file: a choice for each of its columns, and for each value of the winner.

Fields: `format`; for column N `name-N`, `role-N` and, where it can only be left out, `leave-N`; for a value
of the winner `value-N` and `meaning-N`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from django.utils.translation import gettext as _

from annotation.choices import Verdict
from annotation.exchange.formats.columns import LEAVE_OUT, MANY, METADATA, TARGETS
from annotation.exchange.formats.plans import ColumnAccount
from annotation.exchange.uploads import Preview

_NUMBERED_ROLES = 4
_EXAMPLES = 2
"""Values of the first rows that stand beside a column."""
_VERDICTS = (Verdict.EQUAL, Verdict.BOTH_GOOD, Verdict.BOTH_BAD, Verdict.CANNOT_JUDGE)


class ColumnChoices:
    """Choices of a person for the columns of a file; columns that it does not have are ignored."""

    def __init__(self, posted: Mapping[str, str], account: Sequence[ColumnAccount], format_name: str) -> None:
        self.format_name = posted.get("format", "")
        self.mapping: dict[str, str | list[str]] = {}
        self.leave_out: list[str] = []
        self.meanings: dict[str, str] = {}
        columns = {column.name: column for column in account}
        is_same_format = self.format_name in ("", format_name)
        for number in count():
            name = posted.get(f"name-{number}")
            if name is None:
                break
            column = columns.get(name)
            if column is None:
                continue
            role = posted.get(f"role-{number}", "")
            if posted.get(f"leave-{number}") or role == LEAVE_OUT:
                self.leave_out.append(name)
            elif role and (is_same_format or role != _role_shown(column)):
                # Another format guesses again what nobody has chosen.
                self._give(role, name)
        for number in count():
            value = posted.get(f"value-{number}")
            if value is None:
                break
            if meaning := posted.get(f"meaning-{number}", ""):
                self.meanings[value] = meaning

    def _give(self, role: str, name: str) -> None:
        if role in MANY or role.startswith("rating_"):
            names = self.mapping.setdefault(role, [])
            if isinstance(names, list):
                names.append(name)
        elif role in self.mapping:
            # Refused by the plan, which names both.
            self.mapping[role] = [str(self.mapping[role]), name]
        else:
            self.mapping[role] = name


def _role_shown(column: ColumnAccount) -> str:
    if column.kind in ("metadata", "left_out"):
        return METADATA if column.kind == "metadata" else LEAVE_OUT
    return "" if column.kind == "question" and not column.role else column.role


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownColumn:
    """One column of the file with the choices that there are for it."""

    number: int
    account: ColumnAccount
    examples: list[str]
    groups: list[tuple[str, list[tuple[str, str, bool]]]]
    """Label of the group → value, label, and whether it is chosen."""
    is_part: bool
    """True for what stands inside the rows of a nested format: it can only be left out."""
    values: list[tuple[int, str, int, list[tuple[str, str, bool]]]]
    """Of a winner: number of the field, value, rows, and the meanings to choose from."""

    @property
    def remark(self) -> str:
        """What the chosen role does not say: the reading of a format's own column, a rule, or a question."""
        account = self.account
        if account.kind == "read" and account.role:
            return account.reading.partition(": ")[2] or account.reading.partition(", ")[2]
        return account.reading


def shown_columns(preview: Preview) -> list[ShownColumn]:
    """Return the columns of a file as the page shows them."""
    in_rows = {name for row in preview.rows for name in row}
    answers = _answers(preview.account)
    numbers = count()
    shown = []
    for number, column in enumerate(preview.account):
        examples = [row[column.name] for row in preview.rows if row.get(column.name)][:_EXAMPLES]
        is_part = "." not in column.name and column.name not in in_rows and not column.role and bool(in_rows)
        is_part = is_part and column.kind in ("read", "question", "left_out", "not_read") and not examples
        values = []
        if column.role == "winner":
            values = [
                (next(numbers), value, rows, _meanings(answers, meaning))
                for value, rows, meaning in column.values
            ]
        shown.append(
            ShownColumn(
                number=number,
                account=column,
                examples=examples or ([column.example] if column.example else []),
                groups=_groups(column, len(answers)),
                is_part=is_part,
                values=values,
            )
        )
    return shown


def _answers(account: Sequence[ColumnAccount]) -> list[str]:
    named = {column.role: column.name for column in account if column.role.startswith("answer_")}
    return [named[f"answer_{number}"] for number in range(1, len(named) + 1) if f"answer_{number}" in named]


def _meanings(answers: Sequence[str], meaning: str) -> list[tuple[str, str, bool]]:
    name, _colon, strength = meaning.partition(":")
    choices = []
    for answer in answers:
        chosen = meaning if answer == name and strength else answer
        choices.append((chosen, f"{answer} ({strength})" if chosen != answer else answer, answer == name))
    choices += [(str(verdict), str(verdict.label), str(verdict) == meaning) for verdict in _VERDICTS]
    return choices


def _groups(column: ColumnAccount, answers: int) -> list[tuple[str, list[tuple[str, str, bool]]]]:
    chosen = _role_shown(column)
    most = max(_NUMBERED_ROLES, answers)
    listed = [role for role in TARGETS if role != "label" and _number(role) <= most]
    if chosen and chosen not in listed:
        listed.append(chosen)
    first = [("", _("as the format reads it") if column.kind == "read" else _("choose"), not chosen)]

    def options(roles: Sequence[str]) -> list[tuple[str, str, bool]]:
        return [(role, _role_label(role), role == chosen) for role in roles]

    numbered = [role for role in listed if _number(role)]
    return [
        ("", [*first, *options([METADATA, LEAVE_OUT])]),
        (_("Prompt"), options([role for role in _PROMPT if role in listed])),
        (_("Responses"), options([r for r in (*_RESPONSES, *numbered) if r in listed])),
        (_("Annotation"), options([role for role in _ANNOTATION if role in listed])),
    ]


_PROMPT = ("prompt", "messages", "system", "history", "input", "context", "reference", "tag")
_RESPONSES = ("completion", "chosen", "rejected", "source_chosen", "source_rejected")
_ANNOTATION = ("winner", "strength", "rating", "annotator", "comment", "created_at", "seconds")


def _number(role: str) -> int:
    number = role.rpartition("_")[2]
    return int(number) if number.isdigit() else 0


def _role_label(role: str) -> str:
    """The name of a role in words."""
    stem, _separator, number = role.rpartition("_")
    if number.isdigit():
        return {
            "answer": _("response %(number)s"),
            "source": _("model of response %(number)s"),
            "rank": _("rank of response %(number)s"),
            "score": _("score of response %(number)s"),
            "rating": _("rating of response %(number)s"),
        }[stem] % {"number": number}
    return {
        "prompt": _("prompt"),
        "messages": _("conversation"),
        "system": _("system message"),
        "history": _("earlier turns"),
        "input": _("second part of the prompt"),
        "context": _("context passage"),
        "reference": _("reference answer"),
        "tag": _("tag"),
        "completion": _("response"),
        "chosen": _("better response"),
        "rejected": _("other response"),
        "source_chosen": _("model of the better response"),
        "source_rejected": _("model of the other response"),
        "winner": _("preference"),
        "strength": _("strength of the preference"),
        "rating": _("rating"),
        "annotator": _("annotator"),
        "comment": _("comment"),
        "created_at": _("time"),
        "seconds": _("seconds spent"),
        METADATA: _("keep as metadata"),
        LEAVE_OUT: _("leave out"),
    }.get(role, role)

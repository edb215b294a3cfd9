"""The plan for reading a file: its format, the roles of its columns, and the account of every column.

Nothing of a file is lost without a word: a column is read, kept as metadata, left out because somebody said
so, or known not to be read. One that may be a verdict is none of these before a person says what it is.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from django.utils.translation import gettext as _

from annotation.errors import Refusal
from annotation.exchange.formats import verdicts
from annotation.exchange.formats.columns import (
    ANSWER_LIKE,
    HARMLESS,
    INNER,
    LEAVE_OUT,
    MANY,
    METADATA,
    MOST_VALUES,
    PROSE,
    RATING,
    ROLES,
    VERDICT_LIKE,
    FileColumn,
    Profile,
    Roles,
    by_name,
    renamed,
    roles_of,
    words_of,
)
from annotation.exchange.formats.fields import FieldError, excerpt, has_zone, refuse_unstorable
from annotation.exchange.formats.items import READINGS, Kind, Reader, Row, RowPart
from annotation.exchange.formats.tables import winner_by_row
from annotation.exchange.formats.verdicts import ColumnReading, RatingReading, Reading, spelled

Stated = Mapping[str, str | Sequence[str]]
"""Role → the column of the file, or the columns, that a person gave it."""
LONGEST_METADATA = 100_000
"""Characters of one value of metadata."""
_MOST_VALUES_SHOWN = 40
_LONG_TEXT = 15
"""A column of texts that all differ is none of verdicts, if some are longer than this."""
PartReadings = Mapping[tuple[str, tuple[str, ...]], ColumnReading | RatingReading | None]
"""Part and the names of its answers → what its values mean; None where it is left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnAccount:
    """What becomes of one column."""

    name: str
    rows: int
    """Rows that have a value in it."""
    kind: Kind
    role: str = ""
    reading: str = ""
    """In words: what it is read as, why it is not read, or what must be answered."""
    values: tuple[tuple[str, int, str], ...] = ()
    """Of a winner and of ratings: value, rows, meaning."""
    example: str = ""

    @property
    def line(self) -> str:
        """The account as a line of text."""
        rows = f"{self.rows} row{'' if self.rows == 1 else 's'}"
        words = {
            "read": f"read as {self.reading}",
            "metadata": "kept as metadata",
            "left_out": "not read: left out",
            "not_read": f"not read: {self.reading}",
            "question": f"must be mapped or left out: {self.reading}",
        }[self.kind]
        values = "; ".join(f"{value!r} ({count}) is {meaning}" for value, count, meaning in self.values)
        return f"{self.name}: {words} ({rows}){f': {values}' if values else ''}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The plan for reading a file."""

    reader: Reader
    roles: Roles = field(default_factory=Roles)
    metadata: tuple[str, ...] = ()
    """Columns kept as metadata."""
    account: tuple[ColumnAccount, ...] = ()
    rows: int = 0
    meanings: Mapping[str, str] = field(default_factory=dict)
    readings: PartReadings = field(default_factory=dict)
    """What the values of parts mean, for the reader."""
    stated: frozenset[str] = frozenset()
    """Columns whose role a person stated."""
    hidden: frozenset[str] = frozenset()
    """Columns that nobody reads, and that are called as a role is: no reader may take them for it."""

    @property
    def mapping(self) -> dict[str, str | list[str]]:
        """Role → column of the file, or columns, where the names differ or a person stated the role."""
        mapping: dict[str, str | list[str]] = {}
        for name, role in self.roles.columns.items():
            if role in MANY or role.startswith("rating_"):
                listed = mapping.setdefault(role, [])
                if isinstance(listed, list):
                    listed.append(name)
            elif role != name or name in self.stated:
                mapping[role] = name
        return mapping

    @property
    def questions(self) -> tuple[ColumnAccount, ...]:
        """The columns about which a person must say something before the file can be imported."""
        return tuple(column for column in self.account if column.kind == "question")

    def prepare(self, row: Row) -> tuple[Row, dict[str, Any]]:
        """Return the row as its reader takes it, and its metadata. Raises `FieldError`."""
        values = renamed(row, self.roles.columns)
        if self.hidden or self.roles.winner is not None or self.roles.ratings:
            values = self._with_verdicts(values)
        if self.readings:
            values = {**values, READINGS: self.readings}
        return values, self._metadata(row) if self.metadata else {}

    def _with_verdicts(self, row: Row) -> Row:
        values = {name: value for name, value in row.items() if name not in self.hidden}
        winner = values.get("winner")
        if winner not in (None, "") and self.roles.winner is not None:
            values["winner"] = self._winner(winner, values)
        for role, columns in row.items():
            if (role == RATING or role.startswith("rating_")) and isinstance(columns, dict):
                values[role] = dict(self._rating(name, value) for name, value in columns.items())
        return values

    def _winner(self, winner: Any, row: Row) -> Reading:
        reading = self.roles.winner
        meaning = None
        if reading is not None and not isinstance(winner, (list, dict)):
            meaning = reading.values.get(spelled(winner))
            if meaning is None and spelled(winner) not in reading.unclear:
                meaning = verdicts.read_column(
                    [winner], self.roles.answers, answered=self.meanings
                ).values.get(spelled(winner))
            meaning = meaning or winner_by_row(winner, row)
        if meaning is None:
            raise FieldError(
                "answer_not_there",
                _(
                    "%(value)s is none of the answers %(names)s. Say what it means (--value "
                    "%(start)s=both_bad, or the name of an answer)."
                ),
                field="winner",
                value=excerpt(winner),
                names=", ".join(self.roles.answers),
                start=str(winner)[:20],
            )
        return meaning

    def _rating(self, name: str, value: Any) -> tuple[str, tuple[str, int]]:
        reading = self.roles.ratings.get(name)
        number = reading.values.get(spelled(value)) if reading else None
        if reading is None or number is None:
            raise FieldError(
                "rating_unknown",
                _("%(value)s is no rating like the others of the column."),
                field=name,
                value=excerpt(value),
            )
        return self.roles.criteria[name], (str(reading.scale), number)

    def _metadata(self, row: Row) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for name in self.metadata:
            outer, _dot, inner = name.partition(".")
            value = row.get(name)
            if value is None and outer in INNER and isinstance(row.get(outer), dict):
                value = row[outer].get(inner)
            if value is None or value == "":
                continue
            if isinstance(value, float) and math.isinf(value) and name in self.reader.keeps:
                # A score of a model; JSON has no such number.
                value = str(value)
            try:
                refuse_unstorable({name: value})
            except FieldError as error:
                raise FieldError(error.code, error.message, field=error.field or name) from None
            if _size(value) > LONGEST_METADATA:
                raise FieldError(
                    "metadata_too_long",
                    _(
                        "The value has more than %(most)s characters, which is too long for metadata. Leave "
                        "the column out (--leave-out %(name)s)."
                    ),
                    field=name,
                    most=LONGEST_METADATA,
                    name=name,
                )
            kept[inner if outer in INNER and inner else name] = value
        return kept

    def theirs(self, where: str | None) -> str | None:
        """Return a field of ours as the file calls it: `answer_2` and `completions[1]` as `response_b`."""
        if not where:
            return where
        match = re.match(r"completions\[(\d+)\]|[\w-]+", where)
        if match is None:
            return where
        head, rest = match.group(0), where[match.end() :]
        if match.group(1) is not None:
            place = int(match.group(1))
            listed: Sequence[str] = self.reader.completion_fields or self.roles.answers
            if self.reader.is_tabular and not self.roles.answers:
                listed = [
                    name
                    for role in ("chosen", "rejected", "completion")
                    for name in (self.roles.named(role) or ([role] if role in self.reader.reads else []))
                ]
            return f"{listed[place]}{rest}" if place < len(listed) else where
        named = self.roles.named(head)
        return f"{named[0]}{rest}" if len(named) == 1 else where


def require_answers(questions: Iterable[ColumnAccount]) -> None:
    """Refuse a file of which some column may hold a verdict that nobody has placed."""
    lines = [f"column {column.name}: {column.reading}." for column in questions]
    if lines:
        listed = "\n".join(lines)
        raise Refusal(
            "columns_not_mapped",
            _(
                "%(listed)s\nNothing was imported. Say what each column is (--map ROLE=COLUMN, "
                "as --map winner=COLUMN or --map metadata=COLUMN), or leave it out (--leave-out "
                "COLUMN)."
            ),
            field="columns",
            listed=listed,
        )


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str) else len(repr(value))


def resolved(stated: Stated, leave_out: Sequence[str], profile: Profile) -> dict[str, str]:
    """What a person said of the columns, as column → role. Refuses columns and roles that there are not."""
    roles: dict[str, str] = {}
    pairs = [
        (role, name)
        for role, names in stated.items()
        for name in ([names] if isinstance(names, str) else names)
    ]
    for role, name in (*pairs, *((LEAVE_OUT, name) for name in leave_out)):
        column = next(
            (n for n in (name, *(f"{inner}.{name}" for inner in INNER)) if n in profile.columns), None
        )
        if column is None:
            known = ", ".join(sorted({n.rpartition(".")[2] for n in profile.columns}))
            raise Refusal(
                "unknown_column",
                _("No row has the column %(name)r. There are: %(known)s."),
                field="map",
                name=name,
                known=known,
            )
        if roles.get(column, role) != role:
            raise Refusal(
                "column_mapped_twice",
                _("The column %(name)r is to be %(other)s and %(role)s. Say one of them."),
                field="map",
                name=name,
                other=roles[column],
                role=role,
            )
        roles[column] = role
    doubled = [
        role for role in set(roles.values()) if not _is_many(role) and list(roles.values()).count(role) > 1
    ]
    if doubled:
        raise Refusal(
            "role_mapped_twice", _("Two columns are to be %(role)r. Name one."), field="map", role=doubled[0]
        )
    return roles


def _is_many(role: str) -> bool:
    return role in MANY or role.startswith("rating_") or role == "label"


def make_plan(
    *,
    profile: Profile,
    readers: Mapping[str, Reader],
    name: str = "",
    mapping: Stated | None = None,
    leave_out: Sequence[str] = (),
    meanings: Mapping[str, str] | None = None,
    parts: "Parts | None" = None,
) -> Plan:
    """Return the plan for a file: the format named, or the one that its rows look like.

    mapping, leave_out, meanings: what a person says of columns and of the values of the winner; it goes
    before what is guessed. parts: what `Reader.survey` found, where the format has one.
    """
    if name and name not in readers:
        raise Refusal(
            "unknown_format",
            _("The format %(name)r is not known. Known are: %(formats)s."),
            field="format",
            name=name,
            formats=", ".join(readers),
        )
    if not profile.rows:
        raise Refusal("file_without_rows", _("The file has no rows."), field="file")
    answered = {spelled(value): meaning for value, meaning in (meanings or {}).items()}
    columns = [column for column in leave_out if parts is None or column not in parts.names]
    stated = resolved(mapping or {}, columns, profile)
    guessed = roles_of(
        {name: column for name, column in profile.columns.items() if not _inner_of(name, profile)},
        stated,
        answered,
    )
    reader = readers[name] if name else _recognised(profile, guessed, stated, readers)
    roles = guessed if reader.is_tabular else Roles(columns=stated)
    return _accounted(
        Plan(
            reader=reader,
            roles=roles,
            rows=profile.rows,
            meanings=answered,
            stated=frozenset(stated),
        ),
        profile,
        stated,
        parts,
        set(leave_out),
    )


def _inner_of(name: str, profile: Profile) -> str:
    """The column in which a column of a nested row stands; empty for one of the row itself."""
    outer = name.partition(".")[0]
    return outer if outer in INNER and outer != name and outer in profile.columns else ""


def _recognised(
    profile: Profile, guessed: Roles, stated: Mapping[str, str], readers: Mapping[str, Reader]
) -> Reader:
    shapes = list(profile.shapes)
    tabular = [renamed(shape, guessed.columns) for shape in shapes]
    mapped = [renamed(shape, stated) for shape in shapes]
    return next(
        reader
        for reader in readers.values()
        if all(map(reader.matches, tabular if reader.is_tabular else mapped))
    )


def _accounted(
    plan: Plan, profile: Profile, stated: Mapping[str, str], parts: "Parts | None", left_out: set[str]
) -> Plan:
    reader, roles = plan.reader, plan.roles
    inner = _inner_reads(plan, profile)
    has_verdict = not reader.is_tabular or any(
        role in reader.reads and (role in ("winner", "chosen") or re.match(r"rank_|score_|rating", role))
        for name, role in roles.columns.items()
        if profile.columns[name].rows
    )
    has_answers = reader.is_tabular and any(
        role.startswith("answer_") or role == "completion" for role in roles.columns.values()
    )
    account = []
    for name, column in profile.columns.items():
        if name == reader.inner:
            continue
        role = roles.columns.get(name, "")
        # A column called `rating` that is no rating is not read as one.
        wanted = role if role or (reader.is_tabular and name in ROLES) else name
        reading = inner.get(name) or reader.reading_of(wanted)
        kind, reading = _become(plan, column, reading, is_stated=name in stated)
        if kind == "metadata" and role != METADATA:
            kind, reading = _unread(plan, column, has_verdict=has_verdict, has_answers=has_answers)
        account.append(
            ColumnAccount(
                name=name,
                rows=column.rows,
                kind=kind,
                role=role,
                reading=reading + _rule(roles, column) if kind == "read" else reading,
                values=_values_shown(plan, name, column) if reader.is_tabular else (),
                example=column.example,
            )
        )
    kept = tuple(column.name for column in account if column.kind == "metadata")
    unread = {column.name for column in account if column.kind in ("metadata", "question")}
    hidden = (unread & ROLES) - set(roles.columns.values()) if reader.is_tabular else ()
    of_parts, readings = _parts_account(parts, left_out, plan.meanings)
    account += of_parts
    return replace(
        plan,
        metadata=kept,
        account=tuple(account),
        readings=readings,
        hidden=frozenset(hidden),
    )


def _inner_reads(plan: Plan, profile: Profile) -> dict[str, str]:
    """Columns inside the nested one that the reader reads: column → what it is read as."""
    # A flat file of the format has them as columns of the row itself.
    prefix = f"{plan.reader.inner}." if plan.reader.inner in profile.columns else ""
    names = [
        name.removeprefix(prefix)
        for name in profile.columns
        if (name.startswith(prefix) if prefix else "." not in name)
    ]
    if not plan.reader.inner or not names:
        return {}
    stated = {role: name.removeprefix(prefix) for name, role in plan.roles.columns.items()}
    ours = {next((role for role, theirs in stated.items() if theirs == name), name): name for name in names}
    _row, roles = by_name(dict.fromkeys(ours))
    reads = plan.reader.reads
    return {
        f"{prefix}{ours[name]}": reads[role]
        for name, role in roles.columns.items()
        if role in reads and name in ours
    } | {
        f"{prefix}{ours[name]}": words
        for name in ours
        if prefix and (words := plan.reader.reading_of(f"{prefix}{name}"))
    }


def _become(plan: Plan, column: FileColumn, reading: str, *, is_stated: bool) -> tuple[Kind, str]:
    """Return what becomes of a column by its role and its format: `metadata` where neither says anything."""
    name, reader = column.name, plan.reader
    role = plan.roles.columns.get(name, "")
    if role == LEAVE_OUT:
        return "left_out", ""
    if name in plan.roles.questions:
        return "question", plan.roles.questions[name]
    if role == METADATA:
        return "metadata", ""
    if reading or not reader.reads:
        # A reader of another package may not say what it reads.
        return "read", reading or "a column of the format"
    if not is_stated and (reason := reader.ignoring(name)):
        return "not_read", reason
    if is_stated and reader.is_tabular:
        raise Refusal(
            "role_not_read",
            _(
                "The format %(format)s reads no %(role)s. Choose another format for the column "
                "%(name)r, or map it as metadata."
            ),
            field="map",
            format=reader.name,
            role=role,
            name=name,
        )
    return "metadata", ""


def _unread(plan: Plan, column: FileColumn, *, has_verdict: bool, has_answers: bool) -> tuple[Kind, str]:
    """Return what becomes of a column that nobody reads: a question where it may hold a verdict."""
    if not column.rows:
        return "not_read", "it has no value"
    doubt = _doubt(plan, column, has_verdict=has_verdict, has_answers=has_answers)
    return ("question", doubt) if doubt else ("metadata", "")


def _rule(roles: Roles, column: FileColumn) -> str:
    """The rule by which the values of a column are read, as the end of a sentence; empty without one."""
    name = column.name
    role = roles.columns.get(name)
    if role == "created_at" and not all(map(has_zone, column.distinct or [column.example])):
        return ", in UTC where it says no time zone"
    note = ""
    if role == "winner" and roles.winner is not None:
        note = roles.winner.note
    elif name in roles.ratings:
        note = roles.ratings[name].note
    return f": {note}" if note else ""


def _values_shown(plan: Plan, name: str, column: FileColumn) -> tuple[tuple[str, int, str], ...]:
    counts: dict[str, int] = {}
    for value, rows in (column.values or {}).items():
        counts[spelled(value)] = counts.get(spelled(value), 0) + rows
    role = plan.roles.columns.get(name)
    if role == "winner" and plan.roles.winner is not None:
        meanings = {
            value: reading.words(plan.roles.answers) for value, reading in plan.roles.winner.values.items()
        }
    elif name in plan.roles.ratings:
        rating = plan.roles.ratings[name]
        meanings = {value: f"{number} ({rating.scale.label})" for value, number in rating.values.items()}
    else:
        return ()
    shown = [(value, rows, meanings.get(value, "?")) for value, rows in counts.items()]
    return tuple(shown[:_MOST_VALUES_SHOWN])


def _doubt(plan: Plan, column: FileColumn, *, has_verdict: bool, has_answers: bool) -> str:
    """Return why a column that nobody reads may hold a verdict; empty where it does not look like one."""
    words = words_of(column.name)
    answers = plan.roles.answers
    if column.name in plan.reader.keeps:
        return ""
    if len(answers) > 1 and column.values and column.kinds <= {"text", "number"}:
        reading = verdicts.read_column(column.distinct, answers)
        named = [value for value, each in reading.values.items() if each.place is not None]
        if named and not reading.unclear and not reading.question:
            by_words = any(not re.fullmatch(r"[+-]?\d+", value) for value in named)
            if by_words or reading.note.startswith("a scale from -"):
                return f"its values look like a preference ({', '.join(map(repr, named[:3]))})"
    # The index that pandas writes has no name.
    is_index = not column.name.strip() or re.fullmatch(r"unnamed \d+", words)
    if (is_index or HARMLESS.fullmatch(words)) and not re.search(
        r"better|safer|winner|chosen|preferred|best", words
    ):
        return ""
    if VERDICT_LIKE.search(words) and not (PROSE.fullmatch(words) and column.kinds == {"text"}):
        return "its name looks like a verdict, a rating or a weight, and it is not read"
    if column.kinds & {"list", "object"} and ANSWER_LIKE.fullmatch(words) and not has_answers:
        return "it looks like a list of answers, which no column of the format is"
    if has_answers and not has_verdict and not _is_prose(column) and not PROSE.fullmatch(words):
        return "the file has answers and no verdict, and this column may be the verdict"
    return ""


def _is_prose(column: FileColumn) -> bool:
    """True for a column of long texts, or of more different ones than a verdict has."""
    if column.kinds != {"text"} or column.values is None:
        return column.kinds == {"text"}
    return column.rows > 2 and len(column.values) == column.rows and column.longest > _LONG_TEXT


@dataclass(slots=True)
class Parts:
    """What nested rows hold besides their columns, counted by `Reader.survey`."""

    columns: dict[tuple[str, Kind, str, tuple[str, ...], bool], FileColumn] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        return {name for name, *_ in self.columns}

    def add(self, part: RowPart) -> None:
        """Count one part."""
        key = (part.name, part.kind, part.reading, part.answers, part.is_rating)
        column = self.columns.setdefault(key, FileColumn(part.name))
        column.add(part.value, MOST_VALUES)


def _parts_account(
    parts: Parts | None, left_out: set[str], meanings: Mapping[str, str]
) -> tuple[list[ColumnAccount], PartReadings]:
    """The account of what nested rows hold besides their columns, and what its values mean."""
    account = []
    readings: dict[tuple[str, tuple[str, ...]], ColumnReading | RatingReading | None] = {}
    for (name, kind, words, answers, is_rating), column in (parts.columns if parts else {}).items():
        values: tuple[tuple[str, int, str], ...] = ()
        reading: ColumnReading | RatingReading | None = None
        if name in left_out:
            kind = "left_out" if kind != "not_read" else kind
            readings[name, ()] = None
        elif answers:
            reading, kind, words = _part_winners(column, answers, meanings, words)
            shown = {value: each.words(answers) for value, each in reading.values.items()}
            values = _counted(column, shown)
        elif is_rating:
            scale = verdicts.read_ratings(name, column.distinct)
            if isinstance(scale, RatingReading) and column.values is not None:
                reading = scale
                shown = {value: f"{number} ({scale.scale.label})" for value, number in scale.values.items()}
                values = _counted(column, shown)
            else:
                why = scale if isinstance(scale, str) else "it has too many values"
                kind, words = (
                    "question",
                    f"is no rating: {why}; leave it out, and it stays with the annotation",
                )
        if answers or is_rating:
            readings[name, answers] = reading
        account.append(
            ColumnAccount(
                name=name, rows=column.rows, kind=kind, reading=words, values=values, example=column.example
            )
        )
    return account, readings


def _part_winners(
    column: FileColumn, answers: tuple[str, ...], meanings: Mapping[str, str], words: str
) -> tuple[ColumnReading, Kind, str]:
    """Read the values of a part that may say which answer is best."""
    listed = ", ".join(answers)
    try:
        reading = verdicts.read_column(column.distinct, answers, answered=meanings)
    except ValueError as error:
        return ColumnReading(values={}), "question", f"has no answer {str(error)[:60]!r} among {listed}"
    if column.values is None:
        return reading, "question", "it has too many values for a preference"
    if reading.question or reading.unclear:
        unclear = ", ".join(map(repr, reading.unclear[:5]))
        why = reading.question or f"its values {unclear} name neither one of the answers {listed} nor a tie"
        return reading, "question", f"{why}; say what they mean (--value VALUE=ANSWER), or leave it out"
    return reading, "read", words


def _counted(column: FileColumn, meanings: Mapping[str, str]) -> tuple[tuple[str, int, str], ...]:
    counts: dict[str, int] = {}
    for value, rows in (column.values or {}).items():
        counts[spelled(value)] = counts.get(spelled(value), 0) + rows
    return tuple((value, rows, meanings.get(value, "?")) for value, rows in counts.items())[
        :_MOST_VALUES_SHOWN
    ]

"""Columns of a table and their roles: guessed from names and values, corrected by a person.

| role                           | means                                                          |
|--------------------------------|----------------------------------------------------------------|
| `prompt`, or `messages`        | what is asked: a text, or a chat                               |
| `system`, `history`, `input`   | optional parts of it, see `chats`                              |
| `context`, `reference`         | optional: a passage; a reference answer                        |
| `answer_1`, `answer_2`, …      | the answers                                                    |
| `source_1`, `source_2`, …      | optional: who wrote each                                       |
| `winner`                       | the best answer, a tie, or a scale between two: see `verdicts` |
| `rank_1`, `rank_2`, …          | in place of a winner: the rank of each answer, 1 best          |
| `score_1`, `score_2`, …        | in place of a winner: the score of each answer, highest best   |
| `rating_1`, `rating_2`, …      | a rating of each answer                                        |
| `chosen`, `rejected`           | a pair as two texts                                            |
| `completion`, `rating`         | a single answer, and ratings of it                             |
| `strength`, `annotator`, `comment`, `created_at`, `seconds` | of the judgment                   |
| `tag`, `metadata`, `leave_out` | a tag of the prompt; kept with the comparison; not imported    |

Other names are guessed (`question`; `response_a`, `model_b_output`; `preference`, …). `plans` accounts for
every column.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from annotation.exchange.formats import fields, verdicts
from annotation.exchange.formats.fields import FieldError
from annotation.exchange.formats.items import Row, key_of
from annotation.exchange.formats.verdicts import ColumnReading, RatingReading, spelled

# The columns of a file, counted over all of its rows: what names and values there are, and in how many rows.
#
# Every name of the file counts, in whatever row it first stands. Memory stays the same however long the file
# is: few different values of a column are kept, and only short ones.

SAMPLE_ROWS = 20
"""The first rows, by which a format is recognised, besides those that bring a new name."""
MOST_VALUES = 200
"""Different values of one column that are kept; a column with more is one of texts or of ids."""
MOST_VALUES_OF_ALL = 5_000
LONGEST_VALUE = 80
_MOST_SAMPLES = 60
_LONGEST_SAMPLE = 20_000
INNER = ("data", "fields")
"""Columns of nested formats whose own names count as the file's, as `data.question`."""


@dataclass(slots=True)
class FileColumn:
    """One column: its rows that have a value, the kinds of its values, and the values if they are few."""

    name: str
    rows: int = 0
    kinds: set[str] = field(default_factory=set)
    """`text`, `number`, `boolean`, `list` or `object`."""
    values: dict[Any, int] | None = field(default_factory=dict)
    """Value → rows that have it; None where there are too many, or long ones."""
    longest: int = 0
    """Characters of the longest text."""
    example: str = ""

    def add(self, value: Any, room: int) -> int:
        """Count a value; return how many more different values may be kept in all columns."""
        self.rows += 1
        kind = type(value)
        self.kinds.add(_PROFILE_KINDS.get(kind, "object"))
        if self.rows == 1:
            self.example = str(value)[:LONGEST_VALUE]
        if kind is str and len(value) > self.longest:
            self.longest = len(value)
        if self.values is None:
            return room
        if kind in (list, dict) or (kind is str and len(value) > LONGEST_VALUE):
            room += len(self.values)
            self.values = None
            return room
        # 1 and true are one key of a dictionary.
        key = ("true" if value else "false") if kind is bool else value
        if key in self.values:
            self.values[key] += 1
        elif len(self.values) == MOST_VALUES or not room:
            room += len(self.values)
            self.values = None
        else:
            self.values[key] = 1
            room -= 1
        return room

    @property
    def distinct(self) -> list[Any]:
        """The different values, if they are few."""
        return list(self.values or ())


_PROFILE_KINDS = {str: "text", int: "number", float: "number", bool: "boolean", list: "list", dict: "object"}


@dataclass(slots=True)
class Profile:
    """All columns of a file, in the order in which they first appear, and rows that show its shape."""

    rows: int = 0
    columns: dict[str, FileColumn] = field(default_factory=dict)
    sample: list[Row] = field(default_factory=list)
    room: int = MOST_VALUES_OF_ALL

    def add(self, row: Row) -> None:
        """Count a row."""
        self.rows += 1
        new = self._count(row, "")
        for name in INNER:
            inner = row.get(name)
            if isinstance(inner, dict):
                new |= self._count(inner, f"{name}.")
        if len(self.sample) < SAMPLE_ROWS or (new and len(self.sample) < _MOST_SAMPLES):
            self.sample.append(_shape(row))

    def _count(self, values: Mapping[str, Any], prefix: str) -> bool:
        new = False
        for name, value in values.items():
            column = self.columns.get(prefix + name)
            if column is None:
                column = self.columns[prefix + name] = FileColumn(prefix + name)
                new = True
            if value is not None and value != "":
                new |= not column.rows
                self.room = column.add(value, self.room)
        return new

    @property
    def shapes(self) -> Iterator[Row]:
        """Each sampled row with every name of the file: a row may lack what only later rows have."""
        union: dict[str, Any] = {}
        for row in self.sample:
            for name, value in row.items():
                if name not in union or union[name] in (None, ""):
                    union[name] = value
        for row in self.sample:
            yield {**union, **{name: value for name, value in row.items() if value not in (None, "")}}


def _shape(value: Any) -> Any:
    """A row with its long texts cut: a sample may be of rows of megabytes."""
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_SAMPLE else value[:_LONGEST_SAMPLE]
    if isinstance(value, dict):
        return {name: _shape(inner) for name, inner in value.items()}
    return [_shape(inner) for inner in value] if isinstance(value, list) else value


def profile_of(rows: Iterable[Row]) -> Profile:
    """Count the columns of rows."""
    profile = Profile()
    for row in rows:
        profile.add(row)
    return profile


MOST_ANSWERS = 26
DESIRABLE = "desirable"
"""The criterion of a thumb that says no more than good or bad."""
_OFFERED = 8
METADATA, LEAVE_OUT, TAG, RATING, REFERENCE = "metadata", "leave_out", "tag", "rating", "reference"
MANY = (RATING, REFERENCE, TAG, METADATA, LEAVE_OUT)
"""Roles that several columns may have."""
NUMBERED = ("answer", "source", "rank", "score", "rating")
_SINGLE = (
    *("prompt", "messages", "system", "history", "input", "context", "chosen", "rejected", "completion"),
    *("winner", "strength", "annotator", "comment", "created_at", "seconds"),
    *("source_chosen", "source_rejected"),
)
TARGETS = (
    *_SINGLE,
    *(f"{name}_{number}" for name in NUMBERED for number in range(1, _OFFERED + 1)),
    *MANY,
    "label",
)
"""Roles that a person may give a column. `label` is the older name of `rating` for thumbs."""

ROLES = frozenset(TARGETS) | {
    f"{name}_{number}" for name in NUMBERED for number in range(1, MOST_ANSWERS + 1)
}
_SYNONYMS = {
    "prompt": (
        *("question", "instruction", "query", "user_prompt", "task", "problem", "post", "input_text"),
        "user_query",
    ),
    "messages": ("conversation", "chat", "dialogue", "dialog", "conversations"),
    "system": ("system_prompt", "system_message"),
    "history": (),
    "input": (),
    "context": ("passage", "document", "background"),
    "reference": (
        *("gold", "gold_answer", "reference_answer", "ground_truth", "target", "expected_output", "ideal"),
        "reference_output",
    ),
    "completion": ("response", "answer", "output", "generation"),
    "chosen": (
        *("preferred_response", "accepted", "winning_response", "better_response", "chosen_response"),
        *("chosen_answer", "chosen_output"),
    ),
    "rejected": (
        *("dispreferred_response", "losing_response", "worse_response", "rejected_response"),
        *("rejected_answer", "rejected_output"),
    ),
    "annotator": (
        *("annotator_id", "worker", "worker_id", "judge", "rater", "user_id", "labeler", "labeller"),
        *("rater_id", "judge_id", "annotator_name", "labeler_id"),
    ),
    "comment": ("explanation", "justification", "reason", "rationale", "notes", "feedback_text", "comments"),
    "created_at": (
        *("timestamp", "tstamp", "annotated_at", "submitted_at", "created", "created_time", "datetime"),
        *("date", "judged_at"),
    ),
    "seconds": ("lead_time", "active_seconds"),
    TAG: ("tags",),
    "source_chosen": ("chosen_model", "model_chosen"),
    "source_rejected": ("rejected_model", "model_rejected"),
}
_KINDS = {
    **dict.fromkeys(("comment", "system", "source_chosen", "source_rejected"), frozenset({"text"})),
    **dict.fromkeys((TAG, "context"), frozenset({"text", "list"})),
    "annotator": frozenset({"text", "number"}),
}
"""Role → the kinds of values that it may have."""
_WINNERS = (
    *("winner", "preference", "preferred", "better", "choice", "chosen", "selected", "vote", "verdict"),
    *("human_preference", "overall_preference", "better_response_id", "preferred_response", "best"),
    *("preferred_answer", "preferred_output", "better_answer", "best_response", "best_answer", "selection"),
    *("label", "labels", "preference_strength", "chosen_response", "judgment", "judgement"),
)
"""Names of the column that says which answer is better; the earlier goes before the later."""
_STRENGTHS = ("strength", "preference_strength")
_SCALE = re.compile(r"preference|strength|judg|scale|verdict|rating|comparison")
"""Names of columns in which numbers beyond those of the answers are degrees."""
_LABELS = ("label", "labels", "kto_tag")
"""A number there may say that the first answer is better (SHP) as well as which one is."""
_AFTER = re.compile(
    rf"(?:[a-z0-9]+_)*(?:{verdicts.NOUNS})s?_?([a-z]|\d{{1,2}})|(?:human_)?ref_([a-z]|\d{{1,2}})"
)
_ABOUT_AN_ANSWER = re.compile(
    r"reason|comment|feedback|explanation|note|critique|source|model|id|length|len|tokens?|time|prompt|question|"
    r"tag|category|error"
)
"""Words before the noun that make a column speak of an answer, in place of holding it."""
_BETWEEN = re.compile(
    r"(?:model|system|option)_?([a-z]|\d{1,2})_(?:answer|response|output|completion|text)"
    r"|([a-z]|\d{1,2})_(?:answer|response|output|completion|text)"
)
_NO_ANSWER = re.compile(r"(?:model|system|ref|reference)_?(?:[a-z]|\d{1,2})")
_SOURCE = re.compile(r"(?:source|model|system)(?:_?name)?_?([a-z]|\d{1,2})(?:_?name)?")
_RANK = re.compile(r"(?:answer|response|output)?_?rank(?:ing)?_?([a-z]|\d{1,2})")
_MARKED = re.compile(r"(.+?)_?([a-z]|\d{1,2})")
_INSIDE = re.compile(r"((?:.+_)?)(?:answer|response|output|completion|summary|model)_?([a-z]|\d{1,2})_(.+)")
"""A mark inside a name: `is_response_0_safe`, `response_1_source`."""
_SCORES = re.compile(r"scores?|points?|elo|rewards?|(?:answer|response|output|model)_scores?")
VERDICT_LIKE = re.compile(
    r"winner|\bwins?\b|winning|loser|prefer|verdict|\bvotes?\b|voted|upvote|rating|\brate[ds]?\b|score|"
    r"label(?!l?er)|\branks?\b|ranked|ranking|weight|reward|better|\bbest\b|worse|worst|chosen|rejected|choice|"
    r"judg(?:e?ment)|grade|stars?\b|thumb|feedback|\blike[ds]?\b|dislike|kto|selected|\baccept|approv|margin|"
    r"\bsafer?\b|unsafe|helpful|harmless|correct(?!ion)|quality|desirable|agree|likert|slider|\bti(?:e|ed|es)\b|"
    r"swapped|flipped|reversed"
)
"""Names of columns that may say which answer is good. Words are parted by single spaces."""
_RATING_LIKE = re.compile(
    r"rating|\brated?\b|score|stars?\b|grade|thumb|label|kto|feedback|\bliked?\b|helpful|harmless|correct|quality|"
    r"desirable|\baccepted|approved|\bgood\b|\bsafe\b|likert"
)
"""Names of columns whose numbers may be ratings; counts of votes and weights are none."""
ANSWER_LIKE = re.compile(
    r"(?:answers|responses|completions|outputs|generations|candidates|replies|choices|results|samples)"
)
HARMLESS = re.compile(
    r"(?:.* )?(?:id|ids|idx|index|uuid|hash|key|url|uri|link|language|lang|locale|domain|category|categories|"
    r"topic|subject|source|sources|dataset|subset|split|model|models|name|version|seed|temperature|tokens?|"
    r"length|turns?|title|author|created|updated|date|time|at|timestamp|metadata|tags?|difficulty|type|kind|"
    r"session|order|position|num .*|n .*|count|page|row|line|batch|year|month|day|duration|latency|cost)"
)
PROSE = re.compile(
    r".*(?:statement|elaboration|reason|reasoning|rationale|explanation|justification|comment|note|description|"
    r"critique)s?"
)
"""Names of columns in which somebody wrote a text about the answers."""
_LONG = 100


def words_of(name: str) -> str:
    """Return a column's name as words in lower case: `betterResponse_id` → `better response id`."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name.rpartition(".")[2])
    return re.sub(r"[^a-z0-9]+", " ", parted.lower()).strip()


@dataclass(frozen=True, kw_only=True, slots=True)
class Roles:
    """The roles of a file's columns, and what the values of its verdicts mean."""

    columns: Mapping[str, str] = field(default_factory=dict)
    """Column of the file → its role."""
    answers: tuple[str, ...] = ()
    """The file's names of the answers, first to last."""
    winner: ColumnReading | None = None
    ratings: Mapping[str, RatingReading] = field(default_factory=dict)
    """Column of ratings → its scale."""
    criteria: Mapping[str, str] = field(default_factory=dict)
    """Column of ratings → the key of its criterion."""
    questions: Mapping[str, str] = field(default_factory=dict)
    """Column → what must be answered before the file can be imported."""

    def named(self, role: str) -> list[str]:
        """Return the columns with a role."""
        return [name for name, each in self.columns.items() if each == role]


def roles_of(
    profile: Mapping[str, FileColumn], stated: Mapping[str, str], meanings: Mapping[str, str]
) -> Roles:
    """Guess the role of every column that has one; what a person stated goes before what is guessed.

    profile: column → its values. stated: column → role. meanings: value of the winner → what it means.
    """
    guess = _Guess(profile, stated, meanings)
    guess.answers()
    guess.singles()
    guess.winner()
    guess.numbered()
    guess.ratings()
    return guess.roles()


class _Guess:
    def __init__(
        self, profile: Mapping[str, FileColumn], stated: Mapping[str, str], meanings: Mapping[str, str]
    ) -> None:
        self._profile = profile
        self._meanings = meanings
        self._snakes = {name: words_of(name).replace(" ", "_") for name in profile}
        self._columns = {name: RATING if role == "label" else role for name, role in stated.items()}
        self._stated = set(stated)
        self._answers: list[str] = []
        self._winner: ColumnReading | None = None
        self._ratings: dict[str, RatingReading] = {}
        self._criteria: dict[str, str] = {}
        self._questions: dict[str, str] = {}

    def roles(self) -> Roles:
        return Roles(
            columns=self._columns,
            answers=tuple(self._answers),
            winner=self._winner,
            ratings=self._ratings,
            criteria=self._criteria,
            questions=self._questions,
        )

    def _free(self) -> Iterator[tuple[str, str]]:
        return ((name, snake) for name, snake in self._snakes.items() if name not in self._columns)

    def _taken(self, role: str) -> bool:
        return role in self._columns.values()

    def answers(self) -> None:
        """The answers: the columns that a person named, else the group of like names with most columns."""
        stated = {role: name for name, role in self._columns.items() if re.fullmatch(r"answer_\d+", role)}
        if not stated:
            groups: dict[str, dict[str, str]] = {}
            for name, snake in self._free():
                match = None if _NO_ANSWER.fullmatch(snake) else _AFTER.fullmatch(snake)
                match = match or _BETWEEN.fullmatch(snake)
                if match and _holds_answer(snake) and self._profile[name].kinds <= {"text", "list", "object"}:
                    mark = next(group for group in match.groups() if group is not None)
                    place = match.start(next(n for n, g in enumerate(match.groups(), 1) if g is not None))
                    stem = f"{snake[:place]}*{snake[place + len(mark) :]}"
                    groups.setdefault(stem, {}).setdefault(_mark(mark), name)
            if groups:
                # Of two groups of as many, the one with the plainer name.
                chosen = groups[max(groups, key=lambda stem: (len(groups[stem]), -stem.count("_")))]
                if len(chosen) > 1 or next(iter(chosen)) in ("0", "1", "a"):
                    ordered = sorted(chosen, key=_by_number)[:MOST_ANSWERS]
                    stated = {f"answer_{n}": chosen[mark] for n, mark in enumerate(ordered, start=1)}
        for number in range(1, MOST_ANSWERS + 1):
            answer = stated.get(f"answer_{number}")
            if answer is None:
                break
            self._columns[answer] = f"answer_{number}"
            self._answers.append(answer)

    def singles(self) -> None:
        """Columns by one name of their role, the role's own name first."""
        for role, synonyms in _SYNONYMS.items():
            if len(self._answers) > 1 and role in ("completion", "chosen", "rejected"):
                continue
            if self._taken(role) and role not in MANY:
                continue
            for wanted in (role, *synonyms):
                name = next((name for name, snake in self._free() if snake == wanted), None)
                if name is not None and self._fits(role, self._profile[name]):
                    self._columns[name] = role
                    break
        if not self._taken("prompt"):
            self._find_prompt()
            return
        for name in [n for n, role in self._columns.items() if role == "messages" and n not in self._stated]:
            # What repeats the prompt is none of it.
            del self._columns[name]

    def _find_prompt(self) -> None:
        """Where no column is called the prompt: HelpSteer3's context is a chat, an input alone is a text."""
        if self._taken("messages"):
            return
        for role in ("input", "context", "history"):
            name = next((n for n, r in self._columns.items() if r == role and n not in self._stated), None)
            kinds = self._profile[name].kinds if name else set()
            if name and kinds <= {"text", "list"} and ("list" in kinds or role != "history"):
                self._columns[name] = "messages" if "list" in kinds else "prompt"
                break

    def _fits(self, role: str, column: FileColumn) -> bool:
        if role == "created_at":
            return not column.kinds & {"list", "object", "boolean"} and _is_time(column)
        if role == "seconds" and column.kinds != {"number"}:
            return all(_is_number(value) for value in column.distinct)
        return column.kinds <= _KINDS.get(role, column.kinds)

    def winner(self) -> None:
        """The column that says which answer is better, and what its values mean."""
        stated = next((name for name, role in self._columns.items() if role == "winner"), None)
        if len(self._answers) < 2:
            if stated is not None and self._answers:
                self._questions[stated] = "names a winner, and there is one answer alone"
            return
        if stated is not None:
            self._read_winner(stated)
            return
        ranked = any(_RANK.fullmatch(snake) for _, snake in self._free())
        candidates = sorted(
            (
                (_WINNERS.index(snake), name)
                for name, snake in self._free()
                if snake in _WINNERS and self._profile[name].rows
            ),
        )
        for _place, name in candidates:
            column, snake = self._profile[name], self._snakes[name]
            if column.kinds & {"list", "object"}:
                continue
            numeric = column.kinds <= {"number", "boolean"} or all(_is_number(v) for v in column.distinct)
            if snake in _LABELS and numeric and not self._meanings:
                self._questions[name] = (
                    "holds numbers that may name the better answer, or say that the first is better; map it "
                    "as winner, with what its values mean"
                )
            elif snake in _STRENGTHS and not any(_is_negative(value) for value in column.distinct):
                continue
            elif not (ranked and self._is_unclear(name)):
                self._columns[name] = "winner"
                self._read_winner(name)
                break
        strength = next((n for n, s in self._free() if s in _STRENGTHS), None)
        if strength is not None and self._taken("winner"):
            self._columns[strength] = "strength"

    def _is_unclear(self, name: str) -> bool:
        reading = self._reading(name)
        return bool(reading.question or reading.unclear)

    def _reading(self, name: str) -> ColumnReading:
        return verdicts.read_column(
            self._profile[name].distinct,
            self._answers,
            answered=self._meanings,
            may_be_scale=name in self._stated or bool(_SCALE.search(self._snakes[name])),
        )

    def _read_winner(self, name: str) -> None:
        column = self._profile[name]
        try:
            self._winner = self._reading(name)
        except ValueError as error:
            self._questions[name] = (
                f"has no answer {str(error)[:60]!r}; write one of {', '.join(self._answers)}, equal, "
                "both_good, both_bad or cannot_judge"
            )
            return
        values = self._winner.values
        if self._winner.question:
            self._questions[name] = (
                f"names the winner, but {self._winner.question}; say what its values mean, as "
                f"{self._example(name)}"
            )
        elif column.values and not values and self._winner.unclear and not self._may_be_by_row(name):
            listed = ", ".join(map(repr, self._winner.unclear[:5]))
            self._questions[name] = (
                f"names the winner, but its values ({listed}) name none of the answers "
                f"{', '.join(self._answers)}; say what they mean, as {self._example(name)}"
            )

    def _may_be_by_row(self, name: str) -> bool:
        """True where a value may be the name of a model, or the better text itself."""
        longest = self._profile[name].longest
        return any(_SOURCE.fullmatch(snake) for snake in self._snakes.values()) or longest > _LONG

    def _example(self, name: str) -> str:
        unclear = self._winner.unclear if self._winner else ()
        value = unclear[0] if unclear else next(iter(map(spelled, self._profile[name].distinct)), "1")
        return f"{value}={self._answers[0]}"

    def numbered(self) -> None:
        """Sources, ranks, scores and ratings of the answers, each by the mark of its answer."""
        if not self._answers:
            return
        groups: dict[tuple[str, str], dict[int, str]] = {}
        marks = verdicts.marks_of(self._answers)
        loose = list(self._free())
        split = {name: _marked(snake) for name, snake in loose}
        for name, parts in split.items():
            if parts is not None:
                role, stem, mark = parts
                siblings = [other[2] for other in split.values() if other and other[:2] == parts[:2]]
                place = _place_of_mark(mark, marks, siblings)
                if place is not None:
                    groups.setdefault((role, stem), {}).setdefault(place, name)
        for (role, stem), columns in groups.items():
            if role:
                self._place(role, columns)
            elif len(columns) == len(self._answers) and VERDICT_LIKE.search(stem.replace("_", " ")):
                self._scored(stem, columns)

    def _place(self, role: str, columns: Mapping[int, str]) -> None:
        for place, name in columns.items():
            if not self._taken(f"{role}_{place + 1}"):
                self._columns[name] = f"{role}_{place + 1}"

    def _scored(self, stem: str, columns: Mapping[int, str]) -> None:
        """Scores order the answers where nothing else does; other numbers of a scale are ratings."""
        numeric = all(
            self._profile[name].kinds <= {"number"}
            or all(_is_number(value) for value in self._profile[name].distinct)
            for name in columns.values()
        )
        has_verdict = self._taken("winner") or self._taken("rank_1")
        if _SCORES.fullmatch(stem) and numeric and not has_verdict and not self._taken("score_1"):
            self._place("score", columns)
            return
        values = [value for name in columns.values() for value in self._profile[name].distinct]
        kept = all(self._profile[name].values is not None for name in columns.values())
        reading = verdicts.read_ratings(stem, values) if kept and values else "it has too many values"
        if isinstance(reading, RatingReading) and _RATING_LIKE.search(stem.replace("_", " ")):
            for place, name in columns.items():
                self._columns[name] = f"{RATING}_{place + 1}"
                self._ratings[name] = reading
                self._criteria[name] = key_of(stem.strip("_") or RATING)

    def ratings(self) -> None:
        """Ratings of a single answer, and the scale of every column of ratings."""
        single = self._taken("completion") or (self._taken("messages") and not self._answers)
        single = single or len(self._answers) == 1
        if single and not self._taken("chosen"):
            helpsteer = verdicts.helpsteer_of(self._profile)
            for name, _snake_name in list(self._free()):
                column = self._profile[name]
                if not column.rows or not (name in helpsteer or _RATING_LIKE.search(words_of(name))):
                    continue
                is_plain = column.kinds <= {"text", "number", "boolean"} and column.values is not None
                if is_plain and isinstance(verdicts.read_ratings(name, column.distinct), RatingReading):
                    self._columns[name] = RATING
        for name, role in list(self._columns.items()):
            if not re.fullmatch(r"rating(_\d+)?", role) or name in self._ratings or name not in self._profile:
                continue
            reading = verdicts.read_ratings(name, self._profile[name].distinct)
            if isinstance(reading, RatingReading) and self._profile[name].values is not None:
                self._ratings[name] = reading
                self._criteria[name] = self._criterion(name, role)
            else:
                why = reading if isinstance(reading, str) else "it has too many values"
                self._questions[name] = f"is no rating: {why}; map it as metadata, or leave it out"
        self._ratings.update(verdicts.read_alike(self._ratings))

    def _criterion(self, name: str, role: str) -> str:
        snake = self._snakes[name]
        if snake in _LABELS:
            return DESIRABLE
        parts = _marked(snake) if role != RATING else None
        return key_of((parts[1].strip("_") if parts else snake) or RATING)


def _holds_answer(snake: str) -> bool:
    """True for `gpt_response_a`, false for `score_of_response_a` and `reason_for_answer_1`."""
    words = snake.split("_")
    before = [word for word in words[:-1] if not re.fullmatch(rf"(?:{verdicts.NOUNS})s?", word)]
    return not any(_ABOUT_AN_ANSWER.fullmatch(word) or VERDICT_LIKE.fullmatch(word) for word in before)


def _marked(snake: str) -> tuple[str, str, str] | None:
    """A name that belongs to one answer: its role if it has one, the rest of the name, and the mark."""
    if match := _INSIDE.fullmatch(snake):
        rest = match.group(3)
        return ("source" if rest in ("source", "model") else "", match.group(1) + rest, _mark(match.group(2)))
    for role, pattern in (("source", _SOURCE), ("rank", _RANK), ("", _MARKED)):
        if match := pattern.fullmatch(snake):
            return role, "" if role else match.group(1), _mark(match.groups()[-1])
    return None


def _mark(mark: str) -> str:
    return mark.lstrip("0") or "0"


def _by_number(mark: str) -> tuple[int, str]:
    return (int(mark), "") if mark.isdigit() else (0, mark)


def _place_of_mark(mark: str, marks: Sequence[str], siblings: Sequence[str]) -> int | None:
    """The place of the answer that a mark belongs to; `siblings` are the marks of the columns like it."""
    if mark in marks:
        return marks.index(mark)
    if mark.isdigit():
        first = 0 if "0" in siblings else 1
        place = int(mark) - first
    else:
        place = ord(mark) - ord("a")
    return place if 0 <= place < len(marks) and marks[0].isdigit() != mark.isdigit() else None


def _is_number(value: Any) -> bool:
    return isinstance(fields.number(value), (int, float)) and not isinstance(value, bool)


def _is_negative(value: Any) -> bool:
    number = fields.number(value)
    return isinstance(number, (int, float)) and number < 0


def _is_time(column: FileColumn) -> bool:
    values = column.distinct or ([column.example] if column.rows else [])
    try:
        for value in values:
            if _is_number(value) and abs(float(value)) < 1e8:
                return False
            fields.moment(value, column.name)
    except FieldError:
        return False
    return bool(values)


def renamed(row: Row, columns: Mapping[str, str]) -> Row:
    """Return the row with its columns under our names; in nested formats those of `data` and `fields`, too.

    A role that several columns may have becomes a mapping of their names to their values.
    """
    if not columns:
        return row
    values = _with_names(row, columns, "")
    for inner in INNER:
        if isinstance(values.get(inner), dict):
            values[inner] = _with_names(values[inner], columns, f"{inner}.")
    return values


def _with_names(row: Row, columns: Mapping[str, str], prefix: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    given = {name: columns.get(prefix + name, "") for name in row}
    roles = set(given.values())
    for name, value in row.items():
        role = given[name]
        if role in (METADATA, LEAVE_OUT):
            continue
        if role in MANY or role.startswith("rating_"):
            if value not in (None, ""):
                values.setdefault(role, {})[name] = value
        elif role:
            values[role] = value
        elif name not in roles:
            values[name] = value
    return values


@lru_cache(maxsize=256)
def _roles_by_name(names: tuple[str, ...]) -> Roles:
    guess = _Guess({name: FileColumn(name) for name in names}, {}, {})
    guess.answers()
    guess.singles()
    guess.numbered()
    return guess.roles()


def by_name(row: Row) -> tuple[Row, Roles]:
    """Return a part of a nested row under our names, and the roles of its columns: by their names alone."""
    roles = _roles_by_name(tuple(row))
    return _with_names(row, roles.columns, ""), roles

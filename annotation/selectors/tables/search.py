"""Full-text search: every word of the query begins a word of the text. An index of the database serves it."""

import json
import random
import re
from collections.abc import Iterable, Set
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, TypeVar, cast

from django.contrib.postgres.search import SearchQuery, SearchVectorField
from django.db import DEFAULT_DB_ALIAS, connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Case, F, Func, Model, Q, QuerySet, When
from django.db.models.expressions import RawSQL

from annotation.models import Project, Prompt

# ruff: noqa: S608 - the names in the statements are those of WORD_INDEXES


# Word indexes of SQLite (FTS5): which rows hold a word that begins so. PostgreSQL has indexes of its own.
#
# An index keeps words and row numbers, not the text. Triggers keep it up to date. Django rebuilds a table
# when a migration changes a column, and its triggers are lost: after every `migrate` they are looked for, and
# an index whose triggers were lost is filled again. No text of a user is part of a statement here.


@dataclass(frozen=True)
class WordIndex:
    """The index of one column. is_json: the column holds a JSON value; its strings are the text."""

    table: str
    column: str
    is_json: bool = False

    @property
    def name(self) -> str:
        """The table of the index."""
        return f"{self.table}_{self.column}_words"

    def text_of(self, row: str) -> str:
        """Return the SQL of a row's text; `row` is "new", "old" or the table."""
        if self.is_json:
            strings = f"json_tree({row}.{self.column}) WHERE type = 'text'"
            return f"(SELECT group_concat(atom, char(10)) FROM {strings})"
        return f"{row}.{self.column}"


WORD_INDEXES = (
    WordIndex("annotation_prompt", "messages", is_json=True),
    WordIndex("annotation_completion", "text"),
    WordIndex("annotation_judgment", "comment"),
)


def index_of(connection: BaseDatabaseWrapper, table: str, column: str) -> WordIndex | None:
    """Return the index of a column; None where it has none, as in a SQLite that was built without FTS5."""
    for index in WORD_INDEXES:
        if (index.table, index.column) == (table, column):
            return index if _exists(connection, "table", index.name) else None
    return None


def ensure_word_indexes(*, using: str = DEFAULT_DB_ALIAS, **_signal: Any) -> None:
    """Make the indexes of SQLite and their triggers where they are missing, and fill them."""
    connection = connections[using]
    if connection.vendor != "sqlite" or not _has_fts5(connection):
        return
    for index in WORD_INDEXES:
        if _exists(connection, "table", index.table):
            _ensure(connection, index)


def _ensure(connection: BaseDatabaseWrapper, index: WordIndex) -> None:
    triggers = _triggers(index)
    if _exists(connection, "table", index.name) and all(
        _exists(connection, "trigger", name) for name in triggers
    ):
        return
    with connection.cursor() as cursor:
        cursor.execute(
            f"CREATE VIRTUAL TABLE IF NOT EXISTS {index.name} USING fts5("
            "words, content='', prefix='2 3', tokenize='unicode61 remove_diacritics 0')"
        )
        for trigger in triggers.values():
            cursor.execute(trigger)
        cursor.execute(f"INSERT INTO {index.name}({index.name}) VALUES ('delete-all')")
        texts = f"SELECT id, {index.text_of(index.table)} FROM {index.table}"
        cursor.execute(f"INSERT INTO {index.name}(rowid, words) {texts}")


def _triggers(index: WordIndex) -> dict[str, str]:
    """Return the statements that make the triggers, by their names."""
    name, column = index.name, index.column
    add = f"INSERT INTO {name}(rowid, words) VALUES (new.id, {index.text_of('new')});"
    # An index without content removes the words that the statement names.
    remove = f"INSERT INTO {name}({name}, rowid, words) VALUES ('delete', old.id, {index.text_of('old')});"
    events = {
        "added": ("INSERT", add),
        "removed": ("DELETE", remove),
        "changed": (f"UPDATE OF {column}", remove + add),
    }
    return {
        f"{name}_{event}": f"CREATE TRIGGER IF NOT EXISTS {name}_{event} AFTER {when} ON {index.table} "
        f"BEGIN {statements} END"
        for event, (when, statements) in events.items()
    }


def _exists(connection: BaseDatabaseWrapper, kind: str, name: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM sqlite_master WHERE type = %s AND name = %s", [kind, name])
        return cursor.fetchone() is not None


def _has_fts5(connection: BaseDatabaseWrapper) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT sqlite_compileoption_used('ENABLE_FTS5')")
        return bool(cursor.fetchone()[0])


Row = TypeVar("Row", bound=Model)

FEW = 5000
"""Up to so many rows that meet a condition are listed first, and their pages are sorted from the list."""

_SAMPLE, _COMMON = 200, 10
_MOST_WORDS = 12
_WORD = re.compile(r"\w+")
_WITHOUT_SPACES = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
"""Letters of languages without spaces between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese."""


class _Words(Func):
    """The words of a column, as the index of migration 0021 (annotation) holds them."""

    template = "to_tsvector('simple', %(expressions)s)"
    output_field = SearchVectorField()


def matching(
    rows: QuerySet[Row], text: str, *, column: str, of: type[Model] | None = None, path: str = ""
) -> tuple[QuerySet[Row], bool]:
    """Return the rows of which a text has words that begin with those of `text`; without a word in it, all.

    And True where they lie far from each other: their keys are to be collected and sorted for a page.
    of, column: the model and its column with the text (or a JSON value with texts); the rows' own where `of`
    is left out. path: the field of the rows that leads there. On SQLite, words of languages without spaces
    are looked for anywhere in a text.
    """
    words = _WORD.findall(text.replace("\0", " "))[:_MOST_WORDS]
    if not words:
        return rows, False
    field = f"{path}__{column}" if path else column
    if connection.vendor == "postgresql":
        query = SearchQuery(" & ".join(f"{word}:*" for word in words), search_type="raw", config="simple")
        texts = (of or rows.model)._default_manager.all()
        if is_common(_walked(texts, column, query)):
            return _walked(rows, field, query), False
        few = few_of(texts.alias(words_=_Words(F(column))).filter(words_=query))
        if few is not None:
            return rows.filter(**{f"{path or 'pk'}__in": few}), False
        return cast("QuerySet[Row]", rows.alias(words_=_Words(F(field)))).filter(words_=query), True
    table = (of or rows.model)._meta.db_table
    index = index_of(connection, table, column)
    if index is not None and not _WITHOUT_SPACES.search("".join(words)):
        return rows.filter(**{f"{path or 'pk'}__in": _rows_of(index, words)}), True
    for word in words:
        spellings = {word, json.dumps(word)[1:-1]}
        rows = rows.filter(reduce(or_, (Q(**{f"{field}__icontains": spelling}) for spelling in spellings)))
    return rows, True


def _rows_of(index: WordIndex, words: list[str]) -> RawSQL:
    """Return the numbers of the rows that SQLite's index finds. Words are letters, digits and underscores."""
    query = " ".join(f'"{word}"*' for word in words)
    return RawSQL(f"SELECT rowid FROM {index.name} WHERE {index.name} MATCH %s", [query])  # noqa: S611


def _walked(rows: QuerySet[Row], field: str, query: SearchQuery) -> QuerySet[Row]:
    """Return the rows that match, not by the index.

    In a CASE, as PostgreSQL then expects many rows and walks: it takes several words to be rare.
    """
    hit = Case(When(words_=query, then=True), default=False)
    walked = rows.alias(words_=_Words(F(field))).alias(hit_=hit).filter(hit_=True)
    return cast("QuerySet[Row]", walked)


def is_common(matches: QuerySet[Any]) -> bool:
    """Return True where many rows match among the newest and among all: a walk soon fills a page.

    Listing all that match takes long then. Where they lie together, far from the newest, a walk does.
    """
    newest = matches.model._default_manager.order_by("-pk").values_list("pk", flat=True).first() or 0
    drawn = random.sample(range(1, newest + 1), min(newest, _SAMPLE))
    samples = (Q(pk__gt=newest - _SAMPLE), Q(pk__in=drawn))
    return all(
        len(matches.order_by().filter(sample).values_list("pk", flat=True)[:_COMMON]) == _COMMON
        for sample in samples
    )


def few_of(matches: QuerySet[Any]) -> list[int] | None:
    """Return the primary keys of `matches`, or None where they are more than `FEW`.

    A page of a table ends after 50 rows. PostgreSQL expects to meet so many soon when it walks the table by
    age, which is so for a condition that many rows meet, and takes minutes for one that few do.
    """
    pks = list(matches.order_by().values_list("pk", flat=True)[: FEW + 1])
    return None if len(pks) > FEW else pks


# Prompts of a project that say almost the same.

COMPARED = 5_000
"""So many of a project's newest prompts are compared."""
SIMILAR = 0.5
"""Jaccard similarity of two prompts' shingles from which on they are shown as near-duplicates."""
_SHOWN = 10
_READ = 4_000
"""So many characters at the end of a chat are compared."""
_SHINGLE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class NearDuplicate:
    """Another prompt, and the share of shingles that both have."""

    prompt: Prompt
    similarity: float

    @property
    def percent(self) -> int:
        """Return the similarity as a whole number of percent."""
        return round(100 * self.similarity)


def shingles(text: str) -> Set[str]:
    """Return the runs of three words of `text`, without case and punctuation; of fewer words, all of them."""
    words = _WORD.findall(text[-_READ:].casefold())
    if len(words) < _SHINGLE:
        return {" ".join(words)} if words else set()
    return {" ".join(words[start : start + _SHINGLE]) for start in range(len(words) - _SHINGLE + 1)}


def near_duplicates(
    project: Project, messages: Iterable[dict[str, str]], *, besides: Prompt | None = None
) -> list[NearDuplicate]:
    """Return the project's prompts that are most like `messages`, the most similar first.

    Similarity is that of Jaccard over shingles of three words (Broder 1997). The newest `COMPARED` prompts
    are compared; `besides` is left out.
    """
    prompt_shingles = shingles(_text(messages))
    if not prompt_shingles:
        return []
    rows = project.prompts.order_by("-pk")
    if besides is not None:
        rows = rows.exclude(pk=besides.pk)
    similar: list[tuple[float, int]] = []
    for pk, other in rows.values_list("pk", "messages")[:COMPARED]:
        other_shingles = shingles(_text(other))
        similarity = len(prompt_shingles & other_shingles) / len(prompt_shingles | other_shingles)
        if similarity >= SIMILAR:
            similar.append((similarity, pk))
    similar.sort(key=lambda entry: (-entry[0], entry[1]))
    prompts = project.prompts.in_bulk([pk for _similarity, pk in similar[:_SHOWN]])
    return [NearDuplicate(prompt=prompts[pk], similarity=value) for value, pk in similar[:_SHOWN]]


def _text(messages: Iterable[dict[str, str]]) -> str:
    return "\n".join(message["content"] for message in messages if message["role"] != "system")

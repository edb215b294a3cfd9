"""Queries whose SQL is written once and then only run: for what every label asks.

Django writes the SQL of a query each time that it is asked, which takes it several times as long as
a database takes to answer from an index. A label asks some twenty such questions. Here a query is
built once for each connection, with parameters where its values go, and run with the values.

    _HELD = Prepared(lambda p: Assignment.objects.filter(annotator=p("annotator"), state="leased"))
    _HELD.all(annotator=annotator.pk)

Everything else about the query must be the same each time: a condition that comes and goes is two
queries. What is asked rarely is better asked in the plain way.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from django.db import DEFAULT_DB_ALIAS, connections, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Value, sql
from django.db.models.query import get_related_populators
from django.db.models.sql.compiler import SQLCompiler

from annotation.together import Statement

Row = TypeVar("Row")
Name = Callable[..., "Parameter"]


class Parameter(Value):
    """Where a value goes; `output_field` says how the database takes it."""

    def __init__(self, name: str, output_field: "models.Field[Any, Any] | None" = None) -> None:
        super().__init__(None, output_field=output_field or models.IntegerField())
        self.name = name

    def as_sql(self, compiler: SQLCompiler, connection: Any) -> tuple[str, list[Any]]:  # type: ignore[override]
        return "%s", [self]

    def taken(self, values: Mapping[str, Any], connection: BaseDatabaseWrapper) -> Any:
        """The value under this name, as the database takes it."""
        return self.output_field.get_db_prep_value(values[self.name], connection=connection)


class _Prepared:
    """One statement, written anew for every connection."""

    def _write(self, connection: BaseDatabaseWrapper) -> Any:
        raise NotImplementedError

    def _written(self, connection: BaseDatabaseWrapper) -> Any:
        # Kept on the connection: each thread has its own, and what converts values belongs to it.
        kept: dict[_Prepared, Any] = vars(connection).setdefault("rondo_prepared", {})
        if self not in kept:
            kept[self] = self._write(connection)
        return kept[self]


@dataclass(frozen=True, slots=True)
class _Reading:
    """A query as SQL, and how its rows become what the ORM would have made of them."""

    sql: str
    parameters: Sequence[Any]
    converters: Sequence[tuple[int, Sequence[Callable[..., Any]], Any]]
    model: Any
    """The class of the objects; None for a query for values."""
    names: Sequence[str]
    first: int
    last: int
    populators: Sequence[Any]
    annotations: Mapping[str, int]


class Prepared(_Prepared, Generic[Row]):
    """A query that reads. The queryset is what `build` makes of names of parameters."""

    def __init__(self, build: Callable[[Name], "models.QuerySet[Any, Row]"]) -> None:
        self._build = build

    def asking(self, **values: Any) -> Statement[list[Row]]:
        """The question with its values, to be sent; its answer is the rows as objects."""
        connection, reading, taken = self._filled(values)

        def read(cursor: Any) -> list[Row]:
            found = []
            for row in _converted(reading, cursor, connection):
                one = reading.model.from_db(
                    DEFAULT_DB_ALIAS, reading.names, row[reading.first : reading.last]
                )
                for populator in reading.populators:
                    populator.populate(row, one)
                for name, place in reading.annotations.items():
                    setattr(one, name, row[place])
                found.append(one)
            return found

        return Statement(reading.sql, taken, read)

    def asking_rows(self, **values: Any) -> Statement[list[tuple[Any, ...]]]:
        """`asking`, for a query for values and not for objects."""
        connection, reading, taken = self._filled(values)
        return Statement(
            reading.sql,
            taken,
            lambda cursor: [tuple(row) for row in _converted(reading, cursor, connection)],
        )

    def all(self, **values: Any) -> list[Row]:
        """The rows as objects."""
        return self.asking(**values).run()

    def first(self, **values: Any) -> Row | None:
        """The first row as an object; the query should ask for no more than one."""
        found = self.all(**values)
        return found[0] if found else None

    def rows(self, **values: Any) -> list[tuple[Any, ...]]:
        """The rows of a query for values, not for objects."""
        return self.asking_rows(**values).run()

    def _filled(self, values: Mapping[str, Any]) -> tuple[BaseDatabaseWrapper, _Reading, tuple[Any, ...]]:
        connection = connections[DEFAULT_DB_ALIAS]
        reading: _Reading = self._written(connection)
        return connection, reading, _taken(reading.parameters, values, connection)

    def _write(self, connection: BaseDatabaseWrapper) -> _Reading:
        compiler = self._build(Parameter).query.get_compiler(connection=connection)
        text, parameters = compiler.as_sql()
        found = compiler.get_converters([one[0] for one in compiler.select[: compiler.col_count]])
        about = compiler.klass_info
        fields = about["select_fields"] if about else [0]
        chosen = slice(fields[0], fields[-1] + 1)
        return _Reading(
            sql=text,
            parameters=tuple(parameters),
            converters=[(place, *converters) for place, converters in found.items()],
            model=about["model"] if about else None,
            names=[one[0].target.attname for one in compiler.select[chosen]] if about else (),
            first=chosen.start,
            last=chosen.stop,
            populators=get_related_populators(about, compiler.select, DEFAULT_DB_ALIAS) if about else (),  # type: ignore[call-arg]  # the stubs are those of Django 6
            annotations=compiler.annotation_col_map or {},
        )


class _PreparedWrite(_Prepared):
    def __call__(self, **values: Any) -> int:
        """Run it; how many rows it met."""
        return self._saying(values).run()

    def soon(self, **values: Any) -> None:
        """Run it with what comes next, where nobody needs to know how many rows it met (`gathered`)."""
        self._saying(values).soon()

    def _saying(self, values: Mapping[str, Any]) -> Statement[int]:
        connection = connections[DEFAULT_DB_ALIAS]
        text, parameters = self._written(connection)
        return Statement(text, _taken(parameters, values, connection), _rows_met, writes=True)


class PreparedUpdate(_PreparedWrite):
    """An UPDATE of one table. `build` makes the rows that it is about, and their new values by field."""

    def __init__(self, build: Callable[[Name], "tuple[models.QuerySet[Any], Mapping[str, Any]]"]) -> None:
        self._build = build

    def _write(self, connection: BaseDatabaseWrapper) -> Any:
        rows, changed = self._build(Parameter)
        query: Any = rows.query.chain(sql.UpdateQuery)
        query.add_update_values(changed)
        query.clear_select_clause()
        return query.get_compiler(connection=connection).as_sql()


class PreparedDelete(_PreparedWrite):
    """A DELETE from one table, of rows that nothing hangs on and of whose end nobody is told."""

    def __init__(self, build: "Callable[[Name], models.QuerySet[Any]]") -> None:
        self._build = build

    def _write(self, connection: BaseDatabaseWrapper) -> Any:
        query = self._build(Parameter).query.chain(sql.DeleteQuery)
        return query.get_compiler(connection=connection).as_sql()


class PreparedInsert(_Prepared, Generic[Row]):
    """An INSERT of whole new rows of one model. No signal tells of them, and no `save` is called."""

    def __init__(self, model: type[Row]) -> None:
        self._model: Any = model

    def __call__(self, rows: Sequence[Row]) -> None:
        """Write the rows, in one statement, and let each know its key."""
        if not rows:
            return
        objects: Sequence[Any] = rows
        for one, (key,) in zip(objects, self._saying(rows).run(), strict=True):
            one.pk = key
            one._state.adding, one._state.db = False, DEFAULT_DB_ALIAS

    def soon(self, rows: Sequence[Row]) -> None:
        """Write the rows with what comes next, where nobody needs to know their keys (`gathered`)."""
        if rows:
            self._saying(rows).soon()

    def _saying(self, rows: Sequence[Any]) -> Statement[list[tuple[Any, ...]]]:
        connection = connections[DEFAULT_DB_ALIAS]
        written: dict[int, str] = self._written(connection)
        if len(rows) not in written:
            written[len(rows)] = self._text(connection, len(rows))
        values = [
            field.get_db_prep_save(field.pre_save(one, True), connection)
            for one in rows
            for field in self._fields()
        ]
        return Statement(written[len(rows)], values, lambda cursor: cursor.fetchall(), writes=True)

    def _fields(self) -> list[Any]:
        return [field for field in self._model._meta.concrete_fields if not field.primary_key]

    def _write(self, connection: BaseDatabaseWrapper) -> dict[int, str]:
        """Number of rows → SQL; filled as it is needed."""
        return {}

    def _text(self, connection: BaseDatabaseWrapper, number: int) -> str:
        # By hand: for several rows Django writes on PostgreSQL a statement that takes columns as arrays.
        quoted = connection.ops.quote_name
        meta = self._model._meta
        columns = [quoted(field.column) for field in self._fields()]
        row = f"({', '.join(['%s'] * len(columns))})"
        return (
            f"INSERT INTO {quoted(meta.db_table)} ({', '.join(columns)}) "  # noqa: S608 - names of ours
            f"VALUES {', '.join([row] * number)} RETURNING {quoted(meta.pk.column)}"
        )


def _taken(
    parameters: Sequence[Any], values: Mapping[str, Any], connection: BaseDatabaseWrapper
) -> tuple[Any, ...]:
    return tuple(one.taken(values, connection) if isinstance(one, Parameter) else one for one in parameters)


def _converted(reading: _Reading, cursor: Any, connection: BaseDatabaseWrapper) -> list[list[Any]]:
    rows = [list(row) for row in cursor.fetchall()]
    for place, converters, expression in reading.converters:
        for row in rows:
            for convert in converters:
                row[place] = convert(row[place], expression, connection)
    return rows


def _rows_met(cursor: Any) -> int:
    met: int = cursor.rowcount
    return met

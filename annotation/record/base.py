"""Records: frozen dataclasses that pydantic checks when they are built and when they are read from JSON.

A field's annotation gives its allowed values, the sentence under it its meaning; the recipe's form and the
error messages use both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, fields
from difflib import get_close_matches
from typing import Annotated, Any, TypeVar, dataclass_transform, get_args, get_type_hints

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError, WrapValidator
from pydantic.dataclasses import dataclass
from pydantic_core import ErrorDetails, PydanticCustomError, to_json

T = TypeVar("T")
Problem = tuple[tuple[str, ...], str]
"""Names that lead to a field, and what is wrong with it and what to do."""


class ContractError(ValueError):
    """A file of the contract, or a record, that its reader cannot accept."""

    problems: tuple[Problem, ...] = ()
    """The wrong fields, if the error is about fields."""

    @classmethod
    def of(cls, problems: list[Problem], where: str = "") -> ContractError:
        """Return the error that lists `problems`, beginning with `where`."""
        lines = [": ".join(filter(None, (", ".join(path), problem))) for path, problem in problems]
        separator = ", " if problems[0][0] else ": "
        error = cls(separator.join(filter(None, (where, "; ".join(lines)))))
        error.problems = tuple(problems)
        return error


def require(condition: bool, where: str, remedy: str) -> None:
    """Raise `ContractError` with `where` and the remedy, unless `condition` holds."""
    if not condition:
        raise ContractError.of([(tuple(where.split(", ")), remedy)])


def _check_only(value: Any, check: Callable[[Any], Any]) -> Any:
    check(value)
    return value


AS_WRITTEN = WrapValidator(_check_only)
"""Keeps an integer that stands where a number is asked for: a file is written as its settings were."""
Number = Annotated[float, AS_WRITTEN]
Positive = Annotated[float, Field(gt=0), AS_WRITTEN]
NotNegative = Annotated[float, Field(ge=0), AS_WRITTEN]
Fraction = Annotated[float, Field(ge=0, lt=1), AS_WRITTEN]
UnitInterval = Annotated[float, Field(ge=0, le=1), AS_WRITTEN]
Figure = Annotated[float, Field(allow_inf_nan=True), AS_WRITTEN]
"""A measured number, which need not be finite."""
Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]
Text = Annotated[str, Field(min_length=1)]


def one_of(*values: str) -> AfterValidator:
    """Return the check of a text that must be one of these; a choice of the same value passes as its text."""

    def check(value: str) -> str:
        if value not in values:
            *most, last = (repr(allowed) for allowed in values)
            raise PydanticCustomError("literal_error", "", {"expected": f"{', '.join(most)} or {last}"})
        return str(value)

    return AfterValidator(check)


_CONFIG = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """Make a class a record, whose constructor raises `ContractError` for values its annotations refuse.

    Strict: neither "3" nor true passes for a number.
    """
    made: Any = dataclass(frozen=True, kw_only=True, slots=True, config=_CONFIG)(cls)
    build = made.__init__

    def __init__(self: Any, **values: Any) -> None:  # noqa: N807 - replaces the constructor of `made`
        try:
            build(self, **values)
        except ValidationError as error:
            raise _translated(error, made) from None

    made.__init__ = functools.wraps(build)(__init__)
    return made  # type: ignore[no-any-return]


def decode(cls: type[T], values: Any, where: str = "") -> T:
    """Build a record from decoded JSON or from `asdict`. Raises `ContractError`, beginning with `where`."""
    text = to_json(values, inf_nan_mode="constants", fallback=repr)
    try:
        decoded: T = _adapter(cls).validate_json(text)  # type: ignore[arg-type]
    except ValidationError as error:
        raise _translated(error, cls, where) from None
    return decoded


_adapter = functools.cache(TypeAdapter[Any])


def require_type(value: Any, hint: Any, where: str) -> None:
    """Raise `ContractError` for a value that a type hint refuses; `where` leads to it."""
    config = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
    try:
        TypeAdapter(hint, config=config).validate_python(value)
    except ValidationError as error:
        raise _translated(error, None, where) from None


def _translated(error: ValidationError, cls: Any, where: str = "") -> ContractError:
    """Return the project's error for pydantic's; `cls` is the record that was built."""
    errors = error.errors(include_url=False)
    places = [item["loc"] for item in errors]
    problems: list[Problem] = []
    for item in errors:
        # A list whose items are refused counts as too short as well: the items' problems are enough.
        inner = (place for place in places if place[: len(item["loc"])] == item["loc"] != place)
        if item["type"] != "too_short" or not any(inner):
            problems += _problems(item, cls)
    return ContractError.of(problems, where)


def _problems(error: ErrorDetails, cls: Any) -> Iterator[Problem]:
    kind, place, context = error["type"], error["loc"], error.get("ctx", {})
    path = tuple(step if isinstance(step, str) else f"item {step + 1}" for step in place)
    if kind == "value_error":
        cause = context["error"]
        for inner, problem in getattr(cause, "problems", ()) or [((), str(cause))]:
            yield (*path, *inner), problem
    elif kind == "unexpected_keyword_argument":
        yield path[:-1], _unknown(path[-1], _hint_at(cls, place[:-1]))
    elif kind == "missing":
        yield path, "the field is missing"
    else:
        or_null = " or null" if type(None) in get_args(_hint_at(cls, place)) else ""
        yield path, f"{_expected(kind, context)}{or_null}, not {error['input']!r}"


_EXPECTED = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "string_type": "must be a text",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "dataclass_type": "must be an object",
    "dataclass_exact_type": "must be an object",
    "literal_error": "must be {expected}",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be above {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be below {lt}",
    "too_short": "must not be empty",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match {pattern}",
}
"""The expected value, by pydantic's error type."""


def _expected(kind: str, context: Mapping[str, Any]) -> str:
    if kind == "greater_than" and context["gt"] == 0:
        return "must be positive"
    if kind == "greater_than_equal" and context["ge"] == 0:
        return "must not be negative"
    return _EXPECTED.get(kind, f"is refused ({kind})").format_map(
        {name: f"{value:g}" if isinstance(value, float) else value for name, value in context.items()}
    )


def _unknown(name: str, hint: Any) -> str:
    names = sorted(field.name for field in fields(record_in(hint)))
    near = get_close_matches(name, names, n=1)
    remedy = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}"
    return f"unknown field {name!r}; {remedy}"


def _hint_at(cls: Any, place: tuple[int | str, ...]) -> Any:
    """Return the type hint of the field that a path leads to."""
    hint = cls
    for step in place:
        if isinstance(step, str) and (inner := record_in(hint)) is not None:
            hint = get_type_hints(inner).get(step)
    return hint


def record_in(hint: Any) -> Any:
    """Return the record in a type hint, alone, optional or as a tuple's item; None without one."""
    if hasattr(hint, "__dataclass_fields__"):
        return hint
    return next((inner for arg in get_args(hint) if (inner := record_in(arg)) is not None), None)

"""Assertions on refusals: by code and values, never by sentence."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from annotation.errors import Refusal


@contextmanager
def refused(
    code: str, kind: type[Exception] = Refusal, /, **params: object
) -> Iterator[pytest.ExceptionInfo[Any]]:
    """Assert that the block is refused with this code, and with these values in its sentence.

    kind: a class of refusals, or of the error that a refusal became (`CommandError`).
    params: values by placeholder, compared as they are written; `field` compares the field.
    """
    with pytest.raises(kind) as raised:
        yield raised
    refusal = raised.value if isinstance(raised.value, Refusal) else raised.value.__cause__
    assert isinstance(refusal, Refusal)
    assert refusal.code == code, f"{refusal.code}: {refusal.message}"
    known = {"field": refusal.field, **refusal.params}
    assert {name: str(known.get(name)) for name in params} == {k: str(v) for k, v in params.items()}

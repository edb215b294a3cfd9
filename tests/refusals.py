"""Assertions on refusals: by code and values, never by sentence."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from annotation.errors import Refusal


@contextmanager
def refused(
    code: str, kind: type[Refusal] = Refusal, /, **params: object
) -> Iterator[pytest.ExceptionInfo[Refusal]]:
    """Assert that the block is refused with this code, and with these values in its sentence.

    params: values by placeholder, compared as they are written; `field` compares the field.
    """
    with pytest.raises(kind) as raised:
        yield raised
    refusal = raised.value
    assert refusal.code == code, f"{refusal.code}: {refusal.message}"
    known = {"field": refusal.field, **refusal.params}
    assert {name: str(known.get(name)) for name in params} == {k: str(v) for k, v in params.items()}

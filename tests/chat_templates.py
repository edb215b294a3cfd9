"""The chat templates of models' makers, as TRL (Apache-2.0), a dependency of the tests, ships them."""

from importlib.util import find_spec
from pathlib import Path


def template(name: str) -> str:
    """A template by the name of its file. TRL itself, which takes seconds, is not imported."""
    spec = find_spec("trl")
    assert spec is not None
    assert spec.origin is not None
    return (Path(spec.origin).parent / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")

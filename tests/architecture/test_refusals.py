"""Refusals, each with a code and a whole sentence marked for translation, and the pages written from code."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from webapp.guide.generated import (
    ROOT,
    RefusalCall,
    documents,
    is_translated,
    modules,
    refusal_calls,
    refusal_classes,
    sentences,
)

_SHOWN = {
    *("AuthenticationFailed", "NotFound", "ParseError", "PermissionDenied", "ValidationError"),
    *("CommandError", "EngineError", "EngineUnavailableError"),
}
"""Other errors whose words a person reads: of forms, of the API, of commands, of a model server's answer."""


def unmarked(node: ast.AST) -> Iterator[str]:
    """Yield the words of an expression that stand outside of a marked sentence."""
    if is_translated(node):
        return
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str) and re.search(r"[A-Za-z]{2}", node.value):
            yield node.value
        return
    if isinstance(node, ast.Dict):  # the keys are names of fields
        for value in node.values:
            yield from unmarked(value)
        return
    if isinstance(node, ast.Subscript):  # the name of a key is no word
        yield from unmarked(node.value)
        return
    for child in ast.iter_child_nodes(node):
        yield from unmarked(child)


def fragments(node: ast.AST) -> Iterator[str]:
    """Yield the words of ours that an expression puts into a sentence as a value."""
    if is_translated(node):
        yield ast.unparse(node)
    elif isinstance(node, ast.Constant):
        # An option and its value are no words.
        if isinstance(node.value, str) and re.search(r"^(?!--)[^=]*[A-Za-z]{2}[^=]*$", node.value):
            yield node.value
    elif isinstance(node, ast.IfExp):
        yield from fragments(node.body)
        yield from fragments(node.orelse)
    elif isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from fragments(value)
    elif isinstance(node, ast.JoinedStr):
        for part in node.values:
            yield from fragments(part)


def _name(function: ast.expr) -> str:
    return getattr(function, "attr", getattr(function, "id", ""))


def faults(path: Path, module: ast.Module) -> Iterator[str]:
    """Yield the refusals of a module without a code, without a marked sentence, or put together."""
    for call in refusal_calls(module):
        yield from (f"{path}:{getattr(call.code, 'lineno', 0)}: {fault}" for fault in faults_of(call))
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and _name(node.func) in _SHOWN:
            for words in (words for argument in node.args for words in unmarked(argument)):
                yield f"{path}:{node.lineno}: not marked: {words!r}"
        for value in filled_in(node):
            yield from (f"{path}:{value.lineno}: put together with {words}" for words in fragments(value))


def faults_of(call: RefusalCall) -> Iterator[str]:
    """Yield what is wrong with one refusal."""
    if call.code is None or call.message is None:
        yield "a refusal has a code and a sentence"
        return
    if isinstance(call.code, ast.Constant) and not re.fullmatch(r"[a-z][a-z0-9_]*", str(call.code.value)):
        yield f"{call.code.value!r} is no code"
    yield from (f"not marked: {words!r}" for words in unmarked(call.message))
    given = {parameter.arg for parameter in call.params}
    if call.callee in refusal_classes() and is_translated(call.message) and None not in given:
        placeholders = {name for text in sentences(call) for name in re.findall(r"%\((\w+)\)", text)}
        if placeholders != given:
            yield f"placeholders {placeholders}, values {given}"
    for parameter in call.params:
        if parameter.arg is not None:
            yield from (f"put together with {words}" for words in fragments(parameter.value))


def filled_in(node: ast.AST) -> list[ast.expr]:
    """Return the values that an expression puts into a marked sentence with `%`."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and is_translated(node.left)):
        return []
    return node.right.values if isinstance(node.right, ast.Dict) else [node.right]


def test_every_refusal_has_a_code_and_a_whole_sentence_marked_for_translation():
    found = [fault for path, module in modules().items() for fault in faults(path.relative_to(ROOT), module)]
    assert found == []


def test_the_generated_pages_are_those_that_the_code_gives():
    for path, text in documents().items():
        assert path.read_text(encoding="utf-8") == text, "run .venv/bin/python .ci/reference.py"

"""Refusals: each has a code, and a whole sentence that is marked for translation."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from webapp.guide.generated import (
    ROOT,
    RefusalCall,
    codes,
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


def faults(path: Path, module: ast.Module) -> Iterator[str]:
    """Yield the refusals of a module without a code, without a marked sentence, or put together."""
    for call in refusal_calls(module):
        yield from (f"{path}:{getattr(call.code, 'lineno', 0)}: {fault}" for fault in faults_of(call))
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _SHOWN:
            for words in (words for argument in node.args for words in unmarked(argument)):
                yield f"{path}:{node.lineno}: not marked: {words!r}"
        for value in filled_in(node):
            yield from (f"{path}:{value.lineno}: put together with {words}" for words in fragments(value))
    yield from handed_on(path, module)


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


def handed_on(path: Path, module: ast.Module) -> Iterator[str]:
    """Yield the words that a call gives to a function that puts them into a sentence."""
    functions = _functions_of_the_program() | dict(_inserting(module))
    for node in ast.walk(module):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in functions):
            continue
        names, inserted = functions[node.func.id]
        given = [*zip(names, node.args, strict=False), *((word.arg, word.value) for word in node.keywords)]
        for value in (value for name, value in given if name in inserted):
            yield from (f"{path.name}:{node.lineno}: put together with {words}" for words in fragments(value))


Inserting = tuple[list[str], set[str]]
"""The positional parameters of a function, and those that it puts into a sentence."""


@cache
def _functions_of_the_program() -> dict[str, Inserting]:
    """Return the functions whose name occurs once in the program."""
    found = [item for module in modules().values() for item in _inserting(module)]
    times = Counter(name for name, _parameters in found)
    return {name: parameters for name, parameters in found if times[name] == 1}


def _inserting(module: ast.Module) -> Iterator[tuple[str, Inserting]]:
    for function in module.body:
        if isinstance(function, ast.FunctionDef):
            names = [argument.arg for argument in function.args.args]
            yield function.name, (names, set(_inserted(function)))


def _inserted(function: ast.FunctionDef) -> Iterator[str]:
    parameters = {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)}
    values = [word.value for call in refusal_calls(function) for word in call.params]
    values += [value for node in ast.walk(function) for value in filled_in(node)]
    yield from (value.id for value in values if isinstance(value, ast.Name) and value.id in parameters)


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('raise Refusal("round_open", _("%(round)s is open."), round=round_)', 0),
        ('raise FieldError("list_empty", _("The list is empty."), field=f"{where}.name")', 0),
        ('raise FieldError("text_expected", f"A text is expected, not {value}.", field="x")', 1),
        ('raise FieldError("text_expected", _("A text is expected, not %(value)s."), value="an object")', 1),
        ('raise Refusal("recipe_invalid", str(error), field="recipe")', 0),
        ('raise Refusal("round_open", _("%(round)s is open."), name=round_)', 1),
        ('raise Refusal("round_open", "The round is open.")', 1),
        ('raise Refusal("round_open", f"{round_} is open.")', 1),
        ('raise Refusal("round_open", _("It is open.") or "Closed.")', 1),
        ('raise NotAllowed(_("Only a manager opens rounds."))', 1),
        ('raise ValidationError({"name": ["Choose a name."]})', 1),
        ('raise ValidationError({"name": [_("Choose a name.")]})', 0),
        ('raise Refusal("Round-Open", _("It is open."))', 1),
        ('raise Refusal("unknown", _("The %(what)s is unknown."), what="rating")', 1),
        ('raise Refusal("unknown", _("The %(what)s is unknown."), what=_("rating") if a else b)', 1),
        ('message = _("The %(what)s is unknown.") % {"what": _("rating")}', 1),
        (
            'def check(pk, what):\n    raise Refusal("unknown", _("%(what)s is unknown."), what=what)\n'
            'check(1, "A rating")\ncheck(2, "")',
            1,
        ),
        (
            "def known(code, message):\n    raise Refusal(code, message)\n"
            'known("unknown_rating", _("The rating is unknown."))',
            0,
        ),
    ],
)
def test_the_search_for_refusals_without_code_or_sentence_finds_them(source: str, count: int):
    assert len(list(faults(Path("x.py"), ast.parse(source)))) == count


def test_every_refusal_has_a_code_and_a_whole_sentence_marked_for_translation():
    found = [fault for path, module in modules().items() for fault in faults(path.relative_to(ROOT), module)]
    assert found == []


def test_the_codes_are_found_with_their_sentences():
    known = codes()
    assert known["round_not_running"] == ["%(round)s is not running: there is nothing to pause."]
    assert "draft_conflict" in known
    assert "unknown_criterion" in known

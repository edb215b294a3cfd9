"""Refusals: each has a code, and a whole sentence that is marked for translation."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from webapp.guide.refusals import ROOT, codes, is_translated, modules, refusal_calls, sentences


def unmarked(node: ast.AST) -> Iterator[str]:
    """Yield the words of an expression that stand outside of a marked sentence."""
    if is_translated(node):
        return
    if isinstance(node, ast.Constant):
        if isinstance(node.value, str) and re.search(r"[A-Za-z]{2}", node.value):
            yield node.value
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
    for call in refusal_calls(path, module):
        line = f"{path.name}:{getattr(call.code, 'lineno', 0)}"
        if call.code is None or call.message is None:
            yield f"{line}: a refusal has a code and a sentence"
            continue
        if isinstance(call.code, ast.Constant) and not re.fullmatch(r"[a-z][a-z0-9_]*", str(call.code.value)):
            yield f"{line}: {call.code.value!r} is no code"
        yield from (f"{line}: not marked: {words!r}" for words in unmarked(call.message))
        names = {parameter.arg for parameter in call.params}
        if is_translated(call.message) and None not in names:
            placeholders = {name for text in sentences(call) for name in re.findall(r"%\((\w+)\)", text)}
            if placeholders != names:
                yield f"{line}: {sorted(placeholders)} are filled, {sorted(map(str, names))} are given"
        for parameter in call.params:
            if parameter.arg is not None:
                yield from (f"{line}: put together with {words}" for words in fragments(parameter.value))
    for node in ast.walk(module):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and is_translated(node.left):
            values = node.right.values if isinstance(node.right, ast.Dict) else [node.right]
            for value in values:
                yield from (
                    f"{path.name}:{node.lineno}: put together with {words}" for words in fragments(value)
                )
    yield from handed_on(path, module)


def handed_on(path: Path, module: ast.Module) -> Iterator[str]:
    """Yield the words that a call gives to a function that puts them into a sentence."""
    functions = _functions_of_the_program() | dict(_inserting(path, module))
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
    found = [item for path, module in modules().items() for item in _inserting(path, module)]
    times = Counter(name for name, _parameters in found)
    return {name: parameters for name, parameters in found if times[name] == 1}


def _inserting(path: Path, module: ast.Module) -> Iterator[tuple[str, Inserting]]:
    for function in module.body:
        if isinstance(function, ast.FunctionDef):
            names = [argument.arg for argument in function.args.args]
            yield function.name, (names, set(_inserted(function, path)))


def _inserted(function: ast.FunctionDef, path: Path) -> Iterator[str]:
    parameters = {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)}
    values = [word.value for call in refusal_calls(path, function) for word in call.params]
    for node in ast.walk(function):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and is_translated(node.left):
            values += node.right.values if isinstance(node.right, ast.Dict) else [node.right]
    yield from (value.id for value in values if isinstance(value, ast.Name) and value.id in parameters)


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('raise Refusal("round_open", _("%(round)s is open."), round=round_)', 0),
        ('raise Refusal("recipe_invalid", str(error), field="recipe")', 0),
        ('raise Refusal("round_open", _("%(round)s is open."), name=round_)', 1),
        ('raise Refusal("round_open", "The round is open.")', 1),
        ('raise Refusal("round_open", f"{round_} is open.")', 1),
        ('raise Refusal("round_open", _("It is open.") or "Closed.")', 1),
        ('raise NotAllowed(_("Only a manager opens rounds."))', 1),
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


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_refusal_has_a_code_and_a_whole_sentence_marked_for_translation(path: Path):
    assert list(faults(path, modules()[path])) == []


def test_the_codes_are_found_with_their_sentences():
    known = codes()
    assert known["round_not_running"] == ["%(round)s is not running: there is nothing to pause."]
    assert "draft_conflict" in known
    assert "unknown_criterion" in known

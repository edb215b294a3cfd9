"""The refusals of the program, read from its source: their codes and sentences."""

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_APPS = ("annotation", "training", "webapp")
_MANAGER_CHECK = "refuse_unless_manager"
_TRANSLATED = frozenset({"_", "gettext", "gettext_lazy", "ngettext", "ngettext_lazy"})


@dataclass(frozen=True, kw_only=True, slots=True)
class RefusalCall:
    """One place that makes a refusal. code and message are None where the call has none."""

    callee: str
    code: ast.expr | None
    message: ast.expr | None
    params: Sequence[ast.keyword]
    function: ast.AST
    """The innermost function around the call, or the module."""


def is_translated(node: ast.AST) -> bool:
    """Return whether an expression is a sentence that is marked for translation."""
    return isinstance(node, ast.Call) and ast.unparse(node.func) in _TRANSLATED


@cache
def modules() -> dict[Path, ast.Module]:
    """Return the syntax tree of each module of the program."""
    return {
        path: ast.parse(path.read_text(encoding="utf-8"))
        for app in _APPS
        for path in sorted((ROOT / app).rglob("*.py"))
        if "migrations" not in path.parts
    }


@cache
def refusal_classes() -> frozenset[str]:
    """Return the names of `Refusal` and of every class that inherits from it."""
    bases = {
        node.name: {ast.unparse(base).rpartition(".")[2] for base in node.bases}
        for module in modules().values()
        for node in ast.walk(module)
        if isinstance(node, ast.ClassDef)
    }
    names: set[str] = {"Refusal"}
    while new := {name for name, parents in bases.items() if parents & names} - names:
        names |= new
    return frozenset(names)


def refusal_calls(module: ast.AST) -> Iterator[RefusalCall]:
    """Yield the calls in a module that make a refusal, by a function of the module that takes a code, too."""
    starts = {_MANAGER_CHECK: 2} | {
        function.name: names.index("code")
        for function in ast.walk(module)
        if isinstance(function, ast.FunctionDef)
        for names in [[argument.arg for argument in function.args.args]]
        if "code" in names
    }
    for function, call in _calls(module, module):
        name = ast.unparse(call.func).rpartition(".")[2]
        is_constructor = name in refusal_classes() - _own_constructors()
        is_base_constructor = name == "__init__" and len(call.args) == 2 and _is_code(call.args[0])
        if is_constructor or is_base_constructor or (name in starts and _is_code(_at(call, starts[name]))):
            start = starts.get(name, 0)
            yield RefusalCall(
                callee=name,
                code=_at(call, start),
                message=_manager_sentence() if name == _MANAGER_CHECK else _at(call, start + 1),
                params=[keyword for keyword in call.keywords if keyword.arg != "field"],
                function=function,
            )


@cache
def _manager_sentence() -> ast.expr:
    """Return the sentence that `access.refuse_unless_manager` says, whatever the code."""
    access = modules()[ROOT / "annotation" / "selectors" / "access.py"]
    return next(
        node
        for function in ast.walk(access)
        if isinstance(function, ast.FunctionDef) and function.name == _MANAGER_CHECK
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and is_translated(node)
    )


def _at(call: ast.Call, index: int) -> ast.expr | None:
    return call.args[index] if len(call.args) > index else None


@cache
def _own_constructors() -> frozenset[str]:
    """Return the subclasses of `Refusal` that give their code themselves."""
    return frozenset(
        node.name
        for module in modules().values()
        for node in ast.walk(module)
        if isinstance(node, ast.ClassDef)
        and node.name in refusal_classes() - {"Refusal"}
        and any(
            isinstance(inner, ast.FunctionDef)
            and inner.name == "__init__"
            and "code" not in {argument.arg for argument in inner.args.posonlyargs}
            for inner in node.body
        )
    )


def _calls(node: ast.AST, function: ast.AST) -> Iterator[tuple[ast.AST, ast.Call]]:
    if isinstance(node, ast.Call):
        yield function, node
    inside = node if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else function
    for child in ast.iter_child_nodes(node):
        yield from _calls(child, inside)


def _is_code(node: ast.expr | None) -> bool:
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.isidentifier()
        and node.value.islower()
    )


def sentences(call: RefusalCall) -> list[str]:
    """Return the sentences that a refusal may say; empty where they come from elsewhere."""
    if call.message is None:
        return []
    scope: list[ast.AST] = [call.message]
    if isinstance(call.message, ast.Name):
        scope = [
            node.value if isinstance(node, ast.Assign) else node.iter
            for node in ast.walk(call.function)
            if isinstance(node, ast.Assign | ast.For)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if any(isinstance(name, ast.Name) and name.id == call.message.id for name in ast.walk(target))
        ]
    return [
        argument.value
        for part in scope
        for node in ast.walk(part)
        if isinstance(node, ast.Call) and is_translated(node)
        for argument in node.args[-2:-1] or node.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]


def codes() -> dict[str, list[str]]:
    """Return every code with its sentences, sorted."""
    known: dict[str, dict[str, None]] = defaultdict(dict)
    for module in modules().values():
        for call in refusal_calls(module):
            if isinstance(call.code, ast.Constant) and isinstance(call.code.value, str):
                known[call.code.value].update(dict.fromkeys(sentences(call)))
    return {code: list(known[code]) for code in sorted(known)}

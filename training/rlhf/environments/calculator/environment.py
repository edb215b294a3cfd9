"""Arithmetic that is easy with a calculator, which the policy calls as a tool of its chat template."""

from __future__ import annotations

import ast
import operator
import random
import re
from typing import Any

from training.rlhf.environments.calls import parse_calls

TURNS = 4
_OPERATIONS: dict[type, Any] = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
_LONGEST, _LARGEST = 200, 10**12


class Environment:
    """Compute with a calculator tool. 0.2 for the first call that computes, 1 for the right answer."""

    success = 1.0
    tools = [
        {
            "type": "function",
            "function": {
                "name": "calculator",
                "description": "Compute an expression of whole numbers with +, - and *.",
                "parameters": {
                    "type": "object",
                    "properties": {"expression": {"type": "string"}},
                    "required": ["expression"],
                },
            },
        }
    ]

    def reset(self, seed: int) -> list[dict[str, Any]]:
        """Draw the exercise."""
        source = random.Random(seed)  # noqa: S311 - an exercise
        first, second = source.randint(100, 999), source.randint(11, 99)
        sign = source.choice("+-*")
        self._answer = {"+": first + second, "-": first - second, "*": first * second}[sign]
        self._turns, self._called = 0, False
        return [{"role": "user", "content": f"What is {first} {sign} {second}? Use the calculator."}]

    def step(self, completion: str) -> tuple[list[dict[str, Any]], float, bool]:
        """Answer the calls of the turn, else take its last number as the answer."""
        self._turns += 1
        calls = parse_calls(completion)
        if not calls:
            numbers = re.findall(r"-?\d+", completion.replace(",", ""))
            return [], float(bool(numbers) and numbers[-1].lstrip("0") == str(self._answer).lstrip("0")), True
        messages, reward = [], 0.0
        for call in calls[:4]:
            try:
                result = str(computed(str(call.arguments.get("expression", ""))))
                reward, self._called = (reward if self._called else 0.2), True
            except ValueError as error:
                result = f"error: {error}"
            messages.append({"role": "tool", "name": call.name, "content": result})
        return messages, reward, self._turns >= TURNS


def computed(expression: str) -> int:
    """Return the value of an expression of whole numbers. Raises `ValueError` for any other."""
    if len(expression) > _LONGEST:
        raise ValueError("the expression is too long")
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError("this is no expression") from error


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        value = node.value
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = -_value(node.operand)
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        value = _OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
    else:
        raise ValueError("only whole numbers, +, - and * are known")
    if abs(value) > _LARGEST:
        raise ValueError("the number is too large")
    return value

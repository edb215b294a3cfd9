"""Episodes that a command wrote come in as traces, whose steps people label.

Both databases run it; torch comes with what it imports of the trainer, and only when it runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from annotation.exchange.file_imports import import_file
from annotation.models import Comparison, Completion
from tests import factories

if TYPE_CHECKING:
    from training.rlhf.environments.episodes import EpisodeSample

CALL = '<tool_call>{"name": "calculator", "arguments": {"expression": "2 + 2"}}</tool_call>'


def episode(*turns: str) -> EpisodeSample:
    """An episode in the calculator's environment with these turns of the policy."""
    from training.rlhf.environments.calculator.environment import Environment
    from training.rlhf.environments.episodes import EpisodeSample

    world = Environment()
    start = tuple(world.reset(3))
    replies, rewards = [], []
    for turn in turns:
        messages, reward, _ = world.step(turn)
        replies.append(tuple(messages))
        rewards.append(reward)
    return EpisodeSample(
        tokens=(),
        text="".join(turns),
        visible_tokens=0,
        finish_reason="stop",
        seed=0,
        after_prompt=(),
        turns=(),
        rewards=tuple(rewards),
        completions=turns,
        start=start,
        replies=tuple(replies),
    )


@pytest.mark.django_db
def test_episodes_are_imported_with_a_step_for_each_turn_call_and_result(tmp_path: Path) -> None:
    from training.rlhf.environments.__main__ import write_traces
    from training.rlhf.environments.calculator.environment import Environment
    from training.rlhf.environments.protocol import Description

    described = Description(name="calculator", sentence="", tools=tuple(Environment.tools))
    groups = [[episode(f"I compute.{CALL}", "It is 4."), episode(CALL, "")]]
    path = tmp_path / "episodes.jsonl"
    assert write_traces(path, groups, described, source="policy-1") == 2
    project = factories.make_project(slug="agents")
    import_file(project=project, path=path)
    comparison = Comparison.objects.get()
    assert comparison.size == 2
    asked = comparison.prompt.messages
    assert "calculator" in asked[0]["content"]
    assert asked[-1]["content"].startswith("What is ")
    first, second = Completion.objects.order_by("pk")
    kinds = [(step.kind, step.tool, step.arguments) for step in first.steps.order_by("start")]
    assert kinds == [
        ("message", "", None),
        ("tool_call", "calculator", {"expression": "2 + 2"}),
        ("tool_result", "calculator", None),
        ("message", "", None),
    ]
    assert "[tool result calculator]\n4" in first.text
    # A turn without a word can be labelled, too.
    assert second.text.endswith("[assistant]\n(empty)")
    assert str(first.source) == "policy-1"

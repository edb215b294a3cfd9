"""Environments: what each example pays, what a child process and a server may not do."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from training.contract import ContractError
from training.contract.methods.policy import EnvironmentSettings
from training.rlhf.environments.__main__ import main
from training.rlhf.environments.calculator.environment import Environment as Calculator
from training.rlhf.environments.calculator.environment import computed
from training.rlhf.environments.calls import Call, parse_calls
from training.rlhf.environments.guess_number.environment import Environment as GuessNumber
from training.rlhf.environments.protocol import (
    MOST_CHARACTERS,
    MOST_MESSAGES,
    BrokenEnvironmentError,
    ChildEpisodes,
    RemoteEpisodes,
    Reply,
    built_in,
    checked,
    describe,
    opened,
)
from training.rlhf.environments.service_bot.environment import Environment as ServiceBot
from training.rlhf.environments.shop.environment import Environment as Shop
from training.rlhf.rewards.sandbox import Limits, isolation

confined = pytest.mark.skipif(not isolation().system_calls, reason="needs a kernel that confines a process")


def asked(user: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": user}]


def test_the_examples_are_listed_with_a_sentence_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["calculator", "guess_number", "service_bot", "shop"]
    assert all(len(line.split()) > 4 for line in lines)


@pytest.mark.parametrize("name", built_in())
def test_a_seed_always_begins_the_same_episode_and_another_a_different_one(name: str) -> None:
    with opened(EnvironmentSettings(name=name), base=Path()) as episodes:
        first = episodes.reset({0: 3, 1: 3, **{number: number for number in range(2, 30)}})
        after = episodes.step(dict.fromkeys(first, "buy 7"))
    assert first[0] == first[1]
    assert after[0] == after[1]
    assert len({str(first[number]) + str(after[number]) for number in range(2, 30)}) > 1


def test_halving_finds_every_number_and_only_possible_guesses_are_paid() -> None:
    for seed in range(40):
        game = GuessNumber()
        game.reset(seed)
        low, high, total, done = 1, 10, 0.0, False
        while not done:
            guess = (low + high) // 2
            messages, reward, done = game.step(f"I say {guess}.")
            total += reward
            if messages[0]["content"].startswith("Higher"):
                low = guess + 1
            elif messages[0]["content"].startswith("Lower"):
                high = guess - 1
        assert total >= GuessNumber.success
    game = GuessNumber()
    # Seed 0 chooses 7. 3 is possible, 2 then is not; no number is none.
    game.reset(0)
    assert [game.step(text)[1:] for text in ("3", "2", "hello")] == [(0.1, False), (0.0, False), (0.0, False)]
    assert game.step("7")[1:] == (1.0, True)


def test_a_calculator_answers_calls_once_paid_and_the_right_number_ends_the_episode() -> None:
    exercise = Calculator()
    [message] = exercise.reset(1)
    expression = message["content"].split("is ")[1].split("?")[0]
    left, sign, right = expression.split()
    wanted = {"+": int(left) + int(right), "-": int(left) - int(right), "*": int(left) * int(right)}[sign]
    call = f'<tool_call>{{"name": "calculator", "arguments": {{"expression": "{expression}"}}}}</tool_call>'
    messages, reward, done = exercise.step(call)
    assert ([message["content"] for message in messages], reward, done) == ([str(wanted)], 0.2, False)
    assert exercise.step(call)[1] == 0.0
    assert exercise.step(f"It is {wanted:,}.") == ([], 1.0, True)
    for bad in ("9**9**9", "__import__('os')", "1" * 300, "(" * 199, "2 +", "10.5"):
        with pytest.raises(ValueError, match=r"expression|number"):
            computed(bad)
    assert computed("-(3 + 4) * 2") == -14


def test_calls_are_read_as_three_families_of_templates_write_them() -> None:
    inner = {"name": "f", "arguments": {"x": 1}}
    for text in (
        f"I look.<tool_call>\n{json.dumps(inner)}\n</tool_call>",
        f"[TOOL_CALLS][{json.dumps(inner)}]",
    ):
        assert parse_calls(text) == [Call("f", {"x": 1})]
    assert parse_calls('{"name": "f", "parameters": {"x": 1}}') == [Call("f", {"x": 1})]
    for text in ("no call", "<tool_call>{broken</tool_call>", '{"name": 3}', "<tool_call>[1]</tool_call>"):
        assert parse_calls(text) == []


def test_a_user_is_content_only_after_the_detail_and_the_remedy() -> None:
    bot = ServiceBot()
    for seed in range(12):
        bot.reset(seed)
        detail, remedy = bot._missing, bot._remedies[0]
        assert bot.step(f"We {remedy} it.")[1:] == (0.0, False)
        assert bot.step(f"Please tell me the {detail}.")[1:] == (0.3, False)
        assert bot.step(f"Thank you, we {remedy} it.")[1:] == (1.0, True)


def test_a_shop_sells_what_is_open_and_pays_for_the_wish() -> None:
    shop = Shop()
    [message] = shop.reset(4)
    colour, thing = message["content"].split("Buy a ")[1].split(" for")[0].split()
    assert shop.step("buy")[1:] == (0.0, False)
    found = shop.step(f"search {colour} {thing}")[0][0]["content"]
    number = found.split(":")[0]
    assert shop.step(f"open {number}")[0][0]["content"].startswith(f"{number}: {colour} {thing}")
    assert shop.step("buy") == ([{"role": "user", "content": "Sold."}], 1.0, True)
    shop.reset(4)
    other = next(
        index for index, item in enumerate(shop._shelf, start=1) if item[0] == thing and item[1] != colour
    )
    shop.step(f"open {other}")
    assert shop.step("buy")[1:] == (0.5, True)


@pytest.mark.parametrize(
    ("reply", "field"),
    [
        (("text", 0.0, False), "messages"),
        ((asked("x") * (MOST_MESSAGES + 1), 0.0, False), "messages"),
        ((asked("x" * (MOST_CHARACTERS + 1)), 0.0, False), "messages"),
        (([{"role": "assistant", "content": "x"}], 0.0, False), "messages, item 0"),
        (([{"role": "user", "content": 3}], 0.0, False), "messages, item 0"),
        ((asked("x"), float("nan"), False), "reward"),
        ((asked("x"), 1e9, False), "reward"),
        ((asked("x"), True, False), "reward"),
        ((asked("x"), 0.0, 1), "done"),
        (([], 0.0, False), "messages"),
    ],
)
def test_a_reply_outside_its_bounds_is_refused_by_its_field(reply: tuple[Any, ...], field: str) -> None:
    with pytest.raises(BrokenEnvironmentError) as refusal:
        checked(*reply)
    assert str(refusal.value).split(":")[0] == field
    assert checked(asked("x"), 1, True) == Reply(tuple(asked("x")), 1.0, True)


ADDED = '''
"""An environment that somebody added."""
from training.rlhf.environments.calls import parse_calls

class Environment:
    """Repeat the word."""
    success = 2.0

    def reset(self, seed):
        self.word = "w%d" % seed
        return [{"role": "user", "content": "Say " + self.word}]

    def step(self, completion):
        print("noise that is no answer")
        if completion == "sleep":
            import time
            time.sleep(60)
        if completion == "memory":
            x = bytearray(10**10)
        if completion == "long":
            return [{"role": "user", "content": "x" * 3_000_000}], 0.0, False
        if completion == "network":
            import socket
            socket.create_connection(("127.0.0.1", 5432))
        if completion == "write":
            open("/tmp/rondo-escaped", "w").write("x")
        if completion == "leave":
            import os
            os._exit(0)
        return [{"role": "user", "content": "Again"}], 2.0 if completion == self.word else 0.0, True
'''


@pytest.fixture
def added(tmp_path: Path) -> Path:
    folder = tmp_path / "repeat"
    folder.mkdir()
    (folder / "environment.py").write_text(ADDED)
    return folder


@confined
def test_a_folder_is_an_environment_in_a_child_process(added: Path) -> None:
    description = describe(str(added), Path())
    assert (description.name, description.sentence, description.success) == (
        "repeat",
        "Repeat the word.",
        2.0,
    )
    with opened(EnvironmentSettings(name="repeat"), base=added.parent) as episodes:
        assert episodes.reset({0: 5, 1: 6})[1] == Reply(tuple(asked("Say w6")))
        replies = episodes.step({0: "w5", 1: "w5"})
    assert [replies[number].reward for number in (0, 1)] == [2.0, 0.0]
    with pytest.raises(ContractError):
        describe(str(added.parent), Path())


@confined
@pytest.mark.parametrize(
    ("completion", "is_dead"),
    [
        ("sleep", True),
        ("long", True),
        ("leave", True),
        ("memory", False),
        ("network", False),
        ("write", False),
    ],
)
def test_a_child_that_breaks_a_bound_costs_the_episode_and_never_the_trainer(
    added: Path, completion: str, is_dead: bool
) -> None:
    child = ChildEpisodes(added, limits=Limits(wall_seconds=1.0))
    try:
        child.reset({0: 1, 1: 2})
        began = time.monotonic()
        [broken] = child.step({0: completion}).values()
        assert time.monotonic() - began < 10
        assert isinstance(broken, BrokenEnvironmentError)
        [other] = child.step({1: "w2"}).values()
        assert isinstance(other, BrokenEnvironmentError) == is_dead
    finally:
        child.close()
    assert not Path("/tmp/rondo-escaped").exists()


def test_a_server_is_an_environment_and_its_answers_are_bounded() -> None:
    def serve(request: httpx.Request) -> httpx.Response:
        values = json.loads(request.content)
        if request.url.path == "/play/reset":
            return httpx.Response(200, json={"episode": f"e{values['seed']}", "messages": asked("Go")})
        if values["completion"] == "large":
            return httpx.Response(200, content=b"x" * 2_000_000)
        if values["completion"] == "lost":
            raise httpx.ConnectError("gone")
        if values["completion"] == "elsewhere":
            return httpx.Response(302, headers={"location": "http://127.0.0.1/"})
        return httpx.Response(200, json={"messages": [], "reward": 1, "done": values["episode"] == "e7"})

    remote = RemoteEpisodes("http://environment.test/play/", transport=httpx.MockTransport(serve))
    assert remote.reset({0: 7, 1: 8}) == dict.fromkeys((0, 1), Reply(tuple(asked("Go"))))
    assert remote.step({0: "x"}) == {0: Reply((), 1.0, True)}
    for text in ("large", "lost", "elsewhere", "x"):
        assert isinstance(remote.step({1: text})[1], BrokenEnvironmentError)
    remote.close()


def test_the_address_of_a_server_comes_from_the_trainers_environment() -> None:
    with pytest.raises(ContractError), opened(EnvironmentSettings(name="http"), base=Path(), variables={}):
        pass

"""Lessons in which a policy plays: a cart, a grid, words one after another, the turns of a service desk."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from training.contract import ContractError
from training.contract.methods.policy import AdvantageSettings, KlSettings, UpdateSettings
from training.rlhf.course.preferences import minimise
from training.rlhf.course.setting import Figures, LessonSetting
from training.rlhf.environments.service_bot.environment import Environment as ServiceBot
from training.rlhf.examples import cart_pole, grid_world
from training.rlhf.examples.games import GameSettings, Played, Player, learn, play
from training.rlhf.losses import bradley_terry
from training.rlhf.spans import place_segment_rewards, segment, segment_labels, trim_spans


def reinforce_cart_pole(setting: LessonSetting) -> Figures:
    """REINFORCE balances the pole; broken: γ = 0, so that a push answers for nothing that comes after it."""
    method = cart_pole.REINFORCE
    if setting.broken:
        method = dataclasses.replace(method, advantage=dataclasses.replace(method.advantage, gamma=0.0))
    method = dataclasses.replace(method, steps=setting.steps(method.steps, short=2))
    torch.manual_seed(setting.seed)
    player = Player(cart_pole.network(2, gain=0.01), None)
    for record in learn(player, cart_pole.CartPole, method, seed=setting.seed):
        setting.report(record["step"], {"return": record["return"]})
    draws = torch.Generator().manual_seed(setting.seed + 1)
    games = [cart_pole.CartPole() for _ in range(2 if setting.short else 100)]
    return {"return": play(player.policy, games, draws, greedy=True).mean_return}


def grid_world_walk(setting: LessonSetting) -> Figures:
    """REINFORCE finds the way around the pit; broken: γ = 0, so that only the next move counts."""
    method = grid_world.REINFORCE
    if setting.broken:
        method = dataclasses.replace(method, advantage=dataclasses.replace(method.advantage, gamma=0.0))
    method = dataclasses.replace(method, steps=setting.steps(method.steps, short=2))
    return {"return": _walked(method, setting, "return")}


def ppo_and_grpo(setting: LessonSetting) -> Figures:
    """The same walk by PPO, with a value table, and by GRPO, with none, both with many passes over a step's
    games; broken: the ratio of new to old probability is not cut."""
    update = dataclasses.replace(grid_world.PPO.update, inner_epochs=16)
    if setting.broken:
        update = dataclasses.replace(update, clip_low=1e9, clip_high=1e9)
    ppo = dataclasses.replace(grid_world.PPO, update=update, steps=setting.steps(60, short=2))
    grpo = dataclasses.replace(
        ppo,
        advantage=AdvantageSettings(kind="group_relative"),
        update=dataclasses.replace(update, minibatches=1),
    )
    returns = {name: _walked(method, setting, name) for name, method in (("ppo", ppo), ("grpo", grpo))}
    return {**returns, "worse": min(returns.values())}


def _walked(method: GameSettings, setting: LessonSetting, line: str) -> float:
    critic = grid_world.table(1) if method.advantage.kind == "gae" else None
    player = Player(grid_world.table(len(grid_world.MOVES)), critic)
    for record in learn(player, grid_world.GridWorld, method, seed=setting.seed):
        setting.report(record["step"], {line: record["return"]})
    draws = torch.Generator().manual_seed(setting.seed)
    return play(player.policy, [grid_world.GridWorld()], draws, greedy=True).mean_return


# ── Replies of words: a reward model that can be deceived, and rewards of segments ──

NEEDED = ("sorry", "order", "number", "refund", "thanks")
WORDS = (
    *NEEDED,
    *("the", "a", "we", "you", "it", "is", "will", "today", "please", "see", "our", "page", "and", "for"),
    *("never", "fault", "wait", "rules", "no"),
)
RUDE = frozenset(WORDS[-5:])
LENGTH = 8
MARKED_LENGTH, SEGMENT = 32, 4


class ReplyGame:
    """A reply of eight words, one a move. What is seen is the place, as a row of zeros with a one."""

    def __init__(self, reward: Callable[[Sequence[str]], Sequence[float]], length: int = LENGTH) -> None:
        self._reward, self._length = reward, length

    def start(self, seed: int) -> list[float]:
        """Return the first place."""
        self._words: list[str] = []
        return self._seen()

    def act(self, action: int) -> tuple[list[float], float, bool]:
        """Write a word; what the words earned is paid when the reply is whole, each at its own place."""
        self._words.append(WORDS[action])
        over = len(self._words) == self._length
        return self._seen(), sum(self._reward(self._words)) if over else 0.0, over

    def _seen(self) -> list[float]:
        return [float(place == len(self._words)) for place in range(self._length)]


def quality(words: Sequence[str]) -> float:
    """What people want: each needed word once, and no word twice."""
    return len(set(words) & set(NEEDED)) - 0.5 * (len(words) - len(set(words)))


def counts(words: Sequence[str]) -> list[float]:
    """How often each word stands in a reply: all that the reward model sees."""
    return [float(words.count(word)) for word in WORDS]


def fitted_reward(replies: Sequence[Sequence[str]]) -> Tensor:
    """Return the weight of each word, learned from pairs of replies of which people prefer the better."""
    table = torch.tensor([counts(reply) for reply in replies])
    better = torch.tensor([quality(reply) for reply in replies])
    left, right = table[0::2], table[1::2]
    sign = (better[0::2] - better[1::2]).sign().unsqueeze(-1)
    lead = (sign * (left - right))[sign.squeeze(-1) != 0]

    def cost(weights: Tensor) -> Tensor:
        return bradley_terry(lead @ weights, torch.zeros(len(lead))) + 0.01 * weights.square().sum()

    return minimise(cost, torch.zeros(len(WORDS)))


def reward_hacking(setting: LessonSetting) -> Figures:
    """Optimise a policy against a learned reward, near where it began; broken: β = 0."""
    draws = random.Random(setting.seed)  # noqa: S311 - a sample
    pairs = 20 if setting.short else 400
    weights = fitted_reward([draws.choices(WORDS, k=LENGTH) for _ in range(2 * pairs)])
    score = dict(zip(WORDS, weights.tolist(), strict=True))
    method = GameSettings(
        name="",
        advantage=AdvantageSettings(kind="running_mean", whiten=True),
        update=UpdateSettings(),
        learning_rate=0.1,
        steps=setting.steps(150, short=2),
        games=64,
        kl=KlSettings(place="reward", kind="k1", beta=0.0 if setting.broken else BETA),
    )
    policy = nn.Linear(LENGTH, len(WORDS), bias=False)
    nn.init.zeros_(policy.weight)
    player = Player(policy, None)
    for record in learn(
        player, lambda: ReplyGame(lambda words: [score[w] for w in words]), method, seed=setting.seed
    ):
        good = _mean_quality(player.played)
        setting.report(record["step"], {"reward": record["return"], "quality": good, "kl": record["kl"]})
    final = play(
        policy,
        [ReplyGame(lambda words: [0.0]) for _ in range(500)],
        torch.Generator().manual_seed(setting.seed),
    )
    return {"quality": _mean_quality(final), "reward": record["return"], "kl": record["kl"]}


BETA = 0.5


def _mean_quality(played: Played | None) -> float:
    if played is None:
        raise ValueError("nothing was played yet")
    replies = [[WORDS[action] for action in row] for row in played.actions.tolist()]
    return sum(map(quality, replies)) / len(replies)


SIMULATED_COSTS = tuple(float(word in RUDE) for word in WORDS)
"""What each word costs in simulated spans."""
MARKED_PIECES = len(RUDE)


def own_costs(rows: Sequence[Mapping[str, Any]], draws: random.Random) -> list[float]:
    """Return what each of 24 pieces costs, five of which are pieces of responses that a person marked.

    A piece is a sub-sentence of a response. It costs the severity of the spans in it, 1 where a span has
    none, in units of the five pieces' mean: so a policy that knows nothing pays what it pays for five words.
    """
    costs: list[float] = []
    for row in rows:
        pieces = segment(row["text"], "sub-sentence")
        of_pieces = [0.0] * len(pieces)
        for start, end, severity in row["spans"]:
            ((first, last, _category),) = trim_spans(row["text"], [(start, end, "")])
            for place, marked in enumerate(segment_labels(pieces, [(first, last)]).tolist()):
                of_pieces[place] += (severity or 1) * marked
        costs.extend(cost for cost in of_pieces if cost)
    if len(costs) < MARKED_PIECES:
        raise ContractError(f"{len(costs)} pieces with spans: the lesson needs {MARKED_PIECES}")
    chosen = draws.sample(costs, MARKED_PIECES)
    mean = sum(chosen) / MARKED_PIECES
    return [0.0] * (len(WORDS) - MARKED_PIECES) + [cost / mean for cost in chosen]


class MarkedReplyGame(ReplyGame):
    """A reply of 32 words in segments of four; each marked span costs its segment what its word costs.

    A segment's cost is placed on its last word, or, with `whole`, the cost of all on the reply's last. Where
    the spans are somebody's own, a word is a piece of a response.
    """

    def __init__(self, *, whole: bool, costs: Sequence[float] = SIMULATED_COSTS) -> None:
        super().__init__(lambda words: [0.0], length=MARKED_LENGTH)
        self._whole = whole
        self._cost = dict(zip(WORDS, costs, strict=True))

    def act(self, action: int) -> tuple[list[float], float, bool]:
        """Write a word and pay what falls due there."""
        seen, _, over = super().act(action)
        if len(self._words) % SEGMENT or (self._whole and not over):
            return seen, 0.0, over
        # A word is one place long here, as a token is.
        offsets = [(place, place + 1) for place in range(len(self._words))]
        spans = [(offsets[place], self._cost[word]) for place, word in enumerate(self._words)]
        ends = [len(self._words)] if self._whole else list(range(SEGMENT, len(self._words) + 1, SEGMENT))
        starts = [0, *ends[:-1]]
        costs = [
            -sum(cost * int(segment_labels([segment], [span])) for span, cost in spans if cost)
            for segment in zip(starts, ends, strict=True)
        ]
        return seen, float(place_segment_rewards(offsets, ends, costs)[-1]), over


def fine_grained(setting: LessonSetting) -> Figures:
    """Learn from the segments in which spans were marked; broken: from one number for the whole reply."""
    costs: Sequence[float] = SIMULATED_COSTS
    if setting.own is not None:
        rows = json.loads(setting.own.read_text(encoding="utf-8"))
        costs = own_costs(rows, random.Random(setting.seed))  # noqa: S311 - a sample
    method = GameSettings(
        name="",
        advantage=AdvantageSettings(kind="running_mean", gamma=0.9, whiten=True),
        update=UpdateSettings(),
        learning_rate=0.05,
        steps=setting.steps(60, short=2),
        games=16,
    )
    policy = nn.Linear(MARKED_LENGTH, len(WORDS), bias=False)
    nn.init.zeros_(policy.weight)
    player = Player(policy, None)
    for record in learn(
        player, lambda: MarkedReplyGame(whole=setting.broken, costs=costs), method, seed=setting.seed
    ):
        setting.report(record["step"], {"spans": -record["return"]})
    final = play(
        policy,
        [MarkedReplyGame(whole=True, costs=costs) for _ in range(200)],
        torch.Generator().manual_seed(setting.seed),
    )
    return {"spans": -final.mean_return}


# ── A service desk over several turns ──

LINES = (
    "Hello, how are you today?",
    "What is your order number?",
    "What is the number of the invoice?",
    "Which email do you use?",
    "I will track the parcel for you.",
    "I will refund the second payment.",
    "I send you a link to reset it.",
    "Please read our rules.",
)
SEEN = ("parcel", "charged", "log in", "it is", "invoice is", "example.org", "does not help")


class ServiceDesk:
    """The service bot's user of `training.rlhf.environments`, with replies to choose from.

    What is seen: which of `SEEN` the user has written so far; with `forgets`, in the opening alone.
    """

    def __init__(self, *, forgets: bool) -> None:
        self._forgets = forgets
        self._user = ServiceBot()

    def start(self, seed: int) -> list[float]:
        """Open the conversation."""
        self._read = self._user.reset(seed)[-1]["content"].lower()
        return self._seen()

    def act(self, action: int) -> tuple[list[float], float, bool]:
        """Write one of `LINES`, and read what the user answers."""
        messages, reward, over = self._user.step(LINES[action])
        if not self._forgets:
            self._read += " " + " ".join(message["content"].lower() for message in messages)
        return self._seen(), reward, over

    def _seen(self) -> list[float]:
        return [float(phrase in self._read) for phrase in SEEN] + [1.0]


def service_bot(setting: LessonSetting) -> Figures:
    """Ask first, then help; broken: the bot sees the opening message alone."""
    method = GameSettings(
        name="",
        advantage=AdvantageSettings(kind="gae", gamma=1.0, lam=0.95, whiten=True),
        update=UpdateSettings(inner_epochs=4, minibatches=2, value_clip=None, entropy=0.01),
        learning_rate=0.01,
        steps=setting.steps(60, short=2),
        games=64,
    )
    torch.manual_seed(setting.seed)

    def network(outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(len(SEEN) + 1, 32), nn.Tanh(), nn.Linear(32, outputs))

    player = Player(network(len(LINES)), network(1))
    for record in learn(player, lambda: ServiceDesk(forgets=setting.broken), method, seed=setting.seed):
        setting.report(record["step"], {"return": record["return"]})
    final = play(
        player.policy,
        [ServiceDesk(forgets=setting.broken) for _ in range(300)],
        torch.Generator().manual_seed(setting.seed),
    )
    solved = final.rewards.sum(-1) >= ServiceBot.success - 1e-6
    return {"resolved": float(solved.float().mean())}

"""The lessons, as pages, command and trainer know them: words, equation, source, one thing to break, a claim.

A lesson teaches one idea by code that the product trains with. Its page shows that code as it stands in the
source; its claim is a figure of a run, held to a bound. `stated` is that figure over five seeds, measured by
`manage.py course --check --seeds 5`.
"""

from __future__ import annotations

import ast
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[2]


def gettext_noop(text: str) -> str:
    """Mark an English text for the translations; it is translated where it is shown."""
    return text


@dataclass(frozen=True, kw_only=True, slots=True)
class Stated:
    """A figure over five seeds: its mean, and the interval of the mean that seeds of this number give."""

    mean: float
    low: float
    high: float
    measured: str
    """Day of the measurement."""


_T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""97.5 % points of Student's t by degrees of freedom; beyond, 2.262 is taken, which is a little wide."""


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean of at least two values, and its 95 % interval by Student's t."""
    mean = statistics.fmean(values)
    half = _T.get(len(values) - 1, _T[9]) * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A figure of a run and its bound. A run that breaks the lesson's setting does not keep it."""

    figure: str
    sentence: str
    stated: Stated
    least: float | None = None
    most: float | None = None

    def holds(self, figures: Mapping[str, float]) -> bool:
        """Return whether a run's figure is within the bound; a figure that is not a number is not."""
        value = figures[self.figure]
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownSource:
    """A function or class whose source a page shows."""

    file: str
    name: str

    def source(self) -> tuple[int, str]:
        """Return its first line's number and its text, as they stand in the file now."""
        text = (ROOT / self.file).read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == self.name:
                return node.lineno, "\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno])
        raise LookupError(f"{self.file} has no {self.name}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Lesson:
    """One lesson."""

    slug: str
    title: str
    idea: str
    """What is learned, in two or three sentences."""
    equation: str
    """LaTeX."""
    shown: Sequence[ShownSource]
    lines: Mapping[str, str]
    """The curve's lines: name in the run → label."""
    steps: str
    """Label of the curve's horizontal axis."""
    broken: str
    """The setting that the broken run changes, and what that does."""
    claim: Claim
    learns_from: Literal["", "votes", "spans"] = ""
    """Annotations of the person who runs it that it learns from, once there are enough."""


_STEP = gettext_noop("step")

LESSONS: Sequence[Lesson] = (
    Lesson(
        slug="reinforce-cart-pole",
        title=gettext_noop("REINFORCE on CartPole"),
        idea=gettext_noop(
            "A policy pushes a cart left or right so that the pole on it stays up. Each push is made "
            "likelier by what was earned after it. A language model learns the same way: a push is a token."
        ),
        equation=r"\nabla_\theta J = \mathbb{E}\Big[\sum_t \nabla_\theta \log \pi_\theta(a_t \mid s_t)\, "
        r"(G_t - b)\Big], \quad G_t = \sum_{k \ge t} \gamma^{k-t} r_k",
        shown=(
            ShownSource(file="training/rlhf/advantages.py", name="discounted_returns"),
            ShownSource(file="training/rlhf/losses.py", name="policy_gradient"),
            ShownSource(file="training/rlhf/examples/games.py", name="learn"),
        ),
        lines={"return": gettext_noop("Return of a game")},
        steps=_STEP,
        broken=gettext_noop(
            "Discount γ = 0: a push answers for its own reward alone. Every push earns 1, so none is better."
        ),
        claim=Claim(
            figure="return",
            sentence=gettext_noop("The trained policy earns at least 475 of 500 over 100 games."),
            least=475.0,
            stated=Stated(mean=498.5, low=494.3, high=502.7, measured="2026-11-29"),
        ),
    ),
    Lesson(
        slug="grid-world",
        title=gettext_noop("Grid world: credit for what comes later"),
        idea=gettext_noop(
            "A walker must go around a pit to its goal. Every move costs 1, the pit costs 30, the goal pays "
            "10. The first move up earns nothing by itself: only the return from it on shows that it was "
            "right."
        ),
        equation=r"G_t = r_t + \gamma\, G_{t+1}",
        shown=(
            ShownSource(file="training/rlhf/examples/grid_world.py", name="GridWorld"),
            ShownSource(file="training/rlhf/advantages.py", name="discounted_returns"),
        ),
        lines={"return": gettext_noop("Return of a game")},
        steps=_STEP,
        broken=gettext_noop("Discount γ = 0: the walker avoids the pit and never looks for the goal."),
        claim=Claim(
            figure="return",
            sentence=gettext_noop("The walker takes the best way, whose return is 4."),
            least=4.0,
            stated=Stated(mean=4, low=4, high=4, measured="2026-11-29"),
        ),
    ),
    Lesson(
        slug="plackett-luce",
        title=gettext_noop("Plackett-Luce against Bradley-Terry"),
        idea=gettext_noop(
            "Four completions are ranked. Plackett-Luce reads the ranking as one choice after another; "
            "Bradley-Terry reads all pairs in it. Both find the utilities that the rankings were drawn from, "
            "and Plackett-Luce is nearer to them, because pairs of one ranking are not independent."
        ),
        equation=r"p(y_{(1)} \succ \dots \succ y_{(K)}) = \prod_{k=1}^{K} "
        r"\frac{e^{s_{(k)}}}{\sum_{j \ge k} e^{s_{(j)}}}, \qquad p(y_i \succ y_j) = \sigma(s_i - s_j)",
        shown=(
            ShownSource(file="training/rlhf/losses.py", name="plackett_luce"),
            ShownSource(file="training/rlhf/losses.py", name="bradley_terry"),
            ShownSource(file="training/rlhf/course/preferences.py", name="plackett_luce_and_bradley_terry"),
        ),
        lines={
            "plackett_luce": gettext_noop("Error by Plackett-Luce"),
            "bradley_terry": gettext_noop("Error by Bradley-Terry"),
        },
        steps=gettext_noop("rankings, as a power of 2"),
        broken=gettext_noop(
            "Bradley-Terry takes neighbours in the ranking alone. Its error no longer goes to 0."
        ),
        claim=Claim(
            figure="ratio",
            sentence=gettext_noop(
                "With 8192 rankings the error by Bradley-Terry is at most 2.5 times that by Plackett-Luce."
            ),
            most=2.5,
            stated=Stated(mean=1.129, low=0.8812, high=1.376, measured="2026-11-29"),
        ),
    ),
    Lesson(
        slug="dpo",
        title=gettext_noop("DPO: a policy from pairs, without a reward model"),
        idea=gettext_noop(
            "Reward less β times the KL divergence has a known best policy. DPO reaches it from pairs alone. "
            "The policy here is a table of six completions for each of eight prompts, so its distance from "
            "the best one can be computed."
        ),
        equation=r"\mathcal{L} = -\log \sigma\Big(\beta \log \frac{\pi_\theta(y^+ \mid x)}{\pi_{ref}(y^+ "
        r"\mid x)} - \beta \log \frac{\pi_\theta(y^- \mid x)}{\pi_{ref}(y^- \mid x)}\Big), \qquad "
        r"\pi^*(y \mid x) \propto \pi_{ref}(y \mid x)\, e^{r(x, y) / \beta}",
        shown=(
            ShownSource(file="training/rlhf/losses.py", name="dpo"),
            ShownSource(file="training/rlhf/course/preferences.py", name="direct_preference_optimisation"),
        ),
        lines={
            "distance": gettext_noop("KL divergence from the best policy"),
            "reward": gettext_noop("Reward"),
        },
        steps=_STEP,
        broken=gettext_noop(
            "The loss leaves out the log-probabilities of the reference. The policy forgets where it began."
        ),
        claim=Claim(
            figure="distance",
            sentence=gettext_noop("The policy ends at most 0.05 nats from the best one."),
            most=0.05,
            stated=Stated(mean=0.005165, low=0.002005, high=0.008326, measured="2026-11-29"),
        ),
    ),
    Lesson(
        slug="thirty-votes",
        title=gettext_noop("A reward model from thirty votes"),
        idea=gettext_noop(
            "A linear reward model learns from thirty votes what the voter likes, and orders votes that it "
            "has not seen. With thirty votes of yours in a project it learns from yours. Else it takes "
            "packaged ones: ninety votes of simulated voters who like facts and dislike repetitions and "
            "unfinished texts."
        ),
        equation=r"\mathcal{L}(\theta) = -\frac{1}{N} \sum_{i=1}^{N} \log \sigma\big(\theta^\top \phi(x_i, "
        r"y_i^+) - \theta^\top \phi(x_i, y_i^-)\big) + \frac{\lambda}{2} \Vert \theta \Vert^2",
        shown=(
            ShownSource(file="training/rlhf/measures/linear_choice.py", name="fit_ridge"),
            ShownSource(file="training/rlhf/measures/features.py", name="text_features"),
            ShownSource(file="training/rlhf/course/preferences.py", name="reward_model_from_votes"),
        ),
        lines={"share": gettext_noop("Share of held-out votes ordered as the voter did")},
        steps=gettext_noop("votes trained on"),
        broken=gettext_noop(
            "Chosen and rejected are swapped in training, as by a column with the wrong name."
        ),
        claim=Claim(
            figure="share",
            sentence=gettext_noop("It orders at least 60 % of the held-out votes as the voter did."),
            least=0.6,
            stated=Stated(mean=0.8083, low=0.7378, high=0.8789, measured="2026-11-29"),
        ),
        learns_from="votes",
    ),
    Lesson(
        slug="rule-rewards",
        title=gettext_noop("Rewards by rules"),
        idea=gettext_noop(
            "Three tasks have a right completion that a rule can tell: a sum, a program with unit tests, "
            "five lines of text. The policy chooses among six completions of each and is paid by the rule. "
            "The programs run in the sandbox of your rounds."
        ),
        equation=r"r(x, y) = \mathbb{1}[y = 42], \qquad r(x, y) = \frac{\text{tests passed}}{\text{tests}}, "
        r"\qquad r(x, y) = \max\Big(0, 1 - \frac{|n(y) - 5|}{5}\Big)",
        shown=(
            ShownSource(file="training/rlhf/rewards/text_rewards.py", name="Mathematics"),
            ShownSource(file="training/rlhf/rewards/text_rewards.py", name="UnitTests"),
            ShownSource(file="training/rlhf/rewards/text_rewards.py", name="LineCount"),
        ),
        lines={
            "reward": gettext_noop("Reward"),
            "right": gettext_noop("Probability of the right completion"),
        },
        steps=_STEP,
        broken=gettext_noop(
            "The rule looks at the think and answer tags alone: every completion in that format is paid."
        ),
        claim=Claim(
            figure="right",
            sentence=gettext_noop("At least 90 % of the chosen completions are right."),
            least=0.9,
            stated=Stated(mean=0.9967, low=0.9916, high=1.002, measured="2026-11-29"),
        ),
    ),
    Lesson(
        slug="reward-hacking",
        title=gettext_noop("Reward hacking and the KL penalty"),
        idea=gettext_noop(
            "A reward model learns from pairs which words are good. It counts words and cannot see that a "
            "response repeats itself. A policy that only follows it writes its favourite word eight times. "
            "The KL penalty holds the policy near the responses that the reward model was trained on."
        ),
        equation=r"\max_\theta\; \mathbb{E}_{y \sim \pi_\theta}\big[r_\phi(x, y)\big] - "
        r"\beta\, \mathrm{KL}\big(\pi_\theta \,\Vert\, \pi_{ref}\big)",
        shown=(
            ShownSource(file="training/rlhf/kl.py", name="estimate"),
            ShownSource(file="training/rlhf/policy_gradient/credit.py", name="_net_rewards"),
            ShownSource(file="training/rlhf/course/games.py", name="reward_hacking"),
        ),
        lines={
            "reward": gettext_noop("Learned reward"),
            "quality": gettext_noop("Quality as people see it"),
            "kl": gettext_noop("KL divergence, nats per response"),
        },
        steps=_STEP,
        broken=gettext_noop("KL penalty coefficient β = 0: the reward goes on rising, the quality falls."),
        claim=Claim(
            figure="quality",
            sentence=gettext_noop("The responses end at a quality of at least 1.8; they begin near 0.9."),
            least=1.8,
            stated=Stated(mean=2.294, low=2.223, high=2.364, measured="2026-11-29"),
        ),
    ),
    Lesson(
        slug="string-reversal",
        title=gettext_noop("String reversal: imitation, then reward"),
        idea=gettext_noop(
            "A character model of 660,000 random weights spells strings of four letters backwards. It first "
            "imitates reversals, then learns from its own samples by reward alone, in two runs like those "
            "of a round. The curve is the second run."
        ),
        equation=r"\mathcal{L}_{SFT} = -\sum_t \log \pi_\theta(y_t \mid x, y_{<t}), \qquad "
        r"A_i = r_i - \frac{1}{K} \sum_{k=1}^{K} r_k",
        shown=(
            ShownSource(file="training/rlhf/methods/sft.py", name="SupervisedFineTuning"),
            ShownSource(file="training/rlhf/advantages.py", name="group_relative"),
            ShownSource(file="training/rlhf/course/text.py", name="string_reversal"),
        ),
        lines={"right": gettext_noop("Share of samples that are right")},
        steps=_STEP,
        broken=gettext_noop("No imitation: no sample is right by chance, so there is nothing to reward."),
        claim=Claim(
            figure="right",
            sentence=gettext_noop("At least half of the samples of the last steps are right."),
            least=0.5,
            stated=Stated(mean=0.794, low=0.7141, high=0.8739, measured="2026-11-29"),
        ),
    ),
    Lesson(
        slug="ppo-and-grpo",
        title=gettext_noop("PPO with GAE, and GRPO"),
        idea=gettext_noop(
            "Both take sixteen passes over the same games. PPO asks a value table what was to be expected; "
            "GRPO compares each game with the others of its group. Cutting the ratio of new to old "
            "probability keeps those passes from going too far."
        ),
        equation=r"\min\big(\rho_t A_t,\; \mathrm{clip}(\rho_t, 1 - \epsilon, 1 + \epsilon)\, A_t\big), "
        r"\qquad A_t^{GAE} = \sum_l (\gamma \lambda)^l \delta_{t+l}, \qquad A_i^{GRPO} = \frac{r_i "
        r"- \bar r}{\mathrm{std}(r)}",
        shown=(
            ShownSource(file="training/rlhf/advantages.py", name="gae"),
            ShownSource(file="training/rlhf/advantages.py", name="group_relative"),
            ShownSource(file="training/rlhf/losses.py", name="policy_gradient"),
        ),
        lines={"ppo": gettext_noop("Return by PPO"), "grpo": gettext_noop("Return by GRPO")},
        steps=_STEP,
        broken=gettext_noop("The ratio is not cut: the first steps go too far, and the policy gets stuck."),
        claim=Claim(
            figure="worse",
            sentence=gettext_noop("Both find the best way through the grid world, whose return is 4."),
            least=4.0,
            stated=Stated(mean=4, low=4, high=4, measured="2026-11-29"),
        ),
    ),
    Lesson(
        slug="fine-grained-rewards",
        title=gettext_noop("Fine-grained rewards from spans"),
        idea=gettext_noop(
            "Spans mark the words that do harm. Each segment of a response gets the reward of its own "
            "spans, so a word answers for what is near it, not for the whole response. With ten responses "
            "in which you marked an error it learns what your spans cost. Else five words of 24 are marked."
        ),
        equation=r"r_t = \sum_j \mathbb{1}(t = T_j)\, R_j",
        shown=(
            ShownSource(file="training/rlhf/spans.py", name="place_segment_rewards"),
            ShownSource(file="training/rlhf/spans.py", name="segment_labels"),
            ShownSource(file="training/rlhf/course/games.py", name="MarkedReplyGame"),
            ShownSource(file="training/rlhf/course/games.py", name="own_costs"),
        ),
        lines={"spans": gettext_noop("Spans in a response")},
        steps=_STEP,
        broken=gettext_noop("One reward at the end of the response, the sum over the same spans."),
        claim=Claim(
            figure="spans",
            sentence=gettext_noop("A response ends with at most 2.5 spans; it begins with 6.7."),
            most=2.5,
            stated=Stated(mean=1.439, low=1.338, high=1.54, measured="2026-11-29"),
        ),
        learns_from="spans",
    ),
    Lesson(
        slug="service-bot",
        title=gettext_noop("A service bot over several turns"),
        idea=gettext_noop(
            "A user has a problem and tells the missing detail only when asked. The bot must ask first and "
            "help then. It chooses among eight lines; the user is the one of the service_bot environment."
        ),
        equation=r"J = \mathbb{E}\Big[\sum_{n=1}^{N} r_n\Big], \qquad a_n \sim \pi_\theta(\cdot \mid x_1, "
        r"a_1, x_2, \dots, x_n)",
        shown=(
            ShownSource(file="training/rlhf/environments/service_bot/environment.py", name="Environment"),
            ShownSource(file="training/rlhf/course/games.py", name="ServiceDesk"),
        ),
        lines={"return": gettext_noop("Return of a conversation")},
        steps=_STEP,
        broken=gettext_noop("The bot sees the opening message alone, not what the user answered."),
        claim=Claim(
            figure="resolved",
            sentence=gettext_noop("At least 95 % of the conversations are resolved."),
            least=0.95,
            stated=Stated(mean=0.9947, low=0.9861, high=1.003, measured="2026-11-29"),
        ),
    ),
)

BY_SLUG: Mapping[str, Lesson] = {lesson.slug: lesson for lesson in LESSONS}

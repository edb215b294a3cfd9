"""From rewards to advantages by settings: by hand, and by what the methods' papers say of each other."""

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from training.contract.methods.policy import AdvantageSettings, KlSettings
from training.rlhf.policy_gradient.credit import CreditAssignment, EpisodeBatch, figures

NAN = math.nan
FREE = KlSettings(place="none")


def episodes(rewards: list[list[float]], *, group: list[int] | None = None, **columns: Any) -> EpisodeBatch:
    """Answers whose actions are the rewards that are not NaN."""
    table = torch.tensor(rewards, dtype=torch.float32)
    scored = columns.pop("scored", [True] * len(rewards))
    return EpisodeBatch(
        mask=~table.isnan(),
        rewards=table,
        scored=torch.tensor(scored),
        group=torch.tensor(group or list(range(len(rewards)))),
        **{name: torch.tensor(value) for name, value in columns.items()},
    )


def assign(batch: EpisodeBatch, kl: KlSettings = FREE, **advantage: Any):
    return CreditAssignment(AdvantageSettings(**advantage), kl).assign(batch)


def near(actual: Tensor, expected: Any) -> bool:
    return torch.allclose(actual, torch.tensor(expected, dtype=torch.float32), atol=1e-6)


def test_whitening_leaves_the_returns_as_they_are():
    # Advantages 1.25, 1, 1: mean 13/12, deviations 1/6, −1/12, −1/12, variance (1/36 + 2/144) / 2 = 1/48.
    batch = episodes([[1, 2], [3, NAN]], old_values=[[0.5, 1.0], [2.0, NAN]])
    credit = assign(batch, kind="gae", gamma=0.5, lam=0.5, whiten=True)
    root = math.sqrt(48)
    assert torch.allclose(
        credit.advantages, torch.tensor([[root / 6, -root / 12], [-root / 12, 0.0]]), atol=1e-4
    )
    assert near(credit.returns, [[1.75, 2.0], [3.0, 0.0]])


def test_a_return_is_what_is_still_to_come():
    # γ = 0.5: 1 + 0.5·(0 + 0.5·4) = 2, then 2, then 4.
    credit = assign(episodes([[1, 0, 4]]), kind="return", gamma=0.5)
    assert near(credit.advantages, [[2, 2, 4]])
    assert credit.returns is None


def test_answers_are_compared_by_the_sum_of_their_rewards():
    # Two prompts: sums 3, 1, 2 (mean 2, deviation 1) and 0, 4 (mean 2, deviation √8).
    batch = episodes([[1, 2], [1, NAN], [2, 0], [0, NAN], [1, 3]], group=[7, 7, 7, 2, 2])
    half = 1 / math.sqrt(2)
    expected = [[1, 1], [-1, 0], [0, 0], [-half, 0], [half, half]]
    assert near(assign(batch, kind="group_relative").advantages, expected)
    plain = [[1, 1], [-1, 0], [0, 0], [-2, 0], [2, 2]]
    assert near(assign(batch, kind="group_relative", scale=False).advantages, plain)


def test_rloo_is_unscaled_grpo_times_k_over_k_minus_1():
    random = torch.Generator().manual_seed(0)
    rewards = torch.randn(6, 3, generator=random).tolist()
    batch = episodes(rewards, group=[0, 0, 0, 1, 1, 1])
    grpo = assign(batch, kind="group_relative", scale=False).advantages
    rloo = assign(batch, kind="leave_one_out").advantages
    assert torch.allclose(rloo, grpo * 3 / 2, atol=1e-6)
    assert grpo.abs().min() > 0


@pytest.mark.parametrize("kind", ["return", "running_mean", "group_relative", "leave_one_out", "gae"])
def test_what_could_not_be_scored_earns_nothing_and_changes_nobody(kind):
    def advantages(extra: float) -> Tensor:
        batch = episodes(
            [[1, 2], [extra, extra], [0, 1]],
            group=[0, 0, 0],
            scored=[True, False, True],
            old_values=[[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]],
        )
        values: Tensor = assign(batch, kind=kind, whiten=True).advantages
        return values

    plain = advantages(0.0)
    assert torch.equal(plain, advantages(1e6))
    assert not plain[1].any()
    assert plain[0].any()


def test_prompts_whose_answers_differ_by_less_than_the_floor_are_told_and_move_little():
    batch = episodes(
        [[0.5], [0.51], [0.5], [0.5], [0.0], [1.0], [2.0], [2.0]], group=[0, 0, 0, 0, 1, 1, 2, 2]
    )
    credit = assign(batch, kind="group_relative", deviation_floor=0.1)
    # Deviation 0.005: ±0.0075 and ±0.0025 over 0.1, in place of 1.5 and 0.5.
    assert near(credit.advantages[:2], [[-0.025], [0.075]])
    assert credit.advantages[5] == pytest.approx(1 / math.sqrt(2))
    assert figures(batch, credit)["below_floor"] == pytest.approx(1 / 3)
    assert figures(batch, credit)["tied"] == pytest.approx(1 / 3)
    assert "below_floor" not in figures(batch, assign(batch, kind="group_relative", scale=False))


def test_prompts_whose_answers_tie_are_told():
    batch = episodes(
        [[1.0], [1.0], [0.0], [1.0], [5.0], [7.0]],
        group=[0, 0, 1, 1, 2, 2],
        scored=[True, True, True, True, True, False],
    )
    credit = assign(batch, kind="group_relative")
    # The third prompt has one score, which nothing can be compared with.
    assert credit.tied.tolist() == [True, False, True]
    assert not credit.advantages[[0, 1, 4, 5]].any()
    measured = figures(batch, credit)
    assert measured["tied"] == pytest.approx(2 / 3)
    assert measured["unscored"] == pytest.approx(1 / 6)


LOGP, REFERENCE = [[-1.0, -2.0], [-0.5, NAN]], [[-1.5, -1.0], [-1.5, NAN]]


def test_divergence_in_the_reward_is_taken_off_every_token():
    # d = log π − log π_ref: 0.5, −1 and 1. β = 0.1: k1 takes off β d, k2 β d² / 2.
    batch = episodes([[0, 1], [2, NAN]], old_logp=LOGP, ref_logp=REFERENCE)
    k1 = assign(batch, KlSettings(place="reward", kind="k1", beta=0.1), kind="return")
    assert near(k1.rewards, [[-0.05, 1.1], [1.9, 0]])
    assert near(k1.advantages, [[1.05, 1.1], [1.9, 0]])
    k2 = assign(batch, KlSettings(place="reward", kind="k2", beta=0.1), kind="return")
    assert near(k2.rewards, [[-0.0125, 0.95], [1.95, 0]])
    # e^{−d} − 1 + d
    k3 = assign(batch, KlSettings(place="reward", kind="k3", beta=0.1), kind="return")
    expected = [[-0.1 * (math.exp(-0.5) - 0.5), 1 - 0.1 * (math.e - 2)], [2 - 0.1 * math.exp(-1), 0]]
    assert near(k3.rewards, expected)


def test_divergence_in_the_loss_leaves_the_rewards_alone():
    batch = episodes([[0, 1], [2, NAN]], old_logp=LOGP, ref_logp=REFERENCE)
    assert near(assign(batch, KlSettings(place="loss", beta=9.0), kind="return").rewards, [[0, 1], [2, 0]])


def test_the_samplers_log_probabilities_serve_where_the_trainers_own_are_not_there():
    batch = episodes([[0, 1], [2, NAN]], behaviour_logp=LOGP, ref_logp=REFERENCE)
    credit = assign(batch, KlSettings(place="reward", kind="k1", beta=0.1), kind="return")
    assert near(credit.rewards, [[-0.05, 1.1], [1.9, 0]])


def test_the_divergence_told_is_that_of_answers_and_of_tokens():
    batch = episodes([[0, 1], [2, NAN]], old_logp=LOGP, ref_logp=REFERENCE)
    measured = figures(batch, assign(batch, kind="return"))
    # Sums −0.5 and 1; three tokens.
    assert measured["kl"] == pytest.approx(0.25)
    assert measured["kl_per_token"] == pytest.approx(0.5 / 3)


def test_explained_variance_is_told_of_the_value_head():
    # λ = 1, γ = 1: returns 3, 2, 3 (mean 8/3, variance 2/9). Errors R − V: 0, 0, 1 (variance 2/9).
    batch = episodes([[1, 2], [3, NAN]], old_values=[[3.0, 2.0], [2.0, NAN]])
    credit = assign(batch, kind="gae", lam=1.0)
    assert figures(batch, credit)["explained_variance"] == pytest.approx(0.0, abs=1e-6)
    unknown = episodes([[1.0], [1.0]], old_values=[[0.0], [0.0]])
    assert "explained_variance" not in figures(unknown, assign(unknown, kind="gae"))


def test_the_target_of_an_adaptive_coefficient_is_the_sum_over_an_answer():
    # 0.1 nats for each of four tokens are 0.4 for each answer: twice the target of 0.2, an error that is
    # cut to 0.2; 2 answers of a horizon of 10: β · (1 + 0.2 · 2 / 10). By tokens' mean β would fall.
    kl = KlSettings(place="reward", kind="k1", beta=0.5, target=0.2, horizon=10.0)
    assignment = CreditAssignment(AdvantageSettings(kind="return"), kl)
    batch = episodes([[0.0] * 4] * 2, old_logp=[[-1.0] * 4] * 2, ref_logp=[[-1.1] * 4] * 2)
    assignment.observe(batch)
    assert assignment.beta == pytest.approx(0.5 * 1.04)
    # An error of −10 %: 0.045 · 4 = 0.18.
    assignment.observe(episodes([[0.0] * 4] * 2, old_logp=[[-1.0] * 4] * 2, ref_logp=[[-1.045] * 4] * 2))
    assert assignment.beta == pytest.approx(0.5 * 1.04 * 0.98)


def test_a_fixed_coefficient_stays_and_one_without_a_place_is_0():
    batch = episodes([[0.0]], old_logp=[[-1.0]], ref_logp=[[-9.0]])
    fixed = CreditAssignment(AdvantageSettings(kind="return"), KlSettings(beta=0.3))
    fixed.observe(batch)
    assert fixed.beta == 0.3
    nowhere = CreditAssignment(
        AdvantageSettings(kind="return"), KlSettings(place="none", beta=0.3, target=1.0)
    )
    nowhere.observe(batch)
    assert nowhere.beta == 0.0
    assert nowhere.state_dict()["controller"] == {"beta": 0.3}


def test_an_answer_whose_divergence_is_not_finite_is_refused_and_joins_nothing():
    kl = KlSettings(place="reward", kind="k1", beta=0.1, target=1.0)
    assignment = CreditAssignment(AdvantageSettings(kind="group_relative", scale=False), kl)
    batch = episodes(
        [[1, 2], [0, 1], [0, 0]],
        group=[0, 0, 0],
        old_logp=[[-1.0, -1.0]] * 3,
        ref_logp=[[-1.0, -1.0], [-1.0, -1.0], [-math.inf, -1.0]],
    )
    # Sums 3 and 1; the third pays infinitely.
    assigned = assignment.assign(batch).advantages
    assert near(assigned[:2], [[1, 1], [-1, -1]])
    assert assigned[2].isnan().all()
    assignment.observe(batch)
    assert assignment.beta == 0.1


def test_what_lies_outside_the_mask_reaches_nothing():
    def credit(padding: float, columns: int):
        def padded(rows: list[list[float]]) -> Tensor:
            return torch.cat([torch.tensor(rows), torch.full((2, columns), padding)], dim=1)

        batch = EpisodeBatch(
            mask=padded([[1.0, 1.0], [1.0, 1.0]]) == 1,
            rewards=padded([[0.0, 1.0], [2.0, 0.5]]),
            scored=torch.ones(2, dtype=torch.bool),
            group=torch.zeros(2, dtype=torch.long),
            old_logp=padded([[-1.0, -2.0], [-0.5, -0.7]]),
            ref_logp=padded([[-1.5, -1.0], [-1.5, -0.8]]),
            old_values=padded([[0.3, 0.1], [0.2, 0.9]]),
        )
        kl = KlSettings(place="reward", kind="k3", beta=0.2)
        assignment = CreditAssignment(AdvantageSettings(kind="gae", whiten=True), kl)
        return assignment.assign(batch), figures(batch, assignment.assign(batch))

    plain, plain_figures = credit(0.0, 0)
    padded, told_of_padded = credit(NAN, 3)
    for name in ("advantages", "returns", "rewards"):
        assert torch.allclose(getattr(padded, name)[:, :2], getattr(plain, name), atol=1e-6)
        assert not getattr(padded, name)[:, 2:].any()
    assert told_of_padded == pytest.approx(plain_figures)


def test_a_resumed_assignment_goes_on_as_if_never_stopped():
    kl = KlSettings(place="reward", kind="k1", beta=0.5, target=0.2, horizon=10.0)
    settings = AdvantageSettings(kind="running_mean")
    first = CreditAssignment(settings, kl)
    batch = episodes([[0.3, 1.0]], old_logp=[[-1.0, -1.2]], ref_logp=[[-1.1, -1.9]])
    first.assign(batch)
    first.observe(batch)
    resumed = CreditAssignment(settings, kl)
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert resumed.beta == first.beta != 0.5
    assert torch.equal(resumed.assign(batch).advantages, first.assign(batch).advantages)


@pytest.mark.parametrize(
    ("kl", "kind", "message"),
    [
        (KlSettings(place="reward", kind="k1"), "return", "ref_logp"),
        (FREE, "gae", "old_values"),
    ],
)
def test_settings_that_need_what_is_not_there_say_so(kl, kind, message):
    with pytest.raises(ValueError, match=message):
        assign(episodes([[1.0]]), kl, kind=kind)


def test_episodes_that_do_not_fit_together_are_refused():
    with pytest.raises(ValueError, match=r"old_logp .* must be \(1, 2\)"):
        episodes([[1.0, 2.0]], old_logp=[[0.0]])
    with pytest.raises(ValueError, match="lie together"):
        episodes([[1.0], [1.0], [1.0]], group=[0, 1, 0])
    with pytest.raises(ValueError, match="scored=False"):
        episodes([[math.inf]])
    assert episodes([[math.inf]], scored=[False]).groups == [[0]]

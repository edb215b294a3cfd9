"""Learning from a batch of samples that teaches nothing, breaks, runs out of memory or goes too far."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from tests.rlhf.policy_gradient.tabular import (
    K2,
    B,
    Descent,
    T,
    Tabular,
    credit_of,
    everything,
    gradients,
    scene,
    update,
)
from training.contract.methods.policy import AdvantageSettings, KlSettings, UpdateSettings
from training.rlhf.policy_gradient.credit import Credit, CreditAssignment, EpisodeBatch
from training.rlhf.policy_gradient.update import Evaluated, update_policy

NAN = math.nan


def tied_scene() -> tuple[Tabular, EpisodeBatch, Credit]:
    """The first prompt's answers tie."""
    actor, episodes, credit = scene(at_once=2)
    advantages = credit.advantages.clone()
    advantages[:2] = 0
    return actor, episodes, credit_of(advantages)


def test_an_answer_without_advantage_costs_no_pass_and_still_counts():
    actor, episodes, credit = tied_scene()
    actual = gradients(actor, episodes, credit)
    assert actor.seen == [[2, 3], [4, 5]]
    # An entropy bonus of next to nothing takes all answers through a pass.
    slow = tied_scene()
    expected = gradients(*slow, entropy=1e-300)
    assert slow[0].seen == [[0, 1], [2, 3], [4, 5]]
    assert torch.allclose(actual[0], expected[0], atol=1e-14)


@pytest.mark.parametrize("kl", [KlSettings(place="none"), K2])
def test_a_reward_that_always_ties_moves_nothing_not_even_by_momentum(kl):
    actor, episodes, _ = scene()
    optimiser = torch.optim.Adam(actor.parameters, lr=0.1)
    actor.logits.grad = torch.ones_like(actor.logits)
    optimiser.step()
    before = actor.logits.detach().clone()

    class Momentum(Descent):
        def __call__(self, apply: bool):
            optimiser.step()
            return super().__call__(apply)

    settings = AdvantageSettings(kind="group_relative")
    tied = EpisodeBatch(
        mask=episodes.mask,
        rewards=torch.zeros(B, T),
        scored=episodes.scored,
        group=episodes.group,
        old_logp=episodes.old_logp,
        ref_logp=episodes.ref_logp,
    )
    earned = CreditAssignment(settings, kl).assign(tied)
    done = update(actor, tied, earned, Momentum(actor.parameters, 1.0), kl=kl, beta=1.0, entropy=0.1)
    assert earned.tied.all()
    assert (done.steps, done.skipped, done.figures) == (0, 0, {"updates": 0.0, "skipped": 0.0})
    assert torch.equal(actor.logits, before)


def test_a_loss_that_is_not_finite_is_refused_and_told():
    actor, episodes, credit = scene()
    before = actor.logits.detach().clone()
    bad = credit.advantages.clone()
    bad[3, 1] = NAN
    descent = Descent(actor.parameters, rate=1.0)
    done = update(actor, episodes, credit_of(bad), descent, inner_epochs=2)
    assert (done.steps, done.skipped) == (0, 2)
    assert done.figures == {"updates": 0.0, "skipped": 2.0}
    assert torch.equal(actor.logits, before)


def test_an_infinite_loss_is_refused_even_where_its_gradient_is_finite():
    actor, episodes, credit = scene()

    class Overflowing(Tabular):
        def evaluate(self, rows: list[int]) -> Evaluated:
            evaluated = super().evaluate(rows)
            return evaluated._replace(entropy=evaluated.entropy.detach() - math.inf)

    broken = Overflowing(actor.logits.detach(), actor.states, actor.actions)
    done = update(
        broken, episodes, credit_of(credit.advantages), Descent(broken.parameters, 1.0), entropy=0.1
    )
    assert done.skipped == 1
    assert torch.equal(broken.logits, actor.logits)


def test_an_update_ends_before_the_step_that_starts_too_far_away():
    far = [0.0, 0.0, 0.0]
    for bound, at in ((None, 0), (1e-9, 1), (1e9, 2)):
        actor, episodes, credit = scene(old=False)
        descent = Descent(actor.parameters, rate=1.0)
        done = update(actor, episodes, credit, descent, inner_epochs=4, stop_at_kl=bound)
        far[at] = done.figures["approximate_kl"]
        if at == 1:
            # The first pass is at no distance; the second is, and its step is not taken.
            assert (done.epochs, done.steps, done.stopped_early, done.skipped) == (2, 1, True, 0)
            assert descent.refused == 1
        else:
            assert (done.epochs, done.steps, done.stopped_early) == (4, 4, False)
    assert far[0] == far[2] > far[1] > 1e-9


class Crowded(Tabular):
    """Memory runs out where more than two answers are looked at, in the middle of the backward pass."""

    def evaluate(self, rows: list[int]) -> Evaluated:
        evaluated = super().evaluate(rows)
        if len(rows) > 2 and torch.is_grad_enabled():
            evaluated.logp.register_hook(self._fail)
        return evaluated

    def _fail(self, gradient: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("no room")


@pytest.mark.parametrize("old", [True, False])
def test_where_memory_runs_out_a_minibatch_begins_anew_in_smaller_passes(old):
    actor, episodes, credit = scene(old=old)
    crowded = Crowded(actor.logits, actor.states, actor.actions, values=actor.values, at_once=B)
    descent = Descent(crowded.parameters, rate=0.5)
    done = update(crowded, episodes, credit, descent, **everything("token"), inner_epochs=2)
    assert [len(rows) for rows in crowded.seen] == [6, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    plain = Descent(actor.parameters, rate=0.5)
    expected = update(actor, episodes, credit, plain, **everything("token"), inner_epochs=2)
    assert done.figures == pytest.approx(expected.figures)
    for step in range(2):
        for a, b in zip(descent.gradients[step], plain.gradients[step], strict=True):
            assert torch.allclose(a, b, atol=1e-14)


def test_memory_that_runs_out_for_the_smallest_pass_ends_the_update():
    actor, episodes, credit = scene()

    class Hopeless(Crowded):
        def halve(self) -> bool:
            return False

    hopeless = Hopeless(actor.logits, actor.states, actor.actions)
    with pytest.raises(torch.OutOfMemoryError):
        update(hopeless, episodes, credit_of(credit.advantages), Descent(hopeless.parameters, 1.0))


@pytest.mark.parametrize(
    ("lacking", "options", "message"),
    [
        ("old_logp", {"minibatches": 2}, "evaluated_once"),
        ("behaviour_logp", {"truncate": 1.0}, "behaviour_logp"),
        ("ref_logp", {"kl": K2, "beta": 0.1}, "ref_logp"),
        ("old_values", {}, "old_values"),
        (None, {"aggregate": "constant"}, "longest answer"),
        (None, {"kl": KlSettings(place="loss", kind="full"), "beta": 0.1}, "full_kl"),
    ],
)
def test_settings_that_need_what_is_not_there_say_so(lacking, options, message):
    actor, episodes, credit = scene()
    actor.base = None
    if lacking:
        episodes = dataclasses.replace(episodes, **{lacking: None})
    with pytest.raises(ValueError, match=message):
        update(actor, episodes, credit, Descent(actor.parameters, 0.0), **options)


def test_whoever_stops_a_run_is_heard_before_each_pass():
    actor, episodes, credit = scene(at_once=2)

    def check() -> None:
        if len(actor.seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        update_policy(
            actor,
            episodes,
            credit,
            settings=UpdateSettings(),
            kl=KlSettings(place="none"),
            beta=0.0,
            constant=None,
            step=Descent(actor.parameters, 1.0),
            backward=lambda loss: loss.backward(),
            seed=0,
            check=check,
        )
    assert len(actor.seen) == 2

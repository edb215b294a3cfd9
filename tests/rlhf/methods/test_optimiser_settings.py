"""AdamW's settings and the schedule of the learning rate; specs and states of older versions."""

import json
from pathlib import Path

import pytest
import torch

from tests.rlhf.loop.test_interruptions import same_run
from tests.rlhf.runs import StopAfter, files_of, make_run, train
from training.contract import ContractError
from training.contract.methods.common import OptimiserSettings
from training.contract.run import EXIT_FINISHED, EXIT_STOPPED, read_spec
from training.rlhf.loop.training_loop import learning_rate


def test_the_rate_rises_and_then_follows_its_schedule():
    # 2 steps of warm-up of 6: then 4 steps, at 0, 1/4, 1/2 and 3/4 of the way.
    expected = {
        "cosine": [0.5, 1.0, 1.0, 0.853553, 0.5, 0.146447],
        "linear": [0.5, 1.0, 1.0, 0.75, 0.5, 0.25],
        "constant": [0.5, 1.0, 1.0, 1.0, 1.0, 1.0],
    }
    for schedule, rates in expected.items():
        settings = OptimiserSettings(learning_rate=1.0, warmup_steps=2, schedule=schedule)  # type: ignore[arg-type]
        assert [learning_rate(step, 6, settings) for step in range(6)] == pytest.approx(rates, abs=1e-6)


@pytest.mark.parametrize("name", ["beta1", "beta2"])
@pytest.mark.parametrize("value", [-0.1, 1.0])
def test_a_beta_out_of_bounds_is_refused_by_name(name: str, value: float):
    with pytest.raises(ContractError, match=name):
        OptimiserSettings(**{name: value})  # type: ignore[arg-type]


def test_the_defaults_are_those_of_adamw_as_it_was_used_before():
    plain = torch.optim.AdamW([torch.zeros(1)])
    settings = OptimiserSettings()
    assert (settings.beta1, settings.beta2) == plain.defaults["betas"]


def test_a_run_begun_by_an_older_version_goes_on_to_the_same_bytes(base: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", base, method="preference", optimiser={"max_steps": 4})
    assert train(run, StopAfter(run, 2)) == EXIT_STOPPED
    new = ("beta1", "beta2", "schedule")
    spec = json.loads((run / "spec.json").read_text())
    (header,) = (run / "state").glob("*/*.json")
    state = json.loads(header.read_text())
    for settings in (spec["settings"], state["trained"]["settings"]):
        for name in new:
            del settings["optimiser"][name]
        for name in ("reference", "reference_digest"):
            settings.pop(name, None)
    (run / "spec.json").write_text(json.dumps(spec))
    header.write_text(json.dumps(state))
    for digest in header.parent.glob("*.sha256"):
        digest.unlink()
    assert read_spec(run).settings.optimiser.schedule == "cosine"
    assert train(run) == EXIT_FINISHED
    whole = same_run(run, tmp_path / "whole")
    assert train(whole) == EXIT_FINISHED
    assert files_of(run / "checkpoint") == files_of(whole / "checkpoint")

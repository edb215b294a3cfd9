"""The two walks on the architecture page are what the code does: every call is recorded, and compared."""

import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
from django.test import Client

from annotation.models import Project, User
from annotation.services.assignments.next import assign_next
from tests.architecture.test_locks import script
from tests.tiny import tiny_model_folder
from tests.training.conftest import judge_all
from training.contract.methods.common import LoraSettings, OptimiserSettings
from training.contract.methods.reward import RewardSettings
from training.contract.run import RunSpec, write_spec
from training.models import Checkpoint, Snapshot
from training.services.rounds.controls import open_first_round
from training.services.rounds.executor import advance_round

pytestmark = pytest.mark.slow
WALKS = script("walks")
_WALKED = {step.name for walk in WALKS.WALKS.values() for part in walk for step in part.steps}
_OF_FUNCTION = {name.rpartition(".")[2] for name in _WALKED}

Call = tuple[str, tuple[str, ...]]
"""A function of a walk that was called, and those of the walks that called it, the outermost first."""


@contextmanager
def recorded() -> Iterator[list[Call]]:
    """Record the calls of functions that are on a walk, each with what was on the stack."""
    calls: list[Call] = []

    def name_of(frame: FrameType) -> str:
        code = frame.f_code
        if code.co_name not in _OF_FUNCTION:
            return ""
        module = frame.f_globals.get("__name__", "")
        owner = type(frame.f_locals["self"]).__mro__ if "self" in frame.f_locals else ()
        names = [
            f"{module}.{code.co_name}",
            *(f"{one.__module__}.{one.__name__}.{code.co_name}" for one in owner),
        ]
        return next((name for name in names if name in _WALKED and name.startswith(module)), "")

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not (name := name_of(frame)):
            return
        above: list[str] = []
        caller = frame.f_back
        while caller is not None:
            if found := name_of(caller):
                above.append(found)
            caller = caller.f_back
        calls.append((name, tuple(reversed(above))))

    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(None)


@pytest.fixture
def traces(
    project: Project, alice: User, carol: User, client: Client, tmp_path: Path, request: pytest.FixtureRequest
) -> dict[str, list[Call]]:
    """Recordings by name: an annotation on its page, a round from its button, a run of the real trainer."""
    for name in ("prompts", "fake_server", "fake_trainer"):
        request.getfixturevalue(name)
    round_ = open_first_round(project=project)
    advance_round(round_.pk)
    assignment = assign_next(project=project, annotator=alice)
    assert assignment is not None
    client.force_login(alice)
    sent = {
        "idempotency_key": str(uuid.uuid4()),
        "guideline": "1",
        "active_seconds": "7",
        # For two responses and for four.
        "choice": "equal",
    }
    address = f"/projects/{project.slug}/label/{assignment.pk}/submit/"
    with recorded() as label:
        answer = client.post(address, sent, headers={"HX-Request": "true"})
    assert answer.status_code == 200, answer.content
    judge_all(project, alice)
    client.force_login(carol)
    with recorded() as round_calls:
        client.post(f"/projects/{project.slug}/rounds/1/start/", {"confirmed": "1"})
        advance_round(round_.pk)
    assert Checkpoint.objects.exclude(run=None).count() == 2
    from training.rlhf.runtime.stopping import StopRequest
    from training.rlhf.train import train_run

    snapshot = Snapshot.objects.get()
    folder = tmp_path / "runs" / "walked"
    folder.mkdir(parents=True)
    settings = RewardSettings(
        lora=LoraSettings(rank=2, targets=("q_proj",)),
        optimiser=OptimiserSettings(max_steps=1, warmup_steps=0, batch_size=4),
    )
    spec = RunSpec(
        method="reward",
        base_model=str(tiny_model_folder(tmp_path / "base")),
        snapshot=str(snapshot.path),
        snapshot_digest=snapshot.digest,
        settings=settings,
        name="walked",
        device="cpu",
    )
    write_spec(folder, spec)
    with recorded() as train:
        assert train_run(folder, stop=StopRequest(folder), lock_wait_seconds=1) == 0
    return {"label": label, "round": round_calls, "train": train}


def test_each_arrow_of_a_walk_is_a_call_that_was_recorded_in_its_order(traces: dict[str, list[Call]]):
    for name, walk in WALKS.WALKS.items():
        for part in walk:
            names = [step.name for step in part.steps]
            calls = traces[part.trace]
            assert set(names) <= {called for called, _ in calls}, (name, part.process)
            first = [next(i for i, call in enumerate(calls) if call[0] == wanted) for wanted in names]
            assert first == sorted(first), (name, part.process)
            shown: list[str] = []
            for index, step in zip(first, part.steps, strict=True):
                del shown[step.depth :]
                assert [one for one in calls[index][1] if one in names] == shown, (name, step.name)
                shown.append(step.name)


def test_the_pictures_are_those_that_the_code_draws():
    drawn = WALKS.pictures()
    assert len(drawn) == 4
    assert [path.name for path, content in drawn.items() if path.read_text(encoding="utf-8") != content] == []
    assert all(1 < sum(len(part.steps) for part in walk) <= 12 for walk in WALKS.WALKS.values())
    assert all(WALKS.first_sentence(name) for name in _WALKED)

"""An arena that is ready: checkpoints, held-out prompts, answers of a model server that answers at once."""

from collections.abc import Sequence

import httpx

from annotation.choices import SourceKind, Split
from annotation.models import CompletionSource, Project, User
from tests import factories
from tests.training.engine.fake_server import FakeServer
from training.choices import CheckpointKind
from training.engine import Engine, Engines
from training.models import ArenaLink, Checkpoint
from training.services.arenas import create_arena, prepare_arena


def make_checkpoints(project: Project, names: Sequence[str] = ("north", "south")) -> list[Checkpoint]:
    """Starter models under these names that the project may compare."""
    return [
        Checkpoint.objects.create(
            name=name,
            kind=CheckpointKind.STARTER,
            project=project,
            base_model="base",
            source=CompletionSource.objects.create(name=name, kind=SourceKind.CHECKPOINT),
        )
        for name in names
    ]


def ready_arena(
    project: Project,
    manager: User,
    *,
    names: Sequence[str] = ("north", "south"),
    prompts: int = 3,
    server: FakeServer | None = None,
    **options: object,
) -> ArenaLink:
    """The arena, with every answer written."""
    checkpoints = make_checkpoints(project, names)
    for number in range(prompts):
        factories.make_prompt(project, f"Held out {number}?", split=Split.HELD_OUT)
    factories.make_prompt(project, "Train?", split=Split.TRAIN)
    arena = create_arena(
        project=project,
        created_by=manager,
        name="Which is better?",
        checkpoints=checkpoints,
        prompts=prompts,
        **options,  # type: ignore[arg-type]
    )
    prepare_arena(arena.pk, engines=engines_of(server or FakeServer()))
    arena.refresh_from_db()
    return arena


def engines_of(server: FakeServer) -> Engines:
    """Clients that speak to the fake server."""
    return Engines(Engine(transport=httpx.MockTransport(server)))

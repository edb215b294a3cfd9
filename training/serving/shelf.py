"""The checkpoints that are in memory beside the base: loaded when asked for, never dropped while in use."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from training.contract import ContractError, Manifest, manifest_digest, read_manifest
from training.rlhf.model.backbone import Backbone
from training.serving.catalogue import Catalogue
from training.serving.errors import RequestError
from training.serving.worker import NotNowError


@dataclass(slots=True, eq=False)
class Held:
    """A model that is in memory."""

    name: str
    digest: str
    """Of the checkpoint's manifest, or of the base."""
    manifest: Manifest | None
    """None for the base."""
    users: int = 0
    """Requests that use it now."""

    @property
    def adapter(self) -> str | None:
        """Its name on the backbone; None is the base. The same name with other content is another adapter, so
        that an answer that has begun ends as it began."""
        return None if self.manifest is None else f"{self.name}@{self.digest}"

    @property
    def fingerprint(self) -> str:
        """Return the system fingerprint of a response."""
        return f"fp_{self.digest[:16]}"


class Shelf:
    """The base and at most so many checkpoints; those not used for longest make place. For one thread."""

    def __init__(self, backbone: Backbone, catalogue: Catalogue, *, max_adapters: int) -> None:
        self._backbone = backbone
        self._catalogue = catalogue
        self._max_adapters = max_adapters
        self._base = Held(catalogue.base_name, backbone.base_digest, None)
        self._loaded: OrderedDict[str, Held] = OrderedDict()

    @property
    def base_name(self) -> str:
        """Return the base model's name."""
        return self._base.name

    @property
    def loaded(self) -> tuple[str, ...]:
        """Return the names of the checkpoints in memory, the one used last at the end."""
        # Another thread may ask: a list is made at once, a dictionary that changes cannot be gone through.
        return tuple(held.name for held in list(self._loaded.values()))

    @contextmanager
    def holding(self, *names: str) -> Iterator[tuple[Held, ...]]:
        """Inside, these models are in memory.

        Raises `RequestError` for one that cannot be loaded, `NotNowError` where all places are taken by those
        in use.
        """
        with ExitStack() as stack:
            yield tuple(stack.enter_context(self._holding(name)) for name in names)

    @contextmanager
    def _holding(self, name: str) -> Iterator[Held]:
        held = self._base if name == self._catalogue.base_name else self._fetch(name)
        held.users += 1
        try:
            yield held
        finally:
            held.users -= 1

    def _fetch(self, name: str) -> Held:
        try:
            folder = self._catalogue.folder(name)
        except RequestError:
            # It is gone: so is its place.
            self._drop_versions(name, but=None)
            raise
        try:
            held = Held(name, manifest_digest(folder), read_manifest(folder))
        except (OSError, ContractError) as error:
            raise _damaged(name, error) from error
        key = str(held.adapter)
        if key not in self._loaded:
            self._load(held, folder)
        self._loaded.move_to_end(key)
        return self._loaded[key]

    def _load(self, held: Held, folder: Path) -> None:
        self._refuse_other_base(held)
        self._drop_versions(held.name, but=held.digest)
        self._make_place()
        try:
            self._backbone.load_adapter(str(held.adapter), folder)
        except (OSError, ContractError) as error:
            raise _damaged(held.name, error) from error
        self._loaded[str(held.adapter)] = held

    def _refuse_other_base(self, held: Held) -> None:
        manifest = held.manifest
        if manifest is not None and manifest.base_digest != self._backbone.base_digest:
            message = (
                f"Checkpoint '{held.name}' was trained on base {manifest.base_model} "
                f"({manifest.base_digest[:12]}), but {self._catalogue.base_name} "
                f"({self._backbone.base_digest[:12]}) is loaded. Start the model server with that base."
            )
            raise RequestError(409, message, code="base_mismatch", param="model")

    def _drop_versions(self, name: str, *, but: str | None) -> None:
        """Drop what a checkpoint was before, where no answer comes from it any more."""
        for key, held in list(self._loaded.items()):
            if held.name == name and held.digest != but and not held.users:
                self._drop(key)

    def _make_place(self) -> None:
        while len(self._loaded) >= self._max_adapters:
            unused = next((key for key, held in self._loaded.items() if not held.users), None)
            if unused is None:
                raise NotNowError(
                    f"The request needs more checkpoints at once than the {self._max_adapters} that the "
                    "model server holds. Start it with a larger --max-adapters."
                )
            self._drop(unused)

    def _drop(self, key: str) -> None:
        del self._loaded[key]
        self._backbone.drop_adapter(key)


def _damaged(name: str, error: Exception) -> RequestError:
    message = f"Checkpoint '{name}' cannot be loaded: {error}. Restore its folder or train it again."
    return RequestError(422, message, code="checkpoint_damaged", param="model")

"""Verification of a checkpoint's files by the digests of its registration."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from django.utils.translation import gettext as _

from annotation.errors import Refusal
from training.contract import MANIFEST_FILE, ContractError, manifest_digest, read_manifest, sha256_of_file
from training.files.shared import fetched, key_of, shared, translate_store_errors
from training.models import Checkpoint


class FileState(StrEnum):
    """Result of checking one file."""

    INTACT = "intact"
    CHANGED = "changed"
    MISSING = "missing"
    UNKNOWN = "unknown"
    """It lies in the folder, and the manifest does not name it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedFile:
    """One file of a checkpoint's folder."""

    name: str
    state: FileState
    expected: str = ""
    """The digest that was registered."""
    found: str = ""
    size: int | None = None

    @property
    def is_sound(self) -> bool:
        """Return whether all files are intact."""
        return self.state == FileState.INTACT


def check_files(checkpoint: Checkpoint, *, in_store: bool = False) -> list[CheckedFile]:
    """Read every file of a checkpoint; what was found of each, the manifest first.

    The manifest is held against the digest in the database, all others against the manifest. Refuses a
    checkpoint that has no files here, and one that was never registered with digests. With `in_store` what a
    shared store holds of it is read as well.
    """
    if checkpoint.files_deleted_at:
        raise Refusal("files_deleted", _("The files of %(name)s were deleted."), name=checkpoint)
    if not checkpoint.digest:
        raise Refusal(
            "manifest_missing",
            _("%(checkpoint)s came without a manifest: there is nothing to hold its files against."),
            checkpoint=checkpoint,
        )
    folder = fetched(checkpoint.path)
    manifest = _checked(folder, MANIFEST_FILE, checkpoint.digest)
    files = [manifest]
    if not manifest.is_sound:
        return files
    named = read_manifest(folder).files
    files += [_checked(folder, name, digest) for name, digest in sorted(named.items())]
    others = sorted(path.name for path in folder.iterdir() if path.name not in (*named, MANIFEST_FILE))
    files += [CheckedFile(name=name, state=FileState.UNKNOWN) for name in others]
    return [*files, *(_in_store(checkpoint) if in_store else ())]


def _in_store(checkpoint: Checkpoint) -> list[CheckedFile]:
    """Return the files that the store lost or changed; each name begins with its location."""
    if (store := shared()) is None:
        return []
    key, _ = key_of(checkpoint.path)
    with translate_store_errors():
        if store.listing(key) is None:
            return [CheckedFile(name=f"store: {key}", state=FileState.MISSING)]
        return [CheckedFile(name=f"store: {name}", state=FileState.CHANGED) for name in store.damaged(key)]


def require_intact(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint whose files are not those that were registered, naming what is wrong.

    What lies beside them does not matter: nothing reads it.
    """
    wrong = [file for file in check_files(checkpoint) if file.state in (FileState.CHANGED, FileState.MISSING)]
    if wrong:
        damage = ", ".join(f"{file.name} is {file.state}" for file in wrong)
        raise Refusal(
            "checkpoint_damaged",
            _("%(checkpoint)s is damaged: %(damage)s. Put the file back from a copy, or train it again."),
            checkpoint=checkpoint,
            damage=damage,
        )


def require_registered(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint whose manifest is not the one that was registered. Reads one small file.

    Who loads the files checks them against the manifest; this ties the manifest to the database.
    """
    if checkpoint.files_deleted_at:
        raise Refusal(
            "files_deleted",
            _("The files of %(name)s were deleted. Choose another checkpoint."),
            name=checkpoint,
        )
    if not checkpoint.digest:
        return
    folder = fetched(checkpoint.path)
    try:
        digest = manifest_digest(folder)
    except (OSError, ContractError):
        digest = ""
    if digest != checkpoint.digest:
        state = "changed" if digest else "missing"
        raise Refusal(
            "checkpoint_damaged",
            _(
                "%(checkpoint)s is not as it was registered: its manifest is %(state)s. Put the "
                "files back from a copy, or choose another checkpoint."
            ),
            checkpoint=checkpoint,
            state=state,
        )


def _checked(folder: Path, name: str, expected: str) -> CheckedFile:
    path = folder / name
    try:
        if path.is_symlink() or not path.is_file():
            return CheckedFile(name=name, state=FileState.MISSING, expected=expected)
        digest, size = sha256_of_file(path), path.stat().st_size
    except OSError:
        return CheckedFile(name=name, state=FileState.MISSING, expected=expected)
    state = FileState.INTACT if digest == expected else FileState.CHANGED
    return CheckedFile(name=name, state=state, expected=expected, found=digest, size=size)

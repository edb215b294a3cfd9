"""Named bytes in any file system that fsspec knows: written whole or not at all, errors in plain words."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from training.contract.files import FILE_MODE, make_private_folder
from training.store.errors import NotInStoreError, StoreError, StoreUnreachableError

_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}
_MOST_CHARACTERS = 300
_BLOCK_BYTES = 64 * 1024**2
"""Of a stream into a bucket: S3 takes 10,000 of them, 625 GiB."""


class Objects:
    """Objects below one address.

    Keys and passwords come from where the store's own library looks for them (for S3 `AWS_ACCESS_KEY_ID`,
    `AWS_SECRET_ACCESS_KEY`, `AWS_ENDPOINT_URL`), never from the address.
    """

    def __init__(self, url: str) -> None:
        """Raises `StoreError` for an address that nothing here can open. Asks nobody yet."""
        # Imported late: a Rondo without a store has no use for it.
        import fsspec

        self.url = url
        protocol = url.partition("://")[0]
        try:
            self._files, root = fsspec.core.url_to_fs(url, **_options(protocol))
        except ImportError:
            package = _PACKAGES.get(protocol, f"the fsspec package for {protocol!r}")
            raise StoreError(f"The store {url} needs a package: run `pip install {package}`.") from None
        except ValueError as error:
            raise StoreError(f"The store {url} has an address that cannot be read: {error}.") from None
        self._root = root.rstrip("/")
        self._is_local = "file" in _protocols(self._files)

    def write(self, name: str, data: bytes) -> None:
        """Put bytes under a name, in place of what was there; readers see the one or the other."""
        path = self._path(name)
        with self._translated_errors():
            try:
                if self._is_local:
                    _write_local(Path(path), data)
                else:
                    self._files.pipe_file(path, data)
            except FileNotFoundError as error:
                # A bucket that is not there: an object store makes "folders" by itself.
                raise StoreUnreachableError(
                    f"The store {self.url} takes nothing: {_error_text(error)}."
                ) from None

    def read(self, name: str) -> bytes:
        """Return the bytes under a name. Raises `NotInStoreError`."""
        with self._translated_errors():
            try:
                data: bytes = self._files.cat_file(self._path(name))
            except FileNotFoundError:
                raise NotInStoreError(f"The store {self.url} holds no {name}.") from None
        return data

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        """Yield a stream into a new object. Where the block fails, what is there is not whole.

        The caller translates errors of the stream, and makes the object count once it is complete.
        """
        path = self._path(name)
        if self._is_local:
            with self._translated_errors():
                make_private_folder(Path(path).parent)
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
            with os.fdopen(descriptor, "wb") as stream:
                yield stream
                with self._translated_errors():
                    stream.flush()
                    os.fsync(stream.fileno())
            return
        with self._translated_errors():
            remote = self._files.open(path, "wb", block_size=_BLOCK_BYTES)
        try:
            yield remote
        except BaseException:
            with suppress(Exception):
                remote.discard()
            remote.closed = True
            raise
        with self._translated_errors():
            remote.close()

    @contextmanager
    def reading(self, name: str) -> Iterator[IO[bytes]]:
        """Yield a stream from an object. Raises `NotInStoreError`."""
        with self._translated_errors():
            try:
                stream = self._files.open(self._path(name), "rb")
            except FileNotFoundError:
                raise NotInStoreError(f"The store {self.url} holds no {name}.") from None
        with stream:
            yield stream

    def sizes(self, below: str) -> dict[str, int]:
        """Return names, from `below` on, and sizes of everything below it."""
        path = self._path(below)
        with self._translated_errors():
            self._files.invalidate_cache()
            try:
                entries = self._files.find(path, detail=True)
            except FileNotFoundError:
                return {}
        start = len(self._files._strip_protocol(path)) + 1
        return {
            name[start:]: int(about.get("size") or 0)
            for name, about in entries.items()
            if not name.endswith(".draft")
        }

    def remove(self, name: str) -> None:
        """Remove one object; nothing where there is none."""
        with self._translated_errors():
            try:
                self._files.rm_file(self._path(name))
            except FileNotFoundError:
                return

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Every library has errors of its own; what they mean here is that the store does not answer."""
        try:
            yield
        except StoreError:
            raise
        except Exception as error:
            raise StoreUnreachableError(
                f"The store {self.url} does not answer ({_error_text(error)}). "
                "Check RONDO_STORE_URL, its keys and the network; it is tried again."
            ) from error


def _options(protocol: str) -> dict[str, Any]:
    """Never a list of yesterday's names; and of a server that is silent one hears within a minute."""
    if protocol not in ("s3", "s3a"):
        return {}
    patience = {"connect_timeout": 5, "read_timeout": 30, "retries": {"max_attempts": 2}}
    return {"use_listings_cache": False, "config_kwargs": patience}


def _protocols(files: Any) -> tuple[str, ...]:
    named = files.protocol
    return (named,) if isinstance(named, str) else tuple(named)


def _error_text(error: Exception) -> str:
    words = str(error).strip().splitlines()
    return f"{type(error).__name__}: {words[0][:_MOST_CHARACTERS]}" if words else type(error).__name__


def _write_local(path: Path, data: bytes) -> None:
    make_private_folder(path.parent)
    draft = path.with_name(f"{path.name}.{uuid.uuid4().hex}.draft")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE), "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)

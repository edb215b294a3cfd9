"""Metadata and tensors of a GGUF file; what cannot be read is refused with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from training.contract import ContractError

_ORIGINAL = "choose the model's original weights, or another file"
_MISSING = object()


class GgufFile:
    """One GGUF file, mapped into memory. Tensors are dequantised when they are read."""

    def __init__(self, path: Path) -> None:
        """Raise `ContractError` for what is no whole GGUF file, a part of a split one, and unknown types."""
        self.path = path
        try:
            with path.open("rb") as stream:
                if stream.read(4) != b"GGUF":
                    raise ContractError(f"{path.name} is no GGUF file; choose another file")
            self._reader = gguf.GGUFReader(path)
        except OSError as error:
            raise ContractError(f"{path.name} cannot be read ({error.strerror or error})") from error
        except (ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
            if gguf.GGMLQuantizationType.__name__ in str(error):
                raise ContractError(
                    f"{path.name} has tensors of a type that the gguf package does not know ({error}); "
                    f"{_ORIGINAL}"
                ) from error
            raise ContractError(
                f"{path.name} is not a whole GGUF file: it was cut off or damaged ({error}); fetch it again"
            ) from error
        if self.value("split.count", 0) > 1:
            raise ContractError(
                f"{path.name} is a part of a split file; join the parts by `llama-gguf-split --merge` first"
            )
        self.architecture = str(self.value("general.architecture", ""))
        self.tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self._refuse_types()

    def value(self, key: str, default: Any = _MISSING) -> Any:
        """Return a value of the metadata. Raise `ContractError` where it is missing without a default."""
        field = self._reader.get_field(key)
        if field is not None:
            return field.contents()
        if default is _MISSING:
            raise ContractError(f"{self.path.name} lacks {key} in its metadata; {_ORIGINAL}")
        return default

    def values(self, prefix: str) -> dict[str, Any]:
        """Return the values whose keys begin with a prefix, without it."""
        fields = self._reader.fields.items()
        return {key.removeprefix(prefix): field.contents() for key, field in fields if key.startswith(prefix)}

    def read(self, name: str) -> np.ndarray:
        """Return a tensor's numbers: dequantised, as float32."""
        tensor = self.tensors[name]
        numbers: np.ndarray = gguf.dequantize(tensor.data, tensor.tensor_type)
        return numbers

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape in the order of torch."""
        return tuple(int(size) for size in reversed(self.tensors[name].shape))

    @property
    def types(self) -> dict[str, int]:
        """Return the number of tensors of each type."""
        names = [tensor.tensor_type.name for tensor in self.tensors.values()]
        return {name: names.count(name) for name in sorted(set(names))}

    def _refuse_types(self) -> None:
        tried = set()
        for tensor in self.tensors.values():
            if tensor.tensor_type in tried:
                continue
            tried.add(tensor.tensor_type)
            try:
                gguf.dequantize(tensor.data[:1] if tensor.data.ndim > 1 else tensor.data, tensor.tensor_type)
            except (NotImplementedError, KeyError) as error:
                raise ContractError(
                    f"{self.path.name} has tensors of type {tensor.tensor_type.name}, which cannot be "
                    f"dequantised; {_ORIGINAL}"
                ) from error

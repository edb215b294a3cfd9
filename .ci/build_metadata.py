"""The wheel's dependencies: a hook of hatchling, so that requirements.txt stays their one source."""

from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class RequirementsHook(MetadataHookInterface):
    """Reads requirements.txt."""

    def update(self, metadata: dict[str, Any]) -> None:
        lines = (Path(self.root) / "requirements.txt").read_text(encoding="utf-8").splitlines()
        metadata["dependencies"] = [line for raw in lines if (line := raw.partition("#")[0].strip())]

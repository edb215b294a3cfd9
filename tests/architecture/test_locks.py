"""The locks of `.ci/locks`: complete, current, with hashes, and without an address; and who reads them."""

import importlib.util
import json
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.architecture.test_house import ROOT

LOCKS = ROOT / ".ci" / "locks"
PLATFORMS = [
    {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64", "os_name": "posix"},
    {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "aarch64", "os_name": "posix"},
    {"sys_platform": "darwin", "platform_system": "Darwin", "platform_machine": "arm64", "os_name": "posix"},
]
PYTHONS = ("3.11", "3.12", "3.13")


def script(name: str) -> ModuleType:
    """A script of `.ci` as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def install() -> ModuleType:
    return script("install")


@pytest.fixture
def lock(install: ModuleType) -> ModuleType:
    return script("lock")


def pins(name: str, environment: dict[str, str] | None = None) -> dict[str, Version]:
    """The pinned version of each package of a lock, in one environment."""
    versions: dict[str, Version] = {}
    for line in re.findall(r"^([A-Za-z0-9].*==.*?)\s*\\$", (LOCKS / name).read_text(), re.M):
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate(environment):
            (specifier,) = requirement.specifier
            name_of_package = canonicalize_name(requirement.name)
            assert name_of_package not in versions, line
            versions[name_of_package] = Version(specifier.version)
    return versions


def environments() -> list[dict[str, str]]:
    return [
        {**platform, "python_version": python, "python_full_version": f"{python}.4"}
        for platform in PLATFORMS
        for python in PYTHONS
    ]


def requirements(group: str = "") -> list[Requirement]:
    if group:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        return [Requirement(text) for text in project["dependency-groups"][group]]
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line.strip() and not line.startswith("#")]


@pytest.mark.parametrize(
    "environment", environments(), ids=lambda environment: "-".join(list(environment.values())[0:5:2])
)
def test_every_requirement_is_pinned_to_a_version_that_it_allows(environment: dict[str, str]):
    default = pins("default.txt", environment)
    locked = {"": default, "dev": {**default, **pins("dev.txt", environment)}}
    if environment["sys_platform"] == "linux":
        locked["cpu"] = pins("linux-cpu.txt", environment)
    for name, versions in locked.items():
        for requirement in requirements("dev" if name == "dev" else ""):
            version = versions[canonicalize_name(requirement.name)]
            # A local label such as +cpu names a build.
            assert requirement.specifier.contains(version.public, prereleases=True), requirement


@pytest.mark.parametrize(
    ("name", "groups"), [("default.txt", []), ("linux-cpu.txt", []), ("dev.txt", ["dev"])]
)
def test_the_locks_are_as_new_as_the_requirements(install: ModuleType, name: str, groups: list[str]):
    first = (LOCKS / name).read_text(encoding="utf-8").partition("\n")[0]
    assert install.inputs_digest(groups) in first, "run `make lock`"


@pytest.mark.parametrize("path", sorted(LOCKS.glob("*.txt")), ids=lambda path: path.name)
def test_every_pin_has_hashes_and_no_lock_names_an_address_or_a_folder(path: Path):
    text = path.read_text(encoding="utf-8")
    assert "://" not in text
    assert not re.search(r"^\s*-(?!-hash=)|/tmp|/opt", re.sub(r"# via .*", "", text), re.M)
    entries = re.split(r"\n(?=[A-Za-z0-9])", text)[1:]
    assert entries
    assert [entry.partition("\n")[0] for entry in entries if "--hash=sha256:" not in entry] == []


def test_the_cpu_lock_has_the_cpu_build_alone_and_otherwise_the_same_pins():
    environment = environments()[0]
    cpu, default = pins("linux-cpu.txt", environment), pins("default.txt", environment)
    assert str(cpu.pop("torch")) == f"{default.pop('torch')}+cpu"
    missing = {name for name in default if name not in cpu}
    assert missing
    assert all(re.match(r"(nvidia|cuda|triton)", name) for name in missing)
    assert [name for name in cpu if re.match(r"(nvidia|cuda|triton)", name)] == []
    assert {name: default[name] for name in cpu} == cpu
    text = (LOCKS / "linux-cpu.txt").read_text(encoding="utf-8")
    block = text.partition("\ntorch==")[2].partition("\ntqdm")[0]
    assert set(re.findall(r"sha256:(\w+)", block)) == set(
        json.loads((LOCKS / "torch-cpu.json").read_text()).values()
    )


def test_a_package_with_two_versions_keeps_both(lock: ModuleType):
    text = (
        "numpy==2.4.6 ; python_full_version < '3.12' \\\n    --hash=sha256:aa\n    # via x\n"
        "numpy==2.5.5 ; python_full_version >= '3.12' \\\n    --hash=sha256:bb\n"
    )
    assert list(lock.entries("# comment\n" + text)) == [
        "numpy==2.4.6 ; python_full_version < '3.12'",
        "numpy==2.5.5 ; python_full_version >= '3.12'",
    ]


def test_hashes_of_another_torch_are_refused(lock: ModuleType):
    with pytest.raises(SystemExit, match=r"lists another version than torch==2\.14\.0"):
        lock.cpu_entries(
            {"torch==2.14.0": "torch==2.14.0 \\\n --hash=sha256:aa"}, {"torch-2.13.0+cpu-cp311": "bb"}
        )


@pytest.mark.parametrize(
    ("platform", "smi", "build"),
    [("linux", None, "cpu"), ("linux", "/usr/bin/nvidia-smi", "default"), ("darwin", None, "default")],
)
def test_the_build_of_torch_follows_the_machine(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, platform: str, smi: str | None, build: str
):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(install.shutil, "which", lambda name: smi)
    monkeypatch.setattr(install.Path, "exists", lambda path: False)
    assert install.torch_build() == build


def test_uv_is_told_the_sources_that_pip_is_configured_with(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    configuration = tmp_path / "pip.conf"
    configuration.write_text(
        "[global]\nindex-url = https://one.example/simple\nextra-index-url =\n    https://two.example/simple\n"
        "    https://three.example/simple\n[install]\nfind-links = /srv/wheels\n"
    )
    for variable in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(configuration))
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.example/simple")
    options = " ".join(install.uv_sources())
    assert "--default-index https://mirror.example/simple" in options
    assert "one.example" not in options
    assert "--index https://two.example/simple --index https://three.example/simple" in options
    assert "--find-links /srv/wheels" in options

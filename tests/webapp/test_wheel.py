"""The wheel in a fresh virtual environment: it holds every file, and `rondo` runs from it."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import httpx
import pytest

from tests.architecture.test_house import ROOT, tracked
from tests.architecture.test_locks import script
from tests.webapp.running import RunningUp, free_port
from webapp import __version__

pytestmark = pytest.mark.slow
CODE = ("webapp", "annotation", "training")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    words = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(words, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new virtual environment with the locked packages and the wheel."""
    install = script("install")
    folder = tmp_path_factory.mktemp("fresh") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    lock = ROOT / ".ci" / "locks" / ("linux-cpu.txt" if install.torch_build() == "cpu" else "default.txt")
    uv = install.uv_command()
    if not uv:
        pytest.skip("no uv: pip takes minutes for a fresh environment")
    into = [*uv, "pip", "install", "--quiet", "--python", python, *install.uv_sources()]
    subprocess.run([*into, "--require-hashes", "--requirement", str(lock)], check=True)
    subprocess.run([*into, "--no-deps", str(wheel)], check=True)
    subprocess.run([*uv, "pip", "check", "--python", python], check=True)
    return folder / "bin"


def test_the_wheel_holds_every_file_of_the_packages_and_nothing_else(wheel: Path):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {str(path.relative_to(ROOT)) for path in tracked(*CODE)}
    for folder in ("templates", "static"):
        expected |= {f"webapp/assets/{path.relative_to(ROOT)}" for path in tracked(folder)}
    assert names == expected


def test_its_metadata_names_requirements_extras_and_the_command(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        folder = f"rondo-{__version__}.dist-info"
        about = archive.read(f"{folder}/METADATA").decode()
        assert archive.read(f"{folder}/licenses/LICENSE")
        entries = archive.read(f"{folder}/entry_points.txt").decode()
    needed = re.findall(r"^Requires-Dist: ([^;\n]+)$", about, re.M)
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert len(needed) == len([line for line in lines if line and not line.startswith("#")])
    assert set(re.findall(r"^Provides-Extra: (\S+)$", about, re.M)) == {"ray", "s3", "gpu"}
    assert "rondo = webapp.management.console:main" in entries


def run(environment: Path, home: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    ours = ("RONDO_", "DJANGO_", "DATABASE_URL")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return subprocess.run(
        [str(environment / "rondo"), *words],
        cwd=cwd,
        env={**variables, "XDG_DATA_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.long
def test_rondo_starts_and_its_commands_work_outside_the_checkout(environment: Path, tmp_path: Path):
    def rondo(*words: str) -> str:
        done = run(environment, tmp_path, *words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert rondo("--version") == f"rondo {__version__}\n"
    home = tmp_path / "rondo"
    command = [str(environment / "rondo"), "up", "--no-model-server"]
    up = RunningUp(home, free_port(), command=command, cwd=tmp_path)
    try:
        up.wait_for(f"Rondo is at {up.address}")
        with httpx.Client(base_url=up.address, trust_env=False, timeout=60) as client:
            page = client.get("/login/")
            assert page.status_code == 200
            sheet = re.search(r'href="([^"]+\.css)"', page.text)
            assert client.get(sheet[1]).status_code == 200
        up.wait_for("rondo manage changepassword NAME")
        prompts = tmp_path / "prompts.jsonl"
        prompts.write_text('{"prompt": "Why is the sky blue?"}\n')
        assert "1" in rondo("import", "prompts", str(prompts), "--project", "first-project")
        written = tmp_path / "out.jsonl"
        rondo("export", "--format", "jsonl", "--project", "first-project", "--output", str(written))
        assert written.exists()
        rondo("backup", str(tmp_path / "copy"))
        # Without a model server the doctor finds something wrong, and tells the version.
        assert f"Rondo {__version__}" in run(environment, tmp_path, "doctor", cwd=tmp_path).stdout
    finally:
        up.stop()
    assert (home / "rondo.sqlite3").exists()
    site = next(environment.parent.glob("lib/python*/site-packages"))
    assert not (site / "var").exists()


@pytest.mark.long
def test_an_unknown_command_is_refused_with_the_list(environment: Path, tmp_path: Path):
    done = run(environment, tmp_path, "fly", cwd=tmp_path)
    assert done.returncode == 1
    assert "rondo has no command 'fly'" in done.stderr
    assert "rondo doctor" in done.stderr

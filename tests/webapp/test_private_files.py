"""Secrets are 0600 in folders of 0700, whatever the umask, also where the folder was there before."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.migrated import give_database
from training.contract.files import make_private_folder

ROOT = Path(__file__).resolve().parents[2]


def run(home: Path, *words: str) -> None:
    """Run a command of manage.py as somebody with the usual umask does."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RONDO_")}
    inherited.pop("DATABASE_URL", None)
    inherited["DJANGO_SETTINGS_MODULE"] = "webapp.settings"
    done = subprocess.run(
        [sys.executable, "manage.py", *words],
        cwd=ROOT,
        env={**inherited, "RONDO_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
        umask=0o022,
    )
    assert done.returncode == 0, done.stderr


def open_to_others(folder: Path) -> list[str]:
    """Paths below a folder, itself included, that others may read, write or enter."""
    paths = [folder, *folder.rglob("*")]
    return [str(path) for path in paths if not path.is_symlink() and path.stat().st_mode & 0o077]


def test_database_keys_and_back_ups_are_private_also_in_folders_that_were_open(tmp_path: Path):
    home, target = tmp_path / "home", tmp_path / "backups"
    for folder in (home, home / "imports", target, target / "archives"):
        folder.mkdir()
        folder.chmod(0o755)
    give_database(home)
    (home / "rondo.sqlite3").chmod(0o644)
    (home / "imports" / "uploaded.csv").write_text("a,b\n")
    (home / "imports" / "uploaded.csv").chmod(0o644)
    run(home, "migrate", "--verbosity", "0")
    run(home, "backup", str(target), "--with-secrets")
    assert open_to_others(target) == []
    # What others cannot reach needs no rights of its own: an upload of before lies in a folder of 0700.
    assert open_to_others(home) == [str(home / "imports" / "uploaded.csv")]
    assert len(list(target.rglob("*"))) > 4


@pytest.mark.long
def test_a_restored_database_is_private(tmp_path: Path):
    home, target = tmp_path / "home", tmp_path / "backups"
    give_database(home)
    run(home, "backup", str(target), "--with-secrets")
    restored = tmp_path / "restored"
    run(restored, "restore", str(target))
    assert open_to_others(restored) == []


def test_a_folder_that_all_users_share_stays_shared(tmp_path: Path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    make_private_folder(shared)
    assert stat.S_IMODE(shared.stat().st_mode) == 0o1777


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o700])
def test_a_folder_of_ones_own_becomes_private(tmp_path: Path, mode: int):
    tmp_path.chmod(mode)
    make_private_folder(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700

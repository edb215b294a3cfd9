"""Back-ups: the database and the files below RONDO_HOME, in any place that fsspec supports.

    archives/TIME/database        what pg_dump or SQLite's back-up wrote
    archives/TIME/files.tar       the files, by their path below RONDO_HOME
    archives/TIME/manifest.json   size and SHA-256 of everything; written last

**The database is copied first, the files after it.** A file is created before the row that refers to it and
deleted after that row, so every file that the copied rows refer to still exists. In the other order, a
checkpoint registered in between would have a row and no files. Files written after the database copy are
included and harmless. Only files deleted during these minutes may be missing: `manage.py verify_checkpoints`
names them.

django-dbbackup copies the database and the media files by two commands. Rondo needs one restorable point of
both.
"""

from webapp.backup.making import make_backup
from webapp.backup.restoring import restore_backup
from webapp.backup.target import BackupError, Target

__all__ = ["BackupError", "Target", "make_backup", "restore_backup"]

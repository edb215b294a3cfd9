"""Back-ups: the database and the files below RONDO_HOME, in any place that fsspec knows.

    backups/TIME.json      one back-up: every file and the database, by pieces; written last
    pieces/AB/ABCD…        the pieces, by their SHA-256; what two back-ups have in common lies here once

**The database goes first, the files after it.** A file is always there before the row that speaks of it, and
goes after that row has said so: whatever the copied rows speak of is still to be found a moment later. The
other way round a checkpoint registered in between would have a row and no files. What was written since the
database was copied is in the back-up too, and does no harm. Only what somebody deletes during these minutes
may be missed: `manage.py verify_checkpoints` names it.
"""

from webapp.backup.errors import BackupError
from webapp.backup.making import make_backup
from webapp.backup.restoring import restore_backup
from webapp.backup.target import Target

__all__ = ["BackupError", "Target", "make_backup", "restore_backup"]

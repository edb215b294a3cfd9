"""Judgments leave the database: content-addressed, immutable, pseudonymous.

`rows` reads what a snapshot holds; `freezing` writes it.
"""

from training.services.snapshots.freezing import freeze_snapshot, refuse_unless_learnable

__all__ = ["freeze_snapshot", "refuse_unless_learnable"]

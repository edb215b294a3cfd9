"""The error of back-ups and restores."""


class BackupError(Exception):
    """A back-up or restore failed without losing anything; the message names the remedy."""

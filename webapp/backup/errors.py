"""What stops a back-up or its return."""


class BackupError(Exception):
    """Nothing was lost; the message says what is wrong and what to do."""

"""Why `manage.py up` stops: always words for people, with what to do."""


class UpError(Exception):
    """`up` cannot go on. Its text says what is wrong, where, and the remedy."""

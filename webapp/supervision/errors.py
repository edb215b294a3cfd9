"""The base error of `manage.py up`."""


class UpError(Exception):
    """`up` cannot continue. The message says what is wrong, where, and the remedy."""

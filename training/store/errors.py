"""Errors of a store."""


class StoreError(OSError):
    """The store cannot give or take what it was asked for."""


class StoreUnreachableError(StoreError):
    """The store does not answer, or lets us not in: the same may be tried again later."""


class NotInStoreError(StoreError):
    """There is nothing of that name."""


class DamagedError(StoreError):
    """The store's content differs from the published one."""

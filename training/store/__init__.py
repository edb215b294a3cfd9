"""Folders in a store that several machines reach: S3, another machine's disk, whatever fsspec knows.

    listings/KEY.json       which files a folder has: size, SHA-256, and the pieces of each; written last
    pieces/KEY/SHA256       the pieces; each is known by what is in it

A folder is there once its listing is, so nobody sees half of one. A piece that is there is never sent again,
so what was cut off goes on where it stopped, and a file that only grew costs its last piece. Knows no
database and no Django: the model server reads from here too.

fsspec does the transfers, to S3 as to a disk; django-storages would bring Django into the model server.
Neither publishes a folder at once, resumes an upload by pieces or verifies them, which this package adds.
"""

from training.store.errors import DamagedError, NotInStoreError, StoreError, StoreUnreachableError
from training.store.listings import PIECE_BYTES, Entry, Listing
from training.store.objects import Objects
from training.store.store import Store

__all__ = [
    "PIECE_BYTES",
    "DamagedError",
    "Entry",
    "Listing",
    "NotInStoreError",
    "Objects",
    "Store",
    "StoreError",
    "StoreUnreachableError",
]

"""Files that are no text in UTF-8: refused by their first bytes, in words that name what they are."""

import codecs
import re

from django.utils.translation import gettext as _

from annotation.errors import Refusal

LOOKED_AT = 8192
"""Bytes from the beginning of a file that tell text from everything else."""
_KINDS = (
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"\xff\xd8\xff", "JPEG"),
    (b"GIF8", "GIF"),
    (b"RIFF", "RIFF"),
    (b"%PDF-", "PDF"),
    (b"SQLite format 3\x00", "SQLite"),
    (b"\xd0\xcf\x11\xe0", "Excel/Word"),
    (b"\x7fELF", "ELF"),
    (b"\x89HDF", "HDF5"),
)
_ARCHIVES = (b"BZh", b"\xfd7zXZ", b"7z\xbc\xaf", b"\x28\xb5\x2f\xfd", b"Rar!")
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")


def refuse_binary(beginning: bytes) -> None:
    """Refuse (`Refusal`) a file whose first `LOOKED_AT` bytes are no text.

    Text in another encoding of one byte, such as Latin-1, passes: its rows are refused one by one, each with
    the byte that is not UTF-8.
    """
    if beginning.startswith(_UTF_16) or _is_half_nul(beginning):
        raise Refusal(
            "file_not_utf8", _("The file is in UTF-16, not in UTF-8. Save it in UTF-8."), field="file"
        )
    if beginning.startswith(_ARCHIVES) and not _is_utf_8(beginning):
        raise Refusal(
            "file_is_archive", _("The file is an archive. Unpack it, and take one file of it."), field="file"
        )
    for magic, kind in _KINDS:
        if beginning.startswith(magic) and (_CONTROL.search(beginning) or not _is_utf_8(beginning)):
            raise Refusal(
                "file_is_binary",
                _(
                    "The file is binary (%(kind)s), not text with rows. "
                    "Upload JSON Lines, JSON or CSV in UTF-8."
                ),
                field="file",
                kind=kind,
            )
    if _CONTROL.search(beginning) and not _is_utf_8(beginning):
        raise Refusal(
            "file_is_binary",
            _("The file is binary, not text with rows. Upload JSON Lines, JSON or CSV in UTF-8."),
            field="file",
        )


def _is_half_nul(beginning: bytes) -> bool:
    """Return True where every second byte is NUL: Latin script in UTF-16 without its mark."""
    even, odd = beginning[::2], beginning[1::2]
    return len(odd) >= 4 and any(
        half.count(0) > 0.9 * len(half) and other.count(0) < 0.1 * len(half)
        for half, other in ((even, odd), (odd, even))
    )


def _is_utf_8(beginning: bytes) -> bool:
    try:
        # A character may be cut in two by the end of what is looked at.
        codecs.getincrementaldecoder("utf-8")().decode(beginning, final=len(beginning) < LOOKED_AT)
    except UnicodeDecodeError:
        return False
    return True

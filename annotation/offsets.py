"""Browser and Python agree on where a span is.

JavaScript counts a string in UTF-16 units, Python in code points: beyond U+FFFF one code
point is two units, a surrogate pair. Rondo stores code points; what comes from a browser
passes through here. Nothing is normalised: CRLF is two characters, a combining mark one.
"""

_LAST_OF_ONE_UNIT = "\uffff"


def utf16_to_codepoint(text: str, index: int) -> int:
    """The code point index of the place that a browser calls `index`, in UTF-16 units.

    Refuses with `ValueError` an index outside `text` and one inside a surrogate pair, where
    no character begins.
    """
    if index < 0:
        raise ValueError(f"UTF-16 index {index} is negative; indices count from 0")
    units = 0
    for position, character in enumerate(text):
        if units == index:
            return position
        units += 2 if character > _LAST_OF_ONE_UNIT else 1
        if units > index:
            raise ValueError(
                f"UTF-16 index {index} lies inside the surrogate pair of {character!r}, "
                f"code point {position}; a span begins and ends between characters"
            )
    if units == index:
        return len(text)
    raise ValueError(f"UTF-16 index {index} lies beyond the text, which has {units} units")


def codepoint_to_utf16(text: str, index: int) -> int:
    """The index in UTF-16 units, as a browser counts, of the place before code point `index`.

    Refuses with `ValueError` an index outside `text`.
    """
    if not 0 <= index <= len(text):
        raise ValueError(f"code point index {index} lies outside the text, which has {len(text)} code points")
    return index + sum(character > _LAST_OF_ONE_UNIT for character in text[:index])

"""Texts in short, for lists and titles."""


def shortened(text: str, length: int = 80) -> str:
    """Return a text in one line of at most `length` characters, cut between words where it has any."""
    line = " ".join(text.split())
    if len(line) <= length:
        return line
    kept = line[: length - 1]
    last_space = line.rfind(" ", 0, length)
    # Languages without spaces, and addresses, are cut where they are.
    return (kept[:last_space] if last_space > length // 2 else kept) + "…"

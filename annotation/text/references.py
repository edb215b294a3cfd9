"""References in a prompt to the context that comes with it."""

import re

_WORDS = r"""
    contexts? | passages? | excerpts? | documents? | articles? | sources?
  | (?:text|paragraph|information|story|report|table|transcript)\s+(?:above|below|provided|given)
  | (?:above|below|following|provided|given|this)\s+(?:text|paragraph|information|story|report|table)
  | kontext | textstellen? | abschnitte?n? | passagen? | auszugs? | auszüge
  | dokumente?n? | artikeln? | quellen?
  | (?:folgenden?|obigen?|gegebenen?|vorliegenden?|diese[mnr])\s+(?:text|tabelle|bericht|informationen)
  | text\s+(?:oben|unten)
"""
_REFERENCE = re.compile(rf"(?<!\w)(?:{_WORDS})(?!\w)", re.IGNORECASE | re.VERBOSE)


def refers_to_context(question: str) -> bool:
    """Return True if a question names its context, as "the passage above" or "im folgenden Text"."""
    return _REFERENCE.search(question) is not None

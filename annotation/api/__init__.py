"""The REST API at /api/v1/: the same services and selectors as the pages, for programs.

`base` has what all operations share: authentication, permission, throttling, conditional and repeated
requests; `problems` renders errors (RFC 9457). The other modules hold the operations, one module per subject:
each parses, authorises, calls one service or selector, and renders.
"""

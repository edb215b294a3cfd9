"""The REST API at /api/v1/: the same services and selectors as the pages, for programs.

`base` has what all operations share: who asks, who may, how often, conditional and repeated requests;
`problems` says what is wrong (RFC 9457); `schema` completes the OpenAPI document. The other modules hold
the operations, one module per subject: each parses, authorises, calls one service or selector, and renders.
"""

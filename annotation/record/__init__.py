"""A judgment and its parts: fields, bounds and rules, without a database.

The labelling page, the API, imports, exports and snapshots read and write these records; services store them.
"""

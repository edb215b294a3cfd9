"""The state machine that takes a project once around the loop.

`transitions` holds the states and what may follow what; `opening` begins and starts a round, `controls`
stops it and lets it go on, `deciding` promotes, rejects and rolls back; `executor` does its steps;
`triggers` is what happens by itself.
"""

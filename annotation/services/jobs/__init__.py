"""Background jobs: the database row is the truth, a broker message only wakes a worker.

`claims` gives a row to one worker at a time, `running` does a job from claim to end, `messages` wakes
workers.
"""

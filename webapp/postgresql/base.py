"""Django's PostgreSQL backend, with a look at a kept connection that costs no round trip.

With `CONN_HEALTH_CHECKS` Django sends `SELECT 1` before the first statement of every request: one
statement in twenty of a labeller's. A server that ended or dropped a connection has told so: something
then waits to be read, where between two requests nothing may.
"""

import select

from django.db.backends.postgresql import base


class DatabaseWrapper(base.DatabaseWrapper):
    """One thread's connection."""

    def is_usable(self) -> bool:
        """Whether the connection still stands; asks the server only where the socket has something to say."""
        if self.connection is None:
            return False
        look = select.poll()
        look.register(self.connection.pgconn.socket, select.POLLIN)
        return not look.poll(0) or super().is_usable()

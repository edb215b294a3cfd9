"""A slow line to a server: what goes through is late by half a second there and back, on request.

    python -m tests.faults.relay PORT HOST PORT

SIGUSR1 makes it slow, SIGUSR2 quick again. In place of `tc netem`, which not every kernel has.
"""

import asyncio
import signal
import sys

ONE_WAY_SECONDS = 0.25
_CHUNK = 65_536


class Relay:
    """Passes on what comes, in order, each piece as late as the line is slow when it comes."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.delay = 0.0

    async def serve(self, port: int) -> None:
        """Listen on this machine alone, until killed."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, self._set, ONE_WAY_SECONDS)
        loop.add_signal_handler(signal.SIGUSR2, self._set, 0.0)
        server = await asyncio.start_server(self._meet, "127.0.0.1", port)
        async with server:
            await server.serve_forever()

    def _set(self, delay: float) -> None:
        self.delay = delay

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(self.host, self.port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(_CHUNK):
                await asyncio.sleep(self.delay)
                writer.write(piece)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


if __name__ == "__main__":
    asyncio.run(Relay(sys.argv[2], int(sys.argv[3])).serve(int(sys.argv[1])))

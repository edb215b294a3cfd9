"""Have the forge run the model server, with its key: `python -m tests.benchmarks.loop.serve SOCKET KEY …`."""

import sys

from tests.benchmarks.loop.forge import ask

if __name__ == "__main__":
    sys.exit(ask(sys.argv[1], "training.serving", sys.argv[3:], {"RONDO_MODEL_SERVER_KEY": sys.argv[2]}))

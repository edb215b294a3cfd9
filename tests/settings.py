"""Rondo's settings for tests: the defaults, in a folder of their own that goes away afterwards.

What a developer has set for their own Rondo must neither change a test nor be changed by one.
DATABASE_URL stays: `make test` runs some tests a second time on PostgreSQL.
"""

import atexit
import os
import shutil
import tempfile

_STAYS = ("RONDO_STARTER_MODEL", "RONDO_TEST_DATA", "RONDO_TEST_EXAMPLES", "RONDO_TEST_VLLM")

for _name in [name for name in os.environ if name.startswith("RONDO_") and name not in _STAYS]:
    del os.environ[_name]
os.environ["RONDO_HOME"] = tempfile.mkdtemp(prefix="rondo-tests-")
os.mkdir(os.path.join(os.environ["RONDO_HOME"], "static"))
atexit.register(shutil.rmtree, os.environ["RONDO_HOME"], ignore_errors=True)

from webapp.settings import *  # noqa: E402, F403 - settings are read when they are imported

if DATABASES["default"]["ENGINE"] == "webapp.database.sqlite":  # noqa: F405
    # In memory, as Django does by itself for its own backend; the suffix of each test process comes last.
    DATABASES["default"]["TEST"] = {  # noqa: F405
        "NAME": "file:memorydb_default?mode=memory&cache=shared&process="
    }

# The disk of whoever runs the tests may be nearly full.
RONDO_LEAST_FREE_MB = 0

# Else each test client, which has middleware of its own, lists and opens all static files first.
WHITENOISE_AUTOREFRESH = True

# Argon2 is slow on purpose; no test is about it.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

"""The people who send the drawn requests."""

import pytest

from annotation.models import User


@pytest.fixture
def people(admin: User, carol: User, alice: User, oscar: User) -> dict[str, User]:
    """A superuser, the project's manager, one of its annotators, and somebody outside of it."""
    return {"superuser": admin, "manager": carol, "member": alice, "outsider": oscar}

"""Errors of model servers. The messages are for people."""


class EngineError(Exception):
    """A failed request to a model server."""

    def __init__(self, message: str, *, status: int | None = None, param: str | None = None) -> None:
        """status: of the server's answer, where there was one. param: the field it blames."""
        super().__init__(message)
        self.status = status
        self.param = param


class EngineUnavailableError(EngineError):
    """It is down, busy, or still loading its model: a later request may succeed."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        """retry_after: seconds after which the server accepts another request, if known."""
        super().__init__(message, status=status, param=param)
        self.retry_after = retry_after


class EngineUnknownModelError(EngineError):
    """It does not know the model. It may take a moment to find a new checkpoint."""

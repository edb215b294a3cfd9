"""What a model server failed to do. The messages are for people."""


class EngineError(Exception):
    """The model server did not do what was asked."""

    def __init__(self, message: str, *, status: int | None = None, param: str | None = None) -> None:
        """status: of the server's answer, where there was one. param: the field it blames."""
        super().__init__(message)
        self.status = status
        self.param = param


class EngineUnavailableError(EngineError):
    """It is down, busy, or still loads its model: asking again later may help."""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        """retry_after: seconds after which the server wants to be asked again, where it says so."""
        super().__init__(message, status=status, param=param)
        self.retry_after = retry_after


class EngineUnknownModelError(EngineError):
    """It does not know the model. A new checkpoint may take it a moment to find."""

"""What long operations report; the command line draws it, a library caller may ignore it."""

from typing import Protocol


class Progress(Protocol):
    """Receives progress from any thread."""

    def stage(self, name: str, bytes_total: int | None = None) -> None:
        """A stage begins."""
        ...

    def advance(self, bytes_done: int) -> None:
        """So many more bytes of the stage are done."""
        ...


class Silent:
    """Ignores all."""

    def stage(self, name: str, bytes_total: int | None = None) -> None:
        pass

    def advance(self, bytes_done: int) -> None:
        pass

"""Sessions that writers hold open, or that dead writers left."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A session whose object exists; `epoch` is None where the object is damaged."""

    id: str
    epoch: int | None

"""What one save has stored: counts, times, packs."""

import msgspec

from cairn.store.index import PackRef, PieceEntry


class WriteCounts(msgspec.Struct):
    """What a writer stored (new) and what was there already (reused). Bytes are plaintext; `bytes_stored` is sealed."""

    chunks_new: int = 0
    bytes_new: int = 0
    bytes_stored: int = 0
    chunks_reused: int = 0
    bytes_reused: int = 0

    def all_reused(self) -> "WriteCounts":
        """The counts of writing the same once more."""
        return WriteCounts(
            chunks_reused=self.chunks_new + self.chunks_reused, bytes_reused=self.bytes_new + self.bytes_reused
        )

    def add(self, other: "WriteCounts") -> None:
        """Sum up."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class WriteSeconds(msgspec.Struct):
    """Where a save's writers spent their time, summed over threads."""

    digest: float = 0.0
    encode: float = 0.0
    seal: float = 0.0
    store: float = 0.0

    def add(self, other: "WriteSeconds") -> None:
        """Sum up."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Written(msgspec.Struct):
    """What one save has put into packs so far; shared by its writers."""

    packs: list[PackRef] = msgspec.field(default_factory=list)
    entries: list[PieceEntry] = msgspec.field(default_factory=list)
    relied: set[int] = msgspec.field(default_factory=set)
    counts: WriteCounts = msgspec.field(default_factory=WriteCounts)
    seconds: WriteSeconds = msgspec.field(default_factory=WriteSeconds)

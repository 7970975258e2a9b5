"""Git LFS pointers: three lines of text that stand where weights should be."""

from cairn.formats.parsed import Source
from cairn.formats.refusal import malformed

# The first line of every pointer (git-lfs, docs/spec.md, version 1).
POINTER_START = b"version https://git-lfs.github.com/spec/v1"


PULL = "run `git lfs pull` in that folder, then repeat"


def told_pointer(size: int) -> str:
    """What such a file is, for people."""
    return f"this is a Git LFS pointer of {size} bytes, not the file that it stands for"


def refuse_lfs_pointer(source: Source) -> None:
    """Say what to do where a clone without Git LFS left a pointer in place of the file.

    Raises:
        BadInput: `source` is such a pointer.
    """
    if source.size >= len(POINTER_START) and source.read_at(0, len(POINTER_START)) == POINTER_START:
        raise malformed(told_pointer(source.size), hint=PULL)

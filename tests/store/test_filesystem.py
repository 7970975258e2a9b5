"""The suite on fsspec's memory, then what other people's file systems do: fail with anything, repeat, lose answers."""

import os
import traceback
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from cairn.core.clock import SystemEntropy
from cairn.core.errors import AnswerLost, CairnError, NotAllowed, ObjectExists, StorageError
from cairn.store.backends.contract import Backend
from cairn.store.backends.filesystem import FilesystemBackend
from cairn.store.backends.probe import probe
from tests.contracts.backend import BackendContract

SECRET = "hunter2sEcReT"


@pytest.fixture
def memory() -> Iterator[Backend]:
    root = f"/{SystemEntropy().token(8).hex()}"
    yield FilesystemBackend(f"memory:/{root}", "memory", root)
    MemoryFileSystem.store.clear()


class TestMemory(BackendContract):
    @pytest.fixture
    def backend(self, memory: Backend) -> Backend:
        return memory


class TestWholeMemory(BackendContract):
    @pytest.fixture
    def backend(self, memory: Backend) -> Backend:
        return FilesystemBackend("memory://", "memory", "")


class Odd(MemoryFileSystem):
    """Somebody else's file system: `pipe` may do what it likes with a creation."""

    protocol = "odd"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    pipe: Callable[["Odd", str, bytes], None]

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        type(self).pipe(self, path, value)

    def keep(self, path: str, value: bytes) -> None:
        """Store for real."""
        super().pipe_file(path, value, mode="create")


@pytest.fixture
def odd() -> Iterator[FilesystemBackend]:
    fsspec.register_implementation("odd", Odd, clobber=True)
    yield FilesystemBackend("odd://x", "odd", "/x")
    Odd.store.clear()


def after(kept: bytes | None, error: Exception) -> Callable[[Odd, str, bytes], None]:
    """A creation that stores `kept`, of itself or of a rival, and then fails."""

    def pipe(files: Odd, path: str, value: bytes) -> None:
        if kept is not None:
            files.keep(path, kept)
        raise error

    return pipe


TAKEN = FileExistsError(17, SECRET)
INVALID = OSError(22, f"PreconditionFailed {SECRET}")
ENDINGS = [
    (b"other", TAKEN, ObjectExists),
    (b"other", INVALID, ObjectExists),  # as s3fs says it
    (b"other", ConnectionError(SECRET), ObjectExists),
    (b"ours", TAKEN, AnswerLost),  # the package repeated our request, and met its own success
    (b"ours", INVALID, AnswerLost),
    (b"ours", TimeoutError(SECRET), AnswerLost),
    (None, ConnectionError(SECRET), AnswerLost),
    (None, RuntimeError(SECRET), AnswerLost),
    (None, PermissionError(13, SECRET), NotAllowed),
    (None, NotImplementedError(SECRET), StorageError),
]


@pytest.mark.parametrize(("kept", "error", "meaning"), ENDINGS, ids=str)
def test_what_a_failed_creation_means(
    odd: FilesystemBackend, kept: bytes | None, error: Exception, meaning: type[CairnError]
) -> None:
    Odd.pipe = after(kept, error)
    with pytest.raises(meaning) as caught:
        odd.create("a", [b"ours"])
    assert type(caught.value) is meaning
    shown = "".join(traceback.format_exception(caught.value)).replace(traceback.format_exc(), "")
    assert SECRET not in shown + str(caught.value) + repr(caught.value)


def test_storage_that_replaces_objects_holds_no_store(odd: FilesystemBackend) -> None:
    def replace(files: Odd, path: str, value: bytes) -> None:
        files.store.pop(path, None)
        files.keep(path, value)

    Odd.pipe = replace
    odd.create("a", [b"x"])
    real = odd._exists
    odd._exists = lambda path: False  # type: ignore[method-assign]  # a rival may come right after the look
    with pytest.raises(StorageError, match="lacks exclusive creation"):
        probe(odd, SystemEntropy())
    odd._exists = real  # type: ignore[method-assign]  # as it was


def test_folders_are_made_where_they_are_needed(odd: FilesystemBackend) -> None:
    def pipe(files: Odd, path: str, value: bytes) -> None:
        if not files.isdir(os.path.dirname(path)):
            raise FileNotFoundError(path)
        files.keep(path, value)

    Odd.pipe = pipe
    odd.create("a/b/c", [b"x"])
    assert odd.read("a/b/c") == b"x"


def test_a_child_uses_a_file_system_of_its_own(memory: FilesystemBackend) -> None:
    memory.create("a", [b"x"])
    before = memory._files
    child = os.fork()
    if not child:
        os._exit(0 if memory._files is not before and memory.read("a") == b"x" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert memory._files is before

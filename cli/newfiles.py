"""Files that commands write for people: new ones only."""

from pathlib import Path

from cairn.core.errors import DestinationExists, StorageError


def write_new(output: Path, data: bytes) -> None:
    """Write a file that does not exist yet.

    Raises:
        DestinationExists: the file exists.
        StorageError: it cannot be written there.
    """
    try:
        with output.open("xb") as file:
            file.write(data)
    except FileExistsError:
        raise DestinationExists(f"{str(output)!r} exists", hint="name another file, or remove it") from None
    except OSError as error:
        raise StorageError(f"{str(output)!r} cannot be written: {error.strerror}", hint="name another file") from None

"""Names that foreign files give to files: accepted only where they cannot leave their folder."""

from cairn.core.limits import NAME_BYTES_MAX
from cairn.formats.refusal import malformed, shown

# NAME_MAX of every common file system.
FILE_NAME_BYTES_MAX = 255


def check_member_name(name: str) -> None:
    """Admit a relative path with '/' as its only separator (an archive member; a folder ends in '/').

    Raises:
        BadInput: empty, too long, absolute, or with a drive, backslash, control character, empty, '.' or '..' part.
    """
    where = f"archive member {shown(name)}"
    if len(name.encode()) > NAME_BYTES_MAX:
        raise malformed(f"{where}: a name has at most {NAME_BYTES_MAX} bytes")
    _check_characters(name, where)
    if name.startswith("/"):
        raise malformed(f"{where} is an absolute path; members must be relative")
    parts = name.removesuffix("/").split("/")
    if ".." in parts:
        raise malformed(f"{where} climbs out of its folder with '..'")
    if "" in parts or "." in parts:
        raise malformed(f"{where} has an empty or '.' part; each part must be a name")


def check_file_name(name: str, where: str) -> None:
    """Admit the plain name of a file in the same folder.

    Args:
        where: names the place in errors.

    Raises:
        BadInput: not a plain name.
    """
    if name in ("", ".", ".."):
        raise malformed(f"{where}: {shown(name)} is not the name of a file")
    _check_characters(name, where)
    if "/" in name:
        raise malformed(f"{where}: {shown(name)} is a path; only a file of the same folder may be named")
    if len(name.encode()) > FILE_NAME_BYTES_MAX:
        raise malformed(f"{where}: {shown(name)}: a file name has at most {FILE_NAME_BYTES_MAX} bytes")


def _check_characters(name: str, where: str) -> None:
    if "\\" in name:
        raise malformed(f"{where}: {shown(name)} holds a backslash, which some systems read as a separator")
    if any(character < " " for character in name):
        raise malformed(f"{where}: {shown(name)} holds NUL or another control character")
    if name[1:2] == ":":
        raise malformed(f"{where}: {shown(name)} names a drive")

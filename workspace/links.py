"""Which symbolic links and paths stay inside a tree."""


def link_stays_inside(path: bytes, target: bytes) -> bool:
    """Whether a link at `path` (relative to the root) resolves inside the root, whatever other links there are.

    `..` may stand only at the start of the target: after a name that is itself a link it could climb anywhere.
    """
    if not target or target.startswith(b"/") or b"\0" in target:
        return False
    depth = path.count(b"/")
    names_seen = False
    for segment in target.split(b"/"):
        if segment == b"..":
            if names_seen or depth == 0:
                return False
            depth -= 1
        elif segment not in (b"", b"."):
            names_seen = True
    return True


def is_plain_path(path: bytes) -> bool:
    """Whether a stored path is relative, without empty, `.` or `..` segments."""
    segments = path.split(b"/")
    return b"\0" not in path and all(segment not in (b"", b".", b"..") for segment in segments)

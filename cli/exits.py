"""Exit codes: the error tree, as a shell sees it."""

from cairn.core import errors

OK = 0
ERROR = 1
USAGE = 2
REFUSED = 3
CONFLICT = 4
NOT_FOUND = 5
INTEGRITY = 6
NOT_ALLOWED = 7
TRY_AGAIN = 75
INTERRUPTED = 130

_BY_TYPE: tuple[tuple[type[errors.CairnError], int], ...] = (
    (errors.UsageError, USAGE),
    (errors.RefusedError, REFUSED),
    (errors.ConflictError, CONFLICT),
    (errors.NotFoundError, NOT_FOUND),
    (errors.IntegrityError, INTEGRITY),
    (errors.NotAllowed, NOT_ALLOWED),
    (errors.TryAgain, TRY_AGAIN),
    (errors.Unavailable, TRY_AGAIN),
)


def exit_code(error: errors.CairnError) -> int:
    """Exit code of an error."""
    return next((code for kind, code in _BY_TYPE if isinstance(error, kind)), ERROR)

"""One error tree, grouped by what the caller does next.

Every error names the object it is about, the rule that was broken and the next step. `code` is
stable and part of the public interface; exit codes are the command line's business (`cli/exits.py`).
"""


class CairnError(Exception):
    """Base of everything Cairn raises on purpose.

    Args:
        message: what is wrong, naming the object and the rule.
        hint: the next step, in the imperative; may be empty.
    """

    code = "error"
    retryable = False

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  next: {self.hint}" if self.hint else self.message


# --- The call itself is wrong: change it. -----------------------------------------------------


class UsageError(CairnError):
    """The arguments do not make sense together or are not of the expected form."""

    code = "usage"


class BadName(UsageError):
    """A model, ref or object name that the rules do not admit."""

    code = "bad-name"


# --- A check or policy says no: look at what it names, then decide. ---------------------------


class RefusedError(CairnError):
    """A check or a policy refuses; nothing was changed."""

    code = "refused"


class BadInput(RefusedError):
    """A foreign file is malformed, hostile, or over a limit."""

    code = "bad-input"


class InputChanged(RefusedError):
    """A file changed while it was read."""

    code = "input-changed"


class DestinationExists(RefusedError):
    """A destination holds something already; nothing is overwritten."""

    code = "destination-exists"


class NotAStore(RefusedError):
    """The location holds no Cairn store."""

    code = "not-a-store"


class NewerFormat(RefusedError):
    """The store was written by a newer Cairn; this one may at most read it."""

    code = "newer-format"


class StateMismatch(RefusedError):
    """A training state and a checkpoint, or the states of several ranks, do not fit together."""

    code = "state-mismatch"


# --- Somebody else was first: look again, then repeat. ----------------------------------------


class ConflictError(CairnError):
    """The state changed between reading and writing."""

    code = "conflict"


class ObjectExists(ConflictError):
    """Create-only: an object of that name exists (and is durable)."""

    code = "object-exists"


class RefMoved(ConflictError):
    """A ref does not have the value that the caller expected."""

    code = "ref-moved"


class Overtaken(ConflictError):
    """A collection went on without waiting for this work, and what it relied on may be gone."""

    code = "overtaken"


class PlanVoid(ConflictError):
    """A plan no longer holds: the log has grown by an entry that matters to it."""

    code = "plan-void"


# --- It is not there. -------------------------------------------------------------------------


class NotFoundError(CairnError):
    """No such model, ref, checkpoint, object."""

    code = "not-found"


class ObjectNotFound(NotFoundError):
    """The backend has no object of that name."""

    code = "object-not-found"


class TensorNotFound(NotFoundError, KeyError):
    """A checkpoint has no tensor of that name, or has it only where the checkpoint was brought from."""

    code = "tensor-not-found"


class GoneError(NotFoundError):
    """It existed and was deleted on purpose."""

    code = "gone"


# --- Bytes are not what they should be: do not trust them, repair. ----------------------------


class IntegrityError(CairnError):
    """Stored bytes fail authentication, contradict the log, or are missing."""

    code = "integrity"


class MissingData(IntegrityError):
    """An object that a committed checkpoint needs is absent or short."""

    code = "missing-data"


# --- The caller may not. ----------------------------------------------------------------------


class NotAllowed(CairnError):
    """The key, passphrase or role does not open this."""

    code = "not-allowed"


class WrongKey(NotAllowed):
    """The key or passphrase belongs to another store."""

    code = "wrong-key"


# --- Storage says no, or says nothing. --------------------------------------------------------


class StorageError(CairnError):
    """The storage system failed; the operation had no effect."""

    code = "storage"


class StorageFull(StorageError):
    """No space, quota or file-size allowance is left."""

    code = "storage-full"


class Unavailable(StorageError):
    """The storage cannot be reached, or asks for fewer requests; the operation had no effect and may succeed later."""

    code = "unavailable"
    retryable = True


class TryAgain(CairnError):
    """A passing condition; the same call may succeed later."""

    code = "try-again"
    retryable = True


class AnswerLost(TryAgain):
    """A request was sent and no answer came: it may or may not have taken effect."""

    code = "answer-lost"


# --- A save or load of several ranks did not come about. --------------------------------------


class SaveFailed(CairnError):
    """A save failed, here or on another rank; no checkpoint of it exists unless the message says so."""

    code = "save-failed"


class Superseded(SaveFailed):
    """A save was given up for a newer one, as its policy says."""

    code = "superseded"


class RankLost(SaveFailed):
    """A rank gave no sign of life, or what connects the ranks is gone."""

    code = "rank-lost"

"""Payload of the entry that keeps a signed statement about a checkpoint."""

import msgspec


class Attest(msgspec.Struct, frozen=True):
    """Says that somebody has signed what a checkpoint is and, as a rule, by which ref it goes.

    Args:
        tag: of the ref that the statement names; empty where it names none.
        signer: actor whose signature the envelope is said to bear; `signed_at`, what it is said to tell of the time
            (microseconds since 1970). Whoever opens it compares.
        envelope: sealed to the model's meta key, so that it dies with the names that it tells.
    """

    model: bytes
    checkpoint: bytes
    tag: bytes
    signer: bytes
    signed_at: int
    envelope: bytes

"""Payloads of entries about the audit trail itself."""

import msgspec


class Policy(msgspec.Struct, frozen=True):
    """Settings of the store from here on; each that is named takes the place of its earlier value.

    Args:
        settings: value by name, as `audit_reads`: `required`, `best_effort` or `off`.
    """

    settings: dict[str, str]


class Reads(msgspec.Struct, frozen=True):
    """Tells of reads that have ended.

    Args:
        reads: of each what its reader signed, verbatim (see `reads.py`).
    """

    reads: tuple[bytes, ...]

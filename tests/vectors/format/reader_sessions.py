"""Sessions and pins: section 8 of `docs/format/v1.md`. Imports nothing of Cairn."""

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tests.vectors.format.reader import SESSION, Damaged, Fields, Vault, decode, require

PIN = 10


def sessions(vault: Vault) -> dict[bytes, Fields]:
    """What each session says last, by its id."""
    found = {}
    for path in sorted((vault.folder / "sessions").glob("*.open")):
        newer = sorted(path.parent.glob(f"{path.stem}.record-*"), key=lambda one: int(one.suffix.rpartition("-")[2]))
        record = decode(vault.open(vault.k_log, SESSION, [path, *newer][-1].read_bytes()))
        require(record["session"].hex() == path.stem, "record of another session")
        found[record["session"]] = record
    return found


def pins(vault: Vault) -> dict[bytes, Fields]:
    """All pins, by id."""
    found = {}
    for path in sorted((vault.folder / "pins").glob("*.pin")):
        plain, signature = decode(vault.open(vault.k_log, PIN, path.read_bytes()))
        record = decode(plain)
        try:
            Ed25519PublicKey.from_public_bytes(record["actor"]).verify(signature, b"cairn/1/pin\0" + plain)
        except (InvalidSignature, ValueError):
            raise Damaged("bad signature") from None
        require(record["pin"].hex() == path.stem, "another pin")
        found[record["pin"]] = record
    return found

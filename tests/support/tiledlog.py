"""A second verifier of tiled logs, written from RFC 6962, RFC 9162 and the C2SP pages; it imports nothing of Cairn.

It knows a folder of the layout of c2sp.org/tlog-tiles and a verifier's key, and believes nothing else.
"""

from base64 import b64decode
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

WIDTH = 256


def leaf(data: bytes) -> bytes:
    """RFC 6962, 2.1."""
    return sha256(b"\x00" + data).digest()


def tree_hash(leaves: list[bytes]) -> bytes:
    """MTH of hashed leaves: RFC 6962, 2.1, word for word."""
    if not leaves:
        return sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    return sha256(b"\x01" + tree_hash(leaves[:k]) + tree_hash(leaves[k:])).digest()


def root_by_path(hashed: bytes, m: int, n: int, path: list[bytes]) -> bytes:
    """The root that an audit path leads to: RFC 6962, 2.1.1, read backwards. Wrong lengths fail as IndexError."""
    if n == 1:
        if path:
            raise IndexError("the path goes on")
        return hashed
    k = 1
    while 2 * k < n:
        k *= 2
    if m < k:
        return sha256(b"\x01" + root_by_path(hashed, m, k, path[:-1]) + path[-1]).digest()
    return sha256(b"\x01" + path[-1] + root_by_path(hashed, m - k, n - k, path[:-1])).digest()


def roots_by_proof(m: int, n: int, proof: list[bytes], known: bytes) -> tuple[bytes, bytes]:
    """The two roots that a consistency proof leads to: RFC 6962, 2.1.2, read backwards.

    Args:
        known: the root of the first m, which the proof leaves out where it is a node of the whole tree.
    """

    def sub(m: int, n: int, proof: list[bytes], whole: bool) -> tuple[bytes, bytes]:
        if m == n:
            if len(proof) != (0 if whole else 1):
                raise IndexError("the proof has another length")
            both = known if whole else proof[0]
            return both, both
        k = 1
        while 2 * k < n:
            k *= 2
        if m <= k:
            old, new = sub(m, k, proof[:-1], whole)
            return old, sha256(b"\x01" + new + proof[-1]).digest()
        old, new = sub(m - k, n - k, proof[:-1], False)
        return sha256(b"\x01" + proof[-1] + old).digest(), sha256(b"\x01" + proof[-1] + new).digest()

    return sub(m, n, proof, True)


@dataclass
class Checkpoint:
    """What the signed head says."""

    origin: str
    size: int
    root: bytes


def open_checkpoint(note: str, vkey: str) -> Checkpoint:
    """Check a signed note (c2sp.org/signed-note) by a verifier's key, and read it as a checkpoint."""
    name, key_id, key = vkey.split("+", 2)
    public = b64decode(key, validate=True)
    assert public[0] == 1 and len(public) == 33
    assert sha256(name.encode() + b"\n" + public).digest()[:4].hex() == key_id
    at = note.rindex("\n\n")
    text, signatures = note[: at + 1], note[at + 2 :].removesuffix("\n").split("\n")
    good = 0
    for line in signatures:
        dash, signer, encoded = line.split(" ")
        assert dash == "\u2014"
        signature = b64decode(encoded, validate=True)
        if signer == name and signature[:4].hex() == key_id:
            Ed25519PublicKey.from_public_bytes(public[1:]).verify(signature[4:], text.encode())
            good += 1
    assert good, "no signature of the known key"
    origin, size, root, rest = text.split("\n", 3)
    assert rest == "" and str(int(size)) == size
    return Checkpoint(origin, int(size), b64decode(root, validate=True))


def path_of(number: int, width: int) -> str:
    """Number of a tile as path elements of three digits, and its width if partial."""
    elements = []
    while True:
        number, low = divmod(number, 1000)
        elements.append(f"{'x' if elements else ''}{low:03d}")
        if not number:
            break
    name = "/".join(reversed(elements))
    return name if width == WIDTH else f"{name}.p/{width}"


def widths(count: int) -> list[int]:
    """Widths of the tiles that hold so many hashes."""
    return [WIDTH] * (count // WIDTH) + ([count % WIDTH] if count % WIDTH else [])


def verify_folder(folder: Path, vkey: str) -> list[bytes]:
    """Check everything that a folder holds, and that it holds nothing else; returns the entries.

    Raises:
        AssertionError, InvalidSignature, ValueError, OSError: something is wrong.
    """
    head = open_checkpoint((folder / "checkpoint").read_text(encoding="utf-8"), vkey)
    named = {"checkpoint"}
    entries: list[bytes] = []
    for number, width in enumerate(widths(head.size)):
        name = f"tile/entries/{path_of(number, width)}"
        prefix = 2
        if not (folder / name).exists():
            name, prefix = f"long-entries/{path_of(number, width)}", 4
        named.add(name)
        bundle, before = (folder / name).read_bytes(), len(entries)
        while bundle:
            length = int.from_bytes(bundle[:prefix], "big")
            assert len(bundle) >= prefix + length
            entries.append(bundle[prefix : prefix + length])
            bundle = bundle[prefix + length :]
        assert len(entries) - before == width
    level, hashes = 0, [leaf(entry) for entry in entries]
    assert tree_hash(hashes) == head.root
    while hashes:
        for number, width in enumerate(widths(len(hashes))):
            name = f"tile/{level}/{path_of(number, width)}"
            named.add(name)
            assert (folder / name).read_bytes() == b"".join(hashes[number * WIDTH : number * WIDTH + width]), name
        full = len(hashes) // WIDTH
        hashes = [tree_hash(hashes[one * WIDTH : (one + 1) * WIDTH]) for one in range(full)]
        level += 1
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == named
    return entries

"""Makes the golden stores beside this file; the same bytes each time.

    python -m tests.vectors.format.make FOLDER

Run it from the root of the project when the format gains something, and keep the stores that older releases wrote.
Everything random comes from a seed, HPKE's ephemeral keys included, and one thread works, so the order is fixed.
Some bounds are lowered, so that small files have many pages, packs and parts: all of them are a writer's choice.
"""

import hashlib
import io
import json
import os
import shutil
import struct
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np
from blake3 import blake3
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from cairn.registry.entries import Abort, RefDelete
from cairn.registry.localfiles import KeyHome
from cairn.registry.models import delete_ref, move_ref
from cairn.registry.opened import KeySource, create_store
from cairn.registry.registry import Registry
from cairn.registry.session import Session
from cairn.store.backends.posix import PosixBackend
from cairn.store.codec import CodecPolicy
from cairn.store.crypto.components import ComponentKey
from cairn.store.crypto.signing import Identity
from cairn.workspace.commit import CommitOptions, CommitResult, commit
from tests.vectors.format import make_collected
from tests.vectors.format.make_training import append_as, make_run, pattern

PASSPHRASE = "correct horse battery staple"
# First and later commits: (module and name, value). The second set makes everything come in several pieces.
ONE_THREAD = (("cairn.core.pool.MEMORY_BUDGET_BYTES", 1),)
IN_PIECES = (
    ("cairn.registry.manifestwriter.ENTRY_DIGEST_BYTES_MAX", 96),
    ("cairn.workspace.record._ENTRY_BYTES", 100),
    ("cairn.manifests.pages._MIN_BYTES", 64),
    ("cairn.manifests.pages.PAGE_BYTES_TARGET", 256),
    ("cairn.store.chunkstore.PACK_BYTES_TARGET", 2048),
)


class SeededEntropy:
    """BLAKE3 of a seed and a counter."""

    def __init__(self, seed: str) -> None:
        self._seed, self._drawn = seed, 0

    def token(self, length: int) -> bytes:
        self._drawn += 1
        return blake3(f"{self._seed} {self._drawn}".encode()).digest(length=length)


class SteadyClock:
    """Stands still but for `tick`."""

    def __init__(self) -> None:
        self._now_ns = 1_700_000_000_000_000_000

    def tick(self) -> None:
        """An hour passes."""
        self._now_ns += 3_600_000_000_000

    def wall_ns(self) -> int:
        return self._now_ns

    def monotonic(self) -> float:
        return self._now_ns / 1e9

    def sleep(self, seconds: float) -> None:
        pass


# --- HPKE with a given ephemeral key (RFC 9180, base mode, X25519, HKDF-SHA256, AES-256-GCM) ---

_KEM = b"KEM" + struct.pack(">H", 0x0020)
_SUITE = b"HPKE" + struct.pack(">HHH", 0x0020, 0x0001, 0x0002)


def _extract(suite: bytes, salt: bytes, label: bytes, secret: bytes) -> bytes:
    return HKDF.extract(hashes.SHA256(), salt or bytes(32), b"HPKE-v1" + suite + label + secret)


def _expand(suite: bytes, key: bytes, label: bytes, about: bytes, length: int) -> bytes:
    labeled = struct.pack(">H", length) + b"HPKE-v1" + suite + label + about
    return HKDFExpand(hashes.SHA256(), length, labeled).derive(key)


def seal_hpke(ephemeral: bytes, public: bytes, about: bytes, plaintext: bytes) -> bytes:
    """Encapsulated key and ciphertext."""
    private = X25519PrivateKey.from_private_bytes(ephemeral)
    encapsulated = private.public_key().public_bytes_raw()
    shared = private.exchange(X25519PublicKey.from_public_bytes(public))
    prk = _extract(_KEM, b"", b"eae_prk", shared)
    secret = _expand(_KEM, prk, b"shared_secret", encapsulated + public, 32)
    schedule = b"\0" + _extract(_SUITE, b"", b"psk_id_hash", b"") + _extract(_SUITE, b"", b"info_hash", about)
    key_secret = _extract(_SUITE, secret, b"secret", b"")
    key = _expand(_SUITE, key_secret, b"key", schedule, 32)
    nonce = _expand(_SUITE, key_secret, b"base_nonce", schedule, 12)
    return encapsulated + AESGCM(key).encrypt(nonce, plaintext, b"")


def seeded_seal(entropy: SeededEntropy) -> Callable[[ComponentKey, bytes, str], bytes]:
    """In place of `ComponentKey.seal`."""

    def seal(self: ComponentKey, plaintext: bytes, purpose: str) -> bytes:
        return seal_hpke(entropy.token(32), self.public, self._context(purpose), plaintext)

    return seal


# --- What is committed -------------------------------------------------------------------------


def safetensors_file(tensors: dict[str, tuple[str, np.ndarray]]) -> bytes:
    """A safetensors file; made by hand, because its library shuffles metadata."""
    header, data = {}, b""
    for name, (dtype, values) in tensors.items():
        end = len(data) + values.nbytes
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [len(data), end]}
        data += values.tobytes()
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + data


def torch_file() -> bytes:
    """An archive as torch.save writes it: `{"model": {"w": t, "tied": t}, "state": {0: u}}`."""

    def storage(key: bytes, kind: bytes, count: int) -> bytes:
        return b"(U\x07storagectorch\n" + kind + b"\nU\x01" + key + b"U\x03cpuK" + bytes((count,)) + b"tQ"

    def tensor(key: bytes, kind: bytes, count: int, shape: bytes, strides: bytes) -> bytes:
        made = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage(key, kind, count) + b"K\x00" + shape + strides
        return made + b"\x89ccollections\nOrderedDict\n)RtR"

    shared = tensor(b"0", b"FloatStorage", 200, b"K\x28K\x05\x86", b"K\x05K\x01\x86") + b"q\x00"
    model = b"}(U\x01w" + shared + b"U\x04tiedh\x00u"
    state = b"}K\x00" + tensor(b"1", b"LongStorage", 80, b"K\x50\x85", b"K\x01\x85") + b"s"
    program = b"\x80\x02}(U\x05model" + model + b"U\x05state" + state + b"u."
    records = {
        "data.pkl": program,
        "byteorder": b"little",
        "data/0": np.arange(200, dtype=np.float32).tobytes(),
        "data/1": (np.arange(80, dtype=np.int64) % 3).tobytes(),
        "version": b"3\n",
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in records.items():
            archive.writestr(zipfile.ZipInfo(f"golden/{name}", (1980, 1, 1, 0, 0, 0)), content)
    return buffer.getvalue()


def make_tree(folder: Path) -> None:
    """The first tree."""
    (folder / "weights").mkdir(parents=True)
    (folder / "bare").mkdir()
    tensors = {
        "scalar": ("F32", np.array(1.5, "<f4")),
        "bias": ("BF16", pattern(300)),
        "none": ("F32", np.zeros((3, 0), "<f4")),
        "ones": ("I8", np.ones((40, 40), "<i1")),
        "packed": ("F4", pattern(64, 16, dtype="<u1")),
        "deep": ("F32", pattern(3, 5, 100, 700, dtype="<f4")),
        "columns": ("I16", pattern(1024, 8192)),
        "counter": ("I64", pattern(10, 100, dtype="<i8")),
    }
    # Two elements of four bits a byte: the header counts elements.
    content = safetensors_file(tensors).replace(b'"F4","shape":[64,16]', b'"F4","shape":[64,32]')
    files = {
        b"config.json": b'{"golden": true}\n',
        b"notes.txt": b"".join(b"line %d\n" % number for number in range(200)),
        b"empty": b"",
        b"run.sh": b"#!/bin/sh\nexit 0\n",
        b"zeros.bin": bytes(1 << 20) + bytes(range(256)) + b"tail",
        b"caf\xe9 \xe2\x98\x83": b"a name that is no text\n",
        b"weights/model.safetensors": content,
        b"weights/optimizer.pt": torch_file(),
    }
    for name, data in files.items():
        (folder / os.fsdecode(name)).write_bytes(data)
    (folder / "weights/latest").symlink_to("model.safetensors")
    set_modes(folder)


def change_tree(folder: Path) -> None:
    """The second tree: one tensor differs, a file is gone, another is new."""
    path = folder / "weights/model.safetensors"
    data = bytearray(path.read_bytes())
    data[-8:] = struct.pack("<q", -1)
    path.write_bytes(data)
    (folder / "notes.txt").unlink()
    (folder / "bare/more.txt").write_bytes(b"more\n" * 100)
    set_modes(folder)


def set_modes(folder: Path) -> None:
    """Modes that do not depend on the umask."""
    for path in folder.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.name == "run.sh" else 0o640)


# --- The stores --------------------------------------------------------------------------------


@contextmanager
def opened(
    folder: Path, entropy: SeededEntropy, clock: SteadyClock, passphrase: str | None = None
) -> Iterator[tuple[Registry, Path]]:
    """A new store in `folder`, and the folder that holds its owner's keys."""
    with tempfile.TemporaryDirectory() as private, ExitStack() as stack:
        home = KeyHome(*(Path(private) / name for name in ("data", "state", "cache")))
        stack.enter_context(patch.object(ComponentKey, "seal", seeded_seal(entropy)))
        for target, value in ONE_THREAD:
            stack.enter_context(patch(target, value))
        for module in ("session", "pins"):
            stack.enter_context(patch(f"cairn.registry.{module}.this_process", lambda: make_collected.PROCESS))
        source = KeySource(passphrase=passphrase)
        store, _ = create_store(PosixBackend(folder), home, source, clock, entropy)
        registry = Registry(store)
        try:
            yield registry, Path(private)
        finally:
            registry.close()


def add_void_entry(registry: Registry, entropy: SeededEntropy) -> None:
    """A deletion, in order but for its actor, who may not write."""
    stranger = Identity(entropy.token(32))
    model, state = next(iter(registry.refresh().models.items()))
    tag, ref = next(iter(state.refs.items()))
    append_as(registry, stranger, RefDelete(model, tag, ref.checkpoint), entropy)


def make_golden(folder: Path) -> None:
    """The store `golden`, its key file, its owner's signing key, and what a reader must find."""
    entropy, clock = SeededEntropy("cairn golden store, format 1"), SteadyClock()
    with opened(folder / "golden", entropy, clock) as (registry, private), tempfile.TemporaryDirectory() as scratch:
        tree, found = Path(scratch) / "tree", {}
        make_tree(tree)
        first = commit(registry, tree, "golden model", CommitOptions("main", 10, "first", codec=CodecPolicy.ZSTD))
        found["golden model@v1"] = {"checkpoint": first.checkpoint.hex(), "step": 10, "files": describe(tree)}
        move_ref(registry, first.model, "v1", "tag", None, first.checkpoint)
        move_ref(registry, first.model, "passing", "branch", None, first.checkpoint)
        add_void_entry(registry, entropy)
        change_tree(tree)
        clock.tick()
        with ExitStack() as stack:
            for target, value in IN_PIECES:
                stack.enter_context(patch(target, value))
            options = CommitOptions("main", None, "second ☃")
            second = commit(registry, tree, "golden model", options)
        found["golden model@main"] = {"checkpoint": second.checkpoint.hex(), "step": None, "files": describe(tree)}
        delete_ref(registry, first.model, "passing", "branch")
        registry.append(lambda state: Abort())
        shutil.rmtree(tree / "weights")
        clock.tick()
        other = commit(registry, tree, "another/модель", CommitOptions("dev"))
        found["another/модель@dev"] = {"checkpoint": other.checkpoint.hex(), "step": None, "files": describe(tree)}
        clock.tick()
        runs = make_run(registry, entropy, clock.tick)
        leave_session(registry)
        shutil.copyfile(next((private / "data/keys").iterdir()), folder / "golden.key")
        shutil.copyfile(private / "state/identity.key", folder / "golden.identity")
        head = {"length": registry.state.length, "root": registry._replay.root.hex()}
    facts = {"head": head, "checkpoints": found, "runs": runs}
    (folder / "golden.json").write_text(json.dumps(facts, indent=1) + "\n")


def leave_session(registry: Registry) -> None:
    """What a killed writer leaves: a session object and a heartbeat."""
    session = Session(registry)
    session.ensure_open()
    registry.opened.backend.create(f"{session.name}.beat-1", [b""])
    session.abandon()


def make_collected_store(folder: Path) -> None:
    """The store `collected`, its key file, and what a reader must find."""
    entropy, clock = SeededEntropy("cairn collected store, format 1"), SteadyClock()
    found: dict[str, dict[str, object]] = {}
    with opened(folder / "collected", entropy, clock) as (registry, private), tempfile.TemporaryDirectory() as scratch:

        def save(files: dict[str, bytes], branch: str, step: int) -> CommitResult:
            tree = Path(scratch) / f"{branch}-{step}"
            tree.mkdir(exist_ok=True)
            for name, data in files.items():
                (tree / name).write_bytes(data)
            set_modes(tree)
            clock.tick()
            done = commit(registry, tree, make_collected.MODEL, CommitOptions(branch, step))
            found[done.checkpoint.hex()] = {"step": step, "files": describe(tree)}
            return done

        make_collected.live(registry, entropy, save)
        shutil.copyfile(next((private / "data/keys").iterdir()), folder / "collected.key")
        state = registry.refresh()
        fold = make_collected.describe_fold(state)
        head = {"length": state.length, "root": registry._replay.root.hex()}
    facts = {"head": head, "fold": fold, "saved": found}
    (folder / "collected.json").write_text(json.dumps(facts, indent=1) + "\n")


def describe(tree: Path) -> dict[str, list[object]]:
    """Mode, and SHA-256 of content or target, by path."""
    found: dict[str, list[object]] = {}
    for path in sorted(tree.rglob("*")):
        name = os.fsencode(path.relative_to(tree)).decode("latin-1")
        if path.is_symlink():
            found[name] = ["link", 0o777, os.readlink(path)]
        elif path.is_dir():
            found[name] = ["folder", path.stat().st_mode & 0o777, ""]
        else:
            found[name] = ["file", path.stat().st_mode & 0o777, hashlib.sha256(path.read_bytes()).hexdigest()]
    return found


def main(folder: Path) -> None:
    """Make all stores."""
    make_golden(folder)
    make_collected_store(folder)
    entropy = SeededEntropy("cairn passphrase store, format 1")
    with opened(folder / "passphrase", entropy, SteadyClock(), PASSPHRASE):
        pass


if __name__ == "__main__":
    main(Path(sys.argv[1]))

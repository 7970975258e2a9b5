"""Group X, what can be seen: by whoever holds the disk, by another tenant, and in what is printed."""

import base64
import itertools
import random
import re
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cairn.core.errors import CairnError
from cairn.core.ids import ModelId
from cairn.registry import stores
from cairn.registry.opened import OpenStore
from cairn.registry.registry import Registry
from cairn.store.backends.faults import Corrupt, Fail, FaultyBackend
from cairn.store.crypto import chunks as sealing_of_chunks
from cairn.store.crypto import components, objects, provider
from cairn.store.crypto.chunks import parse_header
from cairn.store.pack import read_footer
from tests.cases.shell import PASSPHRASE_MARK, Shell, stored
from tests.formats.support import torch_file
from tests.support.tensors import safetensors, weights

WORDS = [
    "llama-secret-model", "dev-secret-branch", "v1-secret-tag", "a message that is secret", "secret.layer.weight",
    "hidden-file.json",
    "folder-of-secrets", "float32", "__metadata__", "data_offsets", "author-secret", "secret-metadata",
    "archive/data.pkl",
]  # fmt: skip


def secret_tree(shell: Shell) -> Path:
    text = b"It was a bright cold day in April, and the clocks were striking thirteen. "
    tensors = {"secret.layer.weight": weights(1, 200, 100), "secret.layer.bias": weights(2, 9)}
    import torch

    return shell.tree(
        {
            "folder-of-secrets/hidden-file.json": text * 40,
            "small.txt": text[:60],
            "m.safetensors": safetensors(tensors, {"author-secret": "secret-metadata"}),
            "m.pt": torch_file({"secret.layer.weights": torch.arange(500), "other": torch.ones(50) * 3.25}),
        }
    )


@pytest.mark.parametrize("options", [[], ["--codec", "zstd"], ["--opaque"]], ids=lambda one: "-".join(one) or "plain")
def test_X08_nothing_stored_shows_a_name_a_word_or_content(shell: Shell, options: list[str]) -> None:
    tree = secret_tree(shell)
    shell.commit(tree, "llama-secret-model@dev-secret-branch", "-m", "a message that is secret", *options)
    shell("tag", "llama-secret-model@dev-secret-branch", "v1-secret-tag")
    shell("branch", "llama-secret-model@v1-secret-tag", "main")
    held = stored(shell.store)
    everything = b"\0".join([*held.values(), *(name.encode() for name in held)])
    for word in WORDS:
        assert word.encode() not in everything and word.encode("utf-16-le") not in everything, word
    seen = {everything[at : at + 16] for at in range(len(everything) - 15)}
    content = b"".join(stored(tree).values())
    windows = {content[at : at + 16] for at in range(len(content) - 15)} - {bytes(16)}
    assert not windows & seen, "content stands in the store as it is"


def test_X08_the_cache_shows_no_name_without_a_key(shell: Shell) -> None:
    tree = secret_tree(shell)
    for _ in range(2):
        shell.spawn("commit", tree, "llama-secret-model", "-m", "a message that is secret")
    held = stored(shell.folder / "cache")
    assert any("data.mdb" in name for name in held)
    everything = b"\0".join(held.values())
    assert not [word for word in WORDS if word.encode() in everything]


# --- Two tenants ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class View:
    """What the holder of the disk sees of a store, and the keys that he does not see."""

    names: set[str]
    ids: set[bytes]
    nonces: set[bytes]
    lengths: list[int]
    secrets: set[bytes]


def view(shell: Shell) -> View:
    opened = shell.registry().opened
    held = stored(shell.store)
    sealed = []
    for name in sorted(held):
        if name.endswith(".pack"):
            for chunk in read_footer(opened.backend, name, opened.secrets.k_index, opened.store):
                sealed.append(held[name][chunk.offset : chunk.offset + chunk.length])
    headers = [parse_header(one, "a chunk") for one in sealed]
    return View(
        {part for name in held for part in name.split("/") if len(part) >= 24},
        {header.id for header in headers},
        {header.nonce for header in headers},
        [len(one) for one, header in zip(sealed, headers, strict=True) if header.type == 1],
        set(secrets_of(opened)),
    )


def secrets_of(opened: OpenStore) -> Iterator[bytes]:
    """All long-lived secrets of an open store."""
    yield from (getattr(opened.secrets, name) for name in opened.secrets.__struct_fields__)
    for kind in (opened.keys.chunk, opened.keys.page):
        yield from (kind.hash, kind.id, kind.enc)
    yield opened.identity.seed()
    assert isinstance(opened.provider, provider.RootKey)
    yield opened.provider.key


def tenants(shell: Shell, monkeypatch: pytest.MonkeyPatch, tree: Path, *options: str) -> tuple[Any, View, Any, View]:
    """Two tenants of one user commit the same tree; each one's result and view."""
    other = Shell(shell.folder / "other")
    first = shell.commit(tree, "m", *options)
    one = view(shell)
    other.enter(monkeypatch)
    other("init")
    second = other.commit(tree, "m", *options)
    two = view(other)
    other.close()
    shell.enter(monkeypatch)
    return first, one, second, two


@pytest.mark.parametrize("options", [[], ["--codec", "zstd"], ["--opaque"]], ids=lambda one: "-".join(one) or "plain")
def test_X08_two_tenants_share_no_name_no_id_and_no_key(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    first, one, second, two = tenants(shell, monkeypatch, secret_tree(shell), *options)
    assert not one.names & two.names and not one.ids & two.ids and not one.nonces & two.nonces
    assert not one.secrets & two.secrets and len(one.ids) >= 4
    for fact in ("chunks_new", "bytes_new", "chunks_reused", "bytes_reused"):
        assert first[fact] == second[fact], "a tenant does not notice what another has"
    assert Counter(one.lengths) == Counter(two.lengths), "lengths follow from the content's form, in any tenant"
    assert first["checkpoint"] != second["checkpoint"] and first["model"] != second["model"]


def test_X12_boundaries_of_chunks_are_uniform(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = shell.tree(
        {"m.safetensors": safetensors({"w": weights(1, 1500, 1000)}), "x.bin": random.Random(1).randbytes(3_300_000)}
    )
    _, one, _, two = tenants(shell, monkeypatch, tree)
    assert Counter(one.lengths) == Counter(two.lengths)
    assert len(set(one.lengths)) <= 5, "full ones, and the ends"


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    size=st.integers(129, 3 << 20),
    seeds=st.lists(st.integers(0, 1 << 32), min_size=2, max_size=2, unique=True),
    shift=st.integers(0, 100),
)
def test_X12_X28_lengths_say_nothing_of_chosen_content(shell: Shell, size: int, seeds: list[int], shift: int) -> None:
    """However the plaintext is chosen, chunk lengths follow from the length of the file alone."""
    seen = []
    for number, seed in enumerate(seeds):
        data = random.Random(seed).randbytes(size - shift)
        before = Counter(view(shell).lengths)
        shell.commit({"x.bin": bytes([number + 1]) * shift + data}, f"{size} {seed} {shift}")
        after = Counter(view(shell).lengths)
        shell.close()
        seen.append(after - before)
    assert seen[0] == seen[1]


# --- Keys and nonces --------------------------------------------------------------------------------


@dataclass
class Recorder:
    """Every encryption: which key met which nonce and plaintext."""

    seen: list[tuple[bytes, bytes, bytes]] = field(default_factory=list)

    def cipher(self) -> Callable[[bytes], Any]:
        recorder = self

        class Recording:
            def __init__(self, key: bytes) -> None:
                self._key, self._inner = bytes(key), AESGCM(key)

            def encrypt(self, nonce: bytes, data: bytes, extra: bytes | None) -> bytes:
                recorder.seen.append((self._key, bytes(nonce), bytes(data)))
                return self._inner.encrypt(nonce, data, extra)

            def encrypt_into(self, nonce: bytes, data: Any, extra: bytes | None, target: Any) -> int:
                recorder.seen.append((self._key, bytes(nonce), bytes(data)))
                return self._inner.encrypt_into(nonce, data, extra, target)

            def __getattr__(self, name: str) -> Any:
                return getattr(self._inner, name)

        return Recording


def test_X30_no_key_meets_a_second_plaintext_or_a_nonce_again(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    for module in (sealing_of_chunks, components, objects, provider):
        monkeypatch.setattr(module, "AESGCM", recorder.cipher())
    for number in range(4):
        tensors = {f"t{i}": weights(i if i else number, 64, 64) for i in range(4)}
        shell.commit({"m.safetensors": safetensors(tensors), "n": b"%d" % number * 400}, f"m{number % 2}", "--always")
        shell("tag", f"m{number % 2}", f"v{number}")
    shell.close()
    root = shell.registry().opened.provider
    assert isinstance(root, provider.RootKey)
    plaintexts: dict[bytes, set[bytes]] = {}
    for key, _, plaintext in recorder.seen:
        plaintexts.setdefault(key, set()).add(plaintext)
    assert len(recorder.seen) > 60
    assert max(len(several) for key, several in plaintexts.items() if key != root.key) == 1, "a key for each content"
    assert len({(key, nonce) for key, nonce, _ in recorder.seen}) == len(recorder.seen), "no pair comes again"
    wraps = [nonce for key, nonce, _ in recorder.seen if key == root.key]
    # 96 random bits: with a wrap for each of 2**32 models two would meet with a chance of 2**-33.
    assert len(wraps) == len(set(wraps)) == 2, "the one long-lived key seals one wrap a model"


# --- What is printed ------------------------------------------------------------------------------


def forms(secret: bytes) -> list[str]:
    """How a secret could be spelled."""
    return [secret.hex(), base64.b64encode(secret).decode()[:40], repr(secret)[2:-1], secret.hex(" ")]


def every_secret(shell: Shell, registry: Registry) -> list[str]:
    """Spellings of all secrets of a store, and of digests."""
    held = [*secrets_of(registry.opened)]
    for model in registry.state.models:
        for pair in registry.model_keys(ModelId(model)).all():
            assert pair.private is not None
            held.append(pair.private)
    for entry in shell.entries().values():
        held += [entry.tiles[i : i + 32] for i in range(0, len(entry.tiles or b""), 32)] if entry.tiles else []
    assert len(held) > 15
    return [form for secret in held for form in forms(secret)]


def test_X10_no_failure_prints_a_secret(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = shell.tree({"m.safetensors": safetensors({"w": weights(1, 64, 64)}), "n": b"x" * 1000})
    shell.commit(tree)
    secrets = every_secret(shell, shell.registry())
    shell.close()
    real = stores.backend_at
    printed: list[str] = []
    for fault, (command, calls) in itertools.product(
        (Fail, Corrupt),
        (
            (["commit", "--always", tree, "m"], 30),
            (["checkout", "m", "out"], 14),
            (["log", "m"], 10),
            (["tag", "m", "t"], 12),
        ),
    ):
        for call in range(1, calls, 2):
            monkeypatch.setattr(stores, "backend_at", lambda at, f=fault, n=call: FaultyBackend(real(at), [f(call=n)]))
            monkeypatch.setenv("XDG_CACHE_HOME", str(shell.fresh("cold")))
            printed.append(run_any(command))
        assert any("error: " in text for text in printed)
    text = "\n".join(printed)
    assert text.count("error: ") > 20
    assert not [secret for secret in secrets if secret in text]


def run_any(command: list[Any]) -> str:
    """All that a command prints, with the traceback of its error and of what led to it."""
    from contextlib import redirect_stderr, redirect_stdout
    from io import StringIO

    from cairn.cli import app

    text, errors = StringIO(), []
    original = app.note

    def note(line: str) -> None:
        errors.append(traceback.format_exc())
        original(line)

    app.note = note
    try:
        with redirect_stdout(text), redirect_stderr(text):
            app.run([str(word) for word in command])
    finally:
        app.note = original
    return text.getvalue() + "\n".join(errors)


def test_X10_no_wrong_key_or_passphrase_is_printed(shell: Shell) -> None:
    place, guess = shell.fresh("place"), "wrong-battery-staple"
    env = {"CAIRN_PASSPHRASE": PASSPHRASE_MARK}
    shown = [shell.spawn("init", "--passphrase", place, env=env)]
    shown.append(shell.spawn("--store", place, "commit", shell.tree({"a": b"1" * 200}), "m", env=env))
    shown.append(shell.spawn("--store", place, "ls", env={"CAIRN_PASSPHRASE": guess}, code=7))
    key = shell.key_file.read_bytes()
    for damaged in (key[:-3], key.replace(b"root key", b"root kez"), key[: len(key) // 2], b"", b"\0" * 500):
        path = shell.fresh("key")
        path.write_bytes(damaged)
        done = shell.spawn("--key-file", path, "ls", code=None)
        assert done.code in (6, 7)
        shown.append(done)
    text = "".join(done.out + done.err for done in shown)
    root = re.search(rb'"root key": "([0-9a-f]{64})"', key)
    assert root is not None and root[1].decode() not in text
    assert PASSPHRASE_MARK not in text and guess not in text
    everything = b"".join(
        [*stored(place).values(), *stored(shell.folder / "cache").values(), *stored(shell.folder / "state").values()]
    )
    assert PASSPHRASE_MARK.encode() not in everything


def test_X10_no_object_shows_a_secret_when_printed(shell: Shell) -> None:
    shell.commit({"m.safetensors": safetensors({"w": weights(1, 64, 64)})})
    registry = shell.registry()
    secrets = every_secret(shell, registry)
    opened = registry.opened
    shown = [
        opened,
        opened.secrets,
        opened.keys,
        opened.keys.chunk,
        opened.provider,
        opened.identity,
        opened.access,
        registry.chunks(),
        registry,
        registry.state,
        shell.entries,
        *registry.model_keys(ModelId(next(iter(registry.state.models)))).all(),
    ]
    text = "".join(f"{one!r} {one!s}" for one in shown)
    assert not [secret for secret in secrets if secret in text]
    with pytest.raises(CairnError) as caught:
        opened.provider.unwrap(
            b"x" * 200, provider.WrapContext(opened.store, provider.WrapPurpose.STORE_KEYS), "a wrap"
        )
    assert not [secret for secret in secrets if secret in repr(caught.value) + str(caught.value)]

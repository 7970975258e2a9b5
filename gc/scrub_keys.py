"""Scrubbing what opens a store: format record, root records, wraps.

Everything here can be told damaged without any key: the format and root records carry check values, wraps a hash. So
`check_opening` also explains why a store does not open at all.
"""

import json
from contextlib import suppress

from blake3 import blake3

from cairn.core.canonical import decode
from cairn.core.errors import IntegrityError, NotAStore, ObjectNotFound, WrongKey
from cairn.core.ids import ModelId, StoreId
from cairn.gc.report import Findings, Target
from cairn.registry.formatfile import NAME as FORMAT_NAME
from cairn.registry.formatfile import read_format
from cairn.registry.memberwraps import wrap_name
from cairn.registry.modelkeys import ModelKeys, open_model_keys
from cairn.registry.newmodels import public_of
from cairn.registry.opened import OpenStore
from cairn.registry.secrets import StoreSecrets
from cairn.registry.state import State
from cairn.store.backends.contract import Backend
from cairn.store.crypto.keyfile import is_service_record, open_root_key, service_of
from cairn.store.crypto.provider import KeyProvider, RootKey, WrapContext, WrapPurpose
from cairn.store.crypto.sealed_wrap import check_wrap

_ROOT_RECORDS = "keys/root"
_STORE_WRAPS = "keys/store"
# Opens nothing: whoever holds it still tells an intact record or wrap (wrong key) from a damaged one.
_NO_KEY = RootKey(0, bytes(32))
_NO_PASSPHRASE = ""


def check_opening(backend: Backend, by_passphrase: bool, findings: Findings) -> None:
    """Look for damage that keeps a store from opening; needs no key.

    Args:
        by_passphrase: the caller has one, so there should be a root record.
    """
    store = None
    with findings.about(FORMAT_NAME):
        try:
            store, _ = read_format(backend)
        except NotAStore:
            if backend.folders("log"):
                raise IntegrityError("it is missing, though there is a log") from None
    if store is not None:
        _check_root_records(backend, store, by_passphrase, findings)
        _check_store_wraps(backend, store, _NO_KEY, findings)


def check_keys(opened: OpenStore, state: State, findings: Findings) -> dict[ModelId, ModelKeys]:
    """Check everything that opens keys; returns those of the models whose wrap opens."""
    with findings.about(FORMAT_NAME):
        if read_format(opened.backend) != (opened.store, opened.tenant):
            raise IntegrityError("it names another store or tenant than the one that was opened")
    _check_root_records(opened.backend, opened.store, False, findings)
    _check_store_wraps(opened.backend, opened.store, opened.root or _NO_KEY, findings)
    _check_member_wraps(opened, state, findings)
    usable = {}
    for identifier, held in state.kept_models().items():
        model = ModelId(identifier)
        targets: list[Target] = [(model.hex(), c.hex()) for c in held.checkpoints] or [(model.hex(), "")]
        with findings.about(held.wrap, targets):
            usable[model] = open_model_keys(opened, model, held)
    return usable


def _check_member_wraps(opened: OpenStore, state: State, findings: Findings) -> None:
    """Wraps that the log gives to members are there and undamaged, which can be told without opening them."""
    backend = opened.backend
    for actor, member in state.members.items():
        if not member.role:
            continue
        name = wrap_name(public_of(actor, member), member.generation)
        with findings.about(name):
            if blake3(_read(backend, name)).digest() != member.hash:
                raise IntegrityError(f"wrap {name} is not the one that the log names")
    for identifier, model in state.kept_models().items():
        context = WrapContext(opened.store, WrapPurpose.GRANTED_KEYS, identifier)
        for name in model.readers.values():
            with findings.about(name):
                check_wrap(_read(backend, name), context, f"wrap {name}")


def _read(backend: Backend, name: str) -> bytes:
    try:
        return backend.read(name)
    except ObjectNotFound:
        raise IntegrityError(f"wrap {name} is missing: its member opens nothing with it") from None


def _check_root_records(backend: Backend, store: StoreId, expected: bool, findings: Findings) -> None:
    names = [record.name for record in backend.list(_ROOT_RECORDS)]
    if expected and not names:
        findings.add(f"{_ROOT_RECORDS}/{store.hex()}", "it is missing: without it no passphrase opens the store")
    for name in names:
        with findings.about(name):
            data = backend.read(name)
            if is_service_record(data):
                service_of(data, store, f"root record {name}")
                continue
            with suppress(WrongKey):
                open_root_key(data, store, _NO_PASSPHRASE, f"root record {name}")
            # A check value speaks for the fields; this, for every byte of their text.
            if (json.dumps(json.loads(data), indent=1) + "\n").encode() != data:
                raise IntegrityError(f"root record {name} is not written as Cairn writes it: it was changed")


def _check_store_wraps(backend: Backend, store: StoreId, provider: KeyProvider, findings: Findings) -> None:
    names = [wrap.name for wrap in backend.list(_STORE_WRAPS)]
    if not names:
        findings.add(f"{_STORE_WRAPS}/{store.hex()}", "it is missing: without it no key opens the store")
    for name in names:
        with findings.about(name):
            wrapped = backend.read(name)
            try:
                plain = provider.unwrap(wrapped, WrapContext(store, WrapPurpose.STORE_KEYS), f"wrap {name}")
            except WrongKey:
                continue  # intact, and made for another root key
            decode(plain, StoreSecrets, f"wrap {name}")

"""The one cleartext object of a store: says that it is one, of which format, store and tenant."""

import json

from blake3 import blake3

from cairn.core.errors import IntegrityError, NewerFormat, NotAStore, ObjectNotFound
from cairn.core.ids import RANDOM_ID_BYTES, StoreId, TenantId
from cairn.store.backends.contract import Backend

NAME = "format"
VERSION = 1
_TITLE = "cairn store"


def write_format(backend: Backend, store: StoreId, tenant: TenantId) -> None:
    """Create the record; the last step of `init`.

    Raises:
        ObjectExists: there is a store here already.
    """
    fields = {_TITLE: VERSION, "store": store.hex(), "tenant": tenant.hex()}
    fields["check"] = _check(fields)
    backend.create(NAME, [(json.dumps(fields) + "\n").encode()])


def read_format(backend: Backend) -> tuple[StoreId, TenantId]:
    """Store and tenant id.

    Raises:
        NotAStore: there is no record.
        NewerFormat: written by a newer Cairn.
        IntegrityError: the record is damaged.
    """
    try:
        data = backend.read(NAME, 0, 4096)
    except ObjectNotFound:
        raise NotAStore(f"{backend.url} holds no Cairn store", hint="create one with 'cairn init'") from None
    try:
        fields = json.loads(data)
        check = fields.pop("check")
        version, store, tenant = fields[_TITLE], bytes.fromhex(fields["store"]), bytes.fromhex(fields["tenant"])
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise _damaged(backend) from None
    if _check(fields) != check or data != (json.dumps({**fields, "check": check}) + "\n").encode():
        raise _damaged(backend)
    if version != VERSION:
        raise NewerFormat(
            f"{backend.url} has format {version}; this Cairn knows {VERSION}", hint="upgrade Cairn on this machine"
        )
    if len(store) != RANDOM_ID_BYTES or len(tenant) != RANDOM_ID_BYTES:
        raise _damaged(backend)
    return StoreId(store), TenantId(tenant)


def _damaged(backend: Backend) -> IntegrityError:
    return IntegrityError(
        f"the format record of {backend.url} is damaged",
        hint=f"restore the object '{NAME}' from a backup or another copy",
    )


def _check(fields: dict[str, object]) -> str:
    return blake3(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:32]

"""New generations of keys. Rotation never derives anything anew: no id changes, and nothing that is stored moves.

*Model keys*: what is committed from here on is sealed to new ones, which only those get who may read it now.
*Root key*: a new one wraps what the old one did. Order: new wraps -> new key file or root record -> log entry -> the
old ones go. Whatever goes wrong before the last step, nothing is removed: the entry may yet turn out to be there.
"""

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from cairn.core.canonical import encode
from cairn.core.errors import CairnError, ConflictError, GoneError, RefusedError
from cairn.core.ids import ModelId
from cairn.registry.entries_rights import Given, KeyRotate, MemberSet, RootRotate
from cairn.registry.localfiles import remove_file, write_private
from cairn.registry.members import check_owner, delete_unnamed, secrets_of_role
from cairn.registry.memberwraps import store_member_wrap, wrap_name, wraps_of
from cairn.registry.modelkeys import (
    ModelKeys,
    check_complete,
    give_model_keys,
    next_keys,
    publics_of,
    store_model_keys,
)
from cairn.registry.newmodels import public_of
from cairn.registry.permission import check_root, root_key_of
from cairn.registry.registry import Registry
from cairn.registry.rights import Role, readable
from cairn.registry.rootkeys import (
    NEXT,
    file_of_generation,
    root_record,
    root_record_name,
    root_records,
    settle_key_file,
    store_wrap_name,
)
from cairn.registry.state import State
from cairn.store.crypto.components import ComponentClass
from cairn.store.crypto.keyfile import (
    dump_key_file,
    is_service_record,
    service_of,
)
from cairn.store.crypto.provider import RootKey, WrapContext, WrapPurpose


def rotate_model(registry: Registry, model: ModelId, components: Collection[ComponentClass] = ()) -> None:
    """Give a model new keys for some component classes (default: all); old checkpoints stay readable as they were.

    Raises:
        NotAllowed: this user is no owner.
    """
    _set_keys(registry, model, lambda keys: next_keys(registry.opened, keys, components or keys.pairs))


def adopt_keys(target: Registry, theirs: ModelKeys) -> None:
    """Make newer generations of a model's keys known that another store of the tenant has.

    Raises:
        ConflictError: both stores have made a key of the same generation.
        NotAllowed: this user is no owner of one of them.
    """
    ours = target.model_keys(theirs.model)
    known = {(pair.component, pair.generation): pair.public for pair in ours.all()}
    for pair in theirs.all():
        if known.get((pair.component, pair.generation), pair.public) != pair.public:
            raise ConflictError(
                f"the {pair.component.name.lower()} key of model {theirs.model.hex()} was rotated in both stores apart",
                hint="checkpoints sealed to it stay where they are: rotate in one store, and push from there",
            )
    newer = [pair for pair in theirs.all() if pair.generation > ours.generations().get(pair.component, -1)]
    if newer:
        check_complete(theirs)
        _set_keys(target, theirs.model, lambda keys: keys.with_newer(theirs))


def _set_keys(registry: Registry, model: ModelId, change: Callable[[ModelKeys], ModelKeys]) -> None:
    opened = registry.opened
    made: list[KeyRotate] = []

    def build(state: State) -> KeyRotate:
        check_root(opened, state)
        held, old = state.live_model(model), registry.model_keys(model)
        keys = change(old)
        wraps = [
            give_model_keys(opened, keys, public_of(actor, state.members[actor]), readable(state.members[actor], model))
            for actor in held.readers
        ]
        known = set(held.keys)
        fresh = tuple(public for public in publics_of(keys) if public not in known)
        made.append(KeyRotate(model, fresh, store_model_keys(opened, keys), tuple(wraps)))
        return made[-1]

    check_owner(registry)
    held = registry.state.live_model(model)
    names = [held.wrap, *held.readers.values()]
    registry.append(build)
    names += [wrap for one in made for wrap in (one.wrap, *(given.wrap for given in one.wraps))]
    delete_unnamed(registry, names)


def exposed_models(state: State) -> list[ModelId]:
    """Models with keys that somebody has who may read with them no longer."""
    return [ModelId(identifier) for identifier, model in state.models.items() if model.exposed]


def rotate_exposed(registry: Registry) -> list[ModelId]:
    """Rotate all keys whose rotation is due; returns the models concerned."""
    rotated = exposed_models(registry.refresh())
    for model in rotated:
        exposed = {ComponentClass(component) for component in registry.state.live_model(model).exposed}
        with suppress(GoneError):  # a model whose keys were destroyed has nothing to protect
            rotate_model(registry, model, exposed | {ComponentClass.META})
    return rotated


def rotate_root(
    registry: Registry, passphrase: str | None = None, service: str | None = None, *, keep_old: bool = True
) -> Path | None:
    """Wrap everything under a new root key; returns the key file that holds it, None if it lies sealed in the store.

    Old key files, passphrases and recovery files open nothing from here on. Owners who are members get the new root
    key with their wraps; any others need the new file or passphrase.

    Args:
        passphrase: the one from here on; needed where a passphrase opens the store, unless `service` is given.
        service: the key service from here on; by default the one that opens the store, if one does.
        keep_old: keep the old key file under another name: it opens backups of the store as it was.

    Raises:
        RefusedError: a passphrase opens the store, and none is given.
    """
    opened = registry.opened
    check_owner(registry)
    old, store = root_key_of(opened), opened.store
    if opened.key_file is not None:
        # The only file that holds the key in force must not be taken for the leftover of an earlier change.
        settle_key_file(opened.key_file, store, old.generation)
    if passphrase is None and service is None:
        if needs_passphrase(registry):
            raise RefusedError("this store has a passphrase", hint="give one: set CAIRN_NEW_PASSPHRASE, or enter it")
        service = service_in_force(registry)
    new = RootKey(old.generation + 1, opened.entropy.token(32))
    key_file = _keep_new_root(registry, new, passphrase, service)
    backend = opened.backend
    # What an interrupted rotation left is under a key that nobody has.
    backend.delete(store_wrap_name(store, new.generation))
    context = WrapContext(store, WrapPurpose.STORE_KEYS)
    backend.create(store_wrap_name(store, new.generation), [new.wrap(encode(opened.secrets), context, opened.entropy)])
    made: list[RootRotate] = []

    def build(state: State) -> RootRotate:
        check_root(opened, state)
        models = []
        for identifier in state.kept_models():
            with suppress(GoneError):
                keys = registry.model_keys(ModelId(identifier))
                models.append(Given(identifier, store_model_keys(opened, keys, new)))
        owners = []
        for actor, member in state.members.items():
            if member.role == Role.OWNER:
                public = public_of(actor, member)
                generation = max([member.generation, *wraps_of(backend, public)]) + 1
                secrets = secrets_of_role(opened, Role.OWNER, new)
                hash_ = store_member_wrap(backend, store, public, secrets, generation)
                owners.append(MemberSet(actor, Role.OWNER, member.agreement, generation, hash_))
        made.append(RootRotate(new.generation, tuple(models), tuple(owners)))
        return made[-1]

    names = [model.wrap for model in registry.state.kept_models().values()]
    registry.append(build)
    delete_unnamed(registry, [*names, *(given.wrap for one in made for given in one.models)])
    if opened.key_file is not None and opened.key_file.exists():
        opened.key_file.replace(file_of_generation(opened.key_file, old.generation))
    if key_file is not None:
        key_file.with_name(key_file.name + NEXT).replace(key_file)
    registry.opened = replace(opened, root=new, key_file=key_file)
    if not keep_old:
        destroy_older(registry)
        return key_file
    for name in _older(registry):
        with suppress(CairnError):
            opened.backend.delete(name)
    return key_file


def destroy_older(registry: Registry) -> None:
    """Remove all that older root keys opened or were kept in, in the store and beside this user's key file.

    Raises:
        StorageError: something cannot be removed.
    """
    key_file = registry.opened.key_file or registry.opened.home.key_file(registry.opened.store)
    for generation in range(registry.state.root_generation):
        remove_file(file_of_generation(key_file, generation))
    for name in _older(registry):
        registry.opened.backend.delete(name)


def export_recovery(registry: Registry, path: Path) -> None:
    """Write a file that opens everything, as a key file does, until the root key is rotated.

    Raises:
        ObjectExists: there is a file.
        NotAllowed: this user is no owner, or a service holds the root key.
    """
    check_root(registry.opened, registry.state)
    write_private(path, dump_key_file(registry.opened.store, root_key_of(registry.opened)))


def needs_passphrase(registry: Registry) -> bool:
    """Whether a passphrase opens the store."""
    name, data = _newest_record(registry)
    return bool(name) and not is_service_record(data)


def service_in_force(registry: Registry) -> str | None:
    """The key service that opens the store; None in one with key files or a passphrase."""
    name, data = _newest_record(registry)
    if not name or not is_service_record(data):
        return None
    return service_of(data, registry.opened.store, f"root record {name}")


def _newest_record(registry: Registry) -> tuple[str, bytes]:
    """Name and bytes of the newest root record; both empty if there is none."""
    records, backend = root_records(registry.opened.backend), registry.opened.backend
    name = records[max(records)] if records else ""
    return name, backend.read(name) if name else b""


def _keep_new_root(registry: Registry, new: RootKey, passphrase: str | None, service: str | None) -> Path | None:
    """Make the new root key findable before it is in force: beside the old key file, or as a root record."""
    opened = registry.opened
    record = root_record(opened.store, new, service, passphrase, opened.entropy)
    if record is not None:
        name = root_record_name(opened.store, new.generation)
        opened.backend.delete(name)
        opened.backend.create(name, [record])
        return None
    path = opened.key_file or opened.home.key_file(opened.store)
    path.with_name(path.name + NEXT).unlink(missing_ok=True)
    write_private(path.with_name(path.name + NEXT), dump_key_file(opened.store, new))
    return path


def _older(registry: Registry) -> list[str]:
    """Names of what older root keys opened, or were kept in."""
    opened, backend, newest = registry.opened, registry.opened.backend, registry.state.root_generation
    names = [store_wrap_name(opened.store, generation) for generation in range(newest)]
    names += [name for generation, name in root_records(backend).items() if generation < newest]
    for actor, member in registry.state.members.items():
        if member.role == Role.OWNER:
            public = public_of(actor, member)
            names += [wrap_name(public, one) for one in wraps_of(backend, public) if one < member.generation]
    return names

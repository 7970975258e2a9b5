"""New generations of keys. Rotation never derives anything anew: no id changes, and nothing that is stored moves.

*Model keys*: what is committed from here on is sealed to new ones, which only those get who may read it now.
*Root key*: a new one wraps what the old one did. Order: new key file or root record -> new wraps -> log entry -> the
old ones go. Whatever goes wrong before the last step, nothing is removed: the entry may yet turn out to be there. All
that is made has the new key's id in its name, so that others who change the root key at the same time are not met.
"""

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from cairn.core.canonical import encode
from cairn.core.errors import (
    CairnError,
    ConflictError,
    GoneError,
    IntegrityError,
    NotAllowed,
    ObjectNotFound,
    Overtaken,
    RefusedError,
)
from cairn.core.ids import ModelId, StoreId
from cairn.registry.entries_rights import Given, KeyRotate, MemberSet, RootRotate
from cairn.registry.localfiles import remove_file, write_private
from cairn.registry.members import check_owner, delete_unnamed, named_wraps, secrets_of_role
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
    file_of_generation,
    is_in_force,
    next_key_file,
    next_key_files,
    read_key_file,
    root_record,
    root_record_name,
    root_records,
    settle_key_file,
    store_wrap_name,
    store_wraps,
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
        Overtaken: another owner changed the root key at the same time; this change did not happen.
        IntegrityError: a wrap is damaged; or it is missing, and the old root key was to go.
    """
    opened = registry.opened
    check_owner(registry)
    old, store = root_key_of(opened), opened.store
    if opened.key_file is not None:
        settle_key_file(opened.key_file, store, old)
    if passphrase is None and service is None:
        if needs_passphrase(registry):
            raise RefusedError("this store has a passphrase", hint="give one: set CAIRN_NEW_PASSPHRASE, or enter it")
        service = service_in_force(registry)
    new = RootKey(old.generation + 1, opened.entropy.token(32))
    key_file = _keep_new_root(registry, new, passphrase, service)
    backend, context = opened.backend, WrapContext(store, WrapPurpose.STORE_KEYS)
    wrapped = new.wrap(encode(opened.secrets), context, opened.entropy)
    backend.create(store_wrap_name(store, new.generation, new.key_id()), [wrapped])
    made: list[RootRotate] = []

    def build(state: State) -> RootRotate:
        check_root(opened, state)
        models = []
        for identifier in state.kept_models():
            try:
                keys = registry.model_keys(ModelId(identifier))
            except GoneError as error:
                if keep_old:
                    continue
                raise IntegrityError(
                    f"{error.message}; the old root key stays, since a copy of that wrap would need it",
                    hint=f"put the wrap back from a backup; or give up model {identifier.hex()}: 'cairn delete apply'",
                ) from None
            models.append(Given(identifier, store_model_keys(opened, keys, new)))
        owners = []
        for actor, member in state.members.items():
            if member.role == Role.OWNER:
                public, secrets = public_of(actor, member), secrets_of_role(opened, Role.OWNER, new)
                generation, hash_ = store_member_wrap(backend, store, public, secrets, member.generation)
                owners.append(MemberSet(actor, Role.OWNER, member.agreement, generation, hash_))
        made.append(RootRotate(new.generation, new.key_id(), tuple(models), tuple(owners)))
        return made[-1]

    names = [model.wrap for model in registry.state.kept_models().values()]
    try:
        registry.append(build)
    except (ConflictError, NotAllowed):
        state = registry.refresh()
        if state.root_generation < new.generation or is_in_force(new, state):
            raise
        _withdraw(registry, new, made)
        raise Overtaken(
            "another owner changed the root key at the same time: theirs is in force, and this change did not happen",
            hint="run the command again",
        ) from None
    delete_unnamed(registry, [*names, *(given.wrap for one in made for given in one.models)])
    if key_file is not None:
        settle_key_file(key_file, store, new, keep_old)
    elif opened.key_file is not None:
        _put_aside(opened.key_file, store, old)
    registry.opened = replace(opened, root=new, key_file=key_file)
    _remove_older(registry, keep_old)
    return key_file


def _withdraw(registry: Registry, new: RootKey, made: Collection[RootRotate]) -> None:
    """Remove what was made for a root key that never comes into force."""
    opened, named = registry.opened, named_wraps(registry.state)
    names = {given.wrap for one in made for given in one.models} - named
    names |= {name(opened.store, new.generation, new.key_id()) for name in (store_wrap_name, root_record_name)}
    with suppress(CairnError):
        remove_file(next_key_file(_place_of_key_file(registry), new))
        for name in names:
            opened.backend.delete(name)


def _put_aside(key_file: Path, store: StoreId, old: RootKey) -> None:
    """Take a key file's name from it, now that the root key lies in the store."""
    with suppress(FileNotFoundError):
        if read_key_file(key_file, store) == old:
            key_file.replace(file_of_generation(key_file, old.generation))


def _remove_older(registry: Registry, keep_old: bool) -> None:
    """Remove all that older root keys opened, or were kept in, and those that never came into force.

    Args:
        keep_old: leave old key files where they are, and what cannot be removed to the next change.
    """
    opened, state, key_file = registry.opened, registry.state, _place_of_key_file(registry)
    for root, beside in next_key_files(key_file, opened.store):
        if root.generation <= state.root_generation and not is_in_force(root, state):
            remove_file(beside)
    for generation in range(0 if keep_old else state.root_generation):
        remove_file(file_of_generation(key_file, generation))
    for name in _older(registry):
        try:
            opened.backend.delete(name)
        except CairnError:
            if not keep_old:
                raise


def _place_of_key_file(registry: Registry) -> Path:
    return registry.opened.key_file or registry.opened.home.key_file(registry.opened.store)


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
    data = _record_in_force(registry)
    return data is not None and not is_service_record(data)


def service_in_force(registry: Registry) -> str | None:
    """The key service that opens the store; None in one with key files or a passphrase."""
    data = _record_in_force(registry)
    if data is None or not is_service_record(data):
        return None
    return service_of(data, registry.opened.store, "the root record")


def _record_in_force(registry: Registry) -> bytes | None:
    """The root record of the root key in force; None where a key file holds that."""
    opened, state = registry.opened, registry.state
    try:
        return opened.backend.read(root_record_name(opened.store, state.root_generation, state.root_key))
    except ObjectNotFound:
        return None


def _keep_new_root(registry: Registry, new: RootKey, passphrase: str | None, service: str | None) -> Path | None:
    """Make the new root key findable before it is in force: beside the old key file, or as a root record."""
    opened = registry.opened
    record = root_record(opened.store, new, service, passphrase, opened.entropy)
    if record is not None:
        opened.backend.create(root_record_name(opened.store, new.generation, new.key_id()), [record])
        return None
    path = _place_of_key_file(registry)
    write_private(next_key_file(path, new), dump_key_file(opened.store, new))
    return path


def _older(registry: Registry) -> list[str]:
    """Names of what older root keys opened, or were kept in."""
    opened, backend, state = registry.opened, registry.opened.backend, registry.state
    of = opened.store, state.root_generation, state.root_key
    keep = {store_wrap_name(*of), root_record_name(*of)}
    found = [*store_wraps(backend), *root_records(backend)]
    # One of a generation to come may be about to be in force.
    names = [name for generation, name in found if generation <= state.root_generation and name not in keep]
    for actor, member in registry.state.members.items():
        if member.role == Role.OWNER:
            public = public_of(actor, member)
            names += [wrap_name(public, one) for one in wraps_of(backend, public) if one < member.generation]
    return names

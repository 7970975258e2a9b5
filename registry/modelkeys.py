"""Component keys of a model: public halves from the log, private halves from the model's wrap, or a member's."""

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from cairn.core.canonical import decode, encode
from cairn.core.errors import CairnError, GoneError, IntegrityError, NotAllowed, ObjectNotFound
from cairn.core.ids import RANDOM_ID_BYTES, ModelId
from cairn.registry.entries import ModelCreate
from cairn.registry.entries_rights import ComponentPublic, Given
from cairn.registry.names import check_model_name, model_tag
from cairn.registry.opened import OpenStore
from cairn.registry.state import Model
from cairn.store.crypto.components import ComponentClass, ComponentKey, component_class, new_component_key
from cairn.store.crypto.provider import KeyProvider, WrapContext, WrapPurpose
from cairn.store.crypto.sealed_wrap import unwrap_as, wrap_for
from cairn.store.crypto.signing import PublicIdentity
from cairn.store.crypto.tenant import derive

_FOLDER = "keys/model"
_GRANTED = "keys/grant"
WRAP_FOLDERS = (_FOLDER, _GRANTED)
_WRAP_NAME = re.compile(r"keys/(model|grant)/[0-9a-f]{32}")
_NAME = "name"


class _PrivateHalf(msgspec.Struct, frozen=True):
    component: int
    generation: int
    private: bytes

    def __repr__(self) -> str:
        return "_PrivateHalf(<secret>)"


class _Private(msgspec.Struct, frozen=True):
    """What a model's wrap holds: private halves by class and generation."""

    keys: tuple[_PrivateHalf, ...]


@dataclass(frozen=True, slots=True)
class ModelKeys:
    """The key pairs of one model: of each component class those of all generations, oldest first, with the private
    halves that this user was given.
    """

    model: ModelId
    pairs: dict[ComponentClass, tuple[ComponentKey, ...]] = field(repr=False)

    def pair(self, component: ComponentClass) -> ComponentKey:
        """The pair of a class to seal to: the newest."""
        return self.pairs[component][-1]

    def pair_of(self, component: ComponentClass, generation: int, what: str) -> ComponentKey:
        """The pair that something was sealed to.

        Raises:
            IntegrityError: the model has no such key.
        """
        for pair in self.pairs.get(component, ()):
            if pair.generation == generation:
                return pair
        raise IntegrityError(f"{what} names key generation {generation}, which its model does not have")

    def all(self) -> list[ComponentKey]:
        """Every pair."""
        return [pair for pairs in self.pairs.values() for pair in pairs]

    def generations(self) -> dict[ComponentClass, int]:
        """Generations in force: what a writer seals to."""
        return {component: pairs[-1].generation for component, pairs in self.pairs.items()}

    def with_newer(self, other: "ModelKeys") -> "ModelKeys":
        """These, and those of another that are of newer generations."""
        pairs = {
            component: (*self.pairs.get(component, ()), *self._newer(component, other.pairs.get(component, ())))
            for component in self.pairs.keys() | other.pairs.keys()
        }
        return ModelKeys(self.model, pairs)

    def _newer(self, component: ComponentClass, pairs: Iterable[ComponentKey]) -> Iterable[ComponentKey]:
        newest = self.generations().get(component, -1)
        return (pair for pair in pairs if pair.generation > newest)

    def cache_key(self, component: ComponentClass) -> bytes | None:
        """Key for records in the local cache: it dies with the private half. None for who has not got that."""
        private = self.pair(component).private
        return derive(private, "local-cache") if private is not None else None

    def seal_meta(self, plaintext: bytes, purpose: str) -> bytes:
        """Seal a name or a fact to the meta key."""
        return self.pair(ComponentClass.META).seal(plaintext, purpose)

    def open_meta(self, sealed: bytes, purpose: str, what: str) -> bytes:
        """Open what was sealed to a meta key of any generation.

        Raises:
            NotAllowed: no private half is at hand.
            IntegrityError: it is damaged, or sealed to another key.
        """
        failure: CairnError | None = None
        for pair in reversed(self.pairs[ComponentClass.META]):  # the sealed bytes do not say to which
            try:
                return pair.open(sealed, purpose, what)
            except (IntegrityError, NotAllowed) as error:
                failure = failure or error
        raise failure or IntegrityError(f"{what} is of a model without a meta key")

    def seal_name(self, name: str) -> bytes:
        """Seal a model or ref name to the meta key."""
        return self.seal_meta(name.encode(), _NAME)

    def open_name(self, sealed: bytes, what: str) -> str:
        """Open a sealed name."""
        return self.open_meta(sealed, _NAME, what).decode()


def new_model_keys(opened: OpenStore) -> ModelKeys:
    """Keys for a new model."""
    model = ModelId(opened.entropy.token(RANDOM_ID_BYTES))
    return ModelKeys(model, {c: (new_component_key(opened.tenant, model, c, opened.entropy),) for c in ComponentClass})


def next_keys(opened: OpenStore, keys: ModelKeys, components: Iterable[ComponentClass]) -> ModelKeys:
    """The same keys, and a new generation of some."""
    pairs = dict(keys.pairs)
    for component in components:
        held = pairs.get(component, ())
        fresh = new_component_key(opened.tenant, keys.model, component, opened.entropy)
        generation = held[-1].generation + 1 if held else 0
        pairs[component] = (*held, replace(fresh, generation=generation))
    return ModelKeys(keys.model, pairs)


def check_complete(keys: ModelKeys) -> None:
    """Raise unless all private halves are at hand, as who brings keys to another store needs them.

    Raises:
        NotAllowed: some are not.
    """
    if any(pair.private is None for pair in keys.all()):
        raise NotAllowed(
            f"not all keys of model {keys.model.hex()} are at hand, so they cannot be brought to another store",
            hint="let an owner push or pull the model once; its checkpoints can then follow",
        )


def publics_of(keys: ModelKeys) -> tuple[ComponentPublic, ...]:
    """What the log says of keys."""
    pairs = sorted(keys.all(), key=lambda pair: (pair.component, pair.generation))
    return tuple(ComponentPublic(int(pair.component), pair.generation, pair.public) for pair in pairs)


def store_model_keys(opened: OpenStore, keys: ModelKeys, wrap_with: KeyProvider | None = None) -> str:
    """Store a wrap of all private halves under the root key; returns its name.

    Args:
        wrap_with: a root key that is about to be in force.

    Raises:
        NotAllowed: only holders of the root key may.
    """
    check_complete(keys)  # a wrap that lacks a half would lose it for good
    provider = wrap_with or opened.provider
    name = f"{_FOLDER}/{opened.entropy.token(RANDOM_ID_BYTES).hex()}"
    context = WrapContext(opened.store, WrapPurpose.MODEL_KEYS, keys.model)
    opened.backend.create(name, [provider.wrap(_dump(keys.all()), context, opened.entropy)])
    return name


def give_model_keys(opened: OpenStore, keys: ModelKeys, member: PublicIdentity, reads: Container[int]) -> Given:
    """Store a wrap of the private halves of some component classes, all generations, for a member."""
    name = f"{_GRANTED}/{opened.entropy.token(RANDOM_ID_BYTES).hex()}"
    context = WrapContext(opened.store, WrapPurpose.GRANTED_KEYS, keys.model)
    held = [pair for pair in keys.all() if pair.component in reads]
    opened.backend.create(name, [wrap_for(member, _dump(held), context)])
    return Given(member.actor, name)


def create_model(
    opened: OpenStore, name: str, keys: ModelKeys, readers: Mapping[PublicIdentity, Container[int]]
) -> ModelCreate:
    """Store the wraps of a new model's keys; the model exists once the returned payload is in the log.

    Args:
        readers: members who may read all models, and which component classes.
    """
    check_model_name(name)
    wraps = [give_model_keys(opened, keys, member, reads) for member, reads in readers.items()]
    wrap = store_model_keys(opened, keys)
    tag = model_tag(opened.secrets.k_log, name)
    return ModelCreate(keys.model, tag, keys.seal_name(name), publics_of(keys), wrap, tuple(wraps))


def open_model_keys(opened: OpenStore, model: ModelId, state: Model) -> ModelKeys:
    """A model's keys: with all private halves for who holds the root key, else with those that were granted.

    Raises:
        GoneError: the wrap is not there: destroyed, or lost.
        IntegrityError: the wrap is damaged, or its keys are not those that the log names.
    """
    if opened.root is not None:
        wrap, purpose = state.wrap, WrapPurpose.MODEL_KEYS
    else:
        wrap, purpose = state.readers.get(opened.identity.actor, ""), WrapPurpose.GRANTED_KEYS
        if not wrap:
            return _matched(opened, model, state, (), f"the log's account of model {model.hex()}")
    what = f"wrap {wrap} of model {model.hex()}"
    if not _WRAP_NAME.fullmatch(wrap):
        raise IntegrityError(f"model {model.hex()} names its wrap by an impossible name")
    try:
        wrapped = opened.backend.read(wrap)
    except ObjectNotFound:
        raise GoneError(
            f"{what} is gone: nothing that only this model's keys open can be read",
            hint="if it was not deleted on purpose, restore it from a backup",
        ) from None
    context = WrapContext(opened.store, purpose, model)
    if opened.root is not None:
        plain = opened.root.unwrap(wrapped, context, what)
    else:
        plain = unwrap_as(opened.identity, wrapped, context, what)
    keys = _matched(opened, model, state, decode(plain, _Private, what).keys, what)
    if opened.root is not None and any(pair.private is None for pair in keys.all()):
        raise IntegrityError(f"{what} does not hold the keys that the log names")
    return keys


def matched_keys(opened: OpenStore, model: ModelId, state: Model, known: Iterable[ComponentKey]) -> ModelKeys:
    """The keys that the log names, with those private halves that are known."""
    halves = [_PrivateHalf(int(one.component), one.generation, one.private) for one in known if one.private is not None]
    return _matched(opened, model, state, halves, f"what is known of model {model.hex()}")


def _matched(opened: OpenStore, model: ModelId, state: Model, private: Iterable[_PrivateHalf], what: str) -> ModelKeys:
    halves = {(half.component, half.generation): half.private for half in private}
    pairs: dict[ComponentClass, tuple[ComponentKey, ...]] = {}
    for public in sorted(state.keys, key=lambda key: key.generation):
        component = component_class(public.component, what)
        half = halves.get((public.component, public.generation))
        if half is not None and _public_half(half) != public.public:
            raise IntegrityError(f"{what} does not hold the keys that the log names")
        pair = ComponentKey(opened.tenant, model, component, public.generation, public.public, half)
        pairs[component] = (*pairs.get(component, ()), pair)
    return ModelKeys(model, pairs)


def _dump(pairs: Iterable[ComponentKey]) -> bytes:
    """Encoding of private halves, ascending by class and generation."""
    held = sorted(pairs, key=lambda pair: (pair.component, pair.generation))
    return encode(_Private(tuple(_PrivateHalf(int(one.component), one.generation, one.private or b"") for one in held)))


def _public_half(private: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()

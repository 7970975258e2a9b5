"""Component keys of a model: public halves from the log, private halves from the model's wrap."""

import re
from dataclasses import dataclass, field

import msgspec

from cairn.core.canonical import decode, encode
from cairn.core.errors import GoneError, IntegrityError, ObjectNotFound
from cairn.core.ids import RANDOM_ID_BYTES, ModelId
from cairn.registry.entries import ComponentPublic, ModelCreate
from cairn.registry.names import check_model_name, model_tag
from cairn.registry.opened import OpenStore
from cairn.registry.state import Model
from cairn.store.crypto.components import ComponentClass, ComponentKey, component_class, new_component_key
from cairn.store.crypto.provider import WrapContext, WrapPurpose
from cairn.store.crypto.tenant import derive

_FOLDER = "keys/model"
_WRAP_NAME = re.compile(r"keys/model/[0-9a-f]{32}")
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
    """The key pairs of one model by component class."""

    model: ModelId
    pairs: dict[ComponentClass, ComponentKey] = field(repr=False)

    def pair(self, component: ComponentClass) -> ComponentKey:
        """The pair of a class."""
        return self.pairs[component]

    def cache_key(self, component: ComponentClass) -> bytes:
        """Key for records in the local cache: it dies with the private half."""
        private = self.pairs[component].private
        assert private is not None
        return derive(private, "local-cache")

    def seal_name(self, name: str) -> bytes:
        """Seal a model or ref name to the meta key."""
        return self.pairs[ComponentClass.META].seal(name.encode(), _NAME)

    def open_name(self, sealed: bytes, what: str) -> str:
        """Open a sealed name."""
        return self.pairs[ComponentClass.META].open(sealed, _NAME, what).decode()


def create_model_keys(opened: OpenStore, name: str) -> ModelCreate:
    """Make keys for a new model and store their wrap; the model exists once the returned payload is in the log."""
    model = ModelId(opened.entropy.token(RANDOM_ID_BYTES))
    pairs = {c: new_component_key(opened.tenant, model, c, opened.entropy) for c in ComponentClass}
    return import_model_keys(opened, name, ModelKeys(model, pairs))


def import_model_keys(opened: OpenStore, name: str, keys: ModelKeys) -> ModelCreate:
    """Store a wrap of keys that another store of the tenant has; as `create_model_keys`."""
    check_model_name(name)
    model, pairs = keys.model, sorted(keys.pairs.items())
    private = _Private(tuple(_PrivateHalf(int(c), pair.generation, pair.private or b"") for c, pair in pairs))
    wrap = f"{_FOLDER}/{opened.entropy.token(RANDOM_ID_BYTES).hex()}"
    context = WrapContext(opened.store, WrapPurpose.MODEL_KEYS, model)
    opened.backend.create(wrap, [opened.provider.wrap(encode(private), context, opened.entropy)])
    publics = tuple(ComponentPublic(int(c), pair.generation, pair.public) for c, pair in pairs)
    return ModelCreate(model, model_tag(opened.secrets.k_log, name), keys.seal_name(name), publics, wrap)


def open_model_keys(opened: OpenStore, model: ModelId, state: Model) -> ModelKeys:
    """Unwrap a model's keys.

    Raises:
        GoneError: the wrap is not there: destroyed, or lost.
        IntegrityError: the wrap is damaged, or its keys are not those that the log names.
    """
    what = f"wrap {state.wrap} of model {model.hex()}"
    if not _WRAP_NAME.fullmatch(state.wrap):
        raise IntegrityError(f"model {model.hex()} names its wrap by an impossible name")
    try:
        wrapped = opened.backend.read(state.wrap)
    except ObjectNotFound:
        raise GoneError(
            f"{what} is gone: nothing that only this model's keys open can be read",
            hint="if it was not deleted on purpose, restore it from a backup",
        ) from None
    context = WrapContext(opened.store, WrapPurpose.MODEL_KEYS, model)
    private = decode(opened.provider.unwrap(wrapped, context, what), _Private, what)
    halves = {(half.component, half.generation): half.private for half in private.keys}
    pairs = {}
    for public in state.keys:
        component = component_class(public.component, what)
        half = halves.get((public.component, public.generation))
        if half is None or _public_half(half) != public.public:
            raise IntegrityError(f"{what} does not hold the keys that the log names")
        pairs[component] = ComponentKey(opened.tenant, model, component, public.generation, public.public, half)
    return ModelKeys(model, pairs)


def _public_half(private: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()

"""Objects with state of their own, and plain leaves."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from cairn.core.errors import RefusedError
from cairn.manifests.schema import Key
from cairn.manifests.values import Container
from cairn.store.crypto.components import ComponentClass
from cairn.training.leaves import Binding, Leaves, Path, StoredScope, ValueLeaf
from cairn.training.perrank import PerRank
from cairn.training.plaindata import unplain
from cairn.training.trees import bind_tree, holds_tensors, is_tensor, tree_leaves


class Stateful(Protocol):
    """What torch calls stateful: schedulers, gradient scalers, samplers, and whatever else has these two."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> Any: ...


class _Passing:
    """What has no tensors that last from save to save."""

    def fingerprint(self) -> list[int] | None:
        """None."""
        return None

    def lasting(self, into: Leaves) -> None:
        """Nothing."""


class ObjectState(_Passing):
    """A stateful object; ranks that have it agree on its state."""

    def __init__(self, scope: str, prefix: Path, value: Stateful, component: ComponentClass) -> None:
        self._key, self._value, self._component = Key(scope, prefix), value, component

    def passing(self, into: Leaves) -> None:
        """Its state as a tree.

        Raises:
            RefusedError: it says that it has no state.
        """
        state = self._value.state_dict()
        if state is None:
            raise RefusedError(
                f"{self._key} ({type(self._value).__qualname__}) gives None as its state",
                hint="leave it out of the state, or let its state_dict() return what it needs to go on",
            )
        if isinstance(state, dict | list | tuple) and not state:
            into.notes.append(f"{self._key} ({type(self._value).__qualname__}) gives an empty state")
        into.extend(tree_leaves(self._key, self._component, state))

    def bind(self, stored: StoredScope) -> Binding:
        """Fill the tensors of its present state in place, then hand all to `load_state_dict`."""
        template = self._value.state_dict()
        binding, build = bind_tree(self._key, self._component, stored, template if holds_tensors(template) else None)

        def finish() -> list[str]:
            self._value.load_state_dict(build())
            return []

        if stored.values or stored.tensors:
            binding.finish.append(finish)
        else:
            binding.missing.append(str(self._key))
        return binding


class RankState(_Passing):
    """An object whose state belongs to its rank, such as random states."""

    def __init__(self, scope: str, prefix: Path, value: PerRank) -> None:
        self._key, self._value = Key(scope, prefix), value

    def passing(self, into: Leaves) -> None:
        """One value under the rank's own key, and the key among those of all ranks."""
        name = self._value.rank_key
        into.add(ValueLeaf(self._key, ComponentClass.TRAINING, Container("ranks", (name,)), union=True))
        own = Key(self._key.scope, (*self._key.path, name))
        into.extend(tree_leaves(own, ComponentClass.TRAINING, self._value.state_dict()))

    def bind(self, stored: StoredScope) -> Binding:
        """Hand it the states of all ranks, last of all: what is bound after it may draw random numbers."""
        binding = Binding()
        if not stored.values:
            binding.missing.append(str(self._key))
            return binding
        own, states = self._value.rank_key, stored.children()
        check = getattr(self._value, "check_rank_states", None)
        if check is not None:
            try:
                check([str(name) for name in states])
            except RefusedError as error:
                binding.problems.append(f"{self._key}: {error.message}")
        # Usually only this rank's own state is looked at; those of thousands of others stay unread.
        builds: dict[str, Callable[[], Any]] = {}
        for name in [own] if own in states else states:
            key = Key(self._key.scope, (*self._key.path, name))
            inner, builds[str(name)] = bind_tree(key, ComponentClass.TRAINING, states[name], None)
            binding.add(inner)
        binding.last.append(lambda: self._value.load_rank_states(_RankStates(states, builds)))
        return binding


class _RankStates(Mapping[str, Any]):
    """The states of all ranks by key, each put together when it is asked for."""

    def __init__(self, stored: Mapping[str | int, StoredScope], builds: Mapping[str, Callable[[], Any]]) -> None:
        self._stored, self._builds = stored, builds

    def __getitem__(self, name: str) -> Any:
        if name in self._builds:
            return self._builds[name]()
        stored = self._stored[name]
        if stored.tensors:
            raise RefusedError(f"the state of rank {name} holds tensors, which only that rank can load")
        return bind_tree(Key("", (name,)), ComponentClass.TRAINING, stored, None)[1]()

    def __iter__(self) -> Iterator[str]:
        return map(str, self._stored)

    def __len__(self) -> int:
        return len(self._stored)


class PlainState(_Passing):
    """A tensor, a tree of tensors, or plain data under a key of the user's own dict."""

    def __init__(
        self, scope: str, prefix: Path, value: Any, owner: dict[Any, Any], name: Any, component: ComponentClass
    ) -> None:
        self._key, self._value, self._owner, self._name = Key(scope, prefix), value, owner, name
        self._component = component if holds_tensors(value) else ComponentClass.TRAINING

    def passing(self, into: Leaves) -> None:
        """Its tree."""
        into.extend(tree_leaves(self._key, self._component, self._value))

    def bind(self, stored: StoredScope) -> Binding:
        """Fill its tensors in place; plain data replaces what the dict holds under its key."""
        if not stored.values and not stored.tensors:
            return Binding(missing=[str(self._key)])
        if not holds_tensors(self._value) and () in stored.values:
            value = stored.values[()]()
            if not isinstance(value, Container):
                return Binding(finish=[lambda: self._put(unplain(value))])
        binding, build = bind_tree(self._key, self._component, stored, self._value)
        if is_tensor(self._value) and () in stored.tensors:
            return binding
        binding.finish.append(lambda: self._put(build()))
        return binding

    def _put(self, value: Any) -> list[str]:
        self._owner[self._name] = value
        return []

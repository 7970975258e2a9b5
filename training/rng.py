"""The random generators of a rank: saved as plain data, restored so that the next draw is the one it would have been.

A state holds generators by name:

* `python`, `numpy`, `torch` - the global ones of each library;
* `cuda:<index>` - each visible device, once CUDA is initialised;
* `dtensor` - DTensor's tracker, in versions of torch where it holds states of its own;
* `given:<name>` - what the caller names.

Nothing here draws. Restore last, when the iterators of dataloaders exist: making one draws from torch's generator.
"""

import random
import sys
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from blake3 import blake3

from cairn.core.errors import RefusedError, UsageError
from cairn.manifests.values import encode_value
from cairn.training.perrank import RankPlace, shown_keys

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

State = dict[str, Any]

_VERSION = 1
_DERIVE_CONTEXT = "cairn 2026 random generators of a rank that was not saved, v1"


@runtime_checkable
class Tracker(Protocol):
    """A set of named generator states, such as Megatron's `CudaRNGStatesTracker`."""

    def get_states(self) -> dict[str, torch.Tensor]:
        """The state of each generator, in bytes (dtype uint8)."""
        ...

    def set_states(self, states: dict[str, torch.Tensor]) -> None:
        """Put back what `get_states` gave."""
        ...


Generator = random.Random | np.random.RandomState | np.random.Generator | torch.Generator | Tracker


class RngState:
    """All random generators of this rank; a `PerRank` object.

    Args:
        generators: further generators by name.
        coordinates: this rank's place, see `RankPlace`.
        mesh: the mesh of all ranks, instead of `coordinates`.
        missing: what to do for a rank whose state was not saved, for instance since there are more ranks now. `error`
            refuses. `derive` seeds each generator from BLAKE3 over all saved states, sorted by key, this rank's key
            and the generator's name, and says so: the same checkpoint gives the same draws, new ranks draw different
            numbers. Ranks that must draw alike (replicas under tensor parallelism) are then for the trainer to seed.
    """

    def __init__(
        self,
        *,
        generators: Mapping[str, Generator] | None = None,
        coordinates: Mapping[str, int] | None = None,
        mesh: "DeviceMesh | None" = None,
        missing: Literal["error", "derive"] = "error",
    ) -> None:
        if missing not in ("error", "derive"):
            raise UsageError(f"missing={missing!r} is not a choice", hint="choose 'error' or 'derive'")
        self._given = dict(generators or {})
        self._mesh = mesh
        self._place = RankPlace(coordinates=coordinates, mesh=mesh)
        self._missing = missing
        for name, generator in self._given.items():
            freeze(generator, name)

    @property
    def rank_key(self) -> str:
        """Where this rank stands, e.g. `dp=0,tp=1`."""
        return self._place.key

    def state_dict(self) -> State:
        """The state of every generator as plain data; draws nothing."""
        frozen = {name: freeze(generator, name) for name, generator in self._generators().items()}
        device = torch.cuda.current_device() if _cuda_is_up() else None
        return {"version": _VERSION, "generators": frozen, "device": device, "dtensor": _dtensor_tracker() is not None}

    def load_rank_states(self, states: Mapping[str, Any]) -> list[str]:
        """Restore this rank's generators, all or none; see `PerRank`."""
        key, ranks = self.rank_key, self._place.ranks
        self.check_rank_states(states)
        notes = self._restore(states[key]) if key in states else self._derive(states)
        if ranks is not None and ranks < len(states):
            notes.append(
                f"{len(states)} random states were saved, of which this job of {ranks} ranks leaves some unused"
            )
        return notes

    def check_rank_states(self, keys: Collection[str]) -> None:
        """Refuse what `load_rank_states` would refuse for want of a state, while nothing is changed on any rank.

        Raises:
            RefusedError: this rank's was not saved, and none may be derived.
        """
        if self.rank_key not in keys and not (self._missing == "derive" and keys):
            raise RefusedError(
                f"no random state of rank {self.rank_key} was saved; saved are those of {shown_keys(keys)}",
                hint="load on the same mesh, or let RngState(missing='derive') take seeds from the saved states",
            )

    def _generators(self) -> dict[str, Generator]:
        found: dict[str, Generator] = {
            # The libraries' module functions are methods of these two.
            "python": random._inst,
            "numpy": np.random.mtrand._rand,
            "torch": torch.default_generator,
        }
        if _cuda_is_up():
            found |= {f"cuda:{index}": generator for index, generator in enumerate(torch.cuda.default_generators)}
        own = getattr(_dtensor_tracker(), "rng_states", None)
        if isinstance(own, dict):
            found["dtensor"] = _OwnStates(own)
        return found | {f"given:{name}": generator for name, generator in self._given.items()}

    def _restore(self, state: Any) -> list[str]:
        what = f"the random state of rank {self.rank_key}"
        if not isinstance(state, dict) or state.get("version") != _VERSION:
            raise RefusedError(f"{what} is not one of version {_VERSION}", hint="load with the Cairn that wrote it")
        try:
            saved, device = dict(state["generators"]), state["device"]
            used_dtensor = bool(state["dtensor"])
        except (KeyError, TypeError, ValueError) as error:
            raise RefusedError(f"{what} is malformed: {error!r}", hint="load an older checkpoint") from None
        if any(name.startswith("cuda:") for name in saved) and torch.cuda.is_available():
            torch.cuda.init()  # type: ignore[no-untyped-call]  # torch gives it no types
        if used_dtensor:
            self._revive_dtensor()
        generators = self._generators()
        notes: list[str] = []
        if _cuda_is_up():
            saved = on_device(saved, device, generators, torch.cuda.current_device(), notes)
        lost, extra = sorted(generators.keys() - saved.keys()), sorted(saved.keys() - generators.keys())
        if lost or extra:
            raise RefusedError(
                f"{what} does not fit: not saved: {', '.join(lost) or 'none'}; saved, but not here: "
                f"{', '.join(extra) or 'none'}",
                hint="give RngState the generators that were saved, on a machine with such devices",
            )
        _thaw_all(generators, saved, what)
        return notes

    def _revive_dtensor(self) -> None:
        """Make DTensor's tracker as it was; the first random operation would make it by copying rank 0's state."""
        if _dtensor_tracker() is not None:
            return
        if self._mesh is None:
            raise RefusedError(
                "DTensor had drawn random numbers when the state was saved; its tracker does not exist yet, and would "
                "begin by copying the state of rank 0 to all ranks",
                hint="give RngState(mesh=...)",
            )
        # Import and private name are safe here: `state_dict` found the tracker under it.
        from torch.distributed.tensor import _random

        try:
            _random._rng_tracker = _random.OffsetBasedRNGTracker(self._mesh, run_state_sync=False)
        except RuntimeError as error:
            raise RefusedError(
                f"DTensor's tracker cannot be made: {error}", hint="give the mesh of the devices that draw"
            ) from None

    def _derive(self, states: Mapping[str, Any]) -> list[str]:
        spelled = encode_value([[key, states[key]] for key in sorted(states)], "the saved random states")
        source = blake3(spelled, derive_key_context=_DERIVE_CONTEXT).digest()
        for name, generator in self._generators().items():
            words = blake3(encode_value([self.rank_key, name], "a generator's name"), key=source).digest(length=8)
            # 63 bits: what every library takes as a seed.
            reseed(generator, int.from_bytes(words, "little") >> 1, name)
        return [
            f"no random state of rank {self.rank_key} was saved: its generators got seeds derived from the "
            f"{len(states)} saved states"
        ]


def on_device(
    saved: Mapping[str, State], was: int | None, generators: Mapping[str, Any], current: int, notes: list[str]
) -> dict[str, State]:
    """`saved` with the states of CUDA devices under the indices that they have here.

    A rank draws on its current device, whose index depends on the machine. Where that or the number of devices differs,
    the current device gets the state of the one that was current, and the others are left alone.

    Raises:
        RefusedError: another device had been drawn from.
    """
    states = {name: state for name, state in saved.items() if name.startswith("cuda:")}
    here = {name for name in generators if name.startswith("cuda:")}
    if not states or (states.keys() == here and was == current):
        return dict(saved)
    if f"cuda:{was}" not in states:
        raise RefusedError(
            f"the random state of the device that was current, cuda:{was}, is missing", hint="load another"
        )
    drawn = sorted(name for name, state in states.items() if name != f"cuda:{was}" and any(state["state"][8:]))
    if drawn:
        raise RefusedError(
            f"random numbers were drawn on {', '.join(drawn)} besides the current device cuda:{was}; here are "
            f"{len(here)} devices, and cuda:{current} is current",
            hint="load with as many visible devices and the same current one",
        )
    if was != current:
        notes.append(f"the random state of cuda:{was} went to cuda:{current}, the current device here")
    others = {name: state for name, state in saved.items() if name not in states}
    kept = {name: freeze(generators[name], name) for name in here}
    return others | kept | {f"cuda:{current}": states[f"cuda:{was}"]}


def freeze(generator: Generator, name: str) -> State:
    """The state of one generator as plain data; draws nothing.

    Raises:
        UsageError: its state cannot be read.
    """
    try:
        match generator:
            case random.Random():
                version, words, gauss = generator.getstate()
                return {"kind": "python", "version": version, "words": _spell(np.array(words, "<u4")), "gauss": gauss}
            case np.random.RandomState():
                return {"kind": "numpy.RandomState", "state": _spell(generator.get_state(legacy=False))}
            case np.random.Generator():
                return {"kind": "numpy.Generator", "state": _spell(generator.bit_generator.state)}
            case torch.Generator():
                return {"kind": f"torch.{generator.device.type}", "state": _bytes(generator.get_state())}
            case Tracker():
                return {"kind": "tracker", "state": {k: _bytes(v) for k, v in generator.get_states().items()}}
    except (NotImplementedError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"the state of generator {name} cannot be read: {error}", hint="leave it out") from None
    raise UsageError(
        f"generator {name} is a {type(generator).__qualname__}",
        hint="give a random.Random, a generator of numpy or torch, or an object with get_states and set_states",
    )


def thaw(generator: Generator, state: State) -> None:
    """Inverse of `freeze`, into a generator of the same kind; raises all sorts of errors otherwise."""
    match generator:
        case random.Random():
            words = tuple(int(word) for word in _read(state["words"]))
            gauss = state["gauss"]
            generator.setstate((state["version"], words, None if gauss is None else float(gauss)))
        case np.random.RandomState():
            generator.set_state(_read(state["state"]))
        case np.random.Generator():
            generator.bit_generator.state = _read(state["state"])
        case torch.Generator():
            generator.set_state(_tensor(state["state"]))
        case Tracker():
            generator.set_states({name: _tensor(data) for name, data in state["state"].items()})


def reseed(generator: Generator, seed: int, name: str) -> None:
    """Begin anew from a seed of 63 bits."""
    match generator:
        case random.Random():
            generator.seed(seed)
        case np.random.RandomState():
            generator.seed([seed & 0xFFFFFFFF, seed >> 32])
        case np.random.Generator():
            generator.bit_generator.state = type(generator.bit_generator)(seed).state
        case torch.Generator():
            generator.manual_seed(seed)
        case _:
            raise RefusedError(
                f"{name} holds states of its own, which no seed of ours replaces", hint="load on the same mesh"
            )


def _thaw_all(generators: Mapping[str, Generator], saved: Mapping[str, State], what: str) -> None:
    """Set all generators, or leave all as they were."""
    before = {name: freeze(generator, name) for name, generator in generators.items()}
    for name, generator in generators.items():
        try:
            thaw(generator, saved[name])
            cause = "" if freeze(generator, name) == saved[name] else "it reads back differently"
        except Exception as error:  # each library has its own for a state that is not one
            cause = str(error) or repr(error)
        if cause:
            for changed, state in before.items():
                thaw(generators[changed], state)
            raise RefusedError(
                f"{what} does not fit generator {name}: {cause}",
                hint="load an older checkpoint, with the versions of the libraries that wrote it",
            )


class _OwnStates:
    """The states inside a tracker of DTensor, as a `Tracker`."""

    def __init__(self, states: dict[str, torch.Tensor]) -> None:
        self._states = states

    def get_states(self) -> dict[str, torch.Tensor]:
        return dict(self._states)

    def set_states(self, states: dict[str, torch.Tensor]) -> None:
        self._states.clear()
        self._states.update(states)


def _cuda_is_up() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]  # torch gives it no types


def _dtensor_tracker() -> Any:
    # Looked up, not imported: a job without DTensor has none.
    return getattr(sys.modules.get("torch.distributed.tensor._random"), "_rng_tracker", None)


def _bytes(state: torch.Tensor) -> bytes:
    return bytes(state.cpu().numpy().tobytes())


def _tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _spell(value: Any) -> Any:
    """Arrays of numpy as dtype and little-endian bytes, at any depth."""
    if isinstance(value, dict):
        return {key: _spell(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        little = value.astype(value.dtype.newbyteorder("<"))
        return {"dtype": little.dtype.str, "bytes": little.tobytes()}
    return value.item() if isinstance(value, np.generic) else value


def _read(value: Any) -> Any:
    """Inverse of `_spell`; arrays have one axis."""
    if not isinstance(value, dict):
        return value
    if value.keys() == {"dtype", "bytes"}:
        little = np.frombuffer(value["bytes"], value["dtype"])
        return little.astype(little.dtype.newbyteorder("="))
    return {key: _read(item) for key, item in value.items()}

"""`cairn.open`: the tensors of a checkpoint where they lie, read slice by slice.

    with cairn.open("llama@main", "path/to/store") as checkpoint:
        rows = checkpoint["model.embed_tokens.weight"][1000:1010]

A slice fetches the chunks that it touches and no others, in few requests; every chunk is authenticated.
"""

import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from operator import index as whole_number
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cairn.core.errors import MissingData, NotFoundError, RefusedError, TensorNotFound, UsageError
from cairn.core.limits import CHUNK_BYTES_MAX, LAZY_READ_BYTES_MAX
from cairn.core.settings import Settings
from cairn.loader.boxes import NUMPY_OF_WIDTH, BoxPlan, StoredTensor, Target
from cairn.loader.execute import execute, reading_threads
from cairn.loader.plan import plan_reads
from cairn.manifests.dtypes import BITS, nbytes
from cairn.manifests.schema import Key, TensorEntry
from cairn.manifests.tiling import Box
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.location import find_store
from cairn.registry.pins import Pin
from cairn.registry.registry import Registry
from cairn.registry.selectors import resolve
from cairn.registry.stores import open_store
from cairn.registry.within import pages_within, stored_within

Framework = Literal["numpy", "torch"]


def open(  # as in gzip and zipfile: it is called `cairn.open`
    selector: str, store: str | Path | Registry | None = None, *, framework: Framework = "numpy"
) -> "OpenCheckpoint":
    """Open a checkpoint for reading its tensors. Close the result when done, or use it in `with`.

    Args:
        selector: `model`, `model@ref`, `model@step:4000`, `model@<id prefix>`.
        store: a path, a URL, or an opened store, which then stays open; by default `CAIRN_STORE`, else `.cairn/` here
            or above.
        framework: what slices are: numpy arrays, or torch tensors on the CPU.

    Raises:
        NotFoundError: there is no such checkpoint.
        NotAStore, NotAllowed: see `open_store`.
    """
    if framework not in ("numpy", "torch"):
        raise UsageError(f"no framework {framework!r}", hint="write 'numpy' or 'torch'")
    registry, owned = registry_at(store)
    try:
        registry.refresh()
        found = resolve(registry, selector)
        pin = Pin(registry, *found)
        try:
            manifest = CheckpointManifest(registry, *found, readable_only=True)
            return OpenCheckpoint(registry, manifest, selector, framework, owned, pin)
        except BaseException:
            pin.release()
            raise
    except BaseException:
        if owned:
            registry.close()
        raise


def registry_at(store: str | Path | Registry | None, key_file: Path | None = None) -> tuple[Registry, bool]:
    """The store that a caller means, and whether it was opened here, and so is to be closed."""
    if isinstance(store, Registry):
        return store, False
    return open_store(store or Settings.from_environment().store or find_store(Path.cwd()), key_file=key_file), True


class OpenCheckpoint(Mapping[str, "LazyTensor"]):
    """Tensors by name, read-only. Safe for threads.

    A name is the one in the file, after the file's folder: `model.norm.weight`, `adapter/lora_A`. In a checkpoint of a
    training loop it begins with the key of the state: `model/layers.0.weight`. Keys that would read alike are spelt as
    `cairn ls` spells them, with a colon behind the scope.
    """

    def __init__(
        self,
        registry: Registry,
        manifest: CheckpointManifest,
        selector: str,
        framework: Framework,
        owned: bool,
        pin: Pin,
    ) -> None:
        self._registry, self._manifest, self._owned = registry, manifest, owned
        self._selector, self.framework = selector, framework
        self._closed = False
        # One that is dropped without being closed gives up its pin as well.
        self._unpin = weakref.finalize(self, pin.release)
        entries = [entry for entry in manifest.entries() if isinstance(entry, TensorEntry)]
        self._entries = dict(zip(_names([entry.key for entry in entries]), entries, strict=True))

    def __getitem__(self, name: str) -> "LazyTensor":
        """A tensor, of which nothing is read yet.

        Raises:
            TensorNotFound: the checkpoint has none of this name, or its component was not pulled. A `KeyError` too.
        """
        if name in self._entries:
            return LazyTensor(self, name, self._entries[name])
        absent = ", ".join(component.name.lower() for component in self._manifest.absent())
        if absent:
            raise self._not_pulled(f"tensor {name!r} is not in what is here of {self._manifest.what}, without {absent}")
        raise TensorNotFound(
            f"{self._manifest.what} has no tensor {name!r}", hint=f"'cairn show {self._selector} --tensors' lists them"
        )

    def _not_pulled(self, what: str) -> TensorNotFound:
        return TensorNotFound(
            f"{what}: it was brought in part", hint=f"'cairn pull {self._selector}' brings the rest, then open it again"
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<{self._manifest.what} of {self._selector!r}: {len(self)} tensors>"

    @property
    def metadata(self) -> dict[str, Any]:
        """The checkpoint's id, step, exactness and parents (relation and id)."""
        body = self._manifest.body
        parents = [(parent.relation, parent.checkpoint.hex()) for parent in body.parents]
        return {
            "checkpoint": self._manifest.id.hex(),
            "step": body.step,
            "exactness": body.exactness,
            "parents": parents,
        }

    def close(self) -> None:
        """Let go of the store, unless it was given opened. No slice can be read after it."""
        self._unpin()
        if self._owned and not self._closed:
            self._registry.close()
        self._closed = True

    def __enter__(self) -> "OpenCheckpoint":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def read(self, name: str, box: Box) -> "np.ndarray[Any, Any]":
        """A box of a tensor, as integers of its elements' width.

        Raises:
            TensorNotFound: it was not pulled.
        """
        if self._closed:
            raise UsageError("this checkpoint was closed", hint="open it again, or read inside of 'with'")
        manifest, entry = self._manifest, self._entries[name]
        try:
            stored = self._stored(entry, box)
            array: np.ndarray[Any, Any] = np.empty(box.lengths, NUMPY_OF_WIDTH[BITS[entry.dtype] // 8])
            if array.size:
                self._fill(stored, box, array)
        except (MissingData, NotFoundError) as error:
            if not manifest.state.partial:
                raise
            raise self._not_pulled(f"tensor {name!r} of {manifest.what} is not here") from error
        return array

    def _stored(self, entry: TensorEntry, box: Box) -> StoredTensor:
        """Where a box's bytes are. To be known before memory is taken: a shape is a claim."""
        manifest = self._manifest
        pages = manifest.fetch(pages_within(manifest, entry, [box]))
        return StoredTensor.of(entry, *stored_within(manifest, entry, [box], pages))

    def _fill(self, stored: StoredTensor, box: Box, array: "np.ndarray[Any, Any]") -> None:
        plan, chunks = BoxPlan(), self._manifest.chunks
        plan.add(stored, [Target(box, array)])
        reads = plan_reads(plan.groups(), chunks.index, chunks.access.keys.chunk, LAZY_READ_BYTES_MAX).spread()
        plan.copy_inline()
        longest = max((one.length for batch in reads.batches for one in batch.ranges), default=0)
        threads = min(reading_threads(chunks, longest + CHUNK_BYTES_MAX), len(reads.batches))
        execute(reads, chunks, plan.deliver, threads, plan.place)


class LazyTensor:
    """A tensor that is read when it is sliced: by whole numbers, slices and `...`, as numpy does."""

    def __init__(self, checkpoint: OpenCheckpoint, name: str, entry: TensorEntry) -> None:
        self._checkpoint = checkpoint
        self.name, self.dtype, self.shape = name, entry.dtype, entry.shape

    def __repr__(self) -> str:
        return f"<tensor {self.name!r}: {self.dtype} {list(self.shape)}>"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor without axes has no length")
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return nbytes(self.dtype, self.shape)

    def get_slice(self, *index: Any) -> Any:
        """The same as `tensor[index]`; without arguments, the whole tensor."""
        return self[index]

    def __getitem__(self, index: Any) -> Any:
        """Read a slice: a numpy array of its own memory, or a torch tensor if the checkpoint was opened so.

        Raises:
            IndexError: out of range, or too many axes.
            TypeError: an index of another kind, such as an array.
            RefusedError: the framework has no such dtype.
        """
        box, within = _box_of(index if isinstance(index, tuple) else (index,), self.shape)
        convert = _to_torch(self) if self._checkpoint.framework == "torch" else _to_numpy(self)
        array = self._checkpoint.read(self.name, box)[within]
        return convert(array if array.flags.c_contiguous else array.copy())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> "np.ndarray[Any, Any]":
        read = self._checkpoint.read(self.name, Box((0,) * len(self.shape), self.shape))
        whole: np.ndarray[Any, Any] = _to_numpy(self)(read)
        return whole if dtype is None else whole.astype(dtype, copy=False)


def _names(keys: list[Key]) -> list[str]:
    """Names of keys: scope and path joined, and where that is no name of one key alone, its injective spelling."""
    joined = ["/".join([*([key.scope] if key.scope else []), *map(str, key.path)]) for key in keys]
    spelt = [str(key) for key in keys]
    taken = Counter(joined) + Counter(one for one, other in zip(spelt, joined, strict=True) if one != other)
    return [one if taken[one] == 1 else other for one, other in zip(joined, spelt, strict=True)]


def _box_of(index: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[Box, tuple[Any, ...]]:
    """The box around what an index selects, and the index of the selection in it."""
    named = sum(one is not Ellipsis for one in index)
    if len(index) - named > 1 or named > len(shape):
        raise IndexError(f"{len(index)} indices for a tensor of {len(shape)} axes")
    at = next((i for i, one in enumerate(index) if one is Ellipsis), len(index))
    rest = (slice(None),) * (len(shape) - named)
    full = (*index[:at], *rest, *index[at + 1 :])
    offsets, lengths, within = list[int](), list[int](), list[Any]()
    for axis, (one, length) in enumerate(zip(full, shape, strict=True)):
        if isinstance(one, slice):
            steps = range(*one.indices(length))
            low, high = (min(steps[0], steps[-1]), max(steps[0], steps[-1]) + 1) if steps else (0, 0)
            within.append(slice(None, None, steps.step) if steps else slice(None))
        elif isinstance(one, bool | np.bool_):
            raise TypeError("a tensor is sliced by whole numbers, slices and '...': read it, then index the result")
        else:
            try:
                low = whole_number(one)
            except TypeError:
                raise TypeError(
                    f"a tensor is sliced by whole numbers, slices and '...', not by {type(one).__name__}: "
                    "read it, then index the result"
                ) from None
            if not -length <= low < length:
                raise IndexError(f"index {low} is out of range for axis {axis} of {length}")
            low, high = low % length, low % length + 1
            within.append(0)
        offsets.append(low)
        lengths.append(high - low)
    return Box(tuple(offsets), tuple(lengths)), (*within, ...)


def _to_numpy(tensor: LazyTensor) -> Any:
    """From integers of a tensor's width to its dtype, before anything is read."""
    try:
        dtype = np.dtype(tensor.dtype)
    except TypeError:
        dtype = None
    if dtype is None or dtype.itemsize * 8 != BITS[tensor.dtype]:
        raise RefusedError(
            f"numpy has no {tensor.dtype}, which tensor {tensor.name!r} is of",
            hint="open the checkpoint with framework='torch', or import ml_dtypes first",
        )
    return lambda array: array.view(dtype)


def _to_torch(tensor: LazyTensor) -> Any:
    """Likewise, to torch, which is loaded here and not before."""
    from cairn.loader.placement import as_tensor
    from cairn.training.plaindata import torch_dtype

    if BITS[tensor.dtype] % 8:
        raise RefusedError(f"tensor {tensor.name!r} is of packed {tensor.dtype}: read its file instead")
    dtype = torch_dtype(tensor.dtype, f"tensor {tensor.name!r}")
    return lambda array: as_tensor(array, dtype)

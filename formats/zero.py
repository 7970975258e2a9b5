"""DeepSpeed's ZeRO checkpoints (stages 1 to 3): flat partitions of every rank, consolidated by parameter.

Layout: DeepSpeed, `checkpoint/constants.py`, `utils/zero_to_fp32.py`, `runtime/zero/`. Stages 1 and 2 join a group's
parameters end to end and cut the whole in one partition a rank; the end is padded. Stage 3 cuts each parameter in one
part a rank, pads each, and joins a rank's parts end to end. Nothing is computed here: each tensor is runs of elements.

What comes out: `module` (weights), `optimizer` spelled as torch does, with the fp32 master weights as `fp32_param`, and
`training` (all other plain values).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import Any

from msgspec.structs import replace

from cairn.core.errors import BadInput
from cairn.core.limits import LISTED_NAMES_MAX
from cairn.formats.dcp import Open
from cairn.formats.logical import JoinedState, JoinedTensor, JoinedValue, Path, Run, tensor_of_runs
from cairn.formats.pickle_torch import TORCH
from cairn.formats.pickle_values import Record, TensorRef, Value
from cairn.formats.pickle_vocabulary import Vocabulary, record
from cairn.formats.plain_values import plain_of
from cairn.formats.refusal import malformed, shown
from cairn.formats.torch_zip import TorchTree
from cairn.manifests.dtypes import BITS

OPTIMIZER_FILE = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_([0-9]{1,6})_mp_rank_([0-9]{1,6})_optim_states\.pt")
MODEL_FILE = re.compile(r"(?:zero_pp_rank_([0-9]{1,6})_)?mp_rank_([0-9]{1,6})_model_states\.pt")
_APART = re.compile(r"^(?:expp_rank_|layer_[0-9]+[-_])")
_CLASSES = (
    *("deepspeed.utils.tensor_fragment.fragment_address", "deepspeed.runtime.zero.config.ZeroStageEnum"),
    *("deepspeed.runtime.fp16.loss_scaler.LossScaler", "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler"),
    "argparse.Namespace",
)
VOCABULARY: Vocabulary = {**TORCH, **{name: record(name) for name in _CLASSES}}
MODULE, OPTIMIZER, TRAINING = "module", "optimizer", "training"
MASTER = "fp32_param"
_COPY = "copy the whole folder again, with every rank's files"
# Described elsewhere in what comes out, or true of the old layout only.
_OWN_KEYS = {
    *("module", "optimizer", "param_shapes", "frozen_param_shapes", "frozen_param_fragments", "shared_params"),
    *("buffer_names", "sparse_tensor_module_names", "dp_world_size", "mp_world_size"),
}


class ZeroFile:
    """One file of a rank: its value, as inert data, and its tensors as runs."""

    def __init__(self, name: str, open_file: Open) -> None:
        self.name = name
        with open_file(name) as source:
            self._tree = TorchTree(source, VOCABULARY)
        self.value = self._tree.value

    @property
    def top(self) -> dict[Value, Value]:
        """Its dict at the top."""
        return mapping(self.value, self.name)

    def run(self, tensor: TensorRef, start: int = 0, skip: int = 0, count: int | None = None) -> Run:
        """`count` elements of a tensor from `skip` on, as elements of another from `start` on."""
        total = prod(tensor.shape)
        count = total - skip if count is None else count
        if not 0 <= skip <= skip + count <= total:
            raise malformed(f"{self.name} holds a partition of {total} elements, where {skip + count} are wanted")
        return Run(self.name, self._tree.offset(tensor) + skip * (BITS[tensor.dtype] // 8), start, count)


def parse_zero(names: Iterable[str], open_file: Open) -> JoinedState:
    """Consolidate the files of a folder.

    Raises:
        BadInput: a rank's file is missing or damaged, partitions do not add up, or the model is cut by tensor or
            pipeline parallelism, whose order no file tells.
    """
    names = sorted(names)
    apart = [name for name in names if _APART.search(name)]
    if apart:
        raise malformed(
            f"{apart[0]}: experts or pipeline stages lie in files of their own, which are not joined",
            hint="convert it with DeepSpeed's ds_to_universal.py",
        )
    optimizers, models = ranked(names, OPTIMIZER_FILE), ranked(names, MODEL_FILE)
    files = [ZeroFile(name, open_file) for name in optimizers]
    model_files = [ZeroFile(name, open_file) for name in models]
    states = [mapping(file.top.get("optimizer_state_dict"), file.name) for file in files]
    stage = _number(states[0].get("zero_stage"))
    counts = states[0].get("partition_count")
    ranks = max(counts, default=0) if isinstance(counts, list) and all(map(_is_number, counts)) else counts
    if ranks != len(files):
        raise malformed(f"{len(files)} files of optimizer partitions are there, of {ranks} ranks", hint=_COPY)
    wanted = len(files) if stage == 3 else 1
    if len(model_files) != wanted:
        raise malformed(f"{len(model_files)} files of model states are there, not {wanted}", hint=_COPY)
    zero = _Zero(files, states, model_files, stage)
    tensors = [*zero.weights(), *zero.moments()]
    values, refused = zero.values()
    listed = ", ".join(refused[:LISTED_NAMES_MAX])
    warnings = [f"{len(refused)} values are not plain data and were left out: {listed}"] if refused else []
    trained = f"{len(zero.shapes)} trained parameters of {zero.elements} elements"
    warnings.append(f"{trained}, of {len(files)} ranks; {zero.padding} elements of padding were left out")
    taken = frozenset((*optimizers, *models))
    return JoinedState(f"DeepSpeed ZeRO-{stage}", tuple(tensors), tuple(values), taken, tuple(warnings))


class _Zero:
    def __init__(
        self, files: list[ZeroFile], states: list[dict[Value, Value]], models: list[ZeroFile], stage: int
    ) -> None:
        self._files, self._states, self._models, self._stage = files, states, models, stage
        self._top = models[0].top
        groups = self._top.get("param_shapes")
        listed = groups if isinstance(groups, list) else [groups]
        self._groups = [shapes_of(group, models[0].name) for group in listed]
        self.shapes = {name: shape for group in self._groups for name, shape in group.items()}
        self.elements = sum(map(prod, self.shapes.values()))
        self.padding = 0
        self._shared = {
            str(name): str(source) for name, source in mapping(self._top.get("shared_params") or {}, "").items()
        }
        self._frozen = shapes_of(self._top.get("frozen_param_shapes") or {}, models[0].name)
        self._fragments: dict[str, tuple[int, list[tuple[int, int, int, int]]]] = {}
        (self._lay_out_3 if stage == 3 else self._lay_out_2)()

    # --- where each parameter lies: (rank, skip, start, count) of group g ---------------------------

    def _lay_out_3(self) -> None:
        padded = 0
        for number, shapes in enumerate(self._groups):
            at = 0
            for name, shape in shapes.items():
                total = prod(shape)
                part = -(-total // len(self._files))
                held = [max(min(part, total - rank * part), 0) for rank in range(len(self._files))]
                pieces = [(rank, at, rank * part, count) for rank, count in enumerate(held)]
                self._fragments[name] = number, [piece for piece in pieces if piece[3]]
                at += part
                padded += part * len(self._files) - total
            for file, flats in zip(self._files, map(self._flats, range(len(self._files))), strict=True):
                size = prod(flats[number].shape)
                if size != at:
                    raise malformed(f"{file.name}: group {number} has {size} elements, its parameters take {at}")
        self.padding = padded

    def _lay_out_2(self) -> None:
        padded = 0
        for number, shapes in enumerate(self._groups):
            sizes = [prod(self._flats(rank)[number].shape) for rank in range(len(self._files))]
            wanted, there = sum(map(prod, shapes.values())), sum(sizes)
            # Groups are padded to a multiple of twice the ranks, as far as the writer did not leave that out.
            if not wanted <= there < wanted + 2 * len(self._files):
                raise malformed(f"group {number} has {there} elements in all partitions, its parameters take {wanted}")
            padded += there - wanted
            told = [self._told(rank, number) for rank in range(len(self._files))]
            starts, at = [0], 0
            for size in sizes:
                starts.append(starts[-1] + size)
            for name, shape in shapes.items():
                total = prod(shape)
                if all(told):
                    pieces, start = [], 0
                    for rank, mapped in enumerate(told):
                        skip, count = mapped.get(name, (0, 0))
                        pieces.append((rank, skip, start, count))
                        start += count
                else:
                    pieces = [
                        (rank, max(at - low, 0), max(low - at, 0), max(min(at + total, high) - max(at, low), 0))
                        for rank, (low, high) in enumerate(pairwise(starts))
                    ]
                at += total
                self._fragments[name] = number, [piece for piece in pieces if piece[3]]
        self.padding = padded

    def _told(self, rank: int, group: int) -> dict[str, tuple[int, int]]:
        """What a rank says itself of its partition: start and count by name; empty if it does not."""
        mappings = self._states[rank].get("param_slice_mappings")
        one = mappings[group] if isinstance(mappings, list) and group < len(mappings) else None
        found: dict[str, tuple[int, int]] = {}
        for name, address in one.items() if isinstance(one, dict) else ():
            facts = address.state if isinstance(address, Record) else None
            if not isinstance(facts, dict) or not _is_number(facts.get("start")) or not _is_number(facts.get("numel")):
                raise malformed(f"{self._files[rank].name} does not say where {shown(str(name))} lies")
            found[str(name)] = facts["start"], facts["numel"]
        return found

    def _flats(self, rank: int) -> list[TensorRef]:
        key = "fp32_flat_groups" if self._stage == 3 else "single_partition_of_fp32_groups"
        flats = self._states[rank].get(key)
        if not isinstance(flats, list) or not all(isinstance(flat, TensorRef) for flat in flats):
            raise malformed(f"{self._files[rank].name} has no list of tensors {key}")
        if len(flats) != len(self._groups):
            raise malformed(f"{self._files[rank].name} has {len(flats)} groups, the model {len(self._groups)}")
        return flats

    def _consolidated(self, path: Path, name: str, flats: Sequence[TensorRef]) -> JoinedTensor:
        _, pieces = self._fragments[name]
        runs = [self._files[rank].run(flats[rank], start, skip, count) for rank, skip, start, count in pieces]
        return tensor_of_runs(path, flats[0].dtype, self.shapes[name], runs, f"parameter {shown(name)}")

    # --- what comes out ------------------------------------------------------------------------------

    def weights(self) -> Iterator[JoinedTensor]:
        """The module's tensors as they were saved; what stage 3 has partitioned, from the partitions."""
        buffers = self._top.get("buffer_names")
        own = set(map(str, buffers)) if isinstance(buffers, list | tuple | set) else set()
        found: set[str] = set()
        partitioned = {*self.shapes, *self._frozen, *self._shared} - own if self._stage == 3 else set()
        for name, tensor in mapping(self._top.get("module") or {}, self._models[0].name).items():
            if not isinstance(name, str) or not isinstance(tensor, TensorRef) or name in partitioned:
                continue
            if self.shapes.get(name, tensor.shape) != tensor.shape or (not prod(tensor.shape) and self._stage == 3):
                raise malformed(f"{self._models[0].name} holds no values of {shown(name)}, only a placeholder")
            found.add(name)
            yield self._tied(name, whole(self._models[0], (MODULE, name), tensor))
        lacking = self.shapes.keys() - partitioned - found
        if lacking:
            raise malformed(f"{self._models[0].name} lacks {len(lacking)} parameters, first {min(lacking)!r}")
        for name in partitioned:
            yield self._tied(name, self._gathered(name, self._shared.get(name, name)))

    def _tied(self, name: str, tensor: JoinedTensor) -> JoinedTensor:
        source = self._shared.get(name)
        return replace(tensor, tied_to=(MODULE, source)) if source is not None else tensor

    def _gathered(self, name: str, source: str) -> JoinedTensor:
        """A parameter of stage 3 from the partitions of `source`, which it is or shares memory with."""
        path = MODULE, name
        if source in self.shapes:
            group = self._fragments[source][0]
            return self._consolidated(path, source, [self._flats(rank)[group] for rank in range(len(self._files))])
        shape = self._frozen.get(source)
        if shape is None:
            raise malformed(f"{shown(name)} shares memory with {shown(source)}, which is not there")
        runs, dtype, total = [], "", prod(shape)
        part = -(-total // len(self._models))
        for rank, file in enumerate(self._models):
            piece = mapping(file.top.get("frozen_param_fragments"), file.name).get(source)
            if not isinstance(piece, TensorRef):
                raise malformed(f"{file.name} has no part of the frozen parameter {shown(source)}")
            dtype = piece.dtype
            runs.append(file.run(piece, rank * part, 0, max(min(part, total - rank * part), 0)))
        return tensor_of_runs(path, dtype, shape, runs, f"frozen parameter {shown(source)}")

    def moments(self) -> Iterator[JoinedTensor]:
        """Master weights and the state of each trained parameter."""
        for name in self.shapes:
            group = self._fragments[name][0]
            flats = [self._flats(rank)[group] for rank in range(len(self._files))]
            yield self._consolidated((OPTIMIZER, "state", name, MASTER), name, flats)
            for kind, value in self._state(0, group).items():
                path = (OPTIMIZER, "state", name, str(kind))
                if isinstance(value, TensorRef) and not value.shape:
                    yield whole(self._files[0], path, value)
                elif isinstance(value, TensorRef):
                    held = [self._state(rank, group).get(kind) for rank in range(len(self._files))]
                    tensors = [one for one in held if isinstance(one, TensorRef)]
                    if len(tensors) != len(held):
                        raise malformed(f"not all ranks hold {kind} of group {group}")
                    yield self._consolidated(path, name, tensors)

    def _state(self, rank: int, group: int) -> dict[Value, Value]:
        states = mapping(self._inner(rank).get("state") or {}, self._files[rank].name)
        return mapping(states.get(group) or {}, self._files[rank].name)

    def _inner(self, rank: int) -> dict[Value, Value]:
        key = "optimizer_state_dict" if self._stage == 3 else "base_optimizer_state"
        inner = self._states[rank].get(key)
        if not isinstance(inner, dict):
            raise malformed(f"{self._files[rank].name} has no {key}, or one of the elastic form, which is not read")
        return inner

    def values(self) -> tuple[list[JoinedValue], list[str]]:
        """Plain values, and the names of what is none."""
        found: list[tuple[Path, Value]] = [
            ((TRAINING, str(key)), value) for key, value in self._top.items() if key not in _OWN_KEYS
        ]
        for name in self.shapes:
            for kind, value in self._state(0, self._fragments[name][0]).items():
                if not isinstance(value, TensorRef):
                    found.append(((OPTIMIZER, "state", name, str(kind)), value))
        groups = self._inner(0).get("param_groups")
        groups = groups if isinstance(groups, list) else []
        for number, group in enumerate(groups):
            for key, value in mapping(group, self._files[0].name).items():
                if key != "params":
                    found.append(((OPTIMIZER, "param_groups", number, str(key)), value))
            members: Any = list(self._groups[number]) if len(self._groups) == len(groups) else list(self.shapes)
            found.append(((OPTIMIZER, "param_groups", number, "params"), members))
        return plain_values(found)


def plain_values(found: Iterable[tuple[Path, Value]]) -> tuple[list[JoinedValue], list[str]]:
    """Values that are plain data, and what is none, by name with the reason."""
    plain, refused = [], []
    for path, value in found:
        try:
            plain.append(JoinedValue(path, plain_of(value)))
        except BadInput as error:
            refused.append(f"{'.'.join(map(str, path))} ({error.message})")
    return plain, refused


def whole(file: ZeroFile, path: Path, tensor: TensorRef) -> JoinedTensor:
    """A tensor that one file holds as it is."""
    runs = [file.run(tensor)] if prod(tensor.shape) else []
    return tensor_of_runs(path, tensor.dtype, tensor.shape, runs, ".".join(map(str, path)))


def ranked(names: Iterable[str], pattern: re.Pattern[str]) -> list[str]:
    """Files of a kind by rank.

    Raises:
        BadInput: the model is cut by tensor or pipeline parallelism, or a rank is missing or there twice.
    """
    found: dict[int, str] = {}
    for name in names:
        match = pattern.fullmatch(name)
        if match is None:
            continue
        if int(match[2]):
            raise malformed(
                f"{name}: the model is cut by tensor or pipeline parallelism, and no file tells how parts are joined",
                hint="convert it with DeepSpeed's ds_to_universal.py",
            )
        if found.setdefault(int(match[1] or 0), name) != name:
            raise malformed(f"{found[int(match[1] or 0)]} and {name} are of one rank", hint="keep one of them")
    missing = sorted(set(range(max(found, default=-1) + 1)) - found.keys())
    if missing or not found:
        lacking = f"of ranks {missing[:8]}" if missing else f"like {pattern.pattern}"
        raise malformed(f"files {lacking} are missing", hint=_COPY)
    return [found[rank] for rank in sorted(found)]


def mapping(value: Value, name: str) -> dict[Value, Value]:
    """A dict.

    Raises:
        BadInput: it is none.
    """
    if not isinstance(value, dict):
        raise malformed(f"{name} has something else where a dict belongs")
    return value


def shapes_of(value: Value, name: str) -> dict[str, tuple[int, ...]]:
    """Shapes by name.

    Raises:
        BadInput: they are none.
    """
    found: dict[str, tuple[int, ...]] = {}
    for key, shape in mapping(value, name).items():
        if not isinstance(key, str) or not isinstance(shape, tuple | list) or not all(map(_is_number, shape)):
            raise malformed(f"{name} has shapes that are none")
        found[key] = tuple(shape)
    return found


def _is_number(value: Value) -> bool:
    return type(value) is int and value >= 0


def _number(value: Value) -> int:
    plain = value.arguments[0] if isinstance(value, Record) and value.arguments else value
    if type(plain) is not int or plain < 0:
        raise malformed("the optimizer's state has no ZeRO stage")
    return plain

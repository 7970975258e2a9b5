"""Rules for what torch.save writes: storages by reference, tensors as views of them.

Functions and argument orders are those of torch's `_utils.py` and `_tensor.py` (1.6 to 2.13).
"""

from collections.abc import Callable

from cairn.core.errors import BadInput
from cairn.core.limits import TENSOR_DIMS_MAX
from cairn.formats.pickle_numpy import NUMPY
from cairn.formats.pickle_plain import PLAIN
from cairn.formats.pickle_values import Name, OpaqueTensor, StorageRef, TensorRef, Value
from cairn.formats.pickle_vocabulary import MENTION, Arguments, Charge, Rule, Vocabulary, wrong_arguments
from cairn.formats.refusal import malformed, shown
from cairn.formats.views import reach
from cairn.manifests.dtypes import BITS, nbytes

Tensor = TensorRef | OpaqueTensor

_STORAGE_DTYPES = {
    "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16",
    "Long": "int64", "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool",
    "ComplexDouble": "complex128", "ComplexFloat": "complex64",
    "QInt8": "qint8", "QInt32": "qint32", "QUInt8": "quint8", "QUInt4x2": "quint4x2", "QUInt2x4": "quint2x4",
}  # fmt: skip

# Storage classes by their global; an untyped one counts bytes.
STORAGE_CLASSES: dict[str, str] = {
    "torch.storage.UntypedStorage": "uint8",
    "torch.UntypedStorage": "uint8",
    **{f"torch.{name}Storage": dtype for name, dtype in _STORAGE_DTYPES.items()},
    **{f"torch.cuda.{name}Storage": dtype for name, dtype in _STORAGE_DTYPES.items()},
}

# Elements narrower than a byte are safetensors' alone.
_TORCH_DTYPES = {f"torch.{name}": name for name, bits in BITS.items() if bits % 8 == 0}

_LAYOUTS = {
    f"torch.{name}" for name in ("strided", *(f"sparse_{kind}" for kind in ("coo", "csr", "csc", "bsr", "bsc")))
}
_FLAGS = {"conj", "neg"}
_TENSOR_CLASSES = ("torch.Tensor", "torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer")
_QUANTIZATION_SCHEMES = (
    "per_tensor_affine",
    "per_tensor_symmetric",
    "per_channel_affine",
    "per_channel_symmetric",
    "per_channel_affine_float_qparams",
)


class StorageTable:
    """The storages that one pickle refers to, by key."""

    def __init__(self) -> None:
        self.storages: dict[str, StorageRef] = {}

    def resolve(self, reference: Value) -> Value:
        """Value of BINPERSID: `("storage", class, key, location, number of elements)`.

        Raises:
            BadInput: of another form, or at odds with an earlier reference to the same key.
        """
        match reference:
            case ("storage", Name(text=kind), str(key), str(_), int(elements)) if kind in STORAGE_CLASSES:
                storage = StorageRef(key, STORAGE_CLASSES[kind], elements)
            case _:
                raise malformed("a persistent reference is not that of a torch storage")
        _checked_bytes(storage.dtype, (elements,), key)
        if self.storages.setdefault(key, storage) != storage:
            raise malformed(f"storage {shown(key)} is said to have two different types or sizes")
        return self.storages[key]


def _checked_bytes(dtype: str, shape: tuple[int, ...], key: str) -> int:
    try:
        return nbytes(dtype, shape)
    except BadInput as error:
        raise malformed(f"storage {shown(key)}: {error.message}") from None


def _view(storage: Value, dtype: str | None, offset: Value, shape: Value, strides: Value) -> TensorRef:
    """A checked view; by exact arithmetic it cannot leave its storage."""
    if not isinstance(storage, StorageRef) or type(offset) is not int:
        raise wrong_arguments("a tensor's rebuild function", "storage, offset, shape and strides")
    lengths, steps = _sizes(shape), _sizes(strides)
    dtype = dtype or storage.dtype
    _checked_bytes(dtype, lengths, storage.key)
    if len(lengths) != len(steps):
        raise malformed(f"{_where(storage)}: {len(lengths)} dimensions but {len(steps)} strides")
    if offset < 0 or any(step < 0 for step in steps):
        raise malformed(f"{_where(storage)}: a negative offset or stride")
    end = _checked_bytes(dtype, (offset + reach(lengths, steps),), storage.key)
    if end > nbytes(storage.dtype, (storage.elements,)):
        raise malformed(f"{_where(storage)}: reaches byte {end} of a storage of {storage.elements} {storage.dtype}")
    return TensorRef(storage, dtype, offset, lengths, steps)


def _where(storage: StorageRef) -> str:
    return f"a tensor in storage {shown(storage.key)}"


def _sizes(value: Value) -> tuple[int, ...]:
    if not isinstance(value, tuple) or len(value) > TENSOR_DIMS_MAX or any(type(item) is not int for item in value):
        raise malformed("a tensor's shape and strides must be tuples of integers, and few of them")
    return value


def _with_flags(tensor: TensorRef, flags: Value) -> Tensor:
    """Conjugate and negative views exist in name only: their bytes are those of the other tensor."""
    if flags is None:
        return tensor
    if not isinstance(flags, dict) or not flags.keys() <= _FLAGS:
        raise wrong_arguments("a tensor's rebuild function", f"no other flags than {' and '.join(sorted(_FLAGS))}")
    named = [name for name in sorted(_FLAGS) if flags.get(name, False) is not False]
    return OpaqueTensor(f"lazily transformed ({', '.join(named)}) tensor") if named else tensor


def _rebuild(arguments: Arguments, charge: Charge) -> Value:
    if len(arguments) != 4:
        raise wrong_arguments("_rebuild_tensor", "4")
    storage, offset, shape, strides = arguments
    return _view(storage, None, offset, shape, strides)


def _rebuild_v2(arguments: Arguments, charge: Charge) -> Value:
    """storage, offset, shape, strides, requires_grad, hooks[, flags]"""
    if len(arguments) not in (6, 7):
        raise wrong_arguments("_rebuild_tensor_v2", "6 or 7")
    storage, offset, shape, strides = arguments[:4]
    return _with_flags(_view(storage, None, offset, shape, strides), arguments[6] if len(arguments) == 7 else None)


def _rebuild_v3(arguments: Arguments, charge: Charge) -> Value:
    """As version 2, with the dtype before the flags: storages of newer types are untyped."""
    if len(arguments) not in (7, 8):
        raise wrong_arguments("_rebuild_tensor_v3", "7 or 8")
    storage, offset, shape, strides = arguments[:4]
    dtype = _dtype(arguments[6], "_rebuild_tensor_v3")
    return _with_flags(_view(storage, dtype, offset, shape, strides), arguments[7] if len(arguments) == 8 else None)


def _rebuild_parameter(arguments: Arguments, charge: Charge) -> Value:
    """tensor, requires_grad, hooks[, attributes]; a parameter is its tensor."""
    return _tensor_in(arguments, (3, 4), "_rebuild_parameter")


def _rebuild_device_tensor(arguments: Arguments, charge: Charge) -> Value:
    """tensor on the host, dtype, device, requires_grad; the host's bytes are the tensor's if the dtype is."""
    tensor = _tensor_in(arguments, (4,), "_rebuild_device_tensor_from_cpu_tensor")
    dtype = _dtype(arguments[1], "_rebuild_device_tensor_from_cpu_tensor")
    if isinstance(tensor, TensorRef) and tensor.dtype != dtype:
        return OpaqueTensor(f"device tensor (held as {tensor.dtype}, meant as {dtype})")
    return tensor


def _rebuild_from_type(arguments: Arguments, charge: Charge) -> Value:
    """function, class, its arguments, attributes: a tensor with Python attributes, which are left to the pickle."""
    match arguments:
        case (Name(text=function), Name(text=kind), tuple(inner), _) if kind in _TENSOR_CLASSES:
            build = _REBUILD.get(function)
            if build is None:
                raise malformed(f"torch._tensor._rebuild_from_type_v2 must not call {shown(function)}")
            return build(inner, charge)
    raise wrong_arguments("torch._tensor._rebuild_from_type_v2", "a function, plain class, arguments, state")


def _opaque(kind: str) -> Callable[[Arguments, Charge], Value]:
    return lambda arguments, charge: OpaqueTensor(kind)


def _tensor_in(arguments: Arguments, counts: tuple[int, ...], name: str) -> Tensor:
    if len(arguments) not in counts or not isinstance(arguments[0], (TensorRef, OpaqueTensor)):
        raise wrong_arguments(name, f"a tensor and {counts[0] - 1} more")
    return arguments[0]


def _dtype(value: Value, name: str) -> str:
    if isinstance(value, Name) and value.text in _TORCH_DTYPES:
        return _TORCH_DTYPES[value.text]
    raise wrong_arguments(name, "a torch dtype where it belongs")


def _size(arguments: Arguments, charge: Charge) -> Value:
    match arguments:
        case (tuple(lengths),):
            return lengths
    raise wrong_arguments("torch.Size", "one tuple")


def _device(arguments: Arguments, charge: Charge) -> Value:
    match arguments:
        case (str(kind),) if len(kind) < 64:
            return Name(f"torch.device({kind!r})")
        case (str(kind), int(index)) if len(kind) < 64 and 0 <= index < 1 << 16:
            return Name(f"torch.device({kind!r}, {index})")
    raise wrong_arguments("torch.device", "a device name and number")


def _layout(arguments: Arguments, charge: Charge) -> Value:
    match arguments:
        case (str(layout),) if layout in _LAYOUTS:
            return Name(layout)
    raise wrong_arguments("torch.serialization._get_layout", "the name of a layout")


_REBUILD: dict[str, Callable[[Arguments, Charge], Value]] = {
    "torch._utils._rebuild_tensor": _rebuild,
    "torch._utils._rebuild_tensor_v2": _rebuild_v2,
    "torch._utils._rebuild_tensor_v3": _rebuild_v3,
    "torch._utils._rebuild_parameter": _rebuild_parameter,
    "torch._utils._rebuild_parameter_with_state": _rebuild_parameter,
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": _rebuild_device_tensor,
    "torch._utils._rebuild_device_tensor_from_numpy": _opaque("device tensor (held as a numpy array)"),
    "torch._utils._rebuild_sparse_tensor": _opaque("sparse tensor"),
    "torch._utils._rebuild_qtensor": _opaque("quantized tensor"),
    "torch._utils._rebuild_nested_tensor": _opaque("nested tensor"),
    "torch._utils._rebuild_meta_tensor_no_storage": _opaque("meta tensor, which has no bytes,"),
}

TORCH: Vocabulary = {
    **PLAIN,
    **NUMPY,
    **{name: Rule(build) for name, build in _REBUILD.items()},
    "torch._tensor._rebuild_from_type_v2": Rule(_rebuild_from_type),
    "torch.Size": Rule(_size),
    "torch.device": Rule(_device),
    "torch.serialization._get_layout": Rule(_layout),
    **dict.fromkeys(
        (*STORAGE_CLASSES, *_TORCH_DTYPES, *_TENSOR_CLASSES, *(f"torch.{name}" for name in _QUANTIZATION_SCHEMES)),
        MENTION,
    ),
}

"""Names are looked up on a closed list, and nothing ever runs."""

import importlib
import pickle
from typing import Any

import pytest
import torch

from cairn.core.errors import BadInput
from cairn.formats.pickle_numpy import NUMPY
from cairn.formats.pickle_plain import PLAIN
from cairn.formats.pickle_reader import read_pickle
from cairn.formats.pickle_torch import TORCH
from cairn.formats.pickle_values import Name, Record
from cairn.formats.pickle_vocabulary import MENTION, Rule, record
from tests.formats.pickle_making import HEAD, glob, read, refusal, text

fired: list[str] = []


def marker(*arguments: Any) -> None:
    """What a hostile pickle would call."""
    fired.append(repr(arguments))


class Hostile:
    """Pickles as a call of any function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


UNCOMMON = [
    "os.system", "posix.system", "nt.system", "subprocess.Popen", "builtins.eval", "builtins.exec",
    "builtins.getattr", "builtins.__import__", "builtins.open", "builtins.compile", "builtins.print", "builtins.type",
    "builtins.object", "pty.spawn", "runpy.run_path", "code.interact", "pdb.run", "timeit.main", "cProfile.run",
    "doctest.debug_script", "importlib.import_module", "pkgutil.resolve_name", "pydoc.pipepager", "webbrowser.open",
    "ensurepip._run_pip", "asyncio.unix_events._UnixSubprocessTransport._start",
    "idlelib.pyshell.ModifiedInterpreter", "lib2to3.pgen2.grammar.Grammar.loads", "torch.load",
    "torch.storage._load_from_bytes", "torch.hub.load", "torch.jit.load", "torch.serialization.load",
    "torch.utils._config_module.load_config", "torch.distributed.rpc.rpc_sync", "torch.ops.load_library",
    "numpy.load", "torch._utils._rebuild_wrapper_subclass", "torch.nn.modules.linear.Linear",
    "torch.fx.graph_module.reduce_graph_module", "functools.partial", "operator.attrgetter", "operator.methodcaller",
    "types.CodeType", "marshal.loads", "ctypes.CDLL", "codecs.encode", "_codecs.decode", "copyreg._reconstructor",
    "copyreg.__newobj__", "collections.abc.Callable", "collections.defaultdict", "builtins.set.__class__",
    "torch.Tensor.__class__", "torch", "", "torch.Size.__reduce__",
]  # fmt: skip


@pytest.mark.parametrize("name", UNCOMMON)
def test_X19_X36_only_listed_names_exist(name: str) -> None:
    module, _, leaf = name.rpartition(".")
    by_stack = b"\x8c" + bytes([len(module)]) + module.encode() + b"\x8c" + bytes([len(leaf)]) + leaf.encode() + b"\x93"
    for mention in (glob(name), by_stack):
        for use in (b"", b")R", b")\x81", b"}b"):
            for vocabulary in (TORCH, PLAIN, NUMPY, {}):
                program = b"\x80\x04" + mention + use + b"."
                with pytest.raises(BadInput, match="not on the closed list") as caught:
                    read_pickle(program, vocabulary)
                assert not name or name[:40] in caught.value.message, "the refused name is told"


@pytest.mark.parametrize("protocol", range(6))
def test_X01_X36_marker_never_fires(protocol: int) -> None:
    fired.clear()
    for value in (Hostile(marker, 1), {"a": [Hostile(marker)]}, Hostile(exec, f"{__name__}.fired.append(1)"), Hostile):
        refusal(pickle.dumps(value, protocol))
    assert fired == []
    pickle.loads(pickle.dumps(Hostile(marker, "armed")))
    assert fired == ["('armed',)"], "the marker works"


def test_X19_names_must_match_as_a_whole() -> None:
    for name in (
        "collections.OrderedDict ",
        " collections.OrderedDict",
        "Collections.OrderedDict",
        "collections.OrderedDict\r",
    ):
        assert "closed list" in refusal(HEAD + glob(name) + b")R.")
    # Wherever the dot between module and name is put, it is the same label, and only a label.
    for module, leaf in (("torch.storage", "UntypedStorage"), ("torch", "storage.UntypedStorage")):
        assert read(HEAD + f"c{module}\n{leaf}\n.".encode()) == Name("torch.storage.UntypedStorage")


def test_X19_a_text_is_no_name() -> None:
    assert "calls something else than a name" in refusal(HEAD + text("collections.OrderedDict") + b")R.")
    assert "calls something else than a name" in refusal(HEAD + glob("collections.OrderedDict") + b"]R.")


@pytest.mark.parametrize(
    "name", ["torch.float32", "torch.FloatStorage", "torch.Tensor", "numpy.ndarray", "torch.per_tensor_affine"]
)
def test_X19_mentioned_names_cannot_be_called(name: str) -> None:
    assert f"calls '{name}', which may only be mentioned" in refusal(HEAD + glob(name) + b")R.")
    assert "may only be mentioned" in refusal(HEAD + glob(name) + b")\x81.")


def test_X19_functions_are_no_classes() -> None:
    assert "makes an object of" in refusal(HEAD + glob("torch._utils._rebuild_tensor_v2") + b")\x81.")
    assert read(HEAD + glob("collections.OrderedDict") + b")\x81.") == {}
    # What a call yields is a label too; it opens no further call.
    assert "may only be mentioned" in refusal(HEAD + glob("torch.device") + text("cpu") + b"\x85R)R.")


def test_X01_vocabularies_can_be_extended_by_records() -> None:
    class Point:
        def __init__(self) -> None:
            self.x = 1

    Point.__qualname__ = "Point"
    Point.__module__, name = __name__, f"{__name__}.Point"
    globals()["Point"] = Point
    try:
        program = pickle.dumps({"p": Point()}, 4)
    finally:
        del globals()["Point"]
    assert "Point" in refusal(program)
    result = read_pickle(program, {name: record(name)})
    assert isinstance(result, dict)
    assert (result["p"].name, result["p"].arguments, result["p"].state) == (name, (), {"x": 1})
    with pytest.raises(BadInput, match="may only be mentioned"):
        read_pickle(program, {name: MENTION})


def test_X01_metadata_of_a_distributed_checkpoint() -> None:
    """DCP's `.metadata` is a pickle too; its classes are records, and its neighbours stay out."""
    metadata = importlib.import_module("torch.distributed.checkpoint.metadata")
    properties = metadata.TensorProperties(dtype=torch.bfloat16)
    chunk = metadata.ChunkStorageMetadata(offsets=torch.Size([0, 0]), sizes=torch.Size([2, 3]))
    value = metadata.Metadata(
        state_dict_metadata={"w": metadata.TensorStorageMetadata(properties, torch.Size([2, 3]), [chunk])},
        storage_data={metadata.MetadataIndex("w", torch.Size([0, 0]), 0): None},
    )
    program = pickle.dumps(value)
    classes = ("Metadata", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata", "MetadataIndex")
    names = [f"{metadata.__name__}.{name}" for name in (*classes, "_MEM_FORMAT_ENCODING")]
    vocabulary = {**TORCH, **{name: record(name) for name in names}}
    result = read_pickle(program, vocabulary)
    assert isinstance(result, Record) and isinstance(result.state, dict)
    assert result.state["state_dict_metadata"]["w"].state["size"] == (2, 3)
    (key,) = result.state["storage_data"]
    assert key.value.state == {"fqn": "w", "offset": (0, 0), "index": 0}
    for name in names:
        assert name[:40] in refusal(program, vocabulary={key: rule for key, rule in vocabulary.items() if key != name})
    value.planner_data = Hostile(marker)
    fired.clear()
    assert "marker" in refusal(pickle.dumps(value), vocabulary=vocabulary)
    assert fired == []


def test_pickle_lists_are_closed() -> None:
    """What may be called is decided here, by hand; a longer list is a decision, not a detail."""
    called = {name for name, rule in TORCH.items() if rule.call is not None}
    assert all(isinstance(rule, Rule) for rule in TORCH.values())
    assert {name for name in called if not name.startswith(("numpy.", "torch._utils._rebuild_"))} == {
        *("collections.OrderedDict", "collections.Counter", "_codecs.encode", "torch.Size", "torch.device"),
        *("builtins.set", "builtins.frozenset", "builtins.bytes", "builtins.bytearray", "builtins.complex"),
        *("torch.serialization._get_layout", "torch._tensor._rebuild_from_type_v2"),
    }

"""Group X, hostile files: nothing of them runs, nothing of them fits half, nothing of them takes all memory."""

import gc
import io
import os
import pickle
import shutil
import struct
import subprocess
import tarfile
import threading
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cairn.core.errors import BadInput
from cairn.formats.torch_zip import parse_torch
from tests.cases.shell import Shell, peak_mib, stored
from tests.formats.pickle_making import HEAD, glob, tensor, text
from tests.formats.support import BytesSource, rezipped, safetensors_file, torch_archive, torch_file
from tests.support.trees import snapshot

PEAK_MIB = 256  # what the reports allow


class Calls:
    """Pickles as a call of a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def hostile_calls(marker: Path) -> dict[str, Any]:
    """Values whose unpickling leaves a marker, by many ways."""
    touch = f"open({str(marker)!r}, 'w')"
    return {
        "open": Calls(open, str(marker), "w"),
        "os.system": Calls(os.system, f"touch {marker}"),
        "eval": Calls(eval, touch),
        "exec": Calls(exec, touch),
        "subprocess": Calls(subprocess.call, ["touch", str(marker)]),
        "mkdir": Calls(os.mkdir, str(marker)),
        "getattr": Calls(getattr, str(marker), "join"),
        "torch.save": Calls(torch.save, 1, str(marker)),
        "numpy.save": Calls(np.save, str(marker), 1),
        "as a key": {Calls(open, str(marker), "w"): 1},
        "deep": {"a": [{"b": (1, Calls(open, str(marker), "w"))}]},
        "beside a tensor": {"w": torch.ones(50), "x": Calls(open, str(marker), "w")},
    }


def containers(value: Any) -> dict[str, bytes]:
    """A value in every file that somebody reads by unpickling it."""
    zipped = torch_file(value)
    legacy = torch_file(value, _use_new_zipfile_serialization=False)
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            info, data = tarfile.TarInfo(name), pickle.dumps(value, 2)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    array = io.BytesIO()
    np.save(array, np.array([value], dtype=object), allow_pickle=True)
    dcp = pickle.dumps(value)
    return {
        "m.pt": zipped, "m.pth": zipped, "m.ckpt": zipped, "pytorch_model.bin": zipped, "M.PT": zipped,
        "m.safetensors.pt": zipped,
        "legacy.pt": legacy, "legacy.bin": legacy, "tar.pt": tar.getvalue(), "tar.bin": tar.getvalue(),
        "m.npy": array.getvalue(),
        **{f"protocol{n}.{end}": pickle.dumps(value, n) for n in range(6) for end in ("pkl", "pt", "bin")},
        "dcp/.metadata": dcp, "dcp/__0_0.distcp": zipped, "optimizer.pt": rezipped(zipped, {"data/0": None}),
    }  # fmt: skip


CALLS = list(hostile_calls(Path("x")))


def fired(shell: Shell) -> bool:
    """Whether a marker is there."""
    return any(shell.folder.glob("fired*"))


@pytest.mark.parametrize("call", [call for call in CALLS if call != "getattr"])
def test_X01_the_marker_would_fire(shell: Shell, call: str) -> None:
    assert not fired(shell)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it leaves its file open
        pickle.loads(pickle.dumps(hostile_calls(shell.folder / "fired")[call]))
        gc.collect()
    assert fired(shell)


@pytest.mark.parametrize("call", CALLS)
def test_X01_X36_no_entry_point_runs_a_pickle(shell: Shell, call: str) -> None:
    marker = shell.folder / "fired"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        files = containers(hostile_calls(marker)[call])
    whole = shell.tree(files)
    assert "closed list" in shell("commit", whole, "m", code=3).err and not fired(shell), "dcp/.metadata says what"
    tree = shell.tree({name: content for name, content in files.items() if not name.startswith("dcp/")})
    done = shell.commit(tree)
    assert done["tensors"] == 0 and not fired(shell)
    named = {line.split(":")[0] for line in done["warnings"]}
    assert named >= {"m.pt", "m.ckpt", "pytorch_model.bin", "legacy.pt"}
    assert all("kept as plain bytes" in line for line in done["warnings"])
    for command in (
        ["ls", "m"],
        ["show", "--tensors", "m"],
        ["log", "m"],
        ["diff", "m", "m"],
        ["verify", "--full"],
        ["stats"],
    ):
        shell(*command)
    shell.commit(tree, "m", "--always")
    shell.commit(whole, "opaque", "--opaque")
    assert snapshot(shell.back()) == snapshot(tree)
    assert snapshot(shell.back("opaque")) == snapshot(whole)
    assert not fired(shell), "a pickle was run"


@pytest.mark.parametrize(
    "name",
    ["pty.spawn", "runpy.run_path", "timeit.main", "cProfile.run", "pydoc.pipepager", "code.interact", "ctypes.CDLL",
     "webbrowser.open", "importlib.import_module", "pkgutil.resolve_name", "functools.partial", "operator.attrgetter",
     "types.FunctionType", "marshal.loads", "logging.config.listen", "asyncio.run",
     "multiprocessing.util.spawnv_passfds",
     "torch.hub.load", "torch.load", "torch.jit.load", "numpy.load", "collections.defaultdict", "builtins.getattr",
     "_pickle.loads", "zipimport.zipimporter"],
)  # fmt: skip
def test_X19_an_unlisted_name_is_named_and_the_file_kept_as_bytes(shell: Shell, name: str) -> None:
    file = torch_archive(HEAD + glob(name) + b")R.")
    done = shell.commit({"m.pt": file})
    (warning,) = done["warnings"]
    assert name in warning and "not on the closed list" in warning
    assert (shell.back() / "m.pt").read_bytes() == file


@pytest.mark.parametrize("name", ["legacy.pt", "legacy.bin", "tar.pt", "tar.bin"])
def test_X13_legacy_files_are_told_and_kept_as_bytes(shell: Shell, name: str) -> None:
    file = containers({"w": torch.ones(50)})[name]
    done = shell.commit({name: file})
    assert (shell.back() / name).read_bytes() == file
    assert done["tensors"] == 0 and any("legacy" in line and line.startswith(name) for line in done["warnings"])


# --- Operations and names ------------------------------------------------------------------------------

MISUSES: dict[str, bytes] = {
    "items of a list": b"]" + text("a") + b"K\x01s.",
    "items of a tensor": tensor() + text("a") + b"K\x01s.",
    "items of a number": b"K\x05" + text("a") + b"K\x01s.",
    "append to a dict": b"}K\x01a.",
    "append to a tensor": tensor() + b"K\x01a.",
    "state of a tensor": tensor() + b"}b.",
    "a view beyond its storage": tensor(offset=b"K\x01") + b".",
    "a shape beyond its storage": tensor(shape=b"K\x05\x85") + b".",
    "a stride beyond its storage": tensor(strides=b"K\x02\x85") + b".",
    "a negative offset": tensor(offset=b"J\xff\xff\xff\xff") + b".",
    "a negative stride": tensor(strides=b"J\xff\xff\xff\xff\x85") + b".",
}


@pytest.mark.parametrize("program", MISUSES.values(), ids=MISUSES)
def test_X14_an_operation_on_the_wrong_type_or_bytes_is_refused(shell: Shell, program: bytes) -> None:
    file = torch_archive(HEAD + program, {"data/0": bytes(16)})
    done = shell.commit({"m.pt": file})
    assert done["tensors"] == 0 and len(done["warnings"]) == 1 and "kept as plain bytes" in done["warnings"][0]
    assert (shell.back() / "m.pt").read_bytes() == file


@pytest.mark.parametrize("size", [0, 1, 199, 201, 400, 4000])
def test_X14_a_record_of_another_size_than_its_storage_is_refused(shell: Shell, size: int) -> None:
    file = rezipped(torch_file({"w": torch.ones(50)}), {"data/0": bytes(size)})
    done = shell.commit({"m.pt": file})
    assert done["tensors"] == 0 and f"its record has {size}" in done["warnings"][0]


ESCAPES = [
    "../x",
    "a/../../x",
    "\\..\\x",
    "/etc/x",
    "C:\\x",
    "a/./x",
    "a//x",
    "..",
    "archive/../../x",
    "a\0b",
    "~/../x/..",
]


@pytest.mark.parametrize("name", ESCAPES, ids=ascii)
@pytest.mark.parametrize("kind", ["zip", "index"])
def test_X17_no_name_in_a_file_leads_anywhere(shell: Shell, name: str, kind: str) -> None:
    outside = stored(shell.folder.parent)
    if kind == "zip":
        buffer = io.BytesIO(torch_file({"w": torch.ones(50)}))
        with zipfile.ZipFile(buffer, "a") as archive:
            info = zipfile.ZipInfo("placeholder")
            info.filename = name
            archive.writestr(info, b"x")
        file = buffer.getvalue()
        done = shell.commit({"m.pt": file, "m.nemo": file})
        assert done["tensors"] == 0 and "archive member" in done["warnings"][0], done["warnings"]
        assert (shell.back() / "m.nemo").read_bytes() == file
    else:
        escaped = name.replace("\\", "\\\\").replace("\0", "\\u0000")
        index = f'{{"weight_map": {{"w": "{escaped}"}}}}'.encode()
        assert "m.safetensors.index.json" in shell.refused({"m.safetensors.index.json": index})
    now = {path for path in stored(shell.folder.parent) if not path.startswith(shell.folder.name)}
    assert now == {path for path in outside if not path.startswith(shell.folder.name)}
    assert not Path("/etc/x").exists()


# --- Bombs ----------------------------------------------------------------------------------------


def memo_bomb(levels: int) -> bytes:
    """Lists that hold the list below twice."""
    program = b"]q\x00"
    for level in range(levels):
        program += b"]q" + bytes([level + 1]) + b"(h" + bytes([level]) + b"h" + bytes([level]) + b"e"
    return HEAD + program + b"."


def inflating(claim: int, records: dict[str, int]) -> bytes:
    """A compressed archive whose records claim or hold so many zeros."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", HEAD + b"}.")
        for name, size in records.items():
            archive.writestr(f"archive/{name}", bytes(size))
    data = bytearray(buffer.getvalue())
    if claim:
        entry = data.rfind(b"PK\x01\x02")
        data[entry + 24 : entry + 28] = struct.pack("<I", claim)
    return bytes(data)


def bombs() -> dict[str, bytes]:
    deep = HEAD + b"]" * 5_000 + b"a" * 4_999 + b"."
    return {
        "memo.pt": torch_archive(memo_bomb(30)),
        "deep.pt": torch_archive(deep),
        "marks.pt": torch_archive(HEAD + b"(" * 1_000_000 + b"."),
        "expand.pt": torch_file({"w": torch.zeros(1).expand(1 << 20, 1 << 20)}),
        "dicts.pt": torch_archive(HEAD + b"}" * 3_000_000 + b"."),
        "ten gigabytes.pt": inflating(0xFFFFFFF0, {"data/0": 10 << 20}),
        # X20 has 1000 members of 64 MiB; here it is 40 of 8 MiB, still more than the budget for all together.
        "members.pt": inflating(0, {f"data/{i}": 8 << 20 for i in range(40)}),
        "long integer.pt": torch_archive(HEAD + b"\x8b" + struct.pack("<I", 1 << 30) + b"."),
        "text.pt": torch_archive(HEAD + b"X" + struct.pack("<I", 0xFFFFFFFF) + b"."),
    }


BOMBS = bombs()


@pytest.mark.parametrize("name", BOMBS)
def test_X05_X20_a_bomb_ends_within_its_budget(shell: Shell, name: str) -> None:
    tree = shell.tree({name: BOMBS[name]})
    assert (tree / name).stat().st_size < 4 << 20
    done, peak = peak_mib(shell, "commit", "--json", tree, "m")
    (warning,) = done.json["warnings"]
    assert warning.startswith(f"{name}: kept as plain bytes") and done.json["tensors"] == 0
    assert peak < PEAK_MIB, f"{peak:.0f} MiB"


def small_archive_of_a_large_pickle() -> bytes:
    content = 250 << 20
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", HEAD + b"B" + struct.pack("<I", content) + bytes(content) + b".")
        archive.writestr("archive/byteorder", "little")
    return buffer.getvalue()


def header_of_wide_characters() -> bytes:
    text = b'{"__metadata__": {"a": "\xf0\x9f\xa7\x8a"}}'
    return safetensors_file(text + b" " * (99_000_000 - len(text)))


WIDE = {"m.pt": small_archive_of_a_large_pickle, "m.safetensors": header_of_wide_characters}


# A header is scanned as text, four bytes a sign if one of them is a wide one; none of ours comes near the limit.
@pytest.mark.parametrize(("name", "budget"), [("m.pt", 400), ("m.safetensors", 600)])
def test_X05_X22_a_file_at_the_limits_takes_no_more_memory_than_they_say(shell: Shell, name: str, budget: int) -> None:
    tree = shell.tree({name: WIDE[name]()})
    done, peak = peak_mib(shell, "commit", tree, "m")
    shutil.rmtree(tree)
    assert done.code == 0
    assert peak < budget, f"{peak:.0f} MiB, over the budget"


def test_X26_checks_are_of_each_call(shell: Shell) -> None:
    """Threads read good and hostile files at once; each verdict is its own."""
    good = torch_file({"w": torch.ones(50), "sparse": torch.eye(3).to_sparse()})
    bad = torch_archive(HEAD + tensor(offset=b"K\x01") + b".", {"data/0": bytes(16)})
    verdicts: list[bool] = []

    def read(file: bytes, fits: bool) -> None:
        for _ in range(50):
            try:
                found = len(parse_torch(BytesSource(file)).tensors) == 1
            except BadInput:
                found = False
            verdicts.append(found == fits)

    threads = [threading.Thread(target=read, args=pair) for pair in [(good, True), (bad, False)] * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(verdicts) == 400 and all(verdicts)
    out_of_range = torch.sparse_coo_tensor(torch.tensor([[0, 7]]), torch.ones(2), (3,), check_invariants=False)
    done = shell.commit({"m.pt": torch_file({"coo": out_of_range})})
    assert done["tensors"] == 0 and "sparse" in done["warnings"][0], "no sparse tensor is taken apart unchecked"

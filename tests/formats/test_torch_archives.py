"""torch archives that are old, odd, damaged or hostile."""

import copy
import io
import pickle
import zipfile
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cairn.core.errors import BadInput
from cairn.core.limits import KIB, MIB
from cairn.formats import torch_zip
from cairn.formats.torch_zip import parse_torch
from tests.formats.support import BytesSource, gathered, rezipped, torch_archive, torch_file
from tests.formats.torch_making import assert_found, parsed, refusal, saved

# --- Archives -----------------------------------------------------------------------------------


@pytest.mark.parametrize("root", ["archive", "model_007", "ü", "a b"])
def test_torch_any_root(root: str, tmp_path: Any) -> None:
    content = torch_file({"x": torch.arange(4)})
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(buffer, "w") as new:
        for info in old.infolist():
            new.writestr(info.filename.replace("archive", root, 1), old.read(info))
    assert_found({"x": torch.arange(4)}, buffer.getvalue())
    torch.save({"x": torch.arange(4)}, tmp_path / "named.pt")
    assert_found({"x": torch.arange(4)}, (tmp_path / "named.pt").read_bytes())


def test_torch_without_checksums() -> None:
    torch.serialization.set_crc32_options(False)
    try:
        content = torch_file({"x": torch.arange(1000)})
    finally:
        torch.serialization.set_crc32_options(True)
    assert_found({"x": torch.arange(1000)}, content)


def test_torch_compressed_records() -> None:
    content = torch_file({"x": torch.zeros(1000)})
    assert "is compressed; torch never compresses" in refusal(rezipped(content, {}, zipfile.ZIP_DEFLATED))


@pytest.mark.parametrize("size", [0, 4, 11, 13, 16])
def test_X14_record_must_have_its_storages_size(size: int) -> None:
    content = rezipped(torch_file({"x": torch.zeros(3)}), {"data/0": bytes(size)})
    assert f"3 float32 elements take 12 bytes, but its record has {size}" in refusal(content)


def test_X14_missing_record() -> None:
    assert "storage '0' has no record" in refusal(rezipped(torch_file({"x": torch.zeros(3)}), {"data/0": None}))


def test_torch_needs_a_pickle() -> None:
    assert "no record 'data.pkl'" in refusal(rezipped(torch_file({}), {"data.pkl": None}))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("word/document.xml", "<x/>")
    assert "no record 'data.pkl'" in refusal(buffer.getvalue())


def test_X01_marker_in_an_archive_never_fires(tmp_path: Any) -> None:
    target = tmp_path / "fired"

    class Hostile:
        def __reduce__(self) -> Any:
            return open, (str(target), "w")

    for value in (Hostile(), {"a": [Hostile()]}, {Hostile(): 1}):
        assert "'io.open', which is not on the closed list" in refusal(torch_archive(pickle.dumps(value, 2)))
    assert not target.exists()


def test_X13_legacy_files_are_told_apart() -> None:
    legacy = torch_file({"x": torch.arange(3)}, _use_new_zipfile_serialization=False)
    assert "a legacy torch file" in refusal(legacy)
    import tarfile

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            info = tarfile.TarInfo(name)
            info.size = 4
            archive.addfile(info, io.BytesIO(pickle.dumps(1, 2)[:4]))
    assert "legacy tar torch file" in refusal(buffer.getvalue())
    for content in (b"", b"x", b"hello" * 100, pickle.dumps({"a": 1}, 2)):
        assert "not a torch zip archive" in refusal(content)
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
    assert "Git LFS pointer" in refusal(pointer)


def test_X05_zip_bomb() -> None:
    content = rezipped(torch_file({}), {f"data/{i}": bytes(33 * MIB) for i in range(8)}, zipfile.ZIP_DEFLATED)
    assert len(content) < MIB
    assert "unfold to more than" in refusal(content)


def test_X05_strided_views_unfold_within_a_budget() -> None:
    content = torch_file({"x": torch.zeros(1).expand(1 << 20, 1 << 20)})
    assert len(content) < 4 * KIB
    assert f"strided views unfold to {1 << 42} bytes" in refusal(content)
    assert_found({"x": torch.zeros(1).expand(100, 100)})
    same = torch.zeros(1).expand(1 << 24)
    assert len(saved([same] * 10).tensors) == 10, "one view under ten names unfolds once"


def test_X05_number_of_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    one = torch.zeros(1)
    monkeypatch.setattr(torch_zip, "TENSORS_MAX", 9)
    assert "more than 9 tensors" in refusal(torch_file([one] * 10))
    assert len(saved([one] * 9).tensors) == 9


def test_torch_long_names() -> None:
    assert "a name has at most" in refusal(torch_file({"x" * 20_000: torch.zeros(1)}))
    assert saved({"x" * 20_000: 1}).tensors == ()


# --- Anything at all ----------------------------------------------------------------------------

SEED = torch_file({"a": torch.arange(5), "b": [torch.nn.Parameter(torch.ones(2, 2)), 1.5], "c": torch.ones(2, 3).t()})


@settings(max_examples=400)
@given(st.data())
def test_torch_mutations(data: st.DataObject) -> None:
    content = bytearray(SEED)
    for _ in range(data.draw(st.integers(1, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content)))]
    try:
        result = parsed(bytes(content))
    except BadInput as error:
        assert str(error)
        return
    for found in result.tensors:
        gathered(bytes(content), found)  # lies inside the file


def test_torch_parser_reads_no_tensor() -> None:
    source = BytesSource(torch_file({"x": torch.zeros(1 << 20)}))
    before = copy.copy(source.content)
    parse_torch(source)
    assert source.bytes_read < 8 * KIB
    assert source.content == before

"""torch archives: tensors that share bytes, and those that have none of their own."""

import warnings

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.formats.support import by_path, torch_file
from tests.formats.torch_making import assert_found, model, refusal, saved

# --- Ties and overlaps ------------------------------------------------------------------------


def test_torch_ties() -> None:
    weight, other = torch.randn(3, 3), torch.randn(4)
    result = saved(
        {
            "a": weight,
            "b": weight,
            "c": {"d": weight[:]},
            "transposed": weight.t(),
            "transposed again": weight.t(),
            "row": weight[0],
            "flat": weight.view(-1),
            "other": other,
            "equal but apart": other.clone(),
            "empty": torch.empty(0),
            "empty again": torch.empty(0),
        }
    )
    assert result.ties == ((("a",), ("b",), ("c", "d")), (("transposed",), ("transposed again",)))
    found = by_path(result)
    assert found[("a",)].strides is None and found[("b",)].strides is None
    assert found[("flat",)].strides is None, "covers the same bytes"
    assert found[("row",)].strides == (1,)
    shared = [torch.empty(0)]
    assert saved({"x": shared[0], "y": shared[0]}).ties == ()


def test_torch_tied_module() -> None:
    module = model()
    module.add_module("again", module[0])
    assert saved(module.state_dict()).ties == ((("0.weight",), ("again.weight",)), (("0.bias",), ("again.bias",)))


def test_torch_shared_containers_are_found_at_each_place() -> None:
    inner = {"w": torch.arange(3)}
    result = saved([inner, inner])
    assert [tensor.path for tensor in result.tensors] == [(0, "w"), (1, "w")]
    assert result.ties == (((0, "w"), (1, "w")),)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8), st.integers(0, 3), st.integers(1, 3)), max_size=6))
def test_torch_random_views(views: list[tuple[int, int, int, int]]) -> None:
    base = torch.arange(100, dtype=torch.int16)
    value = {
        str(i): base.as_strided((length, 2), (step, wide), start) for i, (start, length, step, wide) in enumerate(views)
    }
    found = assert_found(value)
    whole = [(t.offset, t.offset + 4 * t.shape[0]) for t in found.values() if t.strides is None and t.shape[0]]
    assert all(a == b or a[1] <= b[0] or b[1] <= a[0] for a in whole for b in whole)


# --- What stays literal bytes -------------------------------------------------------------------


def test_torch_other_layouts_stay_bytes() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls some of these a prototype
        value = {
            "sparse": torch.eye(3).to_sparse(),
            "csr": torch.eye(3).to_sparse_csr(),
            "meta": torch.empty(5, device="meta"),
            "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
            "conj": torch.ones(2, dtype=torch.complex64).conj(),
            "neg": torch.ones(2, dtype=torch.complex64).conj().imag,
            "parameter": torch.nn.Parameter(torch.eye(2).to_sparse()),
            "plain": torch.arange(3),
        }
        value["quantized"] = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8)
        value["per channel"] = torch.quantize_per_channel(
            torch.ones(2, 2), torch.tensor([0.1, 0.2]), torch.tensor([0, 0]), 0, torch.qint8
        )
        result = saved(value)
    assert [tensor.path for tensor in result.tensors] == [("plain",)]
    for name in value.keys() - {"plain"}:
        assert any(line.startswith(f"['{name}'] is a ") for line in result.warnings), name
    assert any("belong to no tensor that has a name" in line for line in result.warnings)


def test_torch_storages_stay_bytes() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TypedStorage is deprecated
        result = saved({"typed": torch.ones(3).storage(), "untyped": torch.ones(3).untyped_storage()})
    assert result.tensors == ()
    assert result.warnings == ("2 storage records belong to no tensor that has a name; they stay plain bytes",)


def test_torch_warnings_are_bounded() -> None:
    sparse = torch.eye(1).to_sparse()
    result = saved([sparse] * 150)
    assert len(result.warnings) == 101
    assert result.warnings[-1] == "and 51 more warnings"


def test_torch_whole_modules_and_other_objects_are_refused() -> None:
    assert "'torch.nn.modules.linear.Linear', which is not on the closed list" in refusal(
        torch_file(torch.nn.Linear(2, 2))
    )
    assert "argparse.Namespace" in refusal(torch_file({"args": __import__("argparse").Namespace(a=1)}))

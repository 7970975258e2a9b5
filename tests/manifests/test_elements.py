"""Elements of every dtype as numbers, and compared: against torch, which knows the dtypes."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from cairn.loader.boxes import NUMPY_OF_WIDTH
from cairn.manifests import elements
from cairn.manifests.delta import Delta, Norms, joined
from cairn.manifests.dtypes import BITS
from cairn.manifests.elements import compare_elements, is_countable, is_numeric, numbers

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("uint8", "int8", "int16", "int32", "uint16", "uint32")
SMALL = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")


def bits(tensor: torch.Tensor) -> "np.ndarray[Any, Any]":
    """A tensor's elements as integers of their width."""
    raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return raw.view(NUMPY_OF_WIDTH[tensor.element_size()])


def of(dtype: str) -> torch.dtype:
    found = getattr(torch, dtype)
    assert isinstance(found, torch.dtype)
    return found


def compared(old: torch.Tensor, new: torch.Tensor) -> Delta:
    return compare_elements(str(old.dtype).removeprefix("torch."), bits(old), bits(new))


def expected(old: torch.Tensor, new: torch.Tensor) -> tuple[float, float, float, float]:
    """What torch says of finite tensors: norms of both and of the difference, and its largest element."""
    a, b = (one.to(torch.complex128 if one.is_complex() else torch.float64) for one in (old, new))
    return a.norm().item(), b.norm().item(), (b - a).norm().item(), (b - a).abs().max().item()


def norms_of(delta: Delta) -> Norms:
    assert delta.norms is not None
    return delta.norms


@pytest.mark.parametrize("dtype", [*SMALL, "float16", "bfloat16"])
def test_every_code_is_the_number_that_torch_reads(dtype: str) -> None:
    width = BITS[dtype] // 8
    codes = torch.arange(1 << (8 * width), dtype=torch.int32).to(torch.uint8 if width == 1 else torch.uint16)
    wanted = codes.view(of(dtype)).to(torch.float64).numpy()
    got = numbers(dtype, bits(codes))
    assert np.array_equal(got, wanted, equal_nan=True)
    assert np.array_equal(np.signbit(got), np.signbit(wanted)) or np.isnan(wanted).any()


def test_numbers_of_four_bits_are_those_of_the_standard() -> None:
    # OCP Microscaling Formats 1.0, table 5: E2M1.
    positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert numbers("float4_e2m1fn", np.arange(16, dtype=np.uint8)).tolist() == positive + [-one for one in positive]
    old, new = np.array([0x21, 0x0F], np.uint8), np.array([0x27, 0x0F], np.uint8)
    delta = compare_elements("float4_e2m1fn_x2", old, new)
    assert (delta.elements, delta.changed) == (4, 1)
    assert norms_of(delta) == Norms(math.sqrt(0.25 + 1 + 36), math.sqrt(36 + 1 + 36), 5.5, 5.5)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, *SMALL, "bool", "complex32", "complex64", "complex128"])
def test_norms_are_those_that_torch_computes(dtype: str) -> None:
    generator = torch.Generator().manual_seed(7)
    # Beyond one block, and not a whole number of them.
    shape = (3, 50_021)
    if dtype in INTEGERS or dtype == "bool":
        old, new = (torch.randint(0, 100, shape, generator=generator).to(of(dtype)) for _ in range(2))
    elif dtype.startswith("complex"):
        old, new = (torch.randn(shape, dtype=torch.complex64, generator=generator).to(of(dtype)) for _ in range(2))
    else:
        old, new = (torch.randn(shape, generator=generator).abs().to(of(dtype)) for _ in range(2))
    new[1:] = old[1:]
    delta = compared(old, new)
    assert (delta.elements, delta.all_finite) == (3 * 50_021, True)
    assert delta.changed == int((bits(old) != bits(new)).sum())
    one = norms_of(delta)
    assert (one.old, one.new, one.difference, one.largest) == pytest.approx(expected(old, new), rel=1e-12)
    assert one.relative == pytest.approx(one.difference / one.old)


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_neighbours_beyond_the_integers_of_float64_are_told_apart(dtype: str) -> None:
    top = (1 << 63) - 1 if dtype == "int64" else (1 << 64) - 1
    low = -(1 << 63) if dtype == "int64" else 0
    old, new = np.array([top, low, 5], dtype), np.array([top - 1, low + 1, low], dtype)
    delta = compare_elements(dtype, old.view("u8"), new.view("u8"))
    assert (delta.changed, norms_of(delta).largest) == (3, float(5 - low))
    assert norms_of(compare_elements(dtype, old[:2].view("u8"), new[:2].view("u8"))).largest == 1.0


def test_what_is_not_finite_is_counted_and_left_out_of_the_norms() -> None:
    old = torch.tensor([3.0, math.nan, math.inf, 1.0, 2.0])
    new = torch.tensor([4.0, 4.0, -math.inf, math.nan, 2.0])
    delta = compared(old, new)
    assert (delta.elements, delta.changed) == (5, 4)
    assert (delta.nan_old, delta.inf_old, delta.nan_new, delta.inf_new) == (1, 1, 1, 1) and not delta.all_finite
    assert norms_of(delta) == Norms(math.sqrt(9 + 1 + 4), 6.0, 1.0, 1.0)
    same = compared(old, old)
    assert (same.changed, same.nan_new, norms_of(same).difference) == (0, 1, 0.0)
    pair = torch.tensor([complex(math.nan, math.inf), complex(1, math.inf)])
    assert (compared(pair, pair).nan_old, compared(pair, pair).inf_old) == (1, 1)


def test_a_change_of_bits_alone_is_a_change_of_no_size() -> None:
    delta = compared(torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0]))
    assert (delta.changed, norms_of(delta).difference, norms_of(delta).relative) == (1, 0.0, 0.0)


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_norms_survive_squares_that_do_not(size: float) -> None:
    old = torch.full((100,), 3 * size, dtype=torch.float64)
    delta = compared(old, old + size)
    one = norms_of(delta)
    assert (one.old, one.new, one.difference) == pytest.approx((30 * size, 40 * size, 10 * size), rel=1e-12)
    assert norms_of(joined([delta, delta])).old == pytest.approx(math.sqrt(2) * 30 * size, rel=1e-12)


def test_every_dtype_is_numeric_or_known_not_to_be() -> None:
    bare = {name for name in BITS if not is_numeric(name)}
    assert bare == {name for name in BITS if name.startswith(("q", "bits", "float6_"))}
    assert {name for name in BITS if not is_countable(name)} == {"float6_e2m3fn", "float6_e3m2fn"}


def test_codes_that_are_no_numbers_are_counted() -> None:
    delta = compare_elements("quint8", np.array([1, 2, 3], np.uint8), np.array([1, 9, 3], np.uint8))
    assert delta == Delta(3, 1, None)
    assert joined([delta, Delta(2, 1)]).norms is None
    assert compare_elements("quint8", np.zeros(0, np.uint8), np.zeros(0, np.uint8)) == Delta(norms=None)


def test_the_sum_of_parts_is_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    old, new = torch.randn(10_000, generator=generator), torch.randn(10_000, generator=generator)
    new[7] = math.nan
    whole = compared(old, new)
    parts = joined([compared(old[:3000], new[:3000]), compared(old[3000:], new[3000:])])
    monkeypatch.setattr(elements, "_BLOCK_ELEMENTS", 64)
    small = compared(old, new)
    for other in (parts, small):
        assert (other.elements, other.changed, other.nan_new) == (whole.elements, whole.changed, 1)
        assert norms_of(other).difference == pytest.approx(norms_of(whole).difference, rel=1e-14)
        assert norms_of(other).largest == norms_of(whole).largest
    assert joined([]) == Delta() and norms_of(joined([])).relative is None

"""torch archives and models for tests, and how the tests read them."""

from typing import Any

import pytest
import torch

from cairn.core.errors import BadInput
from cairn.formats.parsed import FoundTensor, ParsedFile
from cairn.formats.torch_zip import parse_torch
from tests.formats.support import BytesSource, by_path, gathered, raw_bytes, torch_file

Path = tuple[str | int, ...]


def parsed(content: bytes) -> ParsedFile:
    return parse_torch(BytesSource(content))


def saved(value: Any, **options: Any) -> ParsedFile:
    return parsed(torch_file(value, **options))


def refusal(content: bytes) -> str:
    with pytest.raises(BadInput) as caught:
        parsed(content)
    assert caught.value.hint, "an error says what to do next"
    return caught.value.message


def leaves(value: Any, path: Path = ()) -> dict[Path, torch.Tensor]:
    """Every tensor of a tree by its path."""
    if isinstance(value, torch.Tensor):
        return {path: value}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    return {place: tensor for key, item in items for place, tensor in leaves(item, (*path, key)).items()}


def assert_found(value: Any, content: bytes | None = None) -> dict[Path, FoundTensor]:
    """What the parser finds in a saved value is that value's tensors, in order, bit for bit."""
    content = torch_file(value) if content is None else content
    source = BytesSource(content)
    found = by_path(parse_torch(source))
    tensors = leaves(value)
    assert list(found) == list(tensors)
    for path, tensor in tensors.items():
        assert found[path].dtype == str(tensor.dtype).removeprefix("torch."), path
        assert found[path].shape == tuple(tensor.shape), path
        assert gathered(content, found[path]) == raw_bytes(tensor), path
    return found


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 4))
    layers[2].weight = torch.nn.Parameter(layers[0].weight.detach().t().contiguous())
    return layers

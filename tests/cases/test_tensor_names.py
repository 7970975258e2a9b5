"""Group T, names of tensors: opaque, kept apart, and no part of any path."""

import unicodedata
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from cairn.core.limits import NAME_BYTES_MAX
from tests.cases.shell import Shell, stored
from tests.formats.support import torch_file

NESTINGS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "list of dicts": lambda a, b: {"k": [{"a": a}, {"b": b}]},
    "dot and nesting": lambda a, b: {"a.b": a, "a": {"b": b}},
    "slash and nesting": lambda a, b: {"a/b": a, "a": {"b": b}},
    "escaped slash": lambda a, b: {"a/b": a, "a~1b": b},
    "tilde": lambda a, b: {"~": a, "~0": b},
    "number and text": lambda a, b: {0: a, "0": b},
    "number and its spelling": lambda a, b: {0: a, "#0": b},
    "escaped spelling": lambda a, b: {"#0": a, "~20": b},
    "position and key": lambda a, b: {"x": [a], "y": {0: b}},
    "negative number": lambda a, b: {-1: a, "-1": b},
    "case": lambda a, b: {"Layer.W": a, "layer.w": b},
    "two spellings of one letter": lambda a, b: {"\u00e4": a, "a\u0308": b},
    "empty": lambda a, b: {"": a, "a": {"": b}},
    "spaces": lambda a, b: {"a": a, "a ": b},
    "control characters": lambda a, b: {"a\n": a, "a\\n": b},
    "colon": lambda a, b: {"a:b": a, "a": {":b": b}},
}


@pytest.mark.parametrize("nest", NESTINGS.values(), ids=NESTINGS)
def test_T10_paths_do_not_meet(shell: Shell, nest: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
    one, other = torch.randn(100), torch.randn(100)
    file = torch_file(nest(one, other))
    shell.commit({"m.pt": file})
    assert len(shell.tensors()) == len(shell.entries()) == 2
    assert len({entry.tiles for entry in shell.entries().values()}) == 2
    assert (shell.back() / "m.pt").read_bytes() == file


def test_T10_a_container_without_tensors_is_not_schema(shell: Shell) -> None:
    shell.commit({"m.pt": torch_file({"k": [], "x": torch.ones(2), "n": None, "d": {"e": {}}})})
    assert list(shell.tensors()) == ["x"]


SEGMENTS = st.one_of(st.integers(-3, 3), st.text("ab01#~/.:\\ \u00e4", max_size=4))


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sets(st.tuples(SEGMENTS, SEGMENTS), min_size=2, max_size=8), st.integers(0, 1 << 32))
def test_T10_random_paths_are_shown_under_different_names(
    shell: Shell, paths: set[tuple[str | int, str | int]], seed: int
) -> None:
    state: dict[str | int, dict[str | int, torch.Tensor]] = {}
    for outer, inner in paths:
        state.setdefault(outer, {})[inner] = torch.randn(3)
    model = f"m{seed}{len(paths)}"
    shell.commit({"m.pt": torch_file(state)}, model)
    assert len(shell.tensors(model)) == len(paths)
    assert {key.path for key in shell.entries(model)} == paths


FOLDERS = {
    "not text, and its escape": (b"\xff", b"\\xff"),
    "case": (b"Layer", b"layer"),
    "two spellings": ("\u00e4".encode(), "a\u0308".encode()),
    "dots": (b"a", b"a."),
    "looks like a file": (b"m.safetensors", b"m"),
}


@pytest.mark.parametrize("pair", FOLDERS.values(), ids=FOLDERS)
def test_T10_folders_of_any_name_keep_their_tensors_apart(shell: Shell, pair: tuple[bytes, bytes]) -> None:
    tree = shell.tree({})
    for number, name in enumerate(pair):
        folder = tree / name.decode("utf-8", "surrogateescape")
        folder.mkdir()
        (folder / "m.safetensors").write_bytes(save({"w": torch.full((100,), float(number))}))
    shell.commit(tree)
    back = shell.back()
    for number, name in enumerate(pair):
        path = back / name.decode("utf-8", "surrogateescape") / "m.safetensors"
        assert load(path.read_bytes())["w"].eq(number).all(), "a file came back with the bytes of another"
    assert len(shell.entries()) == 2


def test_T10_a_folder_and_a_name_with_a_colon_are_shown_apart(shell: Shell) -> None:
    files = {"a/m.safetensors": save({"b": torch.ones(3)}), "m.safetensors": save({"a:b": torch.zeros(3)})}
    shell.commit(files)
    assert len(shell.entries()) == 2
    assert len(shell.tensors()) == 2


def test_T33_dots_in_names_are_no_structure(shell: Shell) -> None:
    nested = torch.nn.Sequential(OrderedDict(norm=torch.nn.Sequential(torch.nn.Identity(), torch.nn.Linear(9, 9))))
    state = nested.state_dict()
    files = {"flat.pt": torch_file(state), "deep.pt": torch_file({"norm": {"1": {"weight": torch.randn(9, 9)}}})}
    shell.commit(files)
    assert set(shell.tensors()) == {"norm.1.weight", "norm.1.bias", "norm/1/weight"}
    shell.commit({"renamed.pt": torch_file({f"model.{name}": tensor for name, tensor in state.items()})}, "renamed")
    changes = shell("diff", "--json", "m", "renamed").json
    assert {one["kind"] for one in changes["tensors"]} == {"added", "removed"}, "no name is guessed to be another"


LONG = {
    "120 combining marks": "a" + "\u0301\u0323" * 60,
    "60 characters of four bytes": "\U0001f9ca" * 64,
    "longest": "n" * NAME_BYTES_MAX,
    "a path": "../" * 80 + "etc/passwd",
    "an absolute path": "/" + "d/" * 200,
    "control characters": "\r\n\x1b[2J\x00" * 60,
}


@pytest.mark.parametrize("name", LONG.values(), ids=LONG)
def test_T34_no_path_is_made_of_a_name(shell: Shell, name: str) -> None:
    assert len(name.encode()) > 192
    tensor = torch.randn(100)
    files = {"m.safetensors": save({name: tensor}), "m.pt": torch_file({name: tensor})}
    shell.commit(files, "m", "-m", name.replace("\0", ""))
    shell("tag", "m", name.replace("\0", "").replace("@", ""))
    assert [key.path for key in shell.entries()] == [(name,)], "as it is, not normalized"
    assert shell("diff", "m", "m").code == 0
    assert all(len(part) <= 64 for path in stored(shell.store) for part in path.split("/"))
    back = shell.back(f"m@{name}".replace("\0", ""))
    assert {path.name: path.read_bytes() for path in back.iterdir()} == files
    assert not any(unicodedata.category(c) == "Cc" for c in shell("show", "--tensors", "m").out.replace("\n", ""))


def test_T34_a_name_over_the_limit_is_refused_and_named(shell: Shell) -> None:
    error = shell.refused({"m.safetensors": save({"n" * (NAME_BYTES_MAX + 1): torch.ones(1)})})
    assert f"at most {NAME_BYTES_MAX} bytes" in error and len(error) < 1000


@pytest.mark.parametrize("length", [200, 229, 230, 255])
def test_T34_a_destination_may_have_any_name_of_the_file_system(shell: Shell, length: int) -> None:
    shell.commit({"x" * 255: b"content"})
    place = shell.folder / ("d" * length)
    shell("checkout", "m", place)
    assert (place / ("x" * 255)).read_bytes() == b"content"


def test_T30_names_of_wrappers_are_kept_and_cost_nothing(shell: Shell) -> None:
    weight = torch.randn(64, 64)
    forms = ["a", "_orig_mod.a", "module._orig_mod.a", "_orig_mod._checkpoint_wrapped_module.a"]
    shell.commit({"m.safetensors": save({forms[0]: weight})}, "plain")
    for name in forms[1:]:
        done = shell.commit({"m.safetensors": save({name: weight})}, name)
        assert done["bytes_new"] == 0 and list(shell.tensors(name)) == [name]
        changes = shell("diff", "--json", "plain", name).json
        assert {(c["name"], c["kind"]) for c in changes["tensors"]} == {("a", "removed"), (name, "added")}
    compiled = torch.nn.Sequential(OrderedDict(_orig_mod=torch.nn.Linear(4, 4)))  # as torch.compile wraps it
    shell.commit({"m.pt": torch_file(compiled.state_dict())}, "compiled")
    assert list(shell.tensors("compiled")) == ["_orig_mod.bias", "_orig_mod.weight"]

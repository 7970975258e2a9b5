"""Names are data: any text comes back, none becomes part of an object's name, and selectors find what they mean."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cairn.core.errors import BadName, CairnError, NotFoundError, UsageError
from cairn.core.limits import NAME_BYTES_MAX
from cairn.registry.models import ensure_model, find_model, list_refs, model_name, move_ref
from cairn.registry.names import check_model_name, check_ref_name, entry_name, entry_position
from cairn.registry.registry import Registry
from cairn.registry.selectors import Selector, parse_selector, resolve
from tests.support.stores import Site, commit_tree, tip
from tests.support.trees import write_files

NAMES = ["exp[1]", "a.b", "x y", "ä", "%2F", "+", "#1", "trailing.", "../", "../../etc/passwd", "/abs", "a/b", "."]
NAMES += ["..", "new\nline", "tab\t", "-rf", "\x00", "CON", "Ω≈ç√", "🧗", "e\u0301", "é", "\u202e", "C:\\x", "$(id)"]
NAMES += ["x" * 4096, "ä" * (NAME_BYTES_MAX // 2), "A", "a", " ", "deadbeef", "log/00000000/000000000000", "null"]


@pytest.fixture
def registry(site: Site, tmp_path: Path) -> Registry:
    registry = site.registry()
    folder = write_files(tmp_path / "tree", {"a": b"content"})
    for step in (1, 2, 10):
        commit_tree(registry, folder, step=step)
    return registry


def test_D09_any_name_of_a_model_comes_back_and_stands_nowhere(site: Site) -> None:
    registry = site.registry()
    ids = {name: ensure_model(registry, name) for name in NAMES}
    assert len(set(ids.values())) == len(NAMES)
    fresh = site.registry(cold=True)
    for name, model in ids.items():
        assert find_model(fresh, name) == ensure_model(fresh, name) == model
        assert model_name(fresh, model) == name
    stored = b"".join(site.backend.read(name) for name in site.names()) + "\n".join(site.names()).encode()
    assert not [name for name in NAMES if len(name) > 8 and not name.startswith("log/") and name.encode() in stored]


def test_D09_any_name_of_a_ref_comes_back(registry: Registry) -> None:
    model, checkpoint = tip(registry)
    for name in NAMES:
        move_ref(registry, model, name, "tag", None, checkpoint)
    assert [ref.name for ref in list_refs(registry, model)] == sorted([*NAMES, "main"])
    for name in NAMES:
        assert resolve(registry, f"m@{name}") == (model, checkpoint)


BAD = {"empty": "", "lone surrogate": "a\udce9", "high surrogate": "\ud800", "too long": "x" * (NAME_BYTES_MAX + 1)}
BAD["too long in bytes"] = "ä" * (NAME_BYTES_MAX // 2 + 1)


@pytest.mark.parametrize("name", BAD.values(), ids=BAD)
def test_what_is_no_name(name: str) -> None:
    for check in (check_model_name, check_ref_name):
        with pytest.raises(BadName) as caught:
            check(name)
        assert len(str(caught.value)) < 300
        str(caught.value).encode()


@pytest.mark.parametrize("name", ["a@b", "@", "latest", "step:", "step:4", "step:x"])
def test_refs_stay_out_of_the_way_of_selectors(name: str) -> None:
    with pytest.raises(BadName):
        check_ref_name(name)
    assert check_model_name(name) == name


def test_longest_name() -> None:
    assert check_model_name("x" * NAME_BYTES_MAX) == check_ref_name("x" * NAME_BYTES_MAX)


@given(st.integers(0, 10**10), st.integers(0, 10**10))
def test_names_of_entries_sort_as_their_numbers_do(first: int, second: int) -> None:
    assert (entry_name(first) < entry_name(second)) == (first < second)


# --- Selectors --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "model", "revision"),
    [
        ("m", "m", "main"), ("m@v1", "m", "v1"), ("a@b@v1", "a@b", "v1"), ("a@b@step:4", "a@b", "step:4"),
        ("../x@é", "../x", "é"), (" @ ", " ", " "), ("m@latest", "m", "latest"),
    ],
)  # fmt: skip
def test_a_selector_is_split_at_its_last_sign(text: str, model: str, revision: str) -> None:
    assert parse_selector(text) == Selector(model, revision)


@pytest.mark.parametrize("text", ["", "@", "@main", "m@", "a@b@"])
def test_half_a_selector_is_none(text: str) -> None:
    with pytest.raises(UsageError, match="not a selector"):
        parse_selector(text)


def test_a_selector_finds_refs_then_steps_then_ids(registry: Registry) -> None:
    by_step = {step: resolve(registry, f"m@step:{step}")[1] for step in (1, 2, 10)}
    assert len(set(by_step.values())) == 3
    assert resolve(registry, "m") == resolve(registry, "m@latest") == resolve(registry, "m@main") == tip(registry)
    assert tip(registry)[1] == by_step[10]
    assert resolve(registry, "m@step:0000010")[1] == by_step[10]
    for checkpoint in by_step.values():
        for digits in (12, 64):
            assert resolve(registry, f"m@{checkpoint.hex()[:digits]}")[1] == checkpoint
            assert resolve(registry, f"m@{checkpoint.hex()[:digits].upper()}")[1] == checkpoint
    # A ref that looks like an id is found first.
    model, last = tip(registry)
    move_ref(registry, model, last.hex()[:12], "tag", None, by_step[1])
    assert resolve(registry, f"m@{last.hex()[:12]}")[1] == by_step[1]


def test_an_ambiguous_prefix_is_refused(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    from cairn.registry import selectors

    monkeypatch.setattr(selectors, "ID_PREFIX_HEX_MIN", 0)
    prefixes = [checkpoint.hex()[0] for checkpoint in registry.state.models[tip(registry)[0]].checkpoints]
    for digit in "0123456789abcdef":
        if prefixes.count(digit) == 1:
            assert resolve(registry, f"m@{digit}")[1].hex().startswith(digit)
        else:
            with pytest.raises(NotFoundError):
                resolve(registry, f"m@{digit}")


@pytest.mark.parametrize(
    "revision", ["nope", "step:3", "abc", "0" * 64, "abcg", "MAIN", "step:4 ", "step:-1", "step:", "step:²"]
)
def test_what_is_not_there_is_not_found(registry: Registry, revision: str) -> None:
    with pytest.raises((NotFoundError, UsageError)):
        resolve(registry, f"m@{revision}")
    with pytest.raises(NotFoundError, match="no model"):
        resolve(registry, f"other@{revision}")


@pytest.mark.parametrize("text", ["m@\udce9", "\udce9@main", "m@step:" + "9" * 5000, "m@" + "x" * 100_000, "m@step:٣"])
def test_odd_selectors_fail_in_order(registry: Registry, text: str) -> None:
    with pytest.raises(CairnError) as caught:
        resolve(registry, text)
    assert len(str(caught.value)) < 500


@given(n=st.integers(0, 10**12 - 1))
def test_the_name_of_an_entry_tells_its_position(n: int) -> None:
    assert entry_position(entry_name(n)) == n


@pytest.mark.parametrize(
    "name", ["log/00000000/000000004096", "log/00000000/1", "log/00000000/00000000000²", "log/000000000000", "x"]
)
def test_what_is_the_name_of_no_entry_tells_none(name: str) -> None:
    assert entry_position(name) is None

"""Names of tensors are opaque: no two keys look alike, whatever signs stand in them."""

import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cairn.core.canonical import decode, encode
from cairn.manifests.schema import Key

# The signs that the rendering uses, and a few that it does not.
text = st.text(alphabet="/~:#.0123a", max_size=4) | st.text(alphabet=string.printable, max_size=3)
keys = st.builds(Key, text, st.lists(text | st.integers(-3, 12), max_size=3).map(tuple))


@given(keys, keys)
@example(Key("", ("a", "b")), Key("", ("a/b",)))
@example(Key("", (0,)), Key("", ("#0",)))
@example(Key("", ("#0",)), Key("", ("~20",)))
@example(Key("a", ("b",)), Key("", ("a:b",)))
@example(Key("a:b", ("c",)), Key("a", ("b:c",)))
@example(Key("", ()), Key("", ("",)))
def test_T10_distinct_keys_read_differently(first: Key, second: Key) -> None:
    assert (str(first) == str(second)) == (first == second)


def test_T33_a_dot_in_a_name_is_no_separator() -> None:
    dotted, nested = Key("", ("norm.1.weight",)), Key("", ("norm", "1", "weight"))
    assert str(dotted) != str(nested)
    assert encode(dotted) != encode(nested)


@given(keys)
def test_keys_survive_the_canonical_form(key: Key) -> None:
    assert decode(encode(key), Key, "key") == key


@pytest.mark.parametrize(("key", "shown"), [(Key("", ("a", 0, "b")), "a/#0/b"), (Key("dir", ("w",)), "dir:w")])
def test_plain_keys_read_plainly(key: Key, shown: str) -> None:
    assert str(key) == shown

"""The restricted reader: a pickle in, a bounded tree of inert values out.

Every part of Cairn that meets a pickle comes here; what differs is the vocabulary.
"""

from collections.abc import Iterable, Iterator
from itertools import chain

from cairn.core.limits import KIB, PICKLE_BYTES_MAX, PICKLE_DEPTH_MAX, PICKLE_VALUES_MAX
from cairn.formats.pickle_machine import execute
from cairn.formats.pickle_run import PickleRun, Resolve
from cairn.formats.pickle_values import FrozenKey, Record, Value
from cairn.formats.pickle_vocabulary import Vocabulary
from cairn.formats.refusal import malformed

# A value costs at least one byte of pickle, and a reference to a shared one two. Sharing may make the tree larger than
# the pickle, but 8 times is no longer a checkpoint; small ones get room to share as they like.
VISITS_PER_BYTE = 8
VISITS_FREE = 64 * KIB


def read_pickle(program: bytes, vocabulary: Vocabulary, resolve: Resolve | None = None) -> Value:
    """Interpret a pickle without importing or calling anything that it names.

    Args:
        program: the whole pickle.
        vocabulary: the closed list of names and what may be done with each.
        resolve: gives persistent references a value; `None` refuses them.

    Returns:
        Values of `pickle_values`; as a tree, shared parts counted each time, it is bounded in size and depth.

    Raises:
        BadInput: the only error; whatever the bytes are.
    """
    if len(program) > PICKLE_BYTES_MAX:
        raise malformed(f"a pickle of {len(program)} bytes is over the limit of {PICKLE_BYTES_MAX}")
    value = execute(PickleRun(program, vocabulary, resolve))
    check_tree(value, min(VISITS_FREE + VISITS_PER_BYTE * len(program), PICKLE_VALUES_MAX))
    return value


def check_tree(root: Value, visits_max: int) -> None:
    """Walk once the way that any later reader will, and see that it ends.

    Raises:
        BadInput: a value contains itself, nests too deeply, or has more parts than `visits_max`.
    """
    visits = 0
    inside: list[int] = []  # ids of the open containers, outermost first
    pending: list[Iterator[Value]] = [iter((root,))]
    while pending:
        for value in pending[-1]:
            visits += 1
            if visits > visits_max:
                raise malformed(f"the pickle unfolds to more than {visits_max} values (a memo bomb)")
            below = _parts(value)
            if below is None:
                continue
            if id(value) in inside:
                raise malformed("the pickle holds a value that contains itself")
            if len(inside) >= PICKLE_DEPTH_MAX:
                raise malformed(f"the pickle nests deeper than {PICKLE_DEPTH_MAX} levels")
            inside.append(id(value))
            pending.append(iter(below))
            break
        else:
            pending.pop()
            if inside:
                inside.pop()


def _parts(value: Value) -> Iterable[Value] | None:
    """What lies directly inside; `None` for a leaf."""
    if isinstance(value, dict):
        return chain(value.values(), _inside_keys(value))
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, (set, frozenset)):
        return _inside_keys(value)
    if isinstance(value, Record):
        return (value.arguments, value.state)
    return None


def _inside_keys(keys: Iterable[Value]) -> Iterator[Value]:
    """A record can be given its state after it became a key, so keys are walked like values."""
    return (key.value for key in keys if isinstance(key, FrozenKey))

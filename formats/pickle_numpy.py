"""Rules for numpy scalars, dtypes and arrays: read past, never rebuilt.

Training states hold random-number states and metrics as numpy values. Their bytes stay in the pickle, so a record of
name, arguments and state is all that is needed.
"""

from cairn.formats.pickle_vocabulary import MENTION, Rule, Vocabulary, record

# numpy 2 moved its core; pickles of both are about.
_CORES = ("numpy.core", "numpy._core")


def _vocabulary() -> Vocabulary:
    rules: dict[str, Rule] = {"numpy.ndarray": MENTION, "numpy.dtype": record("numpy.dtype")}
    for core in _CORES:
        for function in ("multiarray.scalar", "multiarray._reconstruct", "numeric._frombuffer"):
            rules[f"{core}.{function}"] = record(f"{core}.{function}")
    return rules


NUMPY: Vocabulary = _vocabulary()

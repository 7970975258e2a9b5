"""Python's cyclic garbage collector, where it costs more than it finds."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Let no collection run meanwhile; for seconds, not for minutes.

    A plan is made of a million small objects that all live on. The collector would look for garbage among them, and in
    the whole heap of the program, several times: a quarter of the time that planning takes. The state of a store is of
    that kind too, and decoding a large one takes a fifth of the time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()

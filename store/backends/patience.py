"""How long, and how often, a request to remote storage is repeated.

A backend decides which requests may be repeated; this decides when, and when no more.
"""

from cairn.core.clock import Clock, Entropy
from cairn.core.limits import REMOTE_CONNECT_PATIENCE_SECONDS, REMOTE_PATIENCE_SECONDS

_PAUSE_SECONDS_MIN, _PAUSE_SECONDS_MAX = 0.1, 5.0


class Patience:
    """The waits of one call; its time runs from the first trouble, so that a large object may take its own before."""

    def __init__(self, clock: Clock, entropy: Entropy) -> None:
        self._clock = clock
        self._entropy = entropy
        self._begun: float | None = None
        self._pause = _PAUSE_SECONDS_MIN

    def wait(self, asked: float | None = None, *, connected: bool = True) -> bool:
        """Wait before the next try; False, at once, if there is to be none.

        Args:
            asked: seconds that the storage asks to be left alone; it is not asked again before.
            connected: whether the storage could be reached.
        """
        now = self._clock.monotonic()
        self._begun = now if self._begun is None else self._begun
        # Clients that were refused together must not come back together.
        seconds = self._pause * (0.5 + self._entropy.token(1)[0] / 512)
        seconds = max(seconds, asked or 0.0)
        limit = REMOTE_PATIENCE_SECONDS if connected else REMOTE_CONNECT_PATIENCE_SECONDS
        if now - self._begun + seconds > limit:
            return False
        self._clock.sleep(seconds)
        self._pause = min(2 * self._pause, _PAUSE_SECONDS_MAX)
        return True

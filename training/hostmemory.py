"""Host memory for captured state: one arena, kept from save to save.

Fresh pages cost a fault each, so a warm arena is copied into several times faster; pinned memory lets an accelerator
copy without the processor.
"""

import numpy as np
import torch

from cairn.core.errors import RefusedError

ALIGN_BYTES = 64


class Arena:
    """Bytes that grow to what the largest save needed, within a budget.

    Args:
        bytes_max: refuse to hold more; None for no limit.
        pinned: page-locked memory, for state on an accelerator.
    """

    def __init__(self, bytes_max: int | None, pinned: bool = False) -> None:
        self.pinned = pinned
        self._bytes_max = bytes_max
        self._memory: torch.Tensor | None = None

    def reserve(self, size: int) -> torch.Tensor:
        """A flat `uint8` tensor of at least `size` bytes; its content is whatever was there.

        Raises:
            RefusedError: over the budget.
        """
        if self._bytes_max is not None and size > self._bytes_max:
            raise RefusedError(
                f"capturing this rank's state needs {size} bytes of host memory, the budget is {self._bytes_max}",
                hint="raise host_bytes_max, or shard the state over more ranks",
            )
        if self._memory is None or self._memory.numel() < size:
            self._memory = None  # before the larger one is asked for
            self._memory = torch.empty(size, dtype=torch.uint8, pin_memory=self.pinned)
        return self._memory

    def array(self) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
        """The same bytes as a numpy array."""
        assert self._memory is not None
        return self._memory.numpy()

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return 0 if self._memory is None else self._memory.numel()

    def release(self) -> None:
        """Give all memory back."""
        self._memory = None

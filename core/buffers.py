"""The buffers that Cairn takes: whatever yields contiguous bytes without a copy.

`collections.abc.Buffer` would say it better, but it came with Python 3.12 and Cairn runs on 3.11.
"""

from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

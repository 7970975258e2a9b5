"""Results that people print."""

from typing import Any

import msgspec


class Shown(msgspec.Struct, frozen=True):
    """A result whose representation spells ids in hexadecimal digits. Not for what holds secrets."""

    def __repr__(self) -> str:
        cells = (f"{name}={_spelt(getattr(self, name))}" for name in self.__struct_fields__)
        return f"{type(self).__name__}({', '.join(cells)})"


def _spelt(value: Any) -> str:
    return repr(value.hex() if isinstance(value, bytes) else value)

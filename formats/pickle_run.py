"""One run of the interpreter: where it stands in the program, and what it holds."""

from collections.abc import Callable

from cairn.core.errors import BadInput
from cairn.core.limits import PICKLE_BYTES_MAX
from cairn.formats.pickle_values import Name, Value
from cairn.formats.pickle_vocabulary import Vocabulary
from cairn.formats.refusal import malformed

# What the persistent-reference opcode yields for its argument.
Resolve = Callable[[Value], Value]

# Bytes of objects that the pickle of the largest allowed size may turn into: about 250,000 tensors.
OBJECT_BYTES_MAX = PICKLE_BYTES_MAX

# Characters outside ASCII may take 4 bytes each.
WIDE_CHARACTER_COST = 4
GLOBAL_NAME_BYTES_MAX = 512


class PickleRun:
    """The state that operations work on.

    Args:
        program: the pickle.
        vocabulary: the closed list of names.
        resolve: gives persistent references a value; `None` refuses them.
    """

    def __init__(self, program: bytes, vocabulary: Vocabulary, resolve: Resolve | None) -> None:
        self.program = program
        self.vocabulary = vocabulary
        self.resolve = resolve
        self.at = 0
        self.bytes_left = OBJECT_BYTES_MAX
        self.stack: list[Value] = []
        self.below: list[list[Value]] = []  # the stacks under each open mark
        self.memo: list[Value] = []
        self.names: dict[str, Name] = {}

    def charge(self, cost: int) -> None:
        """Pay for objects before they are made.

        Raises:
            BadInput: the budget is spent.
        """
        self.bytes_left -= cost
        if self.bytes_left < 0:
            raise malformed(f"the pickle unfolds to more than {OBJECT_BYTES_MAX} bytes of objects")

    def wrong(self, message: str) -> BadInput:
        """The error that the program here is not as it should be."""
        return malformed(f"the pickle {message} (at byte {self.at})")

    def take(self, length: int) -> bytes:
        """The next bytes of the program."""
        end = self.at + length
        if end > len(self.program):
            raise self.wrong(f"ends inside an operation that needs {length} bytes")
        taken = self.program[self.at : end]
        self.at = end
        return taken

    def number(self, width: int) -> int:
        """The next unsigned little-endian number."""
        return int.from_bytes(self.take(width), "little")

    def line(self) -> str:
        """The next text up to a line end."""
        end = self.program.find(b"\n", self.at, self.at + GLOBAL_NAME_BYTES_MAX)
        if end < 0:
            raise self.wrong("has a global without a line end, or with too long a name")
        return self.decoded(self.take(end + 1 - self.at)[:-1])

    def decoded(self, content: bytes) -> str:
        """Bytes of the program as text."""
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError:
            raise self.wrong("has a text that is not UTF-8") from None
        self.charge(len(text) if text.isascii() else WIDE_CHARACTER_COST * len(text))
        return text

"""The closed list: which globals a pickle may name, and what each may be used for.

A pickle is a program that names functions and calls them. Here a name is only a label, and "calling" it runs one of
*our* functions, which checks its arguments and builds an inert value. What is not listed does not exist.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cairn.core.errors import BadInput
from cairn.formats.pickle_values import Record, Value
from cairn.formats.refusal import malformed, shown

Arguments = tuple[Value, ...]
# Tells the budget how many bytes a copy is about to take, before it is made.
Charge = Callable[[int], None]
Build = Callable[[Arguments, Charge], Value]


@dataclass(frozen=True, slots=True)
class Rule:
    """What may be done with one name.

    Args:
        call: builds the value for REDUCE; `None`: the name may be mentioned only.
        is_class: NEWOBJ may build it too.
    """

    call: Build | None = None
    is_class: bool = False


Vocabulary = Mapping[str, Rule]

# An entry of a dict or set, besides its pointers: hash, index, and the free third of the table.
DICT_ITEM_COST = 100

MENTION = Rule()

# pickle maps Python 3's names to Python 2's up to protocol 2, which is torch's.
PYTHON_2_MODULES = {"__builtin__": "builtins", "copy_reg": "copyreg"}


def record(name: str) -> Rule:
    """The rule for a class of which nothing is needed but that its pickles can be read."""
    return Rule(lambda arguments, charge: Record(name, arguments), is_class=True)


def wrong_arguments(name: str, wanted: str) -> BadInput:
    """The error of a `call` that cannot make sense of its arguments."""
    return malformed(f"{shown(name)} is called with other arguments than {wanted}")

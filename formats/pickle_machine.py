"""The pickle interpreter: opcodes of protocols 2 to 5 over inert values.

It is the one place where pickles are read. Every operation draws on two budgets, operations and bytes of objects, and
takes time in proportion, so a hostile file ends soon. Opcodes are described in Python's `pickletools`; those that no
current pickler emits are refused.
"""

from cairn.core.limits import PICKLE_OPS_MAX
from cairn.formats.pickle_opcodes import PROTOCOLS, Op
from cairn.formats.pickle_operations import OPERATIONS
from cairn.formats.pickle_run import PickleRun
from cairn.formats.pickle_values import Value
from cairn.formats.refusal import malformed


def execute(run: PickleRun) -> Value:
    """The value that the program leaves.

    Raises:
        BadInput: truncated, damaged, over a budget, or with a name or use that is not on the list.
    """
    if run.number(1) != Op.PROTO or run.number(1) not in PROTOCOLS:
        raise malformed(f"not a pickle of protocol {PROTOCOLS[0]} to {PROTOCOLS[-1]}")
    program = run.program
    for _ in range(PICKLE_OPS_MAX):
        if run.at >= len(program):
            raise run.wrong("ends before its STOP")
        code = program[run.at]
        run.at += 1
        operation, cost = OPERATIONS[code]
        run.bytes_left -= cost
        if run.bytes_left < 0:
            run.charge(0)  # says so
        if operation is None:
            if code == Op.STOP:
                return _result(run)
            raise run.wrong(f"uses opcode {code:#04x}, which is not allowed")
        try:
            operation(run)
        except IndexError:
            # Lookups that can miss: a byte behind the end, and pops from a stack with nothing left above its mark.
            if run.at >= len(program):
                raise run.wrong("ends inside an operation") from None
            raise run.wrong("takes more from the stack than is there") from None
    raise malformed(f"the pickle takes more than {PICKLE_OPS_MAX} operations")


def _result(run: PickleRun) -> Value:
    if run.below or len(run.stack) != 1:
        raise run.wrong("does not leave exactly one value")
    if run.at != len(run.program):
        raise run.wrong(f"is followed by {len(run.program) - run.at} bytes")
    return run.stack[0]

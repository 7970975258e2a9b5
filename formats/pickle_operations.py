"""What each opcode does to a run: inert values only, nothing imported, nothing of the file called."""

import struct
from collections.abc import Callable

from cairn.core.limits import PICKLE_DEPTH_MAX
from cairn.formats.pickle_opcodes import Op
from cairn.formats.pickle_plain import as_key, fill
from cairn.formats.pickle_run import GLOBAL_NAME_BYTES_MAX, PickleRun
from cairn.formats.pickle_values import Name, Record, Value
from cairn.formats.pickle_vocabulary import DICT_ITEM_COST, PYTHON_2_MODULES
from cairn.formats.refusal import malformed, shown

# What values take in CPython, with the collector's header. A pointer in the stack moves on into a container, so it is
# paid once, when it is pushed; lists keep an eighth more room than they need.
POINTER_COST = 9
NUMBER_COST = 32
TEXT_COST = 56
LIST_COST = 72
DICT_COST = 128
SET_COST = 232
TUPLE_COST = 56
# What a rule builds, besides what it charges for itself: a tensor's view, an empty dict, a record.
CALL_COST = 80
# A storage and its place in the table of storages.
REFERENCE_COST = 128

# numpy's generators keep 128-bit numbers; nothing we know of keeps longer ones.
INTEGER_BYTES_MAX = 128


# --- Numbers, text, bytes -----------------------------------------------------------------


def _push_none(run: PickleRun) -> None:
    run.stack.append(None)


def _push_true(run: PickleRun) -> None:
    run.stack.append(True)


def _push_false(run: PickleRun) -> None:
    run.stack.append(False)


def _push_byte(run: PickleRun) -> None:
    run.stack.append(run.program[run.at])
    run.at += 1


def _push_unsigned_2(run: PickleRun) -> None:
    run.stack.append(run.number(2))


def _push_signed_4(run: PickleRun) -> None:
    run.stack.append(int.from_bytes(run.take(4), "little", signed=True))


def _push_long(run: PickleRun, width: int) -> None:
    length = run.number(width)
    if length > INTEGER_BYTES_MAX:
        raise run.wrong(f"has an integer of {length} bytes, over the limit of {INTEGER_BYTES_MAX}")
    run.charge(length)
    run.stack.append(int.from_bytes(run.take(length), "little", signed=True))


def _push_float(run: PickleRun) -> None:
    run.stack.append(struct.unpack(">d", run.take(8))[0])


def _push_text(run: PickleRun, width: int) -> None:
    run.stack.append(run.decoded(run.take(run.number(width))))


def _push_bytes(run: PickleRun, width: int) -> None:
    content = run.take(run.number(width))
    run.charge(len(content))
    run.stack.append(content)


def _push_bytearray(run: PickleRun) -> None:
    content = run.take(run.number(8))
    run.charge(len(content))
    run.stack.append(bytearray(content))


# --- Containers ---------------------------------------------------------------------------


def _mark(run: PickleRun) -> None:
    if len(run.below) >= PICKLE_DEPTH_MAX:
        raise run.wrong(f"nests deeper than {PICKLE_DEPTH_MAX} levels")
    run.below.append(run.stack)
    run.stack = []


def _since_mark(run: PickleRun) -> list[Value]:
    if not run.below:
        raise run.wrong("closes a group that it did not open")
    items, run.stack = run.stack, run.below.pop()
    return items


def _pop(run: PickleRun) -> None:
    if run.stack or not run.below:
        run.stack.pop()
    else:
        _since_mark(run)  # a mark is an item for POP


def _pop_mark(run: PickleRun) -> None:
    _since_mark(run)


def _push_list(run: PickleRun) -> None:
    run.stack.append([])


def _push_dict(run: PickleRun) -> None:
    run.stack.append({})


def _push_set(run: PickleRun) -> None:
    run.stack.append(set())


def _push_empty_tuple(run: PickleRun) -> None:
    run.stack.append(())


def _tuple(run: PickleRun) -> None:
    items = _since_mark(run)
    run.stack.append(tuple(items))


def _tuple_1(run: PickleRun) -> None:
    run.stack[-1] = (run.stack[-1],)


def _tuple_2(run: PickleRun) -> None:
    last = run.stack.pop()
    run.stack[-1] = (run.stack[-1], last)


def _tuple_3(run: PickleRun) -> None:
    last, middle = run.stack.pop(), run.stack.pop()
    run.stack[-1] = (run.stack[-1], middle, last)


def _frozenset(run: PickleRun) -> None:
    items = _since_mark(run)
    run.charge(DICT_ITEM_COST * len(items))
    run.stack.append(frozenset([as_key(item, run.charge) for item in items]))


def _append(run: PickleRun) -> None:
    item = run.stack.pop()
    _list(run).append(item)


def _appends(run: PickleRun) -> None:
    items = _since_mark(run)
    _list(run).extend(items)


def _list(run: PickleRun) -> list[Value]:
    target = run.stack[-1]
    if type(target) is not list:
        raise run.wrong(f"appends to a {type(target).__name__}; only a list takes items")
    return target


def _set_item(run: PickleRun) -> None:
    value, key = run.stack.pop(), run.stack.pop()
    _fill(run, [key, value])


def _set_items(run: PickleRun) -> None:
    _fill(run, _since_mark(run))


def _fill(run: PickleRun, items: list[Value]) -> None:
    target = run.stack[-1]
    if type(target) is not dict:
        raise run.wrong(f"sets items of a {type(target).__name__}; only a dict takes them")
    if len(items) % 2:
        raise run.wrong("sets a key without a value")
    fill(target, zip(items[::2], items[1::2], strict=True), run.charge)


def _add_items(run: PickleRun) -> None:
    items = _since_mark(run)
    target = run.stack[-1]
    if type(target) is not set:
        raise run.wrong(f"adds members to a {type(target).__name__}; only a set takes them")
    run.charge(DICT_ITEM_COST * len(items))
    target.update([as_key(item, run.charge) for item in items])


# --- Memo ---------------------------------------------------------------------------------


def _put_1(run: PickleRun) -> None:
    _put(run, run.program[run.at])
    run.at += 1


def _put_4(run: PickleRun) -> None:
    _put(run, run.number(4))


def _put(run: PickleRun, index: int) -> None:
    """Picklers number the memo from 0 without a gap; so it can be a list, and no entry changes."""
    if index != len(run.memo):
        raise run.wrong(f"stores memo entry {index}, but the next one is {len(run.memo)}")
    run.memo.append(run.stack[-1])


def _memoize(run: PickleRun) -> None:
    run.memo.append(run.stack[-1])


def _get_1(run: PickleRun) -> None:
    _get(run, run.program[run.at])
    run.at += 1


def _get_4(run: PickleRun) -> None:
    _get(run, run.number(4))


def _get(run: PickleRun, index: int) -> None:
    if index >= len(run.memo):
        raise run.wrong(f"asks for memo entry {index} of {len(run.memo)}")
    run.stack.append(run.memo[index])


# --- Names and what is done with them -------------------------------------------------------


def _global(run: PickleRun) -> None:
    module = run.line()
    _push_name(run, module, run.line())


def _stack_global(run: PickleRun) -> None:
    name, module = run.stack.pop(), run.stack.pop()
    if type(name) is not str or type(module) is not str:
        raise run.wrong("names a global by something else than text")
    if len(name) + len(module) > GLOBAL_NAME_BYTES_MAX:
        raise run.wrong("names a global by too long a name")
    _push_name(run, module, name)


def _push_name(run: PickleRun, module: str, name: str) -> None:
    text = f"{PYTHON_2_MODULES.get(module, module)}.{name}"
    if text not in run.vocabulary:
        raise malformed(
            f"the pickle names {shown(text)}, which is not on the closed list of harmless names; it was not run",
            hint="save plain tensors and numbers only (a state dict), or store the file as plain bytes",
        )
    run.stack.append(run.names.setdefault(text, Name(text)))


def _reduce(run: PickleRun) -> None:
    _build(run, "calls", only_classes=False)


def _new_object(run: PickleRun) -> None:
    _build(run, "makes an object of", only_classes=True)


def _build(run: PickleRun, verb: str, *, only_classes: bool) -> None:
    arguments, callee = run.stack.pop(), run.stack.pop()
    if not isinstance(callee, Name) or not isinstance(arguments, tuple):
        raise run.wrong(f"{verb} something else than a name with a tuple of arguments")
    rule = run.vocabulary.get(callee.text)
    if rule is None or rule.call is None or (only_classes and not rule.is_class):
        raise run.wrong(f"{verb} {shown(callee.text)}, which may only be mentioned")
    run.stack.append(rule.call(arguments, run.charge))


def _set_state(run: PickleRun) -> None:
    state, target = run.stack.pop(), run.stack[-1]
    if isinstance(target, Record) and target.state is None:
        target.state = state
    elif type(target) is not dict or type(state) is not dict:
        raise run.wrong(f"sets the state of a {type(target).__name__}, which has none to set")
    # Else: attributes of an OrderedDict (`_metadata` of a state dict). They stay in the file, nobody asks here.


def _resolve_reference(run: PickleRun) -> None:
    if run.resolve is None:
        raise run.wrong("has a persistent reference, which means nothing here")
    run.stack.append(run.resolve(run.stack.pop()))


def _frame(run: PickleRun) -> None:
    if run.number(8) > len(run.program) - run.at:
        raise run.wrong("ends inside a frame")


_Operation = Callable[[PickleRun], None]

# Operation and cost by opcode. What an operation moves or drops is paid for; what it copies it charges by itself.
_TABLE: dict[Op, tuple[_Operation, int]] = {
    Op.FRAME: (_frame, 0),
    Op.MARK: (_mark, 0),
    Op.POP: (_pop, 0),
    Op.POP_MARK: (_pop_mark, 0),
    Op.NONE: (_push_none, POINTER_COST),
    Op.NEWTRUE: (_push_true, POINTER_COST),
    Op.NEWFALSE: (_push_false, POINTER_COST),
    Op.BININT1: (_push_byte, POINTER_COST),
    Op.BININT2: (_push_unsigned_2, POINTER_COST + NUMBER_COST),
    Op.BININT: (_push_signed_4, POINTER_COST + NUMBER_COST),
    Op.LONG1: (lambda run: _push_long(run, 1), POINTER_COST + NUMBER_COST),
    Op.LONG4: (lambda run: _push_long(run, 4), POINTER_COST + NUMBER_COST),
    Op.BINFLOAT: (_push_float, POINTER_COST + NUMBER_COST),
    Op.SHORT_BINSTRING: (lambda run: _push_text(run, 1), POINTER_COST + TEXT_COST),
    Op.BINSTRING: (lambda run: _push_text(run, 4), POINTER_COST + TEXT_COST),
    Op.SHORT_BINUNICODE: (lambda run: _push_text(run, 1), POINTER_COST + TEXT_COST),
    Op.BINUNICODE: (lambda run: _push_text(run, 4), POINTER_COST + TEXT_COST),
    Op.BINUNICODE8: (lambda run: _push_text(run, 8), POINTER_COST + TEXT_COST),
    Op.SHORT_BINBYTES: (lambda run: _push_bytes(run, 1), POINTER_COST + TEXT_COST),
    Op.BINBYTES: (lambda run: _push_bytes(run, 4), POINTER_COST + TEXT_COST),
    Op.BINBYTES8: (lambda run: _push_bytes(run, 8), POINTER_COST + TEXT_COST),
    Op.BYTEARRAY8: (_push_bytearray, POINTER_COST + TEXT_COST),
    Op.EMPTY_LIST: (_push_list, POINTER_COST + LIST_COST),
    Op.APPEND: (_append, 0),
    Op.APPENDS: (_appends, 0),
    Op.EMPTY_DICT: (_push_dict, POINTER_COST + DICT_COST),
    Op.SETITEM: (_set_item, 0),
    Op.SETITEMS: (_set_items, 0),
    Op.EMPTY_SET: (_push_set, POINTER_COST + SET_COST),
    Op.ADDITEMS: (_add_items, 0),
    Op.FROZENSET: (_frozenset, POINTER_COST + SET_COST),
    Op.EMPTY_TUPLE: (_push_empty_tuple, POINTER_COST),
    Op.TUPLE: (_tuple, POINTER_COST + TUPLE_COST),
    Op.TUPLE1: (_tuple_1, POINTER_COST + TUPLE_COST),
    Op.TUPLE2: (_tuple_2, POINTER_COST + TUPLE_COST),
    Op.TUPLE3: (_tuple_3, POINTER_COST + TUPLE_COST),
    Op.BINPUT: (_put_1, POINTER_COST),
    Op.LONG_BINPUT: (_put_4, POINTER_COST),
    Op.MEMOIZE: (_memoize, POINTER_COST),
    Op.BINGET: (_get_1, POINTER_COST),
    Op.LONG_BINGET: (_get_4, POINTER_COST),
    Op.GLOBAL: (_global, POINTER_COST),
    Op.STACK_GLOBAL: (_stack_global, POINTER_COST),
    Op.REDUCE: (_reduce, CALL_COST),
    Op.NEWOBJ: (_new_object, CALL_COST),
    Op.BUILD: (_set_state, 0),
    Op.BINPERSID: (_resolve_reference, REFERENCE_COST),
}
OPERATIONS: list[tuple[_Operation | None, int]] = [(None, 0)] * 256
for _code, _entry in _TABLE.items():
    OPERATIONS[_code] = _entry

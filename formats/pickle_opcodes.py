"""Opcodes of pickle protocols 2 to 5 that current picklers emit for data.

Names and bytes as in Python's `pickletools`. The module `pickle` itself is not imported anywhere in this package.
"""

from enum import IntEnum

PROTOCOLS = range(2, 6)


class Op(IntEnum):
    """One byte of a pickle program."""

    PROTO = 0x80
    FRAME = 0x95
    STOP = ord(".")

    MARK = ord("(")
    POP = ord("0")
    POP_MARK = ord("1")

    NONE = ord("N")
    NEWTRUE = 0x88
    NEWFALSE = 0x89
    BININT = ord("J")
    BININT1 = ord("K")
    BININT2 = ord("M")
    LONG1 = 0x8A
    LONG4 = 0x8B
    BINFLOAT = ord("G")

    BINSTRING = ord("T")
    SHORT_BINSTRING = ord("U")
    BINUNICODE = ord("X")
    SHORT_BINUNICODE = 0x8C
    BINUNICODE8 = 0x8D
    BINBYTES = ord("B")
    SHORT_BINBYTES = ord("C")
    BINBYTES8 = 0x8E
    BYTEARRAY8 = 0x96

    EMPTY_LIST = ord("]")
    APPEND = ord("a")
    APPENDS = ord("e")
    EMPTY_DICT = ord("}")
    SETITEM = ord("s")
    SETITEMS = ord("u")
    EMPTY_TUPLE = ord(")")
    TUPLE = ord("t")
    TUPLE1 = 0x85
    TUPLE2 = 0x86
    TUPLE3 = 0x87
    EMPTY_SET = 0x8F
    ADDITEMS = 0x90
    FROZENSET = 0x91

    BINPUT = ord("q")
    LONG_BINPUT = ord("r")
    MEMOIZE = 0x94
    BINGET = ord("h")
    LONG_BINGET = ord("j")

    GLOBAL = ord("c")
    STACK_GLOBAL = 0x93
    REDUCE = ord("R")
    NEWOBJ = 0x81
    BUILD = ord("b")
    BINPERSID = ord("Q")

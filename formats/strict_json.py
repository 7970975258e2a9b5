"""Hostile JSON, read left to right without building more than is asked for.

`json.loads` keeps the last of two equal keys and turns `[[],[],...]` of 100 MB into gigabytes of objects before
anybody can object. This scanner shows every key to its caller and accepts at each place one kind of value only, so
nesting is bounded by the calls made and memory by the values kept.
"""

import json
import re
from collections.abc import Iterator

from cairn.core.errors import BadInput
from cairn.formats.refusal import malformed, shown

_SPACE = re.compile(r"[ \t\n\r]*")
# The usual key: a string without escapes, its colon, and the space around. Others take the longer way.
_PLAIN_KEY = re.compile(r'[ \t\n\r]*"([^"\\\x00-\x1f]*)"[ \t\n\r]*:[ \t\n\r]*')
_SEPARATOR = re.compile(r"[ \t\n\r]*([,}])")
_WHOLE_NUMBERS = re.compile(r"\[([0-9, \t\n\r]*)\]")
_NUMBER_LIST_START = re.compile(r"[0-9, \t\n\r]*")
_TOKEN = re.compile(r"-?[0-9.eE+-]+|[A-Za-z]+|.", re.DOTALL)
# What can open, close or hide a bracket.
_STRUCTURE = re.compile(r'["\[\]{}]')
# 2**63 has 19 digits.
_DIGITS_MAX = 19

_decode = json.JSONDecoder().raw_decode


class JsonScanner:
    """A position in JSON text; each method reads one thing and moves behind it.

    Args:
        text: the document.
        what: names it in errors.

    Every method raises `BadInput` when the text holds something else.
    """

    def __init__(self, text: str, what: str) -> None:
        self.text = text
        self.what = what
        self.place = ""  # the member being read, for errors; set by the caller
        self.at = 0

    def members(self, role: str) -> Iterator[str]:
        """Keys of the object that starts here, each in turn; the caller reads the value before it asks for the next."""
        self._expect("{", role)
        self._space()
        if self._peek() == "}":
            self.at += 1
            return
        while True:
            yield self._key(role)
            match = _SEPARATOR.match(self.text, self.at)
            if match is None:
                raise self._wrong(f"{role}: ',' or '}}' must follow a value")
            self.at = match.end()
            if match[1] == "}":
                return

    def string(self, role: str) -> str:
        """A string of whole Unicode characters."""
        if self._peek() != '"':
            raise self._wrong(f"{role} must be a string, not {self._kind()}")
        try:
            value, self.at = _decode(self.text, self.at)
        except json.JSONDecodeError as error:
            raise self._wrong(f"{role} is not a JSON string ({error.msg})") from None
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            raise self._wrong(f"{role} holds half a surrogate pair, which is no character")
        return str(value)

    def whole_numbers(self, role: str, count_max: int) -> tuple[int, ...]:
        """A list of at most `count_max` whole numbers from 0 to 2**63, written as plain digits."""
        match = _WHOLE_NUMBERS.match(self.text, self.at)
        if match is None:
            raise self._wrong_list(role)
        body = match[1]
        if body.count(",") >= count_max:
            raise self._wrong(f"{role} has more than {count_max} entries")
        tokens = [token.strip(" \t\n\r") for token in body.split(",")] if body.strip(" \t\n\r") else []
        for token in tokens:
            if not token.isdigit() or (token[0] == "0" and len(token) > 1):
                raise self._wrong(f"{role} holds {shown(token)}, which is not a JSON number")
            if len(token) > _DIGITS_MAX:
                raise self._wrong(f"{role} holds a number of {len(token)} digits, larger than any size")
        self.at = match.end()
        return tuple(map(int, tokens))

    def skip(self) -> None:
        """Any one value, unseen. The text must be known to be well-formed."""
        if self._peek() not in ('"', "{", "["):
            token = _TOKEN.match(self.text, self.at)
            self.at = token.end() if token else self.at
            return
        depth = 0
        while True:
            match = _STRUCTURE.search(self.text, self.at)
            if match is None:
                raise self._wrong("ends inside a value")
            self.at = match.start()
            if match[0] == '"':
                self.string("a string")
            else:
                depth += 1 if match[0] in "[{" else -1
                self.at += 1
            if depth == 0:
                return

    def end(self) -> None:
        """Nothing but space may follow."""
        self._space()
        if self.at < len(self.text):
            raise self._wrong("text follows the JSON value")

    def _key(self, role: str) -> str:
        match = _PLAIN_KEY.match(self.text, self.at)
        if match is not None:
            self.at = match.end()
            return match[1]
        self._space()
        key = self.string(f"{role}: a key")
        self._space()
        self._expect(":", f"{role}: what follows a key")
        self._space()
        return key

    def _space(self) -> None:
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _expect(self, character: str, role: str) -> None:
        if self._peek() != character:
            raise self._wrong(f"{role} must start with '{character}', not {self._kind()}")
        self.at += 1

    def _kind(self) -> str:
        """What stands here, in words."""
        token = _TOKEN.match(self.text, self.at)
        if token is None:
            return "the end of the text"
        first = token[0][0]
        if first == '"':
            return "a string"
        if first in "[{":
            return "a list" if first == "[" else "an object"
        if token[0] in ("true", "false"):
            return "a bool"
        if first.isdigit() or first == "-":
            return f"the number {shown(token[0])}"
        return shown(token[0])

    def _wrong_list(self, role: str) -> BadInput:
        """Name the first entry that is no whole number."""
        if self._peek() != "[":
            return self._wrong(f"{role} must be a list of whole numbers, not {self._kind()}")
        stop = _NUMBER_LIST_START.match(self.text, self.at + 1)
        self.at = stop.end() if stop else self.at
        while self.text[self.at - 1].isdigit():  # "1.5" stops at its point, but is one token
            self.at -= 1
        kind = self._kind()
        if kind.startswith("the number '-"):
            return self._wrong(f"{role} holds {kind}; negative numbers are not sizes")
        return self._wrong(f"{role} holds {kind}; only whole numbers written as plain digits are allowed")

    def _wrong(self, message: str) -> BadInput:
        place = f"{shown(self.place)}: " if self.place else ""
        return malformed(f"{self.what}: {place}{message} (at character {self.at})")

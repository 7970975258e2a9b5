"""Text with something to learn in it, made from a seed."""

import random

import torch
from torch import Tensor

VOCABULARY = 128  # ASCII

_NOUNS = ("mason", "river", "lantern", "cairn", "shepherd", "summit", "winter", "raven")
_VERBS = ("follows", "carries", "remembers", "guards", "crosses", "outlives")
_ADJECTIVES = ("quiet", "grey", "patient", "hollow", "northern")
_NUMBERS = ("no", "one", "two", "three", "seven", "a hundred")


def make_text(sentences: int, seed: int) -> str:
    """Sentences of a small grammar; equal arguments give equal text on every machine."""
    draw = random.Random(seed)
    return " ".join(_sentence(draw) for _ in range(sentences))


def make_windows(length: int, seed: int, sentences: int = 4000) -> Tensor:
    """Overlapping pieces of a text: int64, shape (windows, length + 1), each an input and its shifted target."""
    characters = torch.frombuffer(bytearray(make_text(sentences, seed), "ascii"), dtype=torch.uint8).long()
    return characters.unfold(0, length + 1, length // 2).contiguous()


def _sentence(draw: random.Random) -> str:
    words = f"{_subject(draw)} {draw.choice(_VERBS)} {_subject(draw)}"
    while draw.random() < 0.3:
        words += f" {draw.choice(('and', 'while', 'until'))} {_subject(draw)} {draw.choice(_VERBS)} {_subject(draw)}"
    return f"{words.capitalize()}."


def _subject(draw: random.Random) -> str:
    noun = draw.choice(_NOUNS)
    if draw.random() < 0.3:
        return f"{draw.choice(_NUMBERS)} of the {noun}s"
    return f"the {draw.choice(_ADJECTIVES)} {noun}" if draw.random() < 0.5 else f"the {noun}"

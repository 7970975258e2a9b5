"""What decryption and hashing alone take: a bound that no load on the same processors gets below."""

import mmap
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from blake3 import blake3
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

# Linux 5.14; Python has no name for it.
_POPULATE_READ = 22


def primitives(folder: Path, nbytes: int, digest: bool) -> Callable[[], None]:
    """What reads so many bytes, mapped from a warm file, decrypts them in place, and hashes them if that is wanted.

    One thread a processor, 1 MiB at a time, all of it contiguous: no index, no plan, no scattered tile.
    """
    size = 1 << 20
    count, key, nonce = -(-nbytes // size), os.urandom(32), os.urandom(12)
    stored, cipher = size + 16, AESGCM(key)
    with (folder / "sealed").open("wb") as file:
        for _ in range(count):
            file.write(cipher.encrypt(nonce, os.urandom(size), None))
    target = memoryview(torch.zeros(count * size, dtype=torch.uint8).numpy().data)

    def work(numbers: range, source: memoryview) -> None:
        for number in numbers:
            place = target[number * size : (number + 1) * size]
            cipher.decrypt_into(nonce, source[number * stored : (number + 1) * stored], None, place)
            if digest:
                blake3(place, key=key).digest()

    def once() -> None:
        with (folder / "sealed").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            mapped.madvise(_POPULATE_READ)
            processors = os.cpu_count() or 1
            with memoryview(mapped) as source, ThreadPoolExecutor(processors) as pool:
                list(pool.map(lambda first: work(range(first, count, processors), source), range(processors)))

    return once

"""Push and pull of 1 GiB to a real S3 server on loopback, beside restic and the same bytes sent by obstore in parallel.

    .venv/bin/python -m benchmarks.transfer                        # SeaweedFS, which it starts
    S3_SERVER=script .venv/bin/python -m benchmarks.transfer       # what the script starts (see `make test-s3`)

Whole commands, start included; obstore inside this process. Nobody compresses, restic and Cairn encrypt. Contenders
take turns, each in places of its own; medians. The server shares the processors.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from benchmarks.measure import clean_environment, cpu_model, file_system, run, warm
from benchmarks.remote import MIB, PACK_BYTES, Obstore
from tests.support.s3 import BUCKET, Server, fresh_prefix, running

THREADS = 8
_CHANGED = 100  # one hundredth of the file changes


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mebibytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    found: dict[str, list[float]] = {}
    with running() as server, tempfile.TemporaryDirectory(prefix="cairn-bench-") as place:
        for number in range(options.rounds):
            folder = Path(place) / str(number)
            folder.mkdir()
            for name, seconds in _round(server, folder, options.mebibytes).items():
                found.setdefault(name, []).append(seconds)
            shutil.rmtree(folder)
        print(
            f"{options.mebibytes} MiB; {os.cpu_count()} processors, {cpu_model()}; {file_system(Path(place))}; "
            f"medians of {options.rounds} rounds; load {os.getloadavg()[0]:.2f}"
        )
    for name, values in found.items():
        print(f"  {name:40} {median(values):8.3f}  ({', '.join(f'{value:.3f}' for value in values)})")


def _round(server: Server, folder: Path, mebibytes: int) -> dict[str, float]:
    work = folder / "work"
    work.mkdir()
    with (work / "a.bin").open("wb") as file:
        for _ in range(mebibytes):
            file.write(os.urandom(MIB))
    return {**_raw(server, work / "a.bin"), **_cairn(server, folder, work), **_restic(server, folder, work)}


def _raw(server: Server, path: Path) -> dict[str, float]:
    store, data = Obstore(server, fresh_prefix()), path.read_bytes()
    pieces = [memoryview(data)[at : at + PACK_BYTES] for at in range(0, len(data), PACK_BYTES)]

    def seconds(work: Callable[[int], object]) -> float:
        begun = time.perf_counter()
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(work, range(len(pieces))))
        return time.perf_counter() - begun

    put = seconds(lambda n: store.create(f"{n}", [pieces[n]]))
    got = [bytearray(len(piece)) for piece in pieces]
    return {"obstore, put, s": put, "obstore, get, s": seconds(lambda n: store.read_into(f"{n}", 0, got[n]))}


def _cairn(server: Server, folder: Path, work: Path) -> dict[str, float]:
    home = folder / "cairn"
    home.mkdir()
    environment = {**clean_environment(home), **server.variables}
    base = [sys.executable, "-m", "cairn"]

    def timed(*words: str) -> float:
        warm(folder)
        return run([*base, *words], environment, home).seconds

    def sent(*words: str) -> tuple[float, int]:
        warm(folder)
        begun = time.perf_counter()
        done = subprocess.run([*base, *words, "--json"], env=environment, cwd=home, check=True, capture_output=True)
        return time.perf_counter() - begun, json.loads(done.stdout)["bytes_sent"]

    url = f"s3://{BUCKET}/{fresh_prefix()}"
    timed("init")
    timed("commit", str(work), "m")
    timed("remote", "add", "origin", url, "--create")
    first, whole = sent("push", "m")
    _change(work / "a.bin")
    timed("commit", str(work), "m")
    second, part = sent("push", "m")
    pull = timed("clone", url, str(folder / "clone"))
    checkout = timed("checkout", "m", str(folder / "out"), "--store", url)
    return {
        "cairn push, s": first, "cairn push of 1 % new, s": second, "cairn push of 1 % new, of the bytes": part / whole,
        "cairn clone, s": pull, "cairn checkout from the bucket, s": checkout,
    }  # fmt: skip


def _change(path: Path) -> None:
    with path.open("r+b") as file:
        for _ in range(max(path.stat().st_size // MIB // _CHANGED, 1)):
            file.write(os.urandom(MIB))


def _restic(server: Server, folder: Path, work: Path) -> dict[str, float]:
    if shutil.which("restic") is None:
        return {}
    home = folder / "restic"
    home.mkdir()
    endpoint = server.variables["AWS_ENDPOINT_URL"]
    environment = {
        **clean_environment(home), **server.variables, "RESTIC_PASSWORD": "x",
        "RESTIC_REPOSITORY": f"s3:{endpoint}/{BUCKET}/{fresh_prefix()}",
    }  # fmt: skip
    options = ["restic", "--compression", "off", "-o", f"s3.connections={THREADS}"]

    def timed(*words: str) -> float:
        warm(folder)
        return run([*options, *words], environment, home).seconds

    timed("init")
    backup = timed("backup", str(work))
    restore = timed("restore", "latest", "--target", str(folder / "restored"))
    return {"restic backup, s": backup, "restic restore, s": restore}


if __name__ == "__main__":
    main()

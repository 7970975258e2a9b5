"""The soak: writers, readers, a collector and a killer on one store, and then whether anything was lost.

    python -m tests.soak.run --seconds 600 [--s3]

Exit code 0 says that every checkpoint whose commit had returned and that nobody deleted was there, bit for bit; that
all the others were whole; and that a last collection left nothing behind.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cairn.core.ids import CheckpointId, ModelId
from cairn.gc.collect import Collector
from cairn.gc.roots import named_objects
from cairn.gc.scrub import verify
from cairn.registry.registry import Registry
from cairn.registry.stores import create_store, open_store
from cairn.workspace.checkout import checkout
from tests.soak.work import digest_of, message_of

CAST = {"writer": 4, "reader": 2, "collector": 1}
# Between two kills; a process that is killed begins anew at once.
KILL_SECONDS = 1.5
_ENDING_SECONDS = 180.0


@dataclass
class Soak:
    """One run on one store."""

    store: str
    folder: Path
    seconds: float
    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Have all work, kill some, and wait for the end."""
        dice, until = random.Random(self.seed), time.monotonic() + self.seconds
        names = [(kind, f"{kind}-{number}") for kind, count in CAST.items() for number in range(count)]
        working = {name: self.start(kind, name, until) for kind, name in names}
        kinds = {name: kind for kind, name in names}
        while time.monotonic() < until:
            time.sleep(min(KILL_SECONDS * 2 * dice.random(), max(until - time.monotonic(), 0.0)))
            name = dice.choice(sorted(working))
            working[name].send_signal(signal.SIGKILL)
            self.kills[kinds[name]] += 1
            for one, process in working.items():
                if process.poll() not in (None, 0, -signal.SIGKILL):
                    self.problems.append(f"{one} ended with {process.returncode}: see its journal")
                if process.poll() is not None and time.monotonic() < until:
                    working[one] = self.start(kinds[one], one, until)
        for process in working.values():
            try:
                process.wait(_ENDING_SECONDS)
            except subprocess.TimeoutExpired:
                self.problems.append("a process hung and was killed")
                process.kill()
                process.wait()

    def start(self, kind: str, name: str, until: float) -> "subprocess.Popen[bytes]":
        seconds = str(max(until - time.monotonic(), 0.0))
        command = [sys.executable, "-m", "tests.soak.work", kind, name, self.store, str(self.folder / name), seconds]
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log)

    # --- afterwards ---------------------------------------------------------------------------------

    def judge(self) -> str:
        """Compare what the journals say with what is there; returns a report."""
        said = self._journals()
        self.problems += [f"{line['code']}: {line['why']}" for line in said if line["kind"] == "failed"]
        registry = open_store(self.store)
        committed = {line["checkpoint"]: line for line in said if line["kind"] == "committed"}
        doomed = {one for line in said if line["kind"] == "deletes" for one in line["checkpoints"]}
        live = {one.hex(): ModelId(m) for m, held in registry.state.models.items() for one in held.checkpoints}
        lost = [one for one in committed if one not in live and one not in doomed]
        self.problems += [f"checkpoint {one} was committed, and nobody deleted it, but it is not there" for one in lost]
        self._check_all(registry, live)
        deleted = self._collect_all(registry)
        self._check_all(registry, live)
        registry.close()
        counts = Counter(line["kind"] for line in said)
        runs = [line for line in said if line["kind"] == "collected"]
        objects, gone, copied = (sum(one[what] for one in runs) for what in ("objects", "bytes", "copied"))
        return "\n".join(
            (
                f"store {self.store}, {self.seconds:.0f} s, seed {self.seed}",
                f"written: {counts['begins']} begun, {len(committed)} committed, {len(doomed)} deleted, "
                f"{len(live)} left",
                f"read: {counts['read']} whole, {counts['found gone']} found deleted meanwhile",
                f"killed: {', '.join(f'{count} {kind}s' for kind, count in sorted(self.kills.items()))}",
                f"collected: {len(runs)} runs to their end, {objects} objects and {gone >> 20} MiB deleted, "
                f"{copied >> 20} MiB repacked, {counts['waited in vain']} waited in vain; {deleted} objects at the end",
                f"repeated: {counts['retries']} operations",
                f"lost: {len(lost)}",
                *(f"PROBLEM: {problem}" for problem in self.problems[:20]),
            )
        )

    def _journals(self) -> list[dict[str, Any]]:
        lines = []
        for path in sorted(self.folder.glob("*/journal")):
            for line in path.read_text().splitlines():
                try:
                    lines.append(json.loads(line))
                except ValueError:
                    continue  # its writer was killed amid it
        return lines

    def _check_all(self, registry: Registry, live: dict[str, ModelId]) -> None:
        for one, model in live.items():
            checkpoint = CheckpointId(bytes.fromhex(one))
            with tempfile.TemporaryDirectory() as place:
                checkout(registry, model, checkpoint, Path(place) / "out")
                if digest_of(Path(place) / "out") != message_of(registry, model, checkpoint):
                    self.problems.append(f"checkpoint {one} holds other bytes than were committed")

    def _collect_all(self, registry: Registry) -> int:
        """Collect with nobody beside; afterwards only what is needed may be there."""
        deleted = Collector(registry).run().objects_deleted
        again = Collector(registry).run()
        if again.objects_deleted or again.rounds:
            self.problems.append("a second collection found something more to do")
        names = [listed.name for listed in registry.opened.backend.list("")]
        left = [name for name in names if name.startswith("objects/") and name not in named_objects(registry.state)]
        # What broke off in the middle of its upload is waited for, longer than this takes.
        whole = [one.name for one in registry.opened.backend.list("") if one.size]
        left += [name for name in whole if name.startswith(("sessions/", "pins/"))]
        self.problems += [f"left behind: {name}" for name in left]
        report = verify(registry, full=True)
        self.problems += [f"{problem.object}: {problem.what}" for problem in report.errors]
        return deleted


def soak(store: str, folder: Path, seconds: float, seed: int) -> bool:
    """One run, reported; whether all was well."""
    folder.mkdir(parents=True)
    create_store(store)
    run = Soak(store, folder, seconds, seed)
    run.run()
    print(run.judge(), flush=True)
    return not run.problems


def main() -> None:
    """Soak a store in a folder, or on a real S3 server, or both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--s3", action="store_true", help="on an S3 server that is started for it")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cairn-soak-")))
        os.environ.update({f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in ("DATA", "STATE", "CACHE")})
        store = str(folder / "store")
        if options.s3:
            from tests.support.s3 import BUCKET, fresh_prefix, running

            server = stack.enter_context(running())
            os.environ.update(server.variables)
            store = f"s3://{BUCKET}/{fresh_prefix()}"
        whole = soak(store, folder / "work", options.seconds, options.seed)
    sys.exit(0 if whole else 1)


if __name__ == "__main__":
    main()

"""Planning a save and a load of Llama 3.1 405B on thousands of ranks, without the ranks and without the bytes.

Simulated: one process stands for the coordinator and takes up the fragments of all ranks, one after the other; another
plans what a single rank of a job would. Plans, fragments, merge, pages, index, commit and read plans are made by the
product's own code in a real store in memory (/dev/shm); digests are random, and packs are named and never
written. `docs/scale.md` has the results. Every case runs in a process of its own, whose peak memory is counted.
"""

import argparse
import gc
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Layers; layouts (TP, PP, DP) that save; layouts that load.
SIZES = {
    "full": (126, ("8,16,70", "1,1,1024"), ("4,8,128", "1,1,4096")),
    "quick": (2, ("2,2,4", "1,1,16"), ("2,1,4", "1,1,16")),
}
# Ranks of a host.
HOST_RANKS = 8
MANY = {"full": 100_000, "quick": 2_000}


class Meter:
    """Seconds of the parts of a case, and by how much it raises the resident set."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = {}
        self.cpu: dict[str, float] = {}
        self.counts: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add to a part's wall and processor seconds."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.wall[name] = self.wall.get(name, 0.0) + time.perf_counter() - wall
        self.cpu[name] = self.cpu.get(name, 0.0) + time.process_time() - cpu

    @contextmanager
    def peak(self, name: str) -> Iterator[None]:
        """Count resident memory at its highest, mapped files included, and the process's own memory at the end."""
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")
        before, own = status("VmRSS"), status("RssAnon")
        yield
        self.counts[f"{name}: peak"] = status("VmHWM") - before
        self.counts[f"{name}: own memory"] = max(status("RssAnon") - own, 0)

    def result(self) -> dict[str, Any]:
        """All of it."""
        return {"wall": self.wall, "cpu": self.cpu, "counts": {**self.counts, "process: peak": status("VmHWM")}}


def status(name: str) -> int:
    """A line of the process's status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


# --- cases, each in a process of its own ------------------------------------------------------------


def save(folder: str, layout_text: str, size: str) -> dict[str, Any]:
    """A rank that saves: names to agree on, capture plan, fragment."""
    from scale_layouts import Layout, Share, found_of, leaves_of
    from scale_store import FragmentMaker, open_site

    from cairn.core.heap import collection_paused
    from cairn.training.agreement import names_to_agree
    from cairn.training.capture import plan_capture
    from cairn.training.encode import contribution_of, inline_slots

    layout, meter = Layout.parse(layout_text), Meter()
    maker = FragmentMaker(open_site(Path(folder)).opened, os.urandom(32))
    leaves = leaves_of(layout, layout.ranks // 2 + 1, SIZES[size][0])
    with meter.peak("plan"), collection_paused():
        with meter.part("names"):
            names_to_agree(leaves, layout.ranks + 1)
        with meter.part("capture plan"):
            plan = plan_capture(leaves, [None] * len(leaves), check=False)
        small = inline_slots(plan, leaves)
        found = found_of(plan, small, len(leaves))
        with meter.part("fragment"):
            stored = maker.make(0, Share(contribution_of(leaves, found), b"", []))
    meter.counts |= {"tensors": len(leaves), "pieces": sum(len(slot.cuts) for slot in plan.slots)}
    meter.counts["fragment without index: bytes"] = len(stored)
    return meter.result()


def merge(folder: str, layout_text: str, size: str) -> dict[str, Any]:
    """The coordinator: take up all fragments, join, write pages, publish."""
    from scale_layouts import Layout, Shares
    from scale_store import FragmentMaker, open_site

    from cairn.registry.models import CommitMeta, ensure_model
    from cairn.registry.session import Session
    from cairn.training.gathering import Gathering, Goal, open_fragment

    layout, meter, lengths, pieces = Layout.parse(layout_text), Meter(), list[int](), 0
    registry = open_site(Path(folder))
    opened, model = registry.opened, ensure_model(registry, "llama")
    made, key = Shares(layout, SIZES[size][0]), os.urandom(32)
    maker = FragmentMaker(opened, key)
    with meter.peak("coordinator"), Session(registry) as session:
        chunks = session.save()
        gathering = Gathering(registry, session, chunks)
        for rank in range(layout.ranks):
            share = made.of(rank)
            stored = maker.make(rank, share)
            lengths.append(len(stored))
            pieces += len(share.lengths)
            with meter.part("take fragments"):
                gathering.add(open_fragment(opened, key, stored, rank), own=False)
        with meter.part("merge, pages"):
            merged = gathering.merge()
        with meter.part("index, commit"):
            gathering.publish(Goal(model, "main", None, CommitMeta("", 1)))
    objects = {listed.name.rsplit(".")[-1]: listed.size for listed in opened.backend.list("objects")}
    meter.counts |= {
        "ranks": layout.ranks, "tensors": sum(map(len, merged.tensors.values())), "pieces": pieces,
        "fragments: bytes": sum(lengths), "longest fragment: bytes": max(lengths),
        "manifest: bytes": chunks.written.counts.bytes_new, "index: bytes": objects["index"],
        "reachability list: bytes": objects["reach"], "envelope: bytes": objects["envelope"],
        "log entry: bytes": max(one.size for one in opened.backend.list("log")),
    }  # fmt: skip
    return meter.result()


def load(folder: str, layout_text: str, size: str) -> dict[str, Any]:
    """A rank that loads: fold and index, entries, read plan."""
    from scale_layouts import Layout, leaves_of
    from scale_store import CountingBackend, open_site

    from cairn.core.heap import collection_paused
    from cairn.core.ids import CheckpointId, ModelId
    from cairn.loader.sharing import encode_wants, shared_extents, with_extents
    from cairn.registry.checkpoint import CheckpointManifest
    from cairn.training.filling import Filling
    from cairn.training.leaves import Read
    from cairn.training.loading import stored_scopes

    layout, meter = Layout.parse(layout_text), Meter()
    with meter.peak("index"), meter.part("fold, index"):
        registry = open_site(Path(folder), cold=True)
    backend = registry.opened.backend
    assert isinstance(backend, CountingBackend)
    meter.counts["index, log: bytes read"] = backend.taken()[0]
    (model,) = registry.state.models
    (checkpoint,) = registry.state.models[model].checkpoints
    first = layout.ranks // 2
    leaves = leaves_of(layout, first, SIZES[size][0])
    with meter.peak("plan"), collection_paused():
        with meter.part("entries"):
            manifest = CheckpointManifest(registry, ModelId(model), CheckpointId(checkpoint))
            scopes, _ = stored_scopes(manifest, {"model", "optimizer"})
        meter.counts["entries: bytes read"], requests = backend.taken()
        with meter.part("read plan"):
            reads = [Read(scopes[leaf.key.scope].tensors[leaf.key.path], leaf) for leaf in leaves]
            filling = Filling.planned(manifest, reads)
    meter.counts["pages: bytes read"], more = backend.taken()
    counts, wants, together = filling.counts(), [], 0
    for rank in range(first, min(first + HOST_RANKS, layout.ranks)):
        of = [Read(scopes[one.key.scope].tensors[one.key.path], one) for one in leaves_of(layout, rank, SIZES[size][0])]
        other = Filling.planned(manifest, of)
        together += other.counts()["bytes_wanted"]
        wants.append(encode_wants(other.all_reads))
    with meter.peak("shared"), meter.part("agree with the host's ranks"):
        extents = shared_extents(wants)
        shared, *_ = with_extents(filling.all_reads, extents, 0)
    fetched = shared.bytes_fetched + sum(extent.length for extent in extents if extent.owner == 0)
    chunks = {(pack, offset): length for one in wants for pack, offset, length in struct.iter_unpack("<QQQ", one[8:])}
    meter.counts |= {
        "metadata requests": requests + more, "tensors": len(reads), "wanted: bytes": counts["bytes_wanted"],
        "over-read": round(counts["bytes_read"] / counts["bytes_wanted"], 2), "data requests": counts["requests"],
        "over-read, shared with a host's ranks": round(fetched / counts["bytes_wanted"], 2),
        "over-read of a host's ranks": round(sum(chunks.values()) / together, 2),
    }  # fmt: skip
    return meter.result()


def exchange(folder: str, layout_text: str, size: str) -> dict[str, Any]:
    """The layout exchange of all ranks, as the coordinator sees it and as another rank does."""
    from scale_layouts import Layout, cuts_of
    from scale_store import CountingRendezvous

    from cairn.core.clock import SystemClock
    from cairn.training import agreement
    from cairn.training.ranks import Ranks

    layout, meter, values = Layout.parse(layout_text), Meter(), dict[str, bytes]()
    names: list[list[int]] = []
    for rank in range(layout.ranks):
        # Numbers in the place of hashes: alike where ranks hold the same boxes of the same tensor.
        names.append([random.Random(str(one)).getrandbits(64) for one in cuts_of(layout, rank, SIZES[size][0])])
        agreement.tell_names(Ranks(CountingRendezvous(rank, layout.ranks, values), SystemClock()), "t", names[rank])
    for rank, who in ((0, "coordinator"), (layout.ranks // 2, "rank")):
        met = CountingRendezvous(rank, layout.ranks, values)
        with meter.peak(who), meter.part(who):
            agreement.exchange(Ranks(met, SystemClock()), "t", names[rank], 60.0)
        meter.counts |= {f"{who}: messages": met.messages, f"{who}: bytes": met.bytes}
    return meter.result()


def many(folder: str, layout_text: str, size: str) -> dict[str, Any]:
    """A hundred thousand plain tensors of one rank, saved for real."""
    import torch

    import cairn

    meter = Meter()
    state = {"model": {f"layers.{i}.weight": torch.full((16, 16), float(i)) for i in range(MANY[size])}}
    store = Path(folder) / "many"
    store.mkdir()
    cairn.create_store(store)
    with cairn.Checkpointer(store, "many") as checkpointer, meter.peak("saves"):
        for step, turn in enumerate(("first", "again")):
            with meter.part(f"{turn}: plan and capture"):
                handle = checkpointer.save(step, state)
            with meter.part(f"{turn}: in the background"):
                handle.committed.result()
    meter.counts["tensors"] = MANY[size]
    return meter.result()


CASES: dict[str, Callable[[str, str, str], dict[str, Any]]] = {
    "save": save, "exchange": exchange, "merge": merge, "load": load, "many": many,
}  # fmt: skip


def run(case: str, folder: Path, layout: str, size: str) -> None:
    """A case in a child, and a line for each of its numbers."""
    command = [sys.executable, __file__, "--case", case, str(folder), layout, size]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{case} {layout} failed:\n{done.stderr[-3000:]}")
    found = json.loads(done.stdout)
    print(f"\n{case} {layout} (saved by {folder.name})" if case == "load" else f"\n{case} {layout}")
    for name, seconds in found["wall"].items():
        print(f"  {name:32} {seconds:12.2f} s  ({found['cpu'][name]:.2f} s of the processor)")
    for name, count in found["counts"].items():
        large = count / 1e6 if count >= 1e5 else 0
        print(f"  {name:32} {f'{large:12,.1f} million' if large else f'{count:12,}'}", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a model of two layers on few ranks")
    parser.add_argument("--only", default="", help="layout whose saves are to be run, such as 8,16,70; or many")
    parser.add_argument("--case", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        case, *rest = arguments.case
        print(json.dumps(CASES[case](*rest)))
        return
    size = "quick" if arguments.quick else "full"
    _, saves, loads = SIZES[size]
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as memory:
        for layout in saves:
            if arguments.only in ("", layout):
                folder = Path(memory) / layout
                folder.mkdir()
                for case in ("save", "exchange", "merge"):
                    run(case, folder, layout, size)
                for reader in loads:
                    run("load", folder, reader, size)
        if arguments.only in ("", "many"):
            run("many", Path(memory), "one rank", size)


if __name__ == "__main__":
    main()

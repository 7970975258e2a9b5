"""Planning a save and a load of Llama 3.1 405B on thousands of ranks, without the ranks and without the bytes.

Simulated: one process stands for the coordinator and takes up the fragments of all ranks, one after the other; another
plans what single ranks of a job would. Plans, fragments, merge, pages, index, commit and read plans are made by the
product's own code in a real store in memory (/dev/shm); the digests are random, and packs are named and never
written. `docs/scale.md` has the results. Every case runs in a process of its own, whose peak memory is counted.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MIB = 1 << 20
SHAPES = {"full": (126, "8,16,70", "1,1,1024"), "quick": (2, "2,2,4", "1,1,16")}
LOADS = {"full": ("4,8,128", "1,1,4096"), "quick": ("2,1,4", "1,1,16")}


class Meter:
    """Seconds of parts of a case, and by how much it raises the resident set."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = {}
        self.cpu: dict[str, float] = {}
        self.more: dict[str, Any] = {}
        self._before = 0

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add to a part's wall and processor seconds."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.parts[name] = self.parts.get(name, 0.0) + time.perf_counter() - wall
        self.cpu[name] = self.cpu.get(name, 0.0) + time.process_time() - cpu

    @contextmanager
    def peak(self) -> Iterator[None]:
        """Count memory from here."""
        import gc

        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")
        self._before = _status("VmRSS")
        yield
        self.more["peak_bytes"] = _status("VmHWM") - self._before

    def result(self) -> dict[str, Any]:
        """All of it."""
        return {"seconds": self.parts, "cpu": self.cpu, "process_peak": _status("VmHWM"), **self.more}


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


# --- cases, each in a process of its own ------------------------------------------------------------


def merge(folder: str, layout_text: str, layers: int) -> dict[str, Any]:
    """The coordinator: take up all fragments, join, write pages, publish."""
    from scale_layouts import Layout, Shares
    from scale_store import FragmentMaker, open_site

    from cairn.registry.models import CommitMeta, ensure_model
    from cairn.registry.session import Session
    from cairn.training.gathering import Gathering, Goal, open_fragment

    layout, meter = Layout(*map(int, layout_text.split(","))), Meter()
    registry = open_site(Path(folder))
    opened = registry.opened
    model = ensure_model(registry, "llama")
    made, key, sizes = Shares(layout, layers), os.urandom(32), []
    pieces = 0
    with meter.peak(), Session(opened, registry.state.epoch, 30.0) as session:
        save = registry.chunks().save(session)
        gathering = Gathering(registry, session, save)
        maker = FragmentMaker(opened, key)
        for rank in range(layout.ranks):
            shares = made.of(rank)
            stored = maker.make(rank, shares)
            sizes.append(len(stored))
            pieces += sum(len(share.lengths) for share in shares)
            with meter.part("take fragments"):
                gathering.add(open_fragment(opened, key, stored, rank), own=False)
        meter.more["peak_before_merge"] = _status("VmRSS")
        with meter.part("merge, pages"):
            merged = gathering.merge()
        with meter.part("index, commit"):
            gathering.publish(Goal(model, "main", None, CommitMeta("", 1)))
    entries = [entry for component in merged.tensors.values() for entry in component]
    names = {listed.name.rsplit(".")[-1]: listed.size for listed in opened.backend.list("objects")}
    meter.more |= {
        "ranks": layout.ranks, "tensors": len(entries), "pieces": pieces, "manifest": save.written.counts.bytes_new,
        "fragments": sum(sizes), "fragment_max": max(sizes), "index": names["index"], "reach": names["reach"],
        "envelope": names["envelope"], "log entry": max(one.size for one in opened.backend.list("log")),
    }  # fmt: skip
    return meter.result()


def save_rank(folder: str, layout_text: str, layers: int) -> dict[str, Any]:
    """A rank that saves: names to agree on, capture plan, fragment."""
    from scale_layouts import Layout, Share, found_of, leaves_of
    from scale_store import FragmentMaker, open_site

    from cairn.training.agreement import names_to_agree
    from cairn.training.capture import plan_capture
    from cairn.training.encode import contribution_of, inline_slots

    layout, meter = Layout(*map(int, layout_text.split(","))), Meter()
    registry = open_site(Path(folder))
    maker = FragmentMaker(registry.opened, os.urandom(32))
    leaves = leaves_of(layout, layout.ranks // 2 + 1, layers)
    with meter.peak():
        with meter.part("names"):
            names_to_agree(leaves, 1 << 20)
        with meter.part("capture plan"):
            plan = plan_capture(leaves, [None] * len(leaves), check=False)
            small = inline_slots(plan, leaves)
        found = found_of(plan, small, len(leaves))
        with meter.part("fragment"):
            shares = [Share(contribution_of(leaf, one), b"", ()) for leaf, one in zip(leaves, found, strict=True)]
            stored = maker.make(0, shares)
    pieces = sum(len(slot.cuts) for slot in plan.slots)
    meter.more |= {"tensors": len(leaves), "pieces": pieces, "fragment": len(stored)}
    return meter.result()


def load_rank(folder: str, layout_text: str, layers: int) -> dict[str, Any]:
    """A rank that loads: fold and index, entries, read plan."""
    from scale_layouts import Layout, leaves_of
    from scale_store import CountingBackend, open_site

    from cairn.core.ids import CheckpointId, ModelId
    from cairn.registry.checkpoint import CheckpointManifest
    from cairn.training.leaves import Read
    from cairn.training.loading import Loader, stored_scopes
    from cairn.training.ranks import Ranks
    from cairn.training.rendezvous import Alone

    layout, meter = Layout(*map(int, layout_text.split(","))), Meter()
    counted: list[CountingBackend] = []
    with meter.peak(), meter.part("fold, index"):
        registry = open_site(Path(folder), counted, cold=True)
    meter.more |= {"index_peak": meter.more.pop("peak_bytes"), "index_read": counted[0].bytes}
    (model,) = registry.state.models
    (checkpoint,) = registry.state.models[model].checkpoints
    leaves = leaves_of(layout, layout.ranks // 2 + 1, layers)
    loader = Loader(registry, Ranks(Alone(), registry.opened.clock), "load/1", 60.0)
    counted[0].reset()
    with meter.peak():
        with meter.part("entries"):
            manifest = CheckpointManifest(registry, ModelId(model), CheckpointId(checkpoint))
            scopes, _ = stored_scopes(manifest, {"model", "optimizer"})
        entries = counted[0].bytes
        with meter.part("read plan"):
            reads = [Read(scopes[leaf.key.scope].tensors[leaf.key.path], leaf) for leaf in leaves]
            prepared = loader._prepare(manifest, reads)
    wanted, read, requests = prepared.counts()
    meter.more |= {
        "tensors": len(reads), "entries_read": entries, "metadata": counted[0].bytes, "requests": counted[0].reads,
        "wanted": wanted, "over_read": read / wanted, "data_requests": requests,
    }  # fmt: skip
    return meter.result()


def exchange(folder: str, layout_text: str, layers: int) -> dict[str, Any]:
    """The layout exchange of all ranks, as the coordinator sees it and as another rank does."""
    import msgspec
    from scale_layouts import Layout, leaves_of
    from scale_store import CountingRendezvous

    from cairn.core.clock import SystemClock
    from cairn.training import agreement
    from cairn.training.ranks import Ranks

    layout, meter, values = Layout(*map(int, layout_text.split(","))), Meter(), dict[str, bytes]()
    names: dict[int, list[int]] = {}
    for rank in range(layout.ranks):
        names[rank] = list(agreement.names_to_agree(leaves_of(layout, rank, layers), layout.ranks).values())
        agreement.tell_names(Ranks(CountingRendezvous(rank, layout.ranks, values), SystemClock()), "t", names[rank])
    for rank in (0, layout.ranks // 2):
        with meter.peak(), meter.part(f"rank {rank and 'n'}"):
            met = CountingRendezvous(rank, layout.ranks, values)
            agreement.exchange(Ranks(met, SystemClock()), "t", names[rank], 60.0)
        meter.more[f"rank {rank and 'n'}"] = {
            "messages": met.messages,
            "bytes": met.bytes,
            "peak": meter.more["peak_bytes"],
        }
    meter.more["names"] = len(msgspec.msgpack.encode(names[0]))
    return meter.result()


def many(folder: str, layout_text: str, layers: int) -> dict[str, Any]:
    """100,000 plain tensors on one rank, saved for real."""
    import torch

    import cairn

    count, meter = 100_000 if layers > 2 else 5_000, Meter()
    state = {"model": {f"layers.{i}.weight": torch.full((16, 16), float(i)) for i in range(count)}}
    store = Path(folder) / "many"
    store.mkdir()
    cairn.create_store(store)
    with cairn.Checkpointer(store, "many") as checkpointer, meter.peak():
        for turn in ("first", "again"):
            with meter.part(f"save {turn}, blocked"):
                handle = checkpointer.save(1 if turn == "first" else 2, state)
            with meter.part(f"save {turn}, background"):
                handle.committed.result()
            meter.more[turn] = {"plan": handle.stages.plan, "capture": handle.stages.capture}
    return meter.result()


CASES: dict[str, Callable[[str, str, int], dict[str, Any]]] = {
    "merge": merge, "save": save_rank, "load": load_rank, "exchange": exchange, "many": many,
}  # fmt: skip


def run(case: str, folder: str, layout: str, layers: int) -> dict[str, Any]:
    """A case in a child."""
    began = time.perf_counter()
    command = [sys.executable, __file__, "--case", case, folder, layout, str(layers)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{case} {layout} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    found["all"] = time.perf_counter() - began
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a model of two layers on few ranks")
    parser.add_argument("--only", default="", help="cases, by the beginning of their name")
    parser.add_argument("--keep", type=Path, help="folder for the stores, which stay")
    parser.add_argument("--case", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        case, folder, layout, layers = arguments.case
        print(json.dumps(CASES[case](folder, layout, int(layers))))
        return
    size = "quick" if arguments.quick else "full"
    layers, *saves = SHAPES[size]
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=memory) as made:
        base = arguments.keep or Path(made)
        for save in saves:
            folder = base / save
            folder.mkdir(exist_ok=True, parents=True)
            for case, layout in [
                ("save", save),
                ("exchange", save),
                ("merge", save),
                *(("load", one) for one in LOADS[size]),
            ]:
                if case.startswith(arguments.only):
                    print(save, case, layout, json.dumps(run(case, str(folder), layout, layers)), flush=True)
        if "many".startswith(arguments.only):
            print("many", json.dumps(run("many", str(base), "", layers)), flush=True)


if __name__ == "__main__":
    main()

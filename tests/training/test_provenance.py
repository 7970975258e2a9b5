"""Provenance: complete, repeatable, and without secrets, hosts, users and homes."""

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blake3 import blake3

from cairn.core.errors import NotFoundError, RefusedError
from cairn.core.redaction import REDACTED, redacted_argv, secret_in
from cairn.training import provenance
from cairn.training.provenance import ABSENT, PATCH_BYTES_MAX, capture_provenance


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    (folder / "src").mkdir(parents=True)
    git(folder, "init", "--quiet")
    (folder / "src/train.py").write_text("lr = 1\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "one")
    return folder


def code(root: Path) -> Any:
    return capture_provenance(root=root)["code"]


# --- Code --------------------------------------------------------------------------------------


def test_a_clean_tree_is_its_commit(repo: Path) -> None:
    head = git(repo, "rev-parse", "HEAD")
    clean = {
        "git": "present",
        "commit": head,
        "dirty": False,
        "untracked_files": 0,
        "patch": "",
        "patch_left_out": None,
    }
    assert code(repo) == code(repo / "src") == clean


def test_a_dirty_tree_adds_a_patch_that_git_can_apply(repo: Path) -> None:
    (repo / "src/train.py").write_text("lr = 2\n")
    (repo / "new").mkdir()
    for name in ("new/a", "new/b", "c"):
        (repo / name).write_text("content that nobody asked for\n")
    found = code(repo / "src")
    assert (found["dirty"], found["untracked_files"]) == (True, 3)
    assert "nobody" not in found["patch"]
    git(repo, "checkout", "--quiet", "src/train.py")
    subprocess.run(["git", "apply"], cwd=repo, input=found["patch"], text=True, check=True)
    assert (repo / "src/train.py").read_text() == "lr = 2\n"


def test_staged_and_removed_files_are_part_of_the_patch(repo: Path) -> None:
    (repo / "staged.py").write_text("x = 1\n")
    git(repo, "add", "staged.py")
    (repo / "src/train.py").unlink()
    found = code(repo)
    assert found["dirty"] and "+x = 1" in found["patch"] and "-lr = 1" in found["patch"]


def test_the_patch_is_the_same_under_any_configuration(repo: Path) -> None:
    (repo / "src/train.py").write_text("lr = 2\n")
    plain = code(repo)
    for name, value in {
        "diff.noprefix": "true",
        "diff.mnemonicPrefix": "true",
        "diff.external": "false",
        "color.ui": "always",
        "diff.context": "0",
        "diff.orderFile": "no-such-file",
        "core.fsmonitor": "false",
    }.items():
        git(repo, "config", name, value)
    assert code(repo) == plain


def test_a_patch_over_the_limit_is_left_out(repo: Path) -> None:
    (repo / "src/train.py").write_text("x = 1\n" * (PATCH_BYTES_MAX // 6))
    found = code(repo)
    assert found["dirty"] and found["patch"] is None
    assert found["patch_left_out"] == f"more than {PATCH_BYTES_MAX} bytes"


def test_a_patch_with_a_secret_is_left_out_and_says_so(repo: Path) -> None:
    secret = "hf_" + "aB3dE5gH" * 5
    (repo / "src/train.py").write_text(f"login('{secret}')\n")
    found = capture_provenance(root=repo)
    assert found["code"]["patch"] is None
    assert found["code"]["patch_left_out"] == "it seems to hold a secret (Hugging Face token)"
    assert secret not in repr(found)


def test_a_file_that_is_not_text_does_no_harm(repo: Path) -> None:
    (repo / "src/train.py").write_bytes(b"\xff\xfe\n")
    (repo / "blob").write_bytes(bytes(range(256)))
    git(repo, "add", "blob")
    assert "blob differ" in code(repo)["patch"]


def test_without_git_or_repository_it_says_absent(tmp_path: Path, repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plain").mkdir()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert code(tmp_path / "plain") == {"git": ABSENT, "reason": "no git repository with a commit"}
    git(tmp_path / "plain", "init", "--quiet")
    assert code(tmp_path / "plain")["git"] == ABSENT
    monkeypatch.setenv("PATH", str(tmp_path))
    assert code(repo) == {"git": ABSENT, "reason": "git cannot be run"}


def test_a_slow_git_is_given_up(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = subprocess.run(["which", "git"], capture_output=True, text=True, check=True).stdout.strip()
    (tmp_path / "bin").mkdir()
    slow = tmp_path / "bin/git"
    slow.write_text(f'#!/bin/sh\ncase "$*" in *" status "*) exec sleep 30;; *) exec {real} "$@";; esac\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(provenance, "GIT_SECONDS_MAX", 1.0)
    found = code(repo)
    assert len(found["commit"]) == 40
    assert (found["dirty"], found["patch_left_out"]) == (None, "git status took more than 1 s")


# --- Secrets and homes -------------------------------------------------------------------------

SECRETS = [
    "-----BEGIN OPENSSH PRIVATE KEY-----",
    "AKIA" + "ABCDEFGHIJKLMNOP",
    "ghp_" + "a1B2" * 9,
    "glpat-" + "a1B2" * 5,
    "sk-" + "a1B2" * 8,
    "xoxb-" + "12345678901",
    "eyJhbGciOiJI.eyJzdWIiOiIx.sig",
    "https://me:hunter2hunter@example.org/x.git",
    'password = "correct horse"',
    "+DB_PASSWORD=correcthorse",
    "api_key: 'abcdef'",
    '"secret": "s3cr3t!"',
    "WANDB_API_KEY=" + "0123456789abcdef" * 2,
    "token = '" + "aB3dE5gH" * 4 + "'",
    "--- a\n+++ b\n-old_token='" + "0123456789abcdef" * 2 + "'",
]
HARMLESS = [
    "pad_token = tokenizer.eos_token",
    'pad_token = "<|endoftext|>"',
    "max_tokens = 4096000000",
    "api_key = os.environ['API_KEY']",
    "login(api_key=api_key, password=get_password())",
    "password: str | None = None",
    "api_key = ${API_KEY}",
    'key = "model.layers.10.self_attn.q_proj.weight"',
    "sort_key=attention_layer_norm_10_weights",
    "index 3b18e512dba79e4c8300dd08aeb37f8e728b8dad..e69de29",
    "https://example.org/a:b@c",
]


@pytest.mark.parametrize("text", SECRETS)
def test_secrets_are_recognised(text: str) -> None:
    assert secret_in(f"a line\n{text}\nanother\n")


@pytest.mark.parametrize("text", HARMLESS)
def test_what_only_looks_like_a_secret_is_kept(text: str) -> None:
    assert secret_in(text) is None


def test_the_command_is_recorded_without_secrets() -> None:
    token = "aB3dE5gH" * 4
    argv = [
        *("train.py", "--api-key", "abc", "--lr", "1e-3", f"--token={token}", "--token", token, "password=hunter"),
        *("--hub", "ghp_" + "a1B2" * 9, "--max-tokens", "4096", "--eos-token", "</s>", "--secret", "--resume"),
        *("git+https://me:hunter2@example.org/x",),
    ]
    assert redacted_argv(argv) == [
        *("train.py", "--api-key", REDACTED, "--lr", "1e-3", f"--token={REDACTED}", "--token", REDACTED),
        *(f"password={REDACTED}", "--hub", REDACTED, "--max-tokens", "4096", "--eos-token", "</s>", "--secret"),
        *("--resume", f"git+https{REDACTED}example.org/x"),
    ]


def test_homes_are_written_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/data/people/someone")
    argv = ["/data/people/someone/train.py", "--out=/data/people/someone", "/data/people/someone-else/x"]
    assert redacted_argv(argv) == ["~/train.py", "--out=~", "/data/people/someone-else/x"]
    other = "/" + "home/else/.cache"
    assert redacted_argv([f"{other}:{other}"]) == ["~/.cache:~/.cache"]
    assert capture_provenance(environment={"TORCH_HOME": other})["environment"] == {"TORCH_HOME": "~/.cache"}


def test_only_listed_variables_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "NCCL_DEBUG": "INFO",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "PYTHONHASHSEED": "0",
        "TORCH_HUB_ACCESS_KEY": "abc",
        "HOME": "/x",
        "HOSTNAME": "node-17",
        "MASTER_ADDR": "node-17",
        "USER": "someone",
        "HF_TOKEN": "hf_x",
    }
    expected = {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "NCCL_DEBUG": "INFO",
        "PYTHONHASHSEED": "0",
        "TORCH_HUB_ACCESS_KEY": REDACTED,
    }
    assert capture_provenance(environment=given)["environment"] == expected
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    assert capture_provenance()["environment"]["SLURM_JOB_ID"] == "17"


# --- The rest ----------------------------------------------------------------------------------


def test_tokenizer_files_are_recorded_by_content(tmp_path: Path) -> None:
    contents = {"vocab.json": b"{}", "merges.txt": b"a b\n" * 500_000}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    files = [tmp_path / name for name in contents]
    assert capture_provenance(tokenizer_files=files)["tokenizer"] == [
        {"name": name, "size": len(contents[name]), "blake3": blake3(contents[name]).hexdigest()}
        for name in sorted(contents)
    ]
    with pytest.raises(NotFoundError, match=r"none\.json cannot be read"):
        capture_provenance(tokenizer_files=[tmp_path / "none.json"])


def test_what_is_given_is_copied_and_must_be_plain() -> None:
    config: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.95), "layers": [1, 2], "seed": np.int64(3)}
    found = capture_provenance(config=config, data={"ids": ["web"], "samples": [0, 640]}, extra=None)
    config["layers"].append(3)
    assert found["config"] == {"lr": 1e-3, "betas": (0.9, 0.95), "layers": [1, 2], "seed": 3}
    assert found["data"] == {"ids": ["web"], "samples": [0, 640]}
    with pytest.raises(RefusedError, match=r"provenance\['config'\]\['model'\] is a .*Linear"):
        capture_provenance(config={"model": torch.nn.Linear(1, 1)})


def test_a_mesh_is_recorded_by_names_and_shape() -> None:
    class Mesh:
        mesh_dim_names = ("dp", "tp")
        shape = (4, 2)

        def size(self) -> int:
            return 8

    mesh = {"world_size": 8, "mesh_names": ["dp", "tp"], "mesh_shape": [4, 2]}
    assert capture_provenance(topology=Mesh())["topology"] == mesh
    assert capture_provenance(topology={"pp": 2})["topology"] == {"pp": 2}
    assert capture_provenance()["topology"] == {"world_size": 1}


def test_versions_and_flags() -> None:
    found = capture_provenance()
    assert found["versions"]["torch"] == torch.__version__ and found["versions"]["python"] == platform.python_version()
    assert found["versions"]["cairn"] != ABSENT
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = not before
    try:
        assert capture_provenance()["determinism"]["cudnn_deterministic"] is not before
    finally:
        torch.backends.cudnn.deterministic = before
    assert found["determinism"]["deterministic_algorithms"] is False


def test_flags_that_torch_refuses_to_read_are_absent() -> None:
    script = (
        "import torch; torch.backends.fp32_precision = 'tf32'\n"
        "from cairn.training.provenance import capture_provenance\n"
        "print(capture_provenance()['determinism'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "'cuda_matmul_tf32': 'absent'" in done.stdout and "'cudnn_fp32_precision': 'tf32'" in done.stdout


def test_equal_inputs_give_equal_provenance_without_place_or_person(repo: Path) -> None:
    given: dict[str, Any] = {"config": {"lr": 1}, "argv": ["train.py"], "root": repo}
    one, two = capture_provenance(**given), capture_provenance(**given)
    assert one == two and list(one) == list(two)
    for name in (platform.node(), str(Path.home()), str(repo)):
        assert name not in repr(one)

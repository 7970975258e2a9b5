"""`cairn audit` as a user, and as an auditor with the log's key alone, meets it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import cairn
from cairn.cli.app import run
from cairn.core.errors import IntegrityError
from cairn.registry.proofs import proves_consistency, proves_inclusion
from cairn.registry.stores import open_store
from cairn.store.crypto.objects import ObjectKind, open_object
from tests.cli.conftest import Shell
from tests.support import tiledlog
from tests.support.trees import write_files


@pytest.fixture
def told(shell: Shell) -> Shell:
    """A store with a history: two commits, a tag, a checkout."""
    shell("commit", str(shell.files), "secret-net", "--step", "1", "-m", "the first words")
    (shell.files / "sub/notes.txt").write_text("other notes")
    shell("commit", str(shell.files), "secret-net", "--step", "2")
    shell("tag", "secret-net", "release-one")
    shell("checkout", "secret-net", str(shell.folder / "out"))
    return shell


def entry(shell: Shell, n: int) -> Path:
    return shell.folder / f".cairn/log/00000000/{n:012d}"


@pytest.fixture
def forget_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], None]:
    """From here on, commands find an empty cache; what they remember stays."""
    return lambda: monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another cache"))


def both(shell: Shell, *arguments: str) -> tuple[int, str, str]:
    """Run a command; returns exit code, output and errors."""
    shell.capture.readouterr()
    code = run(list(arguments))
    out, err = shell.capture.readouterr()
    return code, out, err


def rewrite(path: Path, data: bytes) -> None:
    path.chmod(0o600)
    path.write_bytes(data)


# --- log, gather, policy -----------------------------------------------------------------------------


def test_the_trail_says_who_what_and_from_what_to_what(told: Shell) -> None:
    told("audit", "gather")
    lines = told.json("audit", "log")
    assert [line["type"] for line in lines] == ["init", "model.create", "commit", "commit", "ref.move", "reads"]
    first, second, tag, reads = lines[2:]
    assert (first["before"], first["after"]) == (None, second["before"])
    assert (first["model_name"], first["ref"], first["message"], first["step"]) == (
        "secret-net", "main", "the first words", 1,
    )  # fmt: skip
    assert (tag["ref"], tag["before"], tag["after"]) == ("release-one", None, second["after"])
    (read,) = reads["reads"]
    assert (read["checkpoint"], read["model"], read["actor"]) == (second["after"], tag["model"], tag["actor"])
    text = told("audit", "log")
    assert "secret-net@release-one" in text and "nothing -> " in text
    assert f"read  secret-net@{second['after'][:12]}" in text


def test_the_trail_can_be_narrowed(told: Shell) -> None:
    told("commit", str(told.files), "other")
    told("checkout", "other", str(told.folder / "out2"))
    told("audit", "gather")
    mine = told.json("audit", "log", "secret-net")
    assert {line["model_name"] for line in mine if line["type"] != "reads"} == {"secret-net"}
    assert [len(line["reads"]) for line in mine if line["type"] == "reads"] == [1]
    assert told.json("audit", "log", mine[0]["model"]) == mine, "by id it is the same"
    assert [line["type"] for line in told.json("audit", "log", "--type", "ref")] == ["ref.move"]
    assert told.json("audit", "log", "--since", "2999-01-01") == []
    assert len(told.json("audit", "log", "--since", "2001-01-01T00:00")) == 8
    told("audit", "log", "--since", "yesterday", code=2)
    told("audit", "log", "nobody", code=5)


def test_a_deleted_ref_still_has_its_name_in_the_trail(told: Shell) -> None:
    told("tag", "secret-net", "release-one", "--delete")
    last = told.json("audit", "log")[-1]
    assert (last["type"], last["ref"], last["after"]) == ("ref.delete", "release-one", None)
    assert last["before"] is not None


def test_settings_are_shown_and_changed(told: Shell, capfd: pytest.CaptureFixture[str]) -> None:
    assert told("audit", "policy") == "audit_reads best_effort\ndelete_approval off\n"
    changed = told.json("audit", "policy", "--reads", "required", "--delete-approval", "descendants")
    assert changed == {"audit_reads": "required", "delete_approval": "descendants"}
    assert "audit_reads=required" in told("audit", "log", "--type", "policy")
    told("audit", "policy", "--reads", "never", code=2)


def test_reads_where_nothing_can_be_written(told: Shell) -> None:
    """A file in the place of the folder of pins stands for a mount that is read-only."""
    pins = told.folder / ".cairn/pins"
    shutil.rmtree(pins)
    pins.write_text("in the way")
    told("audit", "policy", "--reads", "off")
    assert both(told, "checkout", "secret-net", str(told.folder / "a"))[::2] == (0, "")
    told("audit", "policy", "--reads", "best_effort")
    code, _, err = both(told, "checkout", "secret-net", str(told.folder / "b"))
    assert code == 0 and "nor recorded" in err
    told("audit", "policy", "--reads", "required")
    assert "reads of this store are recorded" in told("checkout", "secret-net", str(told.folder / "c"), code=7)
    assert not (told.folder / "c").exists()


# --- verify ------------------------------------------------------------------------------------------


def test_a_log_in_order_is_intact(told: Shell) -> None:
    assert told("audit", "verify").startswith("intact: 5 entries lead to 2 refs, compared with 1 head\n")
    report = told.json("audit", "verify")
    assert report["ok"] and report["findings"] == [] and report["length"] == 5
    assert told("audit", "verify", "-q") == ""


def manipulate(shell: Shell, how: str) -> None:
    if how == "altered":
        whole = entry(shell, 2).read_bytes()
        rewrite(entry(shell, 2), whole[:-1] + bytes([whole[-1] ^ 1]))
    elif how == "removed":
        entry(shell, 2).unlink()
    elif how == "reordered":
        two, three = entry(shell, 2).read_bytes(), entry(shell, 3).read_bytes()
        rewrite(entry(shell, 2), three)
        rewrite(entry(shell, 3), two)
    else:
        entry(shell, 5).write_bytes(b"not one of ours")


@pytest.mark.parametrize(
    ("how", "kind", "where"),
    [("altered", "altered", 2), ("removed", "missing", 2), ("reordered", "moved", 2), ("foreign", "altered", 5)],
)
def test_show_1_a_manipulated_log_is_named_by_verify(told: Shell, how: str, kind: str, where: int) -> None:
    manipulate(told, how)
    code, out, _ = both(told, "audit", "verify", "--json")
    assert code == 6 and (kind, where) in {(one["kind"], one["entry"]) for one in json.loads(out)["findings"]}
    code, out, err = both(told, "audit", "verify")
    assert code == 6 and out.startswith("NOT INTACT: ") and f"  {kind}: entry {where}: " in out and "next: " in err


READING = [
    ("ls",), ("log", "secret-net"), ("show", "secret-net"), ("diff", "secret-net@step:1", "secret-net"),
    ("checkout", "secret-net@step:1", "elsewhere"), ("stats",), ("audit", "log"), ("audit", "head"),
]  # fmt: skip


@pytest.mark.parametrize("how", ["altered", "removed", "reordered"])
@pytest.mark.parametrize("command", READING, ids=lambda command: "-".join(command[:2]))
def test_show_1_the_next_command_of_a_client_that_knows_the_newer_head_names_it(
    told: Shell, how: str, command: tuple[str, ...]
) -> None:
    """Its cache is warm, so it could go on without a look at any entry but the last."""
    manipulate(told, how)
    code, _, err = both(told, *command)
    assert "log entry 2" in err, (code, err)
    assert code == (6 if command == ("audit", "head") else 0), "what was folded before still counts"
    assert both(told, "commit", str(told.files), "other")[0] == 6, "nothing is written behind it"


@pytest.mark.parametrize("how", ["altered", "removed", "reordered"])
def test_show_1_so_does_that_of_one_without_a_cache(told: Shell, how: str, forget_cache: Callable[[], None]) -> None:
    manipulate(told, how)
    forget_cache()
    code, _, err = both(told, "ls")
    assert code == 0 and "warning: log entry" in err and "damaged" in err
    assert both(told, "commit", str(told.files), "other")[0] == 6, "nothing is written behind it"


@pytest.mark.parametrize("how", ["altered", "removed", "reordered"])
def test_show_1_python_code_that_opens_a_checkpoint_is_warned(told: Shell, how: str) -> None:
    manipulate(told, how)
    with pytest.warns(UserWarning, match=r"log entry [23] is damaged or missing"), cairn.open("secret-net") as opened:
        assert opened["w"][...].shape == (64, 64)


def test_show_1_an_entry_of_a_foreigner_is_named_once_by_the_next_command(told: Shell) -> None:
    manipulate(told, "foreign")
    code, _, err = both(told, "ls")
    assert code == 0 and "warning: log entry 5 is of none of the store's writers" in err
    assert both(told, "ls")[2] == ""


def test_show_1_a_store_that_was_rolled_back_or_forked_is_named(told: Shell, forget_cache: Callable[[], None]) -> None:
    path, root = told.folder / "head", told.json("audit", "head")["root"]
    path.write_text(told("audit", "head"))
    entry(told, 4).unlink()
    assert "rolled back" in told("ls", code=6)
    told("audit", "verify", "-q", code=6)
    # To a client without a memory, a head that was kept elsewhere tells.
    shutil.rmtree(told.folder.parent / "state/cairn/heads")
    forget_cache()
    told("audit", "verify", "-q")
    for given in (str(path), f"5:{root}"):
        assert "rolled back" in both(told, "audit", "verify", "--head", given)[1]
    told("tag", "secret-net", "another-way")
    told("audit", "verify", "-q")
    for given in (str(path), f"5:{root}"):
        code, out, _ = both(told, "audit", "verify", "--head", given)
        assert code == 6 and "forked: the first 5 entries are not those that" in out


def test_heads_are_checked_before_they_are_compared(told: Shell) -> None:
    path = told.folder / "head"
    path.write_text(told("audit", "head"))
    assert "compared with 2 heads" in told("audit", "verify", "--head", str(path))
    path.write_text(path.read_text()[:-6] + "AAAA=\n")
    assert "no good signature" in told("audit", "verify", "--head", str(path), code=6)
    path.write_text("words")
    told("audit", "verify", "--head", str(path), code=6)
    told("audit", "verify", "--head", str(told.folder / "nowhere"), code=7)
    told("audit", "verify", "--head", "5:abc", code=2)


def test_a_foreign_entry_that_was_looked_into_is_accepted(told: Shell) -> None:
    entry(told, 5).write_bytes(b"half an upload")
    told("tag", "secret-net", "v2")
    report = told.json("audit", "verify", "--accept", "5")
    assert report["ok"] and report["accepted"] == [5]
    told("audit", "verify", "-q", code=6)


# --- prove, head, export -----------------------------------------------------------------------------


def test_a_proof_holds_for_a_second_verifier(told: Shell) -> None:
    proof = json.loads(told("audit", "prove", "2", "--head", "4"))
    path, leaf = [bytes.fromhex(one) for one in proof["path"]], tiledlog.leaf(entry(told, 2).read_bytes())
    root = bytes.fromhex(proof["root"])
    assert proof["leaf"] == leaf.hex()
    assert tiledlog.root_by_path(leaf, 2, 4, path) == root and proves_inclusion(leaf, 2, 4, path, root)
    grown = proof["consistency"]
    both = root, bytes.fromhex(grown["root"])
    steps = [bytes.fromhex(one) for one in grown["path"]]
    assert tiledlog.roots_by_proof(4, 5, steps, root) == both and proves_consistency(4, both[0], 5, both[1], steps)
    assert both[1].hex() == told.json("audit", "head")["root"]
    assert "consistency" not in json.loads(told("audit", "prove", "0"))
    told("audit", "prove", "5", code=5)
    told("audit", "prove", "2", "--head", "2", code=5)


def test_an_export_holds_for_a_second_verifier(told: Shell) -> None:
    report = told.json("audit", "export", str(told.folder / "tiles"), "--jsonl", str(told.folder / "log.jsonl"))
    entries = tiledlog.verify_folder(told.folder / "tiles", report["key"])
    assert entries == [entry(told, n).read_bytes() for n in range(5)] and report["owner"]
    assert "secret-net" in (told.folder / "log.jsonl").read_text()
    told("audit", "export", "--jsonl", str(told.folder / "sealed.jsonl"), "--sealed")
    assert "secret-net" not in (told.folder / "sealed.jsonl").read_text()
    told("audit", "export", code=2)
    told("audit", "export", str(told.folder / "tiles"), code=3)


# --- Show 7 ------------------------------------------------------------------------------------------


def test_show_7_an_auditor_with_the_log_key_verifies_all_and_reads_no_name(
    told: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    told("audit", "gather")
    told("audit", "key", str(told.folder / "log.key"))
    assert (told.folder / "log.key").stat().st_mode & 0o777 == 0o600
    said = told.json("audit", "log")
    # The auditor has the store's folder and this key, on a machine that has nothing else.
    for name in ("DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(told.folder.parent / "auditor" / name.lower()))
    key = ("--log-key", str(told.folder / "log.key"))
    told("ls", code=7)
    assert told.json("audit", "verify", *key)["ok"]
    told("audit", "verify", "--head", f"6:{'0' * 64}", "-q", *key, code=6)
    proof = json.loads(told("audit", "prove", "2", *key))
    assert proof["length"] == 6
    report = told.json("audit", "export", "tiles", "--jsonl", "log.jsonl", *key)
    assert not report["owner"], "the auditor signs as a witness"
    assert len(tiledlog.verify_folder(told.folder / "tiles", report["key"])) == 6
    assert told.json("audit", "head", *key)["owner"] is False
    lines = [json.loads(line) for line in (told.folder / "log.jsonl").read_text().splitlines()]
    names = {"model_name": None, "ref": None, "message": None, "step": None}
    assert lines == [line | names for line in said], "all else is told"
    everything = told("audit", "log", *key) + "".join(
        path.read_text(errors="replace")
        for path in told.folder.rglob("*")
        if path.is_file() and "out" not in path.parts
    )
    for secret in ("secret-net", "release-one", "the first words", "notes.txt", "model.safetensors"):
        assert secret not in everything
    told("audit", "log", "secret-net", *key, code=2)
    assert [line["type"] for line in told.json("audit", "log", said[1]["model"], *key)][-1] == "reads"


def test_the_log_key_opens_nothing_else(told: Shell) -> None:
    registry = open_store(told.folder)
    opened, (model,) = registry.opened, registry.state.models.values()
    held = next(iter(model.checkpoints.values()))
    for ref, ending, kind in (
        (held.body, "body", ObjectKind.BODY),
        (held.reachability, "reach", ObjectKind.REACHABILITY),
    ):
        name = ref.object_name(ending)
        with pytest.raises(IntegrityError):
            open_object(opened.secrets.k_log, opened.store, kind, opened.backend.read(name), name)
    registry.close()


def test_a_key_of_another_store_is_told(told: Shell, tmp_path: Path) -> None:
    path = told.folder / "log.key"
    told("audit", "key", str(path))
    told("audit", "key", str(path), code=4)
    fields = json.loads(path.read_text())
    for text, code in (
        (json.dumps(fields | {"store": "0" * 32}), 7),
        (json.dumps(fields | {"log key": "00"}), 6),
        (json.dumps(fields | {"cairn log key": 2}), 6),
        ("[]", 6),
        ("", 6),
    ):
        write_files(tmp_path, {"bad.key": text.encode()})
        told("audit", "verify", "--log-key", str(tmp_path / "bad.key"), code=code)
    told("audit", "verify", "--log-key", str(tmp_path / "nowhere"), code=7)

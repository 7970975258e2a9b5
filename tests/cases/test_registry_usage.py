"""What a store is said to use, and what is said when there is no room (group H)."""

import random

from cairn.registry.entries_deletion import Drop, Tombstone
from cairn.registry.selectors import resolve
from tests.cases.shell import Shell

MIB = 1 << 20
NO_ROOM = """
import errno, os
from cairn.core.errors import StorageFull
from cairn.store.backends.posix import PosixBackend
whole = PosixBackend.create
def create(self, name, parts):
    if name.endswith(".pack"):
        try:
            raise OSError(errno.{code}, os.strerror(errno.{code}))
        except OSError as error:
            raise StorageFull(f"cannot create {{name}}: {{error.strerror}}", hint="a hint") from error
    return whole(self, name, parts)
PosixBackend.create = create
"""


def versions(shell: Shell, count: int) -> None:
    for number in range(count):
        shell.commit({"a.bin": random.Random(number).randbytes(MIB)}, "m", "--step", str(number))


def delete_older(shell: Shell, *, drop: bool) -> None:
    """Delete all but the tip."""
    registry = shell.registry()
    model, tip = resolve(registry, "m")
    older = tuple(one for one in registry.state.models[model].checkpoints if one != tip)
    registry.append(lambda state: Tombstone(model, older, 0, "test"))
    if drop:
        registry.append(lambda state: Drop(model, older))


def test_H26_what_is_used_follows_what_is_deleted_and_tells_apart_what_still_waits(shell: Shell) -> None:
    versions(shell, 8)
    whole = shell("stats", "--json").json
    assert whole["bytes_reachable"] > 8 * MIB
    assert whole["bytes_reclaimable"] == whole["bytes_pending"] == whole["bytes_restorable"] == 0
    delete_older(shell, drop=False)
    used = shell("stats", "--json").json
    assert MIB < used["bytes_reachable"] < 1.1 * MIB and used["bytes_restorable"] > 7 * MIB
    assert used["bytes_reclaimable"] == 0, "it can be restored"
    registry = shell.registry()
    model = resolve(registry, "m")[0]
    registry.append(lambda state: Drop(model, tuple(state.models[model].gone)))
    used = shell("stats", "--json").json
    assert used["bytes_restorable"] == 0 and used["bytes_reclaimable"] > 7 * MIB and used["bytes_pending"] == 0
    shell("gc", "apply", "--yes", "--condemn-only")
    used = shell("stats", "--json").json
    assert used["bytes_pending"] > 7 * MIB and used["bytes_reclaimable"] < MIB // 10
    assert "pending" in shell("stats").out
    shell("gc", "apply", "--yes")
    used = shell("stats", "--json").json
    assert used["bytes_pending"] == 0 and used["bytes_reclaimable"] < MIB // 10
    stored = sum(path.stat().st_size for path in shell.store.rglob("*") if path.is_file())
    assert stored < 1.2 * MIB
    told = used["bytes_packs"] + used["bytes_other"] + used["leftover_bytes"] + used["bytes_pending"]
    assert abs(told - stored) < 1000


def test_H27_a_full_disk_is_told_with_what_is_used_and_what_waits_to_be_deleted(shell: Shell) -> None:
    versions(shell, 3)
    delete_older(shell, drop=True)
    shell("gc", "apply", "--yes", "--condemn-only")
    used = shell("stats", "--json").json
    remote = shell.folder / "remote"
    shell("remote", "add", "origin", remote, "--create")
    tree = shell.tree({"b.bin": random.Random(99).randbytes(MIB)})
    done = shell.spawn("commit", tree, "m", code=1, prelude=NO_ROOM.format(code="ENOSPC"))
    assert "No space left" in done.err
    assert f"this store's packs take {used['bytes_packs']} bytes" in done.err
    pending = int(done.err.split("wait to be deleted ")[1].split(" bytes")[0])
    assert 2 * MIB < pending <= used["bytes_pending"]
    assert "a hint; 'cairn stats' tells what could go, 'cairn gc apply --yes' frees it" in done.err
    done = shell.spawn("push", "m", code=1, prelude=NO_ROOM.format(code="EDQUOT"))
    assert "this store's packs take 0 bytes" in done.err, "it is the remote that is full"
    # What is no want of space is not told as one.
    done = shell.spawn("commit", tree, "m", code=1, prelude=NO_ROOM.format(code="EFBIG"))
    assert "this store's packs" not in done.err and "next:  a hint\n" in done.err
    # Room comes back by collection, and nothing was lost.
    shell("gc", "apply", "--yes")
    shell("commit", tree, "m")
    shell("verify", "--full")

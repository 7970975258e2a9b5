"""Attacks by people who know the code and run their own: members without a right, former owners, storage that replays.

Each test does by hand what no command does, with what that adversary really has.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from cairn.core.canonical import decode
from cairn.core.errors import CairnError, IntegrityError, NotAllowed
from cairn.core.ids import CheckpointId, ModelId, TenantId
from cairn.core.limits import READ_RECORD_BYTES_MAX
from cairn.core.process import ProcessMark
from cairn.gc.observe import list_pins
from cairn.gc.recorded import record_reads
from cairn.gc.silence import Silence
from cairn.registry.audit import verify_log
from cairn.registry.auditlines import Trail
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.entries import Abort, Commit, RefChange
from cairn.registry.entries_audit import Reads
from cairn.registry.logview import LogView
from cairn.registry.members import remove_member, set_role
from cairn.registry.memberwraps import wrap_name
from cairn.registry.modelkeys import new_model_keys
from cairn.registry.models import find_model
from cairn.registry.names import MAIN, entry_name, ref_tag
from cairn.registry.newmodels import add_model
from cairn.registry.opened import OpenStore, create_store
from cairn.registry.pins import PinRecord, pinned
from cairn.registry.reads import ReadRecord, gather, sign_read
from cairn.registry.registry import Registry
from cairn.registry.rights import Role
from cairn.registry.rotation import rotate_exposed, rotate_root
from cairn.registry.secrets import MemberSecrets, StoreSecrets
from cairn.registry.signedrecord import sign_record
from cairn.registry.sync import SendOptions, send
from cairn.store.backends.memory import MemoryBackend
from cairn.store.crypto.components import ComponentClass, ComponentKey
from cairn.store.crypto.objects import ObjectKind, open_object, seal_object
from cairn.store.crypto.provider import WrapContext, WrapPurpose
from cairn.store.crypto.signing import Identity
from tests.support.doubles import SeededEntropy
from tests.support.longlogs import next_entry, put
from tests.support.members import READABLE, actor_of, give, identity_of, join, newcomer
from tests.support.stores import Site, checkout_to, commit_tree, home_in, tip
from tests.support.tensors import safetensors, weights
from tests.support.trees import write_files
from tests.support.twins import twin_of

WEIGHTS, FILES = ComponentClass.WEIGHTS, ComponentClass.FILES


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_files(tmp_path / "tree", {"m.safetensors": safetensors({"w": weights(1, 64, 64)}), "a": b"text" * 99})


@pytest.fixture
def committed(site: Site, folder: Path) -> Site:
    """A store with a checkpoint of `a` and one of `b`, of other content."""
    registry = site.registry()
    commit_tree(registry, folder, "a")
    write_files(folder, {"m.safetensors": safetensors({"w": weights(2, 64, 64)})})
    commit_tree(registry, folder, "b")
    return site


def roots_opened(site: Site, tenant: TenantId, models: Iterable[bytes], private: Iterable[bytes]) -> int:
    """How many component roots of a store open with any of these secrets, taken for a key of any model and class."""
    found = 0
    for name in site.names(".root"):
        sealed = site.backend.read(name)
        for model in models:
            for secret in private:
                for component in READABLE:
                    for generation in range(3):
                        key = ComponentKey(tenant, ModelId(model), component, generation, b"", secret)
                        try:
                            key.open_root(sealed, "it")
                        except CairnError:
                            continue
                        found += 1
    return found


# --- A read that somebody else is to have done -----------------------------------------------------


class Framed:
    """Alice reads in one store of the tenant; Mallory, a member of both, says in the other that she read there."""

    def __init__(self, here: Site) -> None:
        self.here, self.there = here, twin_of(here)
        send(here.registry(), self.there.registry(), "a", SendOptions())
        gather(here.registry())  # what was read for the push
        self.found = tip(self.there.registry(), "a")
        with pinned(self.there.registry(), *self.found):
            (name,) = (one for one in self.there.names(".pin"))
            self.pin = self._opened(name)
        (self.name,) = (one for one in self.there.names(".ended"))
        self.read = self._opened(self.name)
        self.id = bytes.fromhex(self.name[len("pins/") :].removesuffix(".ended"))

    def _opened(self, name: str) -> bytes:
        there = self.there.open()
        return open_object(there.secrets.k_log, there.store, ObjectKind.PIN, self.there.backend.read(name), "it")

    def plant(self, name: str, signed: bytes) -> None:
        """Put what somebody signed into the store, sealed as it must be."""
        here = self.here.open()
        put(self.here, name, seal_object(here.secrets.k_log, here.store, ObjectKind.PIN, signed, here.entropy))

    def told(self) -> list[ReadRecord]:
        """What the log tells of that read, or of any by a pin of Mallory's."""
        reads = (read for line in Trail(LogView.of(self.here.open())).lines for read in line.reads)
        return [read for read in reads if read.read in (self.id, bytes(16), b"p" * 16)]


@pytest.fixture
def framed(committed: Site) -> Framed:
    return Framed(committed)


def watch(site: Site, seconds: float) -> Silence:
    """Who was silent for so long counts as dead."""
    return Silence(site.home.state / "watched", site.clock, seconds, 30.0)


def test_a_record_of_another_store_is_no_read_of_this_one(framed: Framed) -> None:
    framed.plant(framed.name, framed.read)
    assert gather(framed.here.registry()).unreadable == (framed.name,)
    assert framed.told() == []


def test_an_entry_with_a_record_of_another_store_tells_of_no_read(framed: Framed) -> None:
    """A collector may write such entries; whoever shows them compares the store."""
    framed.here.registry().append(lambda state: Reads((framed.read,)))
    assert framed.told() == []


def test_a_pin_of_another_store_says_nothing_about_who_reads(framed: Framed) -> None:
    pin = decode(decode(framed.pin, tuple[bytes, bytes], "it")[0], PinRecord, "it")
    framed.plant(f"pins/{pin.pin.hex()}.pin", framed.pin)
    (seen,) = list_pins(framed.here.open(), watch(framed.here, 900.0))
    assert seen.record is None


@pytest.mark.parametrize("what", ["of another store", "of another read", "no record", "endless"])
def test_nobody_is_given_a_read_by_the_pin_of_another(framed: Framed, what: str) -> None:
    """Mallory's own pin, whose process is dead, holds a record; whoever collects takes it from there."""
    registry = framed.here.registry()
    opened, mallory = registry.opened, Identity(bytes(range(32)))
    other = ReadRecord(bytes(16), opened.store, *tip(registry, "a"), opened.identity.actor, 1)
    read = {
        "of another store": framed.read,
        "of another read": sign_read(other, opened.identity),
        "no record": b"junk",
        "endless": mallory.sign(b"") * READ_RECORD_BYTES_MAX,
    }[what]
    held = registry.state.models[tip(registry, "a")[0]].checkpoints[tip(registry, "a")[1]]
    pin = PinRecord(
        b"p" * 16, *tip(registry, "a"), held.reachability, b"", mallory.actor, 1,
        ProcessMark(*("" if kind is str else 0 for kind in ProcessMark.__annotations__.values())), read,
    )  # fmt: skip
    framed.plant(f"pins/{pin.pin.hex()}.pin", sign_record(pin, mallory, b"cairn/1/pin\0"))
    length, dead = registry.state.length, watch(framed.here, 0.0)
    assert [one.dead for one in list_pins(opened, dead)] == [True]
    assert record_reads(registry, dead).reads == 0
    assert framed.told() == [] and registry.refresh().length == length, "and nobody's collection fails"


def test_a_record_that_was_blown_up_stops_no_gathering(committed: Site) -> None:
    registry = committed.registry()
    opened = registry.opened

    class Long(ReadRecord, frozen=True):
        more: bytes = b""

    with pinned(registry, *tip(registry, "a")):
        pass
    record = Long(b"r" * 16, opened.store, *tip(registry, "a"), opened.identity.actor, 1, bytes(5 << 20))
    sealed = seal_object(
        opened.secrets.k_log, opened.store, ObjectKind.PIN, sign_read(record, opened.identity), opened.entropy
    )
    put(committed, f"pins/{record.read.hex()}.ended", sealed)
    done = gather(registry)
    assert (done.reads, len(done.unreadable)) == (1, 1)


# --- Entries and wraps from elsewhere, or from before ---------------------------------------------


@pytest.mark.parametrize("sealed_anew", [False, True], ids=["as it is", "sealed anew"])
def test_an_entry_of_another_store_of_the_tenant_counts_for_nothing(framed: Framed, sealed_anew: bool) -> None:
    """An owner's own entry, at its own position; whoever is a member of both stores can seal it for this one."""
    here, there = framed.here.registry(), framed.there.registry()
    while there.state.length <= here.state.length:
        there.append(lambda state: Abort())
    n = here.state.length
    stored = framed.there.backend.read(entry_name(n))
    if sealed_anew:
        plain = open_object(there.opened.secrets.k_log, there.opened.store, ObjectKind.LOG_ENTRY, stored, "it")
        stored = seal_object(
            here.opened.secrets.k_log, here.opened.store, ObjectKind.LOG_ENTRY, plain, here.opened.entropy
        )
    refs = {model: dict(held.refs) for model, held in here.state.models.items()}
    framed.here.backend.create(entry_name(n), [stored])
    now = here.refresh()
    assert {model: held.refs for model, held in now.models.items()} == refs
    assert [void.n for void in now.voids] == [n]
    assert here.append(lambda state: Abort()) == n + 1
    assert [(one.kind, one.entry) for one in verify_log(LogView.of(here.opened)).findings] == [("foreign", n)]


def test_an_older_wrap_of_a_member_does_not_come_back(committed: Site) -> None:
    """The operator puts a copy back, under its own name or as the newest, and hides the one in force."""
    member = join(committed, "member", Role.WRITER)
    public = identity_of(member).public
    old = committed.backend.read(wrap_name(public, 1))
    set_role(committed.registry(), public, Role.AUDITOR)
    newest = committed.backend.read(wrap_name(public, 2))
    assert not committed.registry().state.members[public.actor].grants
    committed.backend.delete(wrap_name(public, 2))
    for generation in (1, 2, 9):
        put(committed, wrap_name(public, generation), old)
        with pytest.raises(NotAllowed, match="is not what the log gives"):
            member.registry()
        committed.backend.delete(wrap_name(public, generation))
    put(committed, wrap_name(public, 2), newest)
    member.registry()


# --- A store of one's own --------------------------------------------------------------------------


def own_store(member: Site, seed: int = 7) -> tuple[Site, OpenStore]:
    """A store of the tenant that a member makes, as owner of it, with all that a member has of the tenant."""
    opened = member.open()
    assert isinstance(opened.secrets, MemberSecrets) and opened.content is not None
    pretended = StoreSecrets(bytes(32), opened.secrets.k_index, opened.secrets.k_log, opened.secrets.k_ckpt, bytes(32))
    own = Site(MemoryBackend(), home_in(member.home.data.with_name("own")), entropy=SeededEntropy(seed))
    made, _ = create_store(
        own.backend, own.home, own.source, own.clock, own.entropy, twin=replace(opened, secrets=pretended)
    )
    assert made.tenant == opened.tenant
    return own, replace(made, content=opened.content)


def test_who_is_no_owner_makes_no_store_of_the_tenant(committed: Site) -> None:
    member = join(committed, "member", Role.WRITER)
    with pytest.raises(NotAllowed, match="secret of the tenant"):
        twin_of(member)


def test_a_store_of_ones_own_opens_nothing_that_was_not_granted(committed: Site) -> None:
    """A member forges a store of the tenant, of which it is the owner, and brings the ciphertext of `b` there."""
    member = join(committed, "member", Role.WRITER)
    give(committed, member, "a", *READABLE)
    source = member.registry()
    own, opened = own_store(member)
    target = Registry(opened)
    model = find_model(committed.registry(), "b")
    with pytest.raises(CairnError):
        send(source, target, "b", SendOptions())
    # By hand: a model of the same id, with keys of its own, and every object of the store copied.
    mine = replace(new_model_keys(opened), model=model)
    pairs = {one: tuple(replace(pair, model=model) for pair in held) for one, held in mine.pairs.items()}
    mine = replace(mine, pairs=pairs)
    add_model(target, "b", mine, lambda state: False)
    for name in committed.names():
        if name.startswith("objects/"):
            own.backend.create(name, [committed.backend.read(name)])
    secrets = [pair.private for pair in (*mine.all(), *source.model_keys(tip(source, "a")[0]).all()) if pair.private]
    models = [model, tip(source, "a")[0]]
    own_roots = roots_opened(own, opened.tenant, models, secrets)
    assert own_roots == roots_opened(committed, opened.tenant, models, secrets) > 0, "those of `a`, which were granted"
    manifest = CheckpointManifest(committed.registry(), *tip(committed.registry(), "a"))
    assert own_roots == len(manifest.components)


# --- Commits that nobody may make, or that say what is not so ---------------------------------------


def forged_commit(
    registry: Registry, into: ModelId, of: ModelId, checkpoint: CheckpointId, named: CheckpointId | None = None
) -> Commit:
    """A commit of another model's checkpoint, word for word but for its name."""
    held = registry.state.models[of].checkpoints[checkpoint]
    tag = ref_tag(registry.opened.secrets.k_log, into, MAIN)
    ref = registry.state.models[into].refs[tag]
    return Commit(
        model=into, checkpoint=named or checkpoint, sessions=(bytes(16),), epoch=registry.state.epoch,
        hit_position=registry.state.length - 1, relied=(), packs=b"", pieces=(), body=held.body, roots=held.roots,
        reachability=held.reachability, ref=RefChange(tag, ref.sealed_name, CheckpointId(ref.checkpoint)),
        meta=held.meta,
    )  # fmt: skip


def write_by_hand(member: Site, registry: Registry, payload: Commit) -> int:
    """Append an entry without any of the checks of `Registry.append`."""
    n = registry.refresh().length
    stored = next_entry(registry.opened, n, registry.state.frontier, payload)
    member.backend.create(entry_name(n), [stored])
    return n


def test_a_commit_to_a_model_that_was_not_granted_is_void_for_everybody(committed: Site) -> None:
    member = join(committed, "member", Role.WRITER)
    give(committed, member, "a", *READABLE, write=True)
    registry, owner = member.registry(), committed.registry()
    before = tip(owner, "b")
    model, checkpoint = tip(registry, "a")
    n = write_by_hand(member, registry, forged_commit(registry, before[0], model, checkpoint))
    assert [(void.n, void.reason) for void in owner.refresh().voids] == [
        (n, f"its actor was not granted to write to model {before[0].hex()}")
    ]
    assert tip(owner, "b") == before


def test_the_checkpoint_of_a_model_does_not_open_as_that_of_another(committed: Site, tmp_path: Path) -> None:
    """A writer of `a`, who may read none of `b`, commits a checkpoint of `b` to `a`, where it may read everything."""
    member = join(committed, "member", Role.WRITER)
    give(committed, member, "a", *READABLE, write=True)
    registry, owner = member.registry(), committed.registry()
    model, foreign = tip(registry, "a")[0], tip(owner, "b")
    before, false = tip(registry, "a"), CheckpointId(bytes(range(32)))
    n = write_by_hand(member, registry, forged_commit(registry, model, *foreign))
    assert [void.n for void in registry.refresh().voids] == [n] and tip(registry, "a") == before
    write_by_hand(member, registry, forged_commit(registry, model, *foreign, named=false))
    for one in (registry, owner):
        one.refresh()
        assert tip(one, "a") == (model, false), "the fold sees no body"
        with pytest.raises(IntegrityError, match="another checkpoint's"):
            checkout_to(one, "a", tmp_path / "out")
    private = [pair.private for pair in registry.model_keys(model).all() if pair.private]
    named = registry.state.models[foreign[0]].checkpoints[foreign[1]].roots
    for root in named:
        sealed = committed.backend.read(root.object.object_name("root"))
        for secret, owner_of in ((secret, one) for secret in private for one in (model, foreign[0])):
            key = ComponentKey(registry.opened.tenant, owner_of, ComponentClass(root.component), 0, b"", secret)
            with pytest.raises(IntegrityError):
                key.open_root(sealed, "it")


# --- Who was an owner ------------------------------------------------------------------------------


def test_a_former_owner_reads_nothing_that_is_written_afterwards(committed: Site, folder: Path) -> None:
    """Show 5, for whoever held the root key, the tenant's secret and every private half there was."""
    former = join(committed, "former", Role.OWNER)
    kept = former.registry()
    old_root = kept.opened.provider
    models = list(kept.state.models)
    had = [pair.private for one in models for pair in kept.model_keys(ModelId(one)).all() if pair.private]
    owner = committed.registry()
    before = dict.fromkeys(committed.names(".root"))
    remove_member(owner, actor_of(former))
    assert owner.state.root_exposed and len(rotate_exposed(owner)) == len(models)
    rotate_root(owner)
    write_files(folder, {"a": b"written afterwards" * 99})
    commit_tree(owner, folder, "a", message="secret")
    later = newcomer(committed, "scratch")
    later.backend = MemoryBackend()
    for name in committed.names(".root"):
        if name not in before:
            later.backend.create(name, [committed.backend.read(name)])
    assert later.names(".root") and roots_opened(later, kept.opened.tenant, models, had) == 0
    assert roots_opened(committed, kept.opened.tenant, models, had) == len(before), "what it could read it still can"
    with pytest.raises(NotAllowed):
        former.registry()
    assert isinstance(kept.opened.secrets, StoreSecrets)
    n, frontier = owner.refresh().length, owner.state.frontier
    committed.backend.create(entry_name(n), [next_entry(kept.opened, n, frontier, Abort())])
    assert [void.n for void in owner.refresh().voids] == [n], "nor do its entries count"
    wraps = [name for name in committed.names() if name.startswith("keys/")]
    for name, purpose, model in product(wraps, WrapPurpose, (b"", *models)):
        with pytest.raises(CairnError):
            old_root.unwrap(committed.backend.read(name), WrapContext(kept.opened.store, purpose, model), "it")

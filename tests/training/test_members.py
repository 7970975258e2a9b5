"""Rights over a training state: weights without the optimizer, writing without reading, new keys while saves run."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import cairn
from cairn.core.canonical import decode
from cairn.core.errors import CairnError, NotAllowed
from cairn.core.ids import ContentId, Digest, ModelId
from cairn.manifests.schema import ComponentRoot
from cairn.registry.checkpoint import CheckpointManifest
from cairn.registry.members import grant
from cairn.registry.memberwraps import wrap_name
from cairn.registry.models import find_model
from cairn.registry.registry import Registry
from cairn.registry.rights import Role
from cairn.registry.rotation import rotate_model, rotate_root
from cairn.store.crypto.components import ComponentClass, ComponentKey
from cairn.store.crypto.provider import RootKey, WrapContext, WrapPurpose
from cairn.store.crypto.sealed_wrap import unwrap_as
from cairn.store.crypto.tenant import ContentType
from cairn.store.pack import read_footer
from tests.support.members import actor_of, give, identity_of, join
from tests.support.rivals import interleaved
from tests.support.stores import Site, tip

WEIGHTS, OPTIMIZER = ComponentClass.WEIGHTS, ComponentClass.OPTIMIZER


def state_of(seed: int) -> dict[str, Any]:
    """A model that was trained for one step, and its optimizer."""
    torch.manual_seed(seed)
    model = nn.Linear(200, 100)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model(torch.randn(3, 200)).square().sum().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer, "step": seed}


@pytest.fixture
def trained(site: Site) -> Site:
    """A store with checkpoints of two models, `a` and `b`."""
    registry = site.registry()
    for number, name in ((1, "a"), (100, "b")):
        with cairn.Checkpointer(registry, name) as checkpointer:
            checkpointer.save(1, state_of(number), blocking=True)
    return site


def reached(registry: Registry, model: str, *components: ComponentClass) -> set[ContentId]:
    """Ids of all chunks and pages of some components of a model's tip."""
    manifest = CheckpointManifest(registry, *tip(registry, model))
    keys, found = registry.opened.keys, set[ContentId]()
    for component in components:
        pages = manifest.page_digests(component)
        found.update(keys.page.content_ids(pages))
        entries = [*manifest.tensors(component), *manifest.values(component)]
        found.update(keys.chunk.content_ids(d for entry in entries for d in manifest.chunk_digests(entry)))
    return found


class Thief:
    """A member with a client that obeys nothing: everything in the store, against every key that it was given."""

    def __init__(self, site: Site, member: Site) -> None:
        self.registry, self.backend = member.registry(), site.backend
        self.opened, self.identity = self.registry.opened, identity_of(member)
        secrets = self.opened.secrets
        names = ("k_log", "index_key", "checkpoint_key")
        self.keys = [getattr(secrets, name) for name in names] + list(self.opened.keys.parts()) + [self.identity.seed()]
        self.pairs = self._pairs()
        self.roots: dict[str, ComponentRoot] = {}
        self.content: dict[ContentId, bytes] = {}

    def _pairs(self) -> list[ComponentKey]:
        """All private halves that any wrap gives up, and every other secret taken for one."""
        state, found = self.registry.state, []
        for model in state.models:
            keys = self.registry.model_keys(ModelId(model))
            found += [pair for pair in keys.all() if pair.private is not None]
        return found

    def opens_no_other_wrap(self) -> bool:
        """Whether no wrap but the member's own opens, for any model and purpose, with any key."""
        own = {wrap_name(self.identity.public, 1)}
        own |= {model.readers[self.identity.actor] for model in self.registry.state.models.values() if model.readers}
        contexts = [
            WrapContext(self.opened.store, purpose, model)
            for purpose, model in product(WrapPurpose, [b"", *self.registry.state.models])
        ]
        for listed in self.backend.list("keys"):
            wrapped = self.backend.read(listed.name)
            for context in contexts:
                attempts = [lambda w=wrapped, c=context: unwrap_as(self.identity, w, c, "it")]
                attempts += [lambda k=key, w=wrapped, c=context: RootKey(0, k).unwrap(w, c, "it") for key in self.keys]
                for attempt in attempts:
                    try:
                        attempt()
                    except CairnError:
                        continue
                    if listed.name not in own:
                        return False
        return True

    def run(self) -> None:
        """Open every root that opens, and all that follows from it."""
        secrets = [*self.keys, *(pair.private or b"" for pair in self.pairs)]
        classes = [one for one in ComponentClass if one is not ComponentClass.META]
        for listed in self.backend.list("objects"):
            if not listed.name.endswith(".root"):
                continue
            sealed = self.backend.read(listed.name)
            for model, component, private in product(self.registry.state.models, classes, secrets):
                key = ComponentKey(self.opened.tenant, ModelId(model), component, 0, b"", private)
                try:
                    plain = key.open_root(sealed, "it")
                except CairnError:
                    continue
                self.roots[listed.name] = decode(plain, ComponentRoot, "it")
        chunks = self.registry.chunks()
        digests = {d for root in self.roots.values() for d in _cut(root.pages)}
        while digests:
            fresh = set[bytes]()
            for digest in digests:
                for kind in ContentType:
                    identifier = self.opened.keys.of(kind).content_id(Digest(digest))
                    try:
                        plain = chunks.read(kind, Digest(digest))
                    except (CairnError, ValueError):
                        continue
                    if identifier not in self.content:
                        self.content[identifier] = plain
                        # Whatever 32 bytes stand in what was opened may be a digest of more.
                        fresh.update(
                            plain[at : at + 32] for at in range(max(len(plain) - 31, 0)) if kind is ContentType.PAGE
                        )
            digests = fresh

    def ids(self) -> set[ContentId]:
        """All ids that the packs list: what there is to try."""
        state, opened = self.registry.state, self.opened
        names = [state.pack(number).name for number in range(state.pack_count)]
        footers = (read_footer(opened.backend, name, opened.secrets.k_index, opened.store) for name in names)
        return {chunk.id for chunks in footers for chunk in chunks}


def _cut(joined: bytes) -> list[bytes]:
    return [joined[at : at + 32] for at in range(0, len(joined), 32)]


def test_a_member_with_the_weights_of_one_model_opens_nothing_else(trained: Site) -> None:
    """Show 2: with any code, run against the raw store."""
    member = join(trained, "reader", Role.READER)
    give(trained, member, "a", WEIGHTS)
    owner = trained.registry()
    granted = reached(owner, "a", WEIGHTS)
    others = [one for one in ComponentClass if one not in (ComponentClass.META, ComponentClass.FILES)]
    rest = reached(owner, "a", *(one for one in others if one is not WEIGHTS)) | reached(owner, "b", *others)
    assert len(granted) > 2 and len(rest - granted) > 5

    thief = Thief(trained, member)
    assert thief.opens_no_other_wrap()
    thief.run()
    assert thief.ids() >= granted | rest, "it sees that all of it is there"
    assert thief.content.keys() == granted
    (root,) = thief.roots
    named = {
        r.object.object_name("root")
        for r in owner.state.models[tip(owner, "a")[0]].checkpoints[tip(owner, "a")[1]].roots
        if r.component == WEIGHTS
    }
    assert named == {root}

    model, checkpoint = tip(thief.registry, "a")
    manifest = CheckpointManifest(thief.registry, model, checkpoint)
    assert manifest.root(WEIGHTS).entries > 0
    with pytest.raises(NotAllowed, match="--read optimizer"):
        manifest.root(OPTIMIZER)
    with pytest.raises(NotAllowed, match="--read weights"):
        CheckpointManifest(thief.registry, *tip(thief.registry, "b")).root(WEIGHTS)
    # The proof that the attack can succeed: with a wider grant the same code opens more.
    give(trained, member, "a", WEIGHTS, OPTIMIZER)
    wider = Thief(trained, member)
    wider.run()
    assert wider.content.keys() == granted | reached(owner, "a", OPTIMIZER)


def test_a_trainer_that_may_write_only_saves_and_reads_nothing(trained: Site) -> None:
    trainer = join(trained, "trainer", Role.WRITER)
    give(trained, trainer, "a", write=True)
    registry = trainer.registry()
    with cairn.Checkpointer(registry, "a") as checkpointer:
        for step in (2, 3):
            checkpointer.save(step, state_of(step), blocking=True)
        with pytest.raises(NotAllowed, match="cairn grant"):
            checkpointer.load(state_of(9))
    with cairn.Checkpointer(registry, "b") as checkpointer, pytest.raises(NotAllowed, match="not granted"):
        checkpointer.save(2, state_of(2), blocking=True)
    with cairn.Checkpointer(trained.registry(), "a") as checkpointer:
        state = state_of(9)
        checkpointer.load(state)
        assert state["step"] == 3


def test_a_member_with_weights_loads_the_weights(trained: Site, tmp_path: Path) -> None:
    member = join(trained, "reader", Role.READER)
    give(trained, member, "a", WEIGHTS)
    registry, model, expected = member.registry(), nn.Linear(200, 100), state_of(1)["model"]
    with cairn.Checkpointer(registry, "a") as checkpointer:
        report = checkpointer.load({"model": model}, resume=False)
        assert report is not None and "not granted to you: optimizer" in report.notes
        assert torch.equal(model.weight, expected.weight)
        with pytest.raises(NotAllowed, match="--read optimizer"):
            checkpointer.load(state_of(9), resume=False)
    with pytest.raises(NotAllowed, match="--read optimizer"):
        cairn.CairnReader(registry, "a").read_metadata()
    with cairn.open("a", store=registry) as opened:
        assert {tuple(opened[name].shape) for name in opened} == {(100, 200), (100,)}, "the weights and no more"
    cairn.export(registry, *tip(registry, "a"), tmp_path / "out", cairn.ExportOptions("safetensors"))
    assert (tmp_path / "out").exists()
    with pytest.raises(NotAllowed, match="--read optimizer"):
        cairn.export(registry, *tip(registry, "a"), tmp_path / "all", cairn.ExportOptions("dcp"))
    assert not (tmp_path / "all").exists()


@pytest.mark.parametrize("name", ["*.pack", "*.root", "*.envelope", "log/*"])
@pytest.mark.parametrize("by_member", [False, True])
def test_new_keys_while_a_run_saves_lose_nothing(trained: Site, name: str, by_member: bool) -> None:
    """Show 6: root and model keys are rotated at some point of a save, and the run goes on."""
    rival, saver = trained.registry(), trained
    model = find_model(rival, "a")
    if by_member:
        saver = join(trained, "trainer", Role.WRITER)
        grant(rival, actor_of(saver), model, (), True)

    def rotate() -> None:
        rotate_root(rival)
        rotate_model(rival, model)

    # The run's own entry comes first: the save that it belongs to is then under way.
    through = interleaved(trained.backend, rotate, op="create", name=name)
    with cairn.Checkpointer(saver.registry(through), "a", start_over=True) as checkpointer:
        for step in (2, 3):
            checkpointer.save(step, state_of(step), blocking=True)
    fresh = trained.registry(cold=True)
    assert fresh.state.voids == [] and fresh.state.root_generation == 1
    held = fresh.state.models[model]
    newest = {component: key.generation for component, key in held.newest_keys().items()}
    assert set(newest.values()) == {1}
    with cairn.Checkpointer(fresh, "a") as checkpointer:
        for step in (1, 2, 3):
            state = state_of(9)
            checkpointer.load(state, ref=f"step:{step}", resume=False)
            assert state["step"] == step
            assert torch.equal(state["model"].weight, state_of(step)["model"].weight)
    roots = held.checkpoints[tip(fresh, "a@step:2")[1]].roots
    assert roots and all(root.generation == 1 for root in roots)

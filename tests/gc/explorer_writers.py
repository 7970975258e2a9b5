"""The explorer's writers: of checkpoints, and of merged index pieces. Values, as all actors; see `explorer.py`."""

from typing import Any, NamedTuple

from cairn.registry.entries import Commit, MergeIndex, RefChange
from cairn.registry.numbers import ranges, within
from cairn.registry.state import State, named_keys, object_key, pack_key, pack_records
from tests.gc.explorer import (
    KEPT,
    OVER,
    Logs,
    Moves,
    Rules,
    World,
    add,
    checkpoint_parts,
    ended,
    in_force,
    keys_of,
    opened,
    owner,
    pack,
    ref,
)
from tests.support.logs import MODEL


class Writer(NamedTuple):
    """One save: look for the chunk, open a session, upload unless it is there, settle, upload the rest, commit.

    Args:
        attempt, opening: tell its sessions apart.
        epoch, position: what it would claim.
        relied: a pack that it relies on; -1 if none.
        own: whether it knows of its own pack.
        advanced: whether own packs may have been stored under an older epoch than the session's.
        resumed: whether it was killed before.
    """

    name: str
    number: int
    pc: str = "begin"
    attempt: int = 0
    opening: int = 0
    epoch: int = 0
    position: int = 0
    relied: int = -1
    own: bool = False
    advanced: bool = False
    resumed: bool = False

    @property
    def session(self) -> bytes:
        return owner(f"w{self.number}.{self.attempt}.{self.opening}".encode())

    def pack_of(self, rules: Rules) -> Any:
        return pack(self.session if rules.names_are_new else b"w")

    def steps(self, world: World, logs: Logs, rules: Rules) -> Moves:
        state = logs.states[world.log]
        if self.pc == "begin":
            there = [n for n in in_force(state) if rules.finds and pack_key(state.pack(n)) in world.objects]
            yield (
                "looks",
                world,
                self._replace(
                    pc="open", epoch=state.epoch, position=state.length - 1, relied=there[0] if there else -1
                ),
            )
        elif self.pc == "open":
            after = opened(world, self.session, self.epoch)
            yield "opens a session", after, self._replace(pc="reread" if rules.rereads_head else "upload")
        elif self.pc == "reread":
            yield from self._reread(world, state, rules)
        elif self.pc == "upload" and self.relied < 0:
            after = add(world, pack_key(self.pack_of(rules)))
            yield "stores a pack", after, self._replace(pc="under way")
        elif self.pc == "under way":
            yield "notes its pack", world, self._replace(pc="ready", own=True)
        elif self.pc in ("upload", "ready"):
            yield from self._settle(world, state, rules)
        elif self.pc == "resume":
            yield from self._resume(world, state, rules)
        elif self.pc == "settled":
            parts = checkpoint_parts(KEPT, self.session, self.own)
            yield "stores a manifest", add(world, *keys_of(parts)), self._replace(pc="commit")
        elif self.pc == "commit":
            yield from self._commit(world, state, logs, rules)
        elif self.pc == "end":
            yield "ends its session", ended(world, self.session), self._replace(pc=OVER)
        if self.pc in ("upload", "under way", "ready") and state.epoch != self.epoch:
            yield from self._advance(world, state, rules)
        if self.pc == "ready" and rules.resumes and not self.resumed:
            killed = self._replace(pc="resume", position=state.length - 1, own=False, advanced=True, resumed=True)
            yield "is killed, and begins again", world, killed

    def _resume(self, world: World, state: State, rules: Rules) -> Moves:
        """As `registry.delivery`: go on with what the journal says, if it is still there and nobody's."""
        epochs = [epoch for session, epoch in world.sessions if session == self.session]
        key = pack_key(self.pack_of(rules))
        if epochs and key in world.objects and key not in state.condemned_objects and key not in named_keys(state):
            yield "takes over its pack", world, self._replace(pc="ready", epoch=epochs[0], own=True)
        else:
            yield from self._again(world, rules, "finds its pack gone")

    def _reread(self, world: World, state: State, rules: Rules) -> Moves:
        good = self._good(state, world, rules, stored=False)
        if state.epoch == self.epoch or good is False:
            yield "reads the head", world, self._replace(pc="upload")
        elif good is None:
            yield from self._again(world, rules, "was overtaken")
        else:
            newer = self._replace(opening=self.opening + 1, epoch=state.epoch, position=state.length - 1, pc="open")
            yield "opens another session", ended(world, self.session), newer

    def _good(self, state: State, world: World, rules: Rules, *, stored: bool) -> bool | None:
        """Whether nothing that it needs is condemned; None if something may be deleted."""
        theirs = state.condemned.get(self.relied) if rules.checks_relied_packs else None
        own = pack_key(self.pack_of(rules))
        ours = state.condemned_objects.get(own) if self.own and rules.checks_own_packs else None
        if any(epoch is not None and epoch <= state.floor for epoch in (theirs, ours)):
            return None
        if rules.checks_packs_on_their_way and ours is not None and ours <= self.epoch:
            return None
        if rules.checks_relied_packs and within(state.swept, self.relied):
            return None
        if stored and self.own and rules.checks_own_packs and own not in world.objects:
            return None
        return theirs is None and ours is None

    def _advance(self, world: World, state: State, rules: Rules) -> Moves:
        if self._good(state, world, rules, stored=True):
            after = opened(world, self.session, state.epoch)
            newer = self._replace(epoch=state.epoch, position=state.length - 1, advanced=True)
            yield "advances", after, newer

    def _settle(self, world: World, state: State, rules: Rules) -> Moves:
        now, after = self, world
        if state.epoch != self.epoch:
            for _, advanced, stands in self._advance(world, state, rules):
                after, now = advanced, stands
        if now._good(state, world, rules, stored=now.advanced) is None and (now.advanced or state.epoch != self.epoch):
            yield from self._again(world, rules, "was overtaken")
        else:
            yield "settles", after, now._replace(pc="settled")

    def _commit(self, world: World, state: State, logs: Logs, rules: Rules) -> Moves:
        parts = checkpoint_parts(KEPT, self.session, self.own)
        own = [self.pack_of(rules)] if self.own else []
        payload = Commit(
            model=MODEL, checkpoint=self.session * 2, sessions=(self.session, own[0].session if own else b""),
            epoch=self.epoch, hit_position=self.position, relied=ranges([self.relied]) if self.relied >= 0 else (),
            packs=pack_records(own), roots=(), ref=RefChange(self.session, b"", None), meta=b"", **parts,
        )  # fmt: skip
        log = logs.append(world.log, payload)
        if log is None:
            yield from self._again(world, rules, "is refused")
            return
        yield "COMMITS", world._replace(log=log), self._replace(pc="end")
        if rules.late_puts:
            late = world.late | {(state.length, payload)}
            yield "gets no answer to its commit", world._replace(late=late), self._replace(pc=OVER)

    def _again(self, world: World, rules: Rules, why: str) -> Moves:
        after = ended(world, self.session)
        if self.attempt + 1 < rules.attempts:
            yield f"{why}, and begins anew", after, Writer(self.name, self.number, attempt=self.attempt + 1)
        else:
            yield f"{why}, and gives up", after, self._replace(pc=OVER)


class Merger(NamedTuple):
    """Puts one index piece into the place of all."""

    name: str
    pc: str = "begin"
    epoch: int = 0
    session: bytes = owner(b"merge")

    def steps(self, world: World, logs: Logs, rules: Rules) -> Moves:
        state = logs.states[world.log]
        stored = add(world, object_key(ref(b"merge", 60), "index"))
        order = ["settle", "store"] if rules.settles_before_upload else ["store", "settle"]
        following = {order[0]: order[1], order[1]: "merge"}
        if self.pc == "begin" and state.pieces:
            yield (
                "opens a session",
                opened(world, self.session, state.epoch),
                self._replace(pc=order[0], epoch=state.epoch),
            )
        elif self.pc == "settle":
            after = opened(world, self.session, state.epoch)
            yield "settles", after, self._replace(pc=following["settle"], epoch=state.epoch)
        elif self.pc == "store":
            yield "stores a piece", stored, self._replace(pc=following["store"])
        elif self.pc == "merge":
            end = ended(world, self.session)
            first, count = (state.pieces[0].first, state.pack_count) if state.pieces else (0, 0)
            merge = MergeIndex((self.session,), self.epoch, ref(b"merge", 60), first, count - first)
            log = logs.append(world.log, merge)
            after = end if log is None else end._replace(log=log)
            yield "is refused" if log is None else "MERGES", after, self._replace(pc=OVER)

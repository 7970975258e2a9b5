"""Root keys that a service seals. The services are stand-ins on this machine; AWS and Vault themselves take no part."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from cairn.core.errors import IntegrityError, NotAllowed, Unavailable, UsageError
from cairn.gc.scrub import verify
from cairn.registry.opened import KeySource, create_store
from cairn.registry.rights import Role
from cairn.registry.rootkeys import root_record_name
from cairn.registry.rotation import export_recovery, rotate_root
from cairn.store.backends.faults import Crash, Effect, FaultyBackend, Stopped
from cairn.store.backends.memory import MemoryBackend
from cairn.store.crypto.services import service_at
from tests.support.key_services import TOKEN, Kms, StandIn, Vault, serving
from tests.support.members import join
from tests.support.stores import Site, checkout_to, commit_tree, new_site

ADDRESSES = {Kms: "aws-kms:alias/cairn", Vault: "vault-transit:transit/cairn"}


@pytest.fixture(params=[Kms, Vault], ids=["kms", "vault"])
def service(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[StandIn, str]]:
    """A stand-in, and the address of its key."""
    with serving(request.param) as running:
        for name, value in {
            "AWS_ENDPOINT_URL_KMS": running.url,
            "AWS_REGION": "eu-central-1",
            "AWS_DEFAULT_REGION": "eu-central-1",
            "AWS_ACCESS_KEY_ID": "id",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_MAX_ATTEMPTS": "1",
            "VAULT_ADDR": running.url,
            "VAULT_TOKEN": TOKEN,
        }.items():
            monkeypatch.setenv(name, value)
        yield running, ADDRESSES[request.param]


@pytest.fixture
def kept(service: tuple[StandIn, str], site: Site) -> Site:
    """A store whose root key the service seals."""
    made = replace(site, backend=MemoryBackend(), source=KeySource(service=service[1]))
    create_store(made.backend, made.home, made.source, made.clock, made.entropy)
    return replace(made, source=KeySource())


def test_a_service_opens_a_store_and_no_other(
    service: tuple[StandIn, str], kept: Site, folder: Path, tmp_path: Path
) -> None:
    running, _ = service
    commit_tree(kept.registry(), folder)
    opened = kept.registry(cold=True)
    checkout_to(opened, "m", tmp_path / "out")
    assert len(running.calls) == 3, "one to make it, one for each opening"
    assert verify(opened, full=True).ok
    assert not kept.home.key_file(opened.opened.store).exists()
    # What it sealed for one store opens nothing elsewhere.
    record = kept.backend.read(root_record_name(opened.opened.store, 0))
    other = replace(kept, backend=MemoryBackend(), source=KeySource(service=service[1]))
    made, _ = create_store(other.backend, other.home, other.source, other.clock, other.entropy)
    name = root_record_name(made.store, 0)
    other.backend.delete(name)
    other.backend.create(name, [record])
    with pytest.raises(IntegrityError, match="another store"):
        replace(other, source=KeySource()).registry()


def test_what_a_service_seals_is_bound_to_its_context(service: tuple[StandIn, str]) -> None:
    key = service_at(service[1])
    sealed = key.seal(b"secret", {"store": "a"})
    assert key.open(sealed, {"store": "a"}, "it") == b"secret"
    for context, data in (({"store": "b"}, sealed), ({}, sealed), ({"store": "a"}, sealed[:-9] + b"A" * 9)):
        with pytest.raises(IntegrityError, match="does not open it"):
            key.open(data, context, "it")


def test_a_service_that_refuses_or_is_silent_is_named(
    service: tuple[StandIn, str], kept: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, address = service
    for status, kind in ((403, NotAllowed), (503, Unavailable)):
        running.refusal = status
        if status == 503 and address.startswith("aws"):
            continue  # its answers carry codes of their own
        with pytest.raises(kind, match=address):
            kept.registry()
    for name in ("AWS_ENDPOINT_URL_KMS", "VAULT_ADDR"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with pytest.raises(Unavailable, match=address):
        kept.registry()
    monkeypatch.delenv("VAULT_TOKEN")
    if address.startswith("vault"):
        with pytest.raises(NotAllowed, match="VAULT_TOKEN"):
            kept.registry()


def test_a_root_key_goes_from_one_keeper_to_another(service: tuple[StandIn, str], folder: Path, tmp_path: Path) -> None:
    site = new_site(tmp_path / "home", passphrase="words")
    commit_tree(site.registry(), folder)
    registry = site.registry()
    assert rotate_root(registry, service=service[1]) is None
    moved = replace(site, source=KeySource())
    checkout_to(moved.registry(cold=True), "m", tmp_path / "out")
    rotate_root(moved.registry())
    second = join(moved, "second", Role.OWNER)
    checkout_to(second.registry(cold=True), "m", tmp_path / "second")
    export_recovery(moved.registry(), tmp_path / "recovery")
    calls = len(service[0].calls)
    checkout_to(replace(moved, source=KeySource(key_file=tmp_path / "recovery")).registry(), "m", tmp_path / "without")
    assert len(service[0].calls) == calls


@pytest.mark.parametrize("address", ["", "x", "aws-kms:", "vault-transit:cairn", "vault-transit:../sys/cairn", "gcp:x"])
def test_an_address_is_of_a_known_kind(address: str) -> None:
    with pytest.raises(UsageError, match="aws-kms"):
        service_at(address)


@pytest.mark.parametrize("op", ["create", "delete"])
def test_a_change_to_a_service_may_stop_anywhere(
    service: tuple[StandIn, str], tmp_path: Path, folder: Path, op: str
) -> None:
    """From a key file, and then from one key of the service to the next."""
    for call in range(1, 20):
        site = new_site(tmp_path / f"home-{call}", seed=call)
        commit_tree(site.registry(), folder)
        stopped = True
        for _ in range(2):
            crash = Crash(op=op, call=call, effect=Effect.COMPLETE)
            with suppress(Stopped):
                rotate_root(site.registry(FaultyBackend(site.backend, [crash])), service=service[1])
                stopped = False
            again = site.registry(cold=True)
            rotate_root(again, service=service[1])
            checkout_to(site.registry(cold=True), "m", tmp_path / f"out-{call}-{again.state.root_generation}")
            assert verify(again, full=True).ok
            assert len([name for name in site.names() if name.startswith("keys/root/")]) == 1
        if not stopped:
            return
    raise AssertionError("it never went through")

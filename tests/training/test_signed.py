"""What a training run records of itself is what a signature of its checkpoint tells of it."""

from pathlib import Path

import torch

import cairn
from cairn.registry.attestations import sign
from tests.cases.training import MODEL, Net, Runs
from tests.support.signing import ALICE, VERSION


def test_a_saved_checkpoint_is_signed_with_what_the_run_recorded(tmp_path: Path) -> None:
    runs, token = Runs(tmp_path / "user"), "hf_" + "a1B2" * 10
    (tmp_path / "vocab.json").write_text("{}")
    provenance = cairn.capture_provenance(
        config={"lr": 1e-3, "token": token}, data={"ids": ["web"]}, tokenizer_files=[tmp_path / "vocab.json"]
    )
    first = runs.save({"model": Net()}, 5).committed.result()
    runs.save({"model": Net(seed=1)}, 6, provenance=provenance)
    definition = sign(runs.site.registry(), MODEL, VERSION, ALICE).statement.predicate["buildDefinition"]
    external = definition["externalParameters"]
    assert external["step"] == 6 and "sha256" in external["config"]["digest"] and token not in repr(definition)
    assert definition["internalParameters"]["versions"]["torch"] == torch.__version__
    found = {one["name"]: one for one in definition["resolvedDependencies"]}
    assert found["parent: continue"]["digest"] == {"cairn-checkpoint-v1": first.hex()}
    assert found["data"]["annotations"] == {"ids": ["web"]} and "tokenizer: vocab.json" in found

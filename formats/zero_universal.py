"""DeepSpeed's Universal checkpoints: `zero/<parameter>/` with its master weights and state, each whole.

Layout: DeepSpeed, `checkpoint/ds_to_universal.py`. The module's own tensors come from `mp_rank_00_model_states.pt`
where no parallelism has cut them, else the master weights stand for them.
"""

import re
from collections.abc import Iterable

from cairn.formats.dcp import Open
from cairn.formats.logical import JoinedState, JoinedTensor, Path
from cairn.formats.pickle_values import TensorRef, Value
from cairn.formats.refusal import malformed
from cairn.formats.zero import MASTER, MODEL_FILE, MODULE, OPTIMIZER, TRAINING, ZeroFile, mapping, plain_values, whole

PARAMETER_FILE = re.compile(r"zero/([^/]+)/(fp32|exp_avg|exp_avg_sq|step)\.pt")


def parse_universal(names: Iterable[str], open_file: Open) -> JoinedState:
    """Take up the files of a folder.

    Raises:
        BadInput: a file is damaged, or a parameter has no master weights.
    """
    files = sorted(name for name in names if PARAMETER_FILE.fullmatch(name))
    models = sorted(name for name in names if MODEL_FILE.fullmatch(name))
    tensors: list[JoinedTensor] = []
    found: list[tuple[Path, Value]] = []
    weights: dict[str, JoinedTensor] = {}
    for name in files:
        match = PARAMETER_FILE.fullmatch(name)
        assert match is not None
        parameter, kind = match[1], match[2]
        file = ZeroFile(name, open_file)
        value = file.value.get("param") if isinstance(file.value, dict) else file.value
        path = OPTIMIZER, "state", parameter, MASTER if kind == "fp32" else kind
        if isinstance(value, TensorRef):
            tensors.append(whole(file, path, value))
            if kind == "fp32":
                weights[parameter] = whole(file, (MODULE, parameter), value)
        elif kind == "step":
            found.append((path, value))
        else:
            raise malformed(f"{name} holds no tensor")
    lacking = {name.split("/")[1] for name in files} - weights.keys()
    if lacking:
        raise malformed(f"{len(lacking)} parameters have no fp32.pt, first {min(lacking)!r}")
    if len(models) == 1:
        model = ZeroFile(models[0], open_file)
        for key, value in mapping(model.value, models[0]).items():
            if key == "module":
                held = mapping(value, models[0]).items()
                weights |= {
                    str(name): whole(model, (MODULE, str(name)), tensor)
                    for name, tensor in held
                    if isinstance(tensor, TensorRef)
                }
            elif key not in ("optimizer", "param_shapes"):
                found.append(((TRAINING, str(key)), value))
    values, refused = plain_values(found)
    warnings = [f"{len(refused)} values are not plain data and were left out: {', '.join(refused)}"] if refused else []
    taken = frozenset((*files, *(models if len(models) == 1 else ())))
    every = (*weights.values(), *tensors)
    return JoinedState("DeepSpeed Universal", every, tuple(values), taken, tuple(warnings))

"""The weights of real models: shapes, how often each stands in the model, and how Megatron splits it."""

from dataclasses import dataclass

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Weight:
    """A shape, how often it stands in a model, and the axis along which Megatron splits it; None: a vector, whole."""

    shape: Shape
    times: int
    split: int | None

    def axis(self, layout: str) -> int | None:
        """The axis that a layout splits: `rows` and `columns` are the last two; FSDP takes the first of any tensor."""
        if layout == "fsdp":
            return 0
        if self.split is None:
            return None
        return {"megatron": self.split, "rows": len(self.shape) - 2, "columns": len(self.shape) - 1}[layout]


@dataclass(frozen=True, slots=True)
class Model:
    """The weights of a model; a weight stands as [out, in], as torch has it."""

    name: str
    weights: tuple[Weight, ...]


def llama(name: str, layers: int, hidden: int, wide: int) -> Model:
    """Llama 3: 8 key and value heads of 128, a vocabulary of 128,256."""
    weights = (
        Weight((128256, hidden), 2, 0),
        Weight((hidden, hidden), layers, 0),  # query
        Weight((1024, hidden), 2 * layers, 0),  # key, value
        Weight((hidden, hidden), layers, 1),  # output
        Weight((wide, hidden), 2 * layers, 0),  # gate, up
        Weight((hidden, wide), layers, 1),  # down
        Weight((hidden,), 2 * layers + 1, None),
    )
    return Model(name, weights)


# Experts of a layer stand in one tensor, gate and up projection fused, as transformers 5 keeps them.
_MIXTRAL = (
    Weight((32000, 4096), 2, 0),
    Weight((4096, 4096), 32, 0),
    Weight((1024, 4096), 64, 0),
    Weight((4096, 4096), 32, 1),
    Weight((8, 28672, 4096), 32, 1),
    Weight((8, 4096, 14336), 32, 2),
    Weight((8, 4096), 32, None),
    Weight((4096,), 65, None),
)
MODELS = (
    llama("Llama 3 8B", 32, 4096, 14336),
    llama("Llama 3 70B", 80, 8192, 28672),
    llama("Llama 3 405B", 126, 16384, 53248),
    Model("Mixtral 8x7B", _MIXTRAL),
)

"""How a checkpoint was made from another: the relations of lineage.

The list is closed for writers. A reader shows a relation that it does not know as it stands.
"""

from cairn.core.errors import UsageError

# The branch's tip before.
CONTINUE = "continue"
# The same checkpoint in another tenant, where it has another id.
RESEAL = "reseal"
# What whoever commits may declare beside the branch's own past.
DECLARED = ("fork", "finetune", "merge", "quantize", "distill")
RELATIONS = (CONTINUE, RESEAL, *DECLARED)


def check_declared(relation: str) -> str:
    """Return a relation that may be declared.

    Raises:
        UsageError: it is not one of `DECLARED`.
    """
    if relation not in DECLARED:
        raise UsageError(f"{relation[:80]!r} is no relation to declare", hint=f"one of {', '.join(DECLARED)}")
    return relation

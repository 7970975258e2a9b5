"""Which parser a file is for."""

# Local header of a zip archive's first member.
ZIP_MAGIC = b"PK\x03\x04"
# PROTO opcode and the protocols that torch.save writes; a non-zip torch file starts with it.
PICKLE_MAGICS = tuple(bytes((0x80, protocol)) for protocol in range(2, 6))
# What a tar archive has there: the oldest torch files, which the reader refuses by name.
TAR_MAGIC, TAR_MAGIC_OFFSET = b"ustar", 257

INDEX_SUFFIXES = (".safetensors.index.json", ".bin.index.json")
# `.bin` and `.ckpt` name all kinds of files, so these suffixes say "perhaps".
TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")


def detect(name: str, head: bytes) -> str | None:
    """Choose by the name's suffix; for torch the content must agree.

    Args:
        name: file name or path.
        head: its first bytes, at least 512 where it has them.

    Returns:
        `safetensors`, `safetensors-index`, `torch`, or `None`: a file to be stored as plain bytes.
    """
    lower = name.lower()
    if lower.endswith(INDEX_SUFFIXES):
        return "safetensors-index"
    if lower.endswith(".safetensors"):
        return "safetensors"
    is_tar = head[TAR_MAGIC_OFFSET:].startswith(TAR_MAGIC)
    if lower.endswith(TORCH_SUFFIXES) and (is_tar or head.startswith((ZIP_MAGIC, *PICKLE_MAGICS))):
        return "torch"
    return None

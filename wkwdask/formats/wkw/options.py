"""Storage options of WKW."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from wkwdask.kernels.blocks.levels import AUTO_LEVEL, USUAL_LEVEL
from wkwdask.model.options import StorageOptions, choice, flag, number, shape

if TYPE_CHECKING:
    from wkwdask.geometry.mag import Vec3

DEFAULT_BLOCK_LEN = 32
AUTO = "auto"
DEFAULT_LEVEL = AUTO_LEVEL


def level_number(level: int | str | None) -> int:
    """Return the level of LZ4HC for the encoder, given an option or a record."""
    return AUTO_LEVEL if level is None or isinstance(level, str) else level


def level_name(level: int) -> int | str:
    """Return the level as users and records write it."""
    return AUTO if level == AUTO_LEVEL else level


@dataclass(frozen=True, slots=True)
class WkwOptions(StorageOptions):
    """Storage options of a WKW mag."""

    name: ClassVar[str] = "wkw"
    title: ClassVar[str] = "WKW"
    writes_level: ClassVar[bool] = True
    compressor: ClassVar[str] = "lz4hc"

    chunk_shape: Vec3 | None = shape(
        "A block [voxels]: a cube whose edge is a power of two up to 128.", (DEFAULT_BLOCK_LEN,) * 3
    )
    shard_shape: Vec3 | None = shape(
        "A file [voxels]: a cube whose edge is a power of two of blocks, up to 128.",
        default_doc="fits the box, at most 32 blocks",
    )
    compression: str | None = choice("Encoding of blocks.", ("lz4hc", "lz4", "raw"), "lz4hc")
    level: int | str | None = number(
        f'Level of LZ4HC; higher levels make smaller files and take longer. "{AUTO}" is level '
        f"{USUAL_LEVEL}, except for blocks that LZ4HC would make less than "
        "about 3 % smaller than LZ4, such as noise: LZ4 encodes those many times as fast. Readers "
        "do not see a difference.",
        (1, 12),
        AUTO,
        words=(AUTO,),
    )
    block_len: int | None = number(
        "Edge of a block [voxels]: `chunk_shape` as one number.", (1, 1 << 15)
    )
    file_len: int | None = number("Edge of a file [blocks]: `shard_shape` in blocks.", (1, 1 << 15))
    any_length: bool = flag(
        "Allow blocks and files up to 32768 long, which the reference library cannot read."
    )

    def __post_init__(self) -> None:
        StorageOptions.__post_init__(self)
        if self.block_len is not None and self.chunk_shape is not None:
            raise ValueError("block_len= is chunk_shape= as one number: pass only one of them")
        if self.file_len is not None and self.shard_shape is not None:
            raise ValueError("file_len= is shard_shape= in blocks: pass only one of them")
        self.file_len_of(self.block_len_or(1))

    def block_len_or(self, default: int) -> int:
        """Return the edge length of a block [voxels], or a default."""
        if self.chunk_shape is not None:
            return _edge(self.chunk_shape, "chunk_shape", "block")
        return default if self.block_len is None else self.block_len

    def file_len_of(self, block_len: int) -> int | None:
        """Return the edge length of a file [blocks], given that of a block [voxels]; None for the
        default."""
        if self.shard_shape is None:
            return self.file_len
        edge = _edge(self.shard_shape, "shard_shape", "file")
        if edge % block_len:
            raise ValueError(
                f"shard_shape must be a power of two of blocks of {block_len}^3 voxels, got "
                f"{self.shard_shape}"
            )
        return edge // block_len

    @property
    def chosen_level(self) -> int:
        """Level of LZ4HC for the encoder."""
        return level_number(self.level)


def _edge(cube: Vec3, what: str, part: str) -> int:
    edge = cube[0]
    if cube != (edge, edge, edge) or edge & (edge - 1):
        raise ValueError(
            f"{what} of WKW must be a cube whose edge is a power of two, because a {part} is one, "
            f"got {cube}"
        )
    return edge

"""Remedy of every kind of fault: what ``repair`` does about it, and otherwise what users can do."""

from __future__ import annotations

_HEADER = "repair writes it again if the data files imply its content"
_FILE_HEADER = (
    "repair corrects the header if all blocks decode by it; else it rebuilds the file from a finer "
    "level, or sets it aside with quarantine=True"
)
_CHUNKS = (
    "repair rebuilds it from a finer level, or keeps all other chunks with salvage=True, or sets "
    "the file aside with quarantine=True"
)
_FILE = "repair rebuilds it from a finer level, or sets it aside with quarantine=True"
_REMOVED = "repair removes it"
_JSON = "repair corrects the JSON"
_READABLE = "make it readable; is its disk mounted?"
_DOCUMENT = "repair does not touch it: correct or restore the document"

REMEDIES: dict[str, str] = {
    # WKW files
    **dict.fromkeys(
        (
            f"header.{kind}"
            for kind in (
                "missing",
                "short",
                "magic",
                "version",
                "block_type",
                "voxel_type",
                "voxel_size",
                "block_nbytes",
                "data_offset",
                "differs",
                "other_block_type",
            )
        ),
        _HEADER,
    ),
    "header.lengths": "rechunk the mag with block_len and file_len of at most 128",
    "header.unreadable": _READABLE,
    **dict.fromkeys(
        (
            f"file.{kind}"
            for kind in (
                "magic",
                "version",
                "bad_block_type",
                "bad_voxel_type",
                "bad_voxel_size",
                "block_nbytes",
                "data_offset",
                "block_len",
                "file_len",
                "voxel_type",
                "channels",
            )
        ),
        _FILE_HEADER,
    ),
    "file.block_type": "wkwdask compress stores all files of the mag alike",
    "file.trailing": "repair cuts the bytes off",
    **dict.fromkeys(
        ("table.inside", "table.falls", "table.beyond", "table.empty_block", "file.truncated"),
        _CHUNKS,
    ),
    **dict.fromkeys(
        ("block.undecodable", "block.too_few", "block.too_many", "chunk.undecodable"), _CHUNKS
    ),
    **dict.fromkeys(("table.truncated", "file.empty", "file.short", "chunk.empty"), _FILE),
    "file.no_file": (
        "remove it; repair rebuilds the file from a finer mag, or sets the folder aside with "
        "quarantine=True"
    ),
    "file.lost": "repair rebuilds it from a finer level; else restore it from a backup. Zarr-python and tensorstore remove chunks of background: if they "  # noqa: E501
    "wrote here, repair accepts that with accept_changes=True",
    "file.size_changed": (
        "if the change was intended, repair accepts it with accept_changes=True, and "
        "build_pyramid(update=True) updates coarser mags"
    ),
    "file.unreadable": _READABLE,
    "file.checksum": "make the zip again from its source, or restore it from a backup",
    "file.dangling": "is its disk mounted? repair sets the link aside with quarantine=True",
    "file.outside": "repair grows the layer's box with grow_box=True; else remove the file",
    # folders, names and leftovers
    "folder.unreadable": _READABLE,
    "folder.dangling": "is its disk mounted?",
    "folder.no_folder": "repair sets it aside with quarantine=True",
    "name.unread": "rename it if it is a data file of this level",
    "mag.missing": "is its disk mounted? repair removes it from the JSON with drop_missing=True",
    "mag.unlisted": "repair adds it to the JSON",
    "mag.twice": "compare the two, and remove one",
    "mag.remote": "verify a local copy",
    "layer.format": (
        "verify the volume itself, with the prefix of its format, such as precomputed://PATH"
    ),
    "layer.twice": "rename or remove the other layers of this name in the JSON",
    "layer.unlisted": "repair adds it to the JSON",
    "leftover.temporary": "repair removes it once no process can be writing it (older_than)",
    "leftover.folder": (
        "repair removes it with remove_copies=True, if the layer has all of its voxels"
    ),
    "leftover.lock": _REMOVED,
    "job.dead": _REMOVED,
    "job.unpublished": "repair completes the job",
    "job.interrupted": "run the same command again, or remove the folder",
    "job.refused": "repair removes the folder of the job",
    "record.broken": _REMOVED,
    # datasource-properties.json
    "json.missing": "repair writes it from the data files; voxel_size= is needed",
    "json.broken": "repair writes the broken parts from the data files",
    **dict.fromkeys(
        ("json.element_class", "json.num_channels", "json.cube_length", "json.largest_id"), _JSON
    ),
    "json.box_smaller": "repair makes the box larger with grow_box=True",
    # shards
    "shard.checksum": "repair corrects the index if the checksum proves the correction; else it rebuilds the file from a finer level, or sets it aside with "  # noqa: E501
    "quarantine=True",
    "shard.place": _CHUNKS,
    **dict.fromkeys(("shard.short", "shard.half", "shard.index", "minishard.broken"), _FILE),
    "shard.overlap": "repair does not touch chunks that decode: compare the voxels with the source",
    "minishard.foreign": "repair does not touch it: write the shard again from the source",
    "minishard.outside": "repair does not touch it: no reader requests it",
    "chunk.shape": "repair does not touch it: write the chunk again from the source",
    "chunk.outside": "repair does not touch it: remove it, or correct the shape in the document",
    "chunk.twice": "compare the two, and remove one",
    "shard.twice": "compare the two, and remove one",
    # documents and levels
    "level.unsupported": "install what it names, or use software that supports it",
    "level.broken": _DOCUMENT,
    "level.missing": "restore it, or remove it from the document of the image",
    "level.unlisted": "add it to the document of the image, or remove it",
    "level.names": "state the separator of the names in the document",
    **dict.fromkeys(("level.dtype", "level.axes"), "rebuild the level with build_pyramid"),
    **dict.fromkeys(("image.broken", "image.scale", "image.translation", "image.order"), _DOCUMENT),
    "document.twice": "remove the documents of one version",
    "document.differs": "remove the documents of the wrong version",
    "document.consolidated": (
        "consolidate the metadata again (zarr.consolidate_metadata), or remove them"
    ),
    **dict.fromkeys(
        ("info.broken", "info.scale", "info.absent", "info.null", "info.twice"),
        "correct the info file",
    ),
    "info.unsupported": "convert the volume with the software that wrote it",
    # meshes
    "mesh.unsupported": "install what it names, or check them with the software that wrote them",
    **dict.fromkeys(
        (
            f"mesh.{kind}"
            for kind in (
                "missing",
                "info",
                "shard",
                "manifest",
                "fragment",
                "foreign",
                "overlap",
                "orphan",
            )
        ),
        'repair does not touch meshes: meshes(existing="overwrite") makes them again',
    ),
    # coarser levels
    "pyramid.smaller": "rebuild the level with build_pyramid",
    "pyramid.differs": (
        "repair rebuilds it with rebuild_differing=True, as build_pyramid(update=True) does for "
        "mags that wkwdask made"
    ),
}
"""Remedies of all errors and warnings by kind."""

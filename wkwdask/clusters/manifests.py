"""Manifests for Kubernetes: that what one names is in the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wkwdask.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def check_manifests(documents: Sequence[Any], where: str) -> None:
    """Check that manifests belong together: the cluster itself checks each by its schema."""
    problems = [problem for number, document in enumerate(documents, 1) for problem in _unnamed(document, number)]
    if not problems:
        problems = [*_without_pods(documents), *_without_claim(documents)]
    if problems:
        raise FormatError("\n".join(f"{where}: {problem}" for problem in problems))


def _unnamed(document: Any, number: int) -> Iterator[str]:
    if not isinstance(document, dict):
        yield f"document {number}: not a manifest"
        return
    for name in ("apiVersion", "kind"):
        if not isinstance(document.get(name), str):
            yield f"document {number}: {name}: missing"
    metadata = document.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        yield f"document {number}: metadata.name: missing"


def _pods(documents: Sequence[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for document in documents:
        template = (document.get("spec") or {}).get("template")
        if isinstance(template, dict):
            yield f"{document['kind']} {document['metadata']['name']}", template


def _without_pods(documents: Sequence[Any]) -> Iterator[str]:
    labels = [(template.get("metadata") or {}).get("labels") or {} for _, template in _pods(documents)]
    for document in documents:
        if document["kind"] == "Service":
            wanted = (document.get("spec") or {}).get("selector") or {}
            if not any(wanted.items() <= found.items() for found in labels):
                yield f"Service {document['metadata']['name']}: spec.selector: no pod has the labels {wanted}"


def _without_claim(documents: Sequence[Any]) -> Iterator[str]:
    claims = {document["metadata"]["name"] for document in documents if document["kind"] == "PersistentVolumeClaim"}
    for name, template in _pods(documents):
        for volume in (template.get("spec") or {}).get("volumes") or ():
            claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
            if claim is not None and claim not in claims:
                yield f"{name}: volume {volume.get('name')}: no PersistentVolumeClaim {claim}"

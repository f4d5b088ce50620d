"""The parts as a software bill of materials: one CycloneDX 1.6 document, by the project's own library.

Parts that only tests use have the scope "excluded". A package's hashes are those of the files that may be installed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from ops.setup import ROOT
from ops.supply.licences import expression
from ops.supply.parts import Part

TYPES = {"python": "pypi", "browser": "npm", "model": "generic"}
ALGORITHMS = {"sha256": HashAlgorithm.SHA_256, "sha512": HashAlgorithm.SHA_512}


def document(parts: Iterable[Part]) -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    licences = LicenseFactory()
    root = Component(
        name=project["name"],
        version=project["version"],
        description=project["description"],
        type=ComponentType.APPLICATION,
        licenses=[licences.make_from_string(project["license"])],
        bom_ref="octavo",
    )
    bom = Bom()
    bom.metadata.component = root
    found = {(part.kind, part.name): (part, _component(part, licences)) for part in parts}
    for _, component in found.values():
        bom.components.add(component)
    bom.register_dependency(root, [component for _, component in found.values()])
    for part, component in found.values():
        bom.register_dependency(
            component, [found[part.kind, need][1] for need in part.needs if (part.kind, need) in found]
        )
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def _component(part: Part, licences: LicenseFactory) -> Component:
    group, _, name = part.name.rpartition("/")
    purl = PackageURL(type=TYPES[part.kind], namespace=group or None, name=name, version=part.version)
    hashes = [HashType(alg=ALGORITHMS[algorithm], content=value) for algorithm, value in part.hashes]
    several = len(hashes) > 1
    distribution = ExternalReference(type=ExternalReferenceType.DISTRIBUTION, url=XsUri(str(purl)), hashes=hashes)
    licence = expression(part)
    return Component(
        name=name,
        group=group or None,
        version=part.version,
        type=ComponentType.MACHINE_LEARNING_MODEL if part.kind == "model" else ComponentType.LIBRARY,
        purl=purl,
        bom_ref=str(purl),
        scope=ComponentScope.REQUIRED if part.served else ComponentScope.EXCLUDED,
        licenses=[] if licence == "NOASSERTION" else [licences.make_from_string(licence)],
        hashes=[] if several else hashes,
        external_references=[distribution] if several else [],
    )

"""Check the licences of what Rondo needs at run time, and write its software bill of materials.

    .ci/bill.py            check: each locked package has a licence that licences.json allows
    .ci/bill.py --write    write var/rondo-VERSION.cdx.json, too (CycloneDX 1.6): what `make sbom` runs

Licences come from the packages' own metadata, hashes from the lock. Files below static/vendor stand in
licences.json with their licence and digest.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import uuid
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / ".ci" / "locks"
RULES = ROOT / ".ci" / "licences.json"
_LONGEST_NAME = 80
"""A longer licence field is the licence's text."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the bill of materials")
    options = parser.parse_args()
    rules = json.loads(RULES.read_text(encoding="utf-8"))
    components = locked_components()
    faults = [fault for one in components if (fault := licence_fault(one, rules))]
    faults += vendored_faults(rules["vendored"])
    faults += [
        f"licences.json: {name} is not locked any more. Take it out."
        for name in rules["stated"]
        if name not in {one["name"] for one in components} | set(rules["elsewhere"])
    ]
    if faults:
        sys.exit("\n".join(faults))
    print(f"{len(components)} packages, each with a licence that licences.json allows.")
    if options.write:
        path = ROOT / "var" / f"rondo-{version()}.cdx.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(bill(components, rules), indent=2) + "\n", encoding="utf-8")
        print(f"The bill of materials is {path}.")


def version() -> str:
    """Return the version of Rondo."""
    text = (ROOT / "webapp" / "__init__.py").read_text(encoding="utf-8")
    return re.findall(r'^__version__ = "(.+)"$', text, re.M)[0]


def locked_components() -> list[dict[str, Any]]:
    """Return name, version and hashes of each package that the lock of this machine installs."""
    path = LOCKS / ("linux-cpu.txt" if sys.platform == "linux" else "default.txt")
    found = []
    for text in re.split(r"\n(?=[A-Za-z0-9])", path.read_text(encoding="utf-8"))[1:]:
        requirement = Requirement(text.partition("\n")[0].rstrip(" \\"))
        if requirement.marker is None or requirement.marker.evaluate():
            (pin,) = requirement.specifier
            hashes = re.findall(r"--hash=sha256:(\w+)", text)
            found.append(
                {"name": canonicalize_name(requirement.name), "version": pin.version, "hashes": hashes}
            )
    return found


def licences_of(name: str) -> list[str]:
    """Return the licences that the metadata of an installed package names; none where it says nothing."""
    about = metadata.metadata(name)
    if expression := about.get("License-Expression"):
        return [expression]
    classifiers = [value for key, value in about.items() if key == "Classifier" and "License ::" in value]
    named = [value.rpartition(" :: ")[2] for value in classifiers if value.count(" :: ") > 1]
    text = (about.get("License") or "").strip()
    return named or ([text] if text and len(text) < _LONGEST_NAME and "\n" not in text else [])


def licence_fault(component: dict[str, Any], rules: dict[str, Any]) -> str:
    """Return what is wrong with the licence of a package; empty where nothing is."""
    name = component["name"]
    try:
        licences = [rules["stated"][name]] if name in rules["stated"] else licences_of(name)
    except metadata.PackageNotFoundError:
        return f"{name} is locked and not installed: run `make install`."
    component["licences"] = licences
    if not licences:
        return f'{name} names no licence. Look it up and write it into "stated" of licences.json.'
    unknown = [one for one in licences if not is_allowed(one, rules["allowed"])]
    return f"{name} is under {', '.join(unknown)}, which licences.json does not allow." if unknown else ""


def vendored_faults(packages: list[dict[str, Any]]) -> list[str]:
    """Return the faults of files below static/vendor: unlisted, missing, changed, without a licence."""
    listed = {f"{one['folder']}/{name}": digest for one in packages for name, digest in one["files"].items()}
    there = {
        str(path.relative_to(ROOT)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (ROOT / "static" / "vendor").rglob("*")
        if path.is_file()
    }
    faults = [f"{name} is in no package of licences.json." for name in sorted(there.keys() - listed.keys())]
    faults += [f"licences.json: {name} is not there." for name in sorted(listed.keys() - there.keys())]
    faults += [
        f"{name} is not the file that licences.json has the digest of."
        for name in sorted(there.keys() & listed.keys())
        if there[name] != listed[name]
    ]
    for one in packages:
        if f"{one['folder']}/LICENSE" not in there or not one["licenses"]:
            faults.append(f"{one['name']} has no licence in {one['folder']}/LICENSE or in licences.json.")
    return faults


def is_allowed(licence: str, allowed: list[str]) -> bool:
    """Return True if every licence of an expression is allowed, or one of several to choose from."""
    return licence in allowed or any(
        all(part.strip(" ()") in allowed for part in re.split(r"\s+(?:AND|and)\s+", choice))
        for choice in re.split(r"\s+(?:OR|or)\s+", licence)
    )


def bill(components: list[dict[str, Any]], rules: dict[str, Any]) -> dict[str, Any]:
    """Return the bill of materials in CycloneDX's JSON."""
    content = json.dumps(components, sort_keys=True)
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        # The same packages give the same bill.
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": "rondo",
                "name": "rondo",
                "version": version(),
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": [
            *(_component(one) for one in components),
            *(_vendored(one) for one in rules["vendored"]),
        ],
        "dependencies": [
            {"ref": "rondo", "dependsOn": [_reference(one) for one in components]},
        ],
    }


def _vendored(package: dict[str, Any]) -> dict[str, Any]:
    """Return a package whose files lie in the repository, with the digest of each."""
    about = {key: value for key, value in package.items() if key not in ("folder", "files")}
    files = [
        {
            "type": "file",
            "name": f"{package['folder']}/{name}",
            "hashes": [{"alg": "SHA-256", "content": digest}],
        }
        for name, digest in package["files"].items()
    ]
    return {"type": "library", "bom-ref": f"vendored:{package['name']}", **about, "components": files}


def _reference(component: dict[str, Any]) -> str:
    return f"pkg:pypi/{component['name']}@{component['version'].replace('+', '%2B')}"


def _component(component: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": _reference(component),
        "name": component["name"],
        "version": component["version"],
        "purl": _reference(component),
        "licenses": [{"license": {"name": licence}} for licence in component["licences"]],
        # One for each file that the lock allows: a wheel of each platform, a source archive.
        "properties": [{"name": "rondo:sha256", "value": value} for value in component["hashes"]],
    }


if __name__ == "__main__":
    main()

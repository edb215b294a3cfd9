"""Licences of what Rondo needs, and its bill of materials."""

import pytest

from tests.architecture.test_locks import pins, script

RULES = {
    "allowed": ["MIT", "BSD-3-Clause", "Apache-2.0", "Mozilla Public License 2.0 (MPL 2.0)"],
    "stated": {},
}


@pytest.mark.parametrize(
    ("licence", "allowed"),
    [
        ("MIT", True),
        ("GPL-3.0-or-later", False),
        ("GPL-2.0-only OR MIT", True),
        ("MIT AND GPL-2.0-only", False),
        ("(MIT AND Apache-2.0)", True),
        ("Mozilla Public License 2.0 (MPL 2.0)", True),
    ],
)
def test_a_choice_of_licences_needs_one_that_is_allowed_and_a_sum_all(licence: str, allowed: bool):
    assert script("bill").is_allowed(licence, RULES["allowed"]) == allowed


def test_a_licence_that_is_not_allowed_and_a_missing_one_are_named(monkeypatch: pytest.MonkeyPatch):
    bill = script("bill")
    monkeypatch.setattr(bill, "licences_of", lambda name: ["GPL-3.0-or-later"] if name == "strict" else [])
    assert "strict is under GPL-3.0-or-later" in bill.licence_fault({"name": "strict"}, RULES)
    assert "silent names no licence" in bill.licence_fault({"name": "silent"}, RULES)
    assert bill.licence_fault({"name": "silent"}, {**RULES, "stated": {"silent": "MIT"}}) == ""


def test_every_package_of_the_lock_is_in_the_bill_with_its_version_and_hashes():
    bill = script("bill")
    rules = bill.json.loads(bill.RULES.read_text())
    components = bill.locked_components()
    assert [fault for component in components if (fault := bill.licence_fault(component, rules))] == []
    written = bill.bill(components, rules)
    listed = {component["name"]: component for component in written["components"]}
    lock = "linux-cpu.txt" if bill.sys.platform == "linux" else "default.txt"
    assert {name: str(version) for name, version in pins(lock).items()}.items() <= {
        name: component["version"] for name, component in listed.items()
    }.items()
    assert listed["django"]["purl"].startswith("pkg:pypi/django@5.2")
    assert len(listed["django"]["properties"]) >= 2
    assert written["metadata"]["component"]["version"] == bill.version()
    assert {"uplot", "lucide-static"} <= set(listed)
    # The same packages give the same bill.
    assert bill.bill(components, rules) == written


LICENCE_TEXTS = {
    "MIT": "Permission is hereby granted, free of charge",
    "ISC": "Permission to use, copy, modify, and/or distribute",
    "OFL-1.1": "SIL Open Font License, Version 1.1",
}


def test_every_vendored_file_has_a_licence_and_the_digest_that_is_written_down():
    bill = script("bill")
    packages = bill.json.loads(bill.RULES.read_text())["vendored"]
    assert bill.vendored_faults(packages) == []
    for package in packages:
        (licence,) = (one["license"]["id"] for one in package["licenses"])
        text = (bill.ROOT / package["folder"] / "LICENSE").read_text(encoding="utf-8")
        assert LICENCE_TEXTS[licence] in text, package["name"]
        files = bill._vendored(package)["components"]
        assert [file["hashes"][0]["content"] for file in files] == list(package["files"].values())


def test_a_vendored_file_that_is_new_changed_or_gone_is_named():
    bill = script("bill")
    packages = bill.json.loads(bill.RULES.read_text())["vendored"]
    uplot = next(one for one in packages if one["name"] == "uplot")
    name = next(name for name in uplot["files"] if name.endswith(".js"))
    place = f"{uplot['folder']}/{name}"
    uplot["files"][name] = "0" * 64
    assert [fault.split()[0] for fault in bill.vendored_faults(packages)] == [place]
    del uplot["files"][name]
    assert bill.vendored_faults(packages) == [f"{place} is in no package of licences.json."]
    uplot["files"] |= {name: "0" * 64, "gone.js": "0" * 64}
    assert len(bill.vendored_faults(packages)) == 2

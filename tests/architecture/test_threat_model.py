"""The pages on security are true: what they claim names a test, and each of those tests exists."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "webapp" / "guide"
PAGE = (GUIDE / "explanation" / "threat-model.md").read_text(encoding="utf-8")
POLICY = (GUIDE / "reference" / "security.md").read_text(encoding="utf-8")
ROWS = [row for row in re.findall(r"^\| (?!threat|-).*\|$", PAGE, flags=re.M) if not row.startswith("|---")]

_LOCKS = "tests/architecture/test_locks.py"
_BILL = "tests/architecture/test_bill.py"
_AUDIT = "tests/webapp/test_audit_of_packages.py"
CLAIMS = {
    "Say which version (`rondo --version`), what an attacker needs and gets, and the steps.": [
        "tests/webapp/test_wheel.py::test_rondo_starts_and_its_commands_work_outside_the_checkout"
    ],
    "Each of its rows names the test that holds it.": [
        "tests/architecture/test_threat_model.py::test_every_row_names_a_test_that_exists"
    ],
    "Every package is pinned with hashes in `.ci/locks`.": [
        f"{_LOCKS}::test_every_requirement_is_pinned_to_a_version_that_it_allows",
        f"{_LOCKS}::test_every_pin_has_hashes_and_no_lock_names_an_address_or_a_folder",
    ],
    "The container installs the same locks, with hashes.": [
        "tests/webapp/test_deploy.py::test_the_image_installs_the_locks_with_hashes_and_nothing_else"
    ],
    (
        "CI asks for known vulnerabilities of every lock, and refuses one that "
        "`.ci/known_vulnerabilities.txt` does not excuse with a reason."
    ): [
        f"{_AUDIT}::test_every_lock_is_audited",
        f"{_AUDIT}::test_a_known_vulnerability_is_told_with_its_remedy",
        f"{_AUDIT}::test_an_excuse_needs_a_reason",
    ],
    "Without a network CI can ask nothing: it warns and goes on.": [
        f"{_AUDIT}::test_without_a_network_it_warns_and_fails_nothing"
    ],
    "Every package and every vendored file has a licence that `.ci/licences.json` names.": [
        f"{_BILL}::test_every_package_of_the_lock_is_in_the_bill_with_its_version_and_hashes",
        f"{_BILL}::test_every_vendored_file_has_a_licence_and_the_digest_that_is_written_down",
    ],
    "A vendored file that differs from its digest there is refused.": [
        f"{_BILL}::test_a_vendored_file_that_is_new_changed_or_gone_is_named"
    ],
    "`make sbom` writes a bill of materials.": [
        f"{_BILL}::test_every_package_of_the_lock_is_in_the_bill_with_its_version_and_hashes"
    ],
}
"""Sentence of the security policy → the tests that hold it."""
OF_PEOPLE = {
    "Where to report a vulnerability, what happens then, and how releases can be checked.",
    (
        "Write to the maintainers in private, by the security advisories of the repository you have Rondo "
        "from."
    ),
    "Do not open a public issue.",
    "A request and its answer are enough.",
    "Do not test on an installation of somebody else.",
    (
        "The maintainers aim to answer within three working days, to assess within ten, and to publish a fix "
        "within 90 days."
    ),
    "The advisory names you, if you like.",
    "Versions and support says which releases get the fix.",
    "What the threat model says Rondo protects.",
    "An administrator of an installation can read its data and run its trainer.",
    "That is no vulnerability.",
    "Neither is a model that writes something harmful.",
    "Install tells how they are used.",
}
"""Its other sentences: requests and aims of people, which no test can hold."""


def _exists(named: str) -> bool:
    path, _, name = named.partition("::")
    return f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")


def test_every_row_names_a_test_that_exists():
    assert ROWS
    for row in ROWS:
        named = re.findall(r"`(tests/[\w/]+\.py::\w+)`", row.split("|")[3])
        assert named, row
        assert [test for test in named if not _exists(test)] == []


def test_every_sentence_of_the_security_policy_names_a_test_that_exists_or_is_about_people():
    text = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", re.sub(r"^#.*$", "", POLICY, flags=re.M))
    paragraphs = re.split(r"\n\s*\n|\n- |^- ", text)
    sentences = {
        sentence
        for paragraph in paragraphs
        for sentence in re.split(r"(?<=\.) (?=[A-Z`])", " ".join(paragraph.split()).removeprefix("- "))
        if sentence
    }
    assert sentences == set(CLAIMS) | OF_PEOPLE
    assert [test for tests in CLAIMS.values() for test in tests if not _exists(test)] == []

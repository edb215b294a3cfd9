"""A package's root holds what its layout names and nothing else; its rooms are few enough to know."""

import pytest

from tests.architecture.test_house import ROOT, tracked

LOOSE = {
    "annotation": {"apps", "choices", "errors", "offsets", "tasks", "urls"},
    "training": {"apps", "choices", "tasks"},
    "training/rlhf": {"__main__", "advantages", "data", "export", "kl", "sampling", "spans", "train"},
    "webapp": {"apps", "broker", "celery", "checks", "settings", "storage", "urls", "wsgi"},
}
MOST_ROOMS = 25


@pytest.mark.parametrize("package", LOOSE)
def test_no_module_lies_loose_at_a_root_beyond_those_that_the_layout_names(package: str):
    modules = {path.stem for path in tracked(f"{package}/*.py") if path.parent == ROOT / package}
    assert modules - {"__init__"} == LOOSE[package]


@pytest.mark.parametrize("package", LOOSE)
def test_a_package_has_no_more_rooms_than_one_can_know(package: str):
    rooms = {
        path.relative_to(ROOT / package).parts[0]
        for path in tracked(f"{package}/*")
        if "locale" not in path.parts
    }
    assert len(rooms) <= MOST_ROOMS, sorted(rooms)

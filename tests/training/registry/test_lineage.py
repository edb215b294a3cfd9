"""The picture of descent: what is written into its boxes fits."""

import pytest

from training.selectors.checkpoints import BOX_WIDTH, LineageNode, picture_of

WIDEST_CHARACTER = 7.8
"""Pixels of a character of 12 pixels, weight 600, in DejaVu Sans on average: the widest font in use."""


@pytest.mark.parametrize("name", ["tea-r1-policy", "a-project-with-a-long-name-r12-policy", "x" * 200])
def test_the_name_of_a_checkpoint_stays_inside_its_box(name: str):
    (box,) = picture_of([LineageNode(name=name, kind="policy", parent=None)]).boxes
    assert len(box.short_name) * WIDEST_CHARACTER <= BOX_WIDTH - 2 * 10
    assert box.short_name.startswith(name[:5])
    assert box.short_name.endswith(name[-5:])

"""Two traces side by side: as many steps stand beside their like as any order allows."""

from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from annotation.text.step_markup import aligned

sequences = st.text(alphabet="abc", max_size=9)


def longest(left: str, right: str) -> int:
    """The length of a longest common subsequence, by its definition."""

    @cache
    def of(i: int, j: int) -> int:
        if i == len(left) or j == len(right):
            return 0
        if left[i] == right[j]:
            return 1 + of(i + 1, j + 1)
        return max(of(i + 1, j), of(i, j + 1))

    return of(0, 0)


@given(sequences, sequences)
def test_every_step_has_its_row_and_as_many_as_can_be_stand_beside_their_like(left: str, right: str):
    rows = aligned(left, right)
    assert [i for i, _ in rows if i is not None] == list(range(len(left)))
    assert [j for _, j in rows if j is not None] == list(range(len(right)))
    both = [(i, j) for i, j in rows if i is not None and j is not None]
    assert all(left[i] == right[j] for i, j in both)
    assert len(both) == longest(left, right)


def test_what_is_only_on_one_side_has_a_row_of_its_own():
    assert aligned("abcd", "acxd") == [(0, 0), (1, None), (2, 1), (None, 2), (3, 3)]

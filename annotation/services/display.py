"""The order in which an annotator sees completions: drawn by chance, balanced by count."""

import random
from collections.abc import Sequence

from django.db import connection
from django.utils.crypto import salted_hmac

from annotation.models import Project


def draw_display_order(*, project: Project, completion_ids: Sequence[int]) -> list[int]:
    """Draw the next display order of a project. Call it inside a transaction.

    Orders come in blocks of k for comparisons of k completions. Within a block a shuffled
    order is rotated by 0, 1, …, k−1 places (a cyclic Latin square), so that after every
    whole block each of the k candidates has stood in each position equally often. Which
    order comes next cannot be told without the server's secret key.
    """
    size = len(completion_ids)
    number = _next_number(project, size)
    block, turn = divmod(number, size)
    seed = salted_hmac("annotation.display", f"{project.pk}:{size}:{block}", algorithm="sha256").digest()
    chance = random.Random(seed)  # noqa: S311 - the seed is a keyed hash
    rotations = list(range(size))
    shuffled = list(range(size))
    # Both are shuffled: else in pairs the second order of a block would follow from the first.
    chance.shuffle(rotations)
    chance.shuffle(shuffled)
    rotation = rotations[turn]
    return [completion_ids[index] for index in shuffled[rotation:] + shuffled[:rotation]]


_NEXT_NUMBER = """
    INSERT INTO annotation_displaytally (project_id, size, drawn) VALUES (%s, %s, 1)
    ON CONFLICT (project_id, size) DO UPDATE SET drawn = annotation_displaytally.drawn + 1
    RETURNING drawn
"""


def _next_number(project: Project, size: int) -> int:
    # The row stays locked until the transaction ends: no two draw the same number. One statement,
    # because everyone who asks for work in this project waits here.
    with connection.cursor() as cursor:
        cursor.execute(_NEXT_NUMBER, [project.pk, size])
        drawn: int = cursor.fetchone()[0]
    return drawn - 1

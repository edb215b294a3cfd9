"""Rubrics in the terms of the contract."""

from annotation.models import RubricVersion
from annotation.record.judgment import Scale
from training.contract.rubric import Rubric, RubricCriterion


def rubric_of(version: RubricVersion) -> Rubric:
    """Return a version as judges score by it and runs save it."""
    return Rubric(
        name=version.rubric.name,
        version=version.number,
        criteria=tuple(
            RubricCriterion(
                key=row.key,
                name=row.name,
                text=row.text,
                levels=row.levels,
                scale=_SCALES[row.scale],
                weight=row.weight,
            )
            for row in version.criteria.all()
        ),
    )


_SCALES: dict[str, Scale] = {"five": "five", "seven": "seven", "thumbs": "thumbs"}

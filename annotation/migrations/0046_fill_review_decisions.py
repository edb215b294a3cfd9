"""Decisions that were made before decisions had a record of their own."""

from django.db import migrations


def fill_decisions(apps, schema_editor):
    decisions = apps.get_model("annotation", "ReviewDecision")
    reviews = apps.get_model("annotation", "Review").objects.filter(decided_at__isnull=False)
    decisions.objects.bulk_create(
        (
            decisions(
                review_id=review.pk,
                kind="decided",
                reviewer_id=review.reviewer_id,
                verdict=review.verdict,
                ranks=review.ranks,
                comment=review.comment,
                created_at=review.decided_at,
            )
            for review in reviews.iterator()
        ),
        batch_size=500,
    )


class Migration(migrations.Migration):

    dependencies = [
        ('annotation', '0045_reviews'),
    ]

    operations = [
        migrations.RunPython(fill_decisions, migrations.RunPython.noop),
    ]

from django.apps import AppConfig


class TrainingConfig(AppConfig):
    name = "training"

    def ready(self) -> None:
        from annotation.formats import segments
        from training.contract.segmentation import segment
        from training.services import leaderboard

        leaderboard.listen()
        # Exports cut completions into steps as the trainer cuts them into segments.
        segments.register(segment)

from django.apps import AppConfig


class TrainingConfig(AppConfig):
    name = "training"

    def ready(self) -> None:
        from annotation.exchange.formats import segments
        from training.contract.segmentation import segment
        from training.services.comparing import leaderboard

        leaderboard.listen()
        # Exports cut completions into steps as the trainer cuts them into segments.
        segments.register(segment)

from django.apps import AppConfig


class TrainingConfig(AppConfig):
    name = "training"

    def ready(self) -> None:
        from annotation.exchange.formats import writers
        from annotation.services.judgments import drafts
        from training.contract.segmentation import segment
        from training.services import leaderboard, project_file
        from training.services.sampling import CheckpointWriter

        leaderboard.listen()
        # Exports cut completions into steps as the trainer cuts them into segments.
        writers.register(segment)
        # Annotators have checkpoints continue what they rewrite.
        drafts.register(CheckpointWriter())
        # Project files hold conversations, suggestions and the recipe.
        project_file.add_sections()

"""Long jobs that hold every place of their lane, and a short one that does not wait for them.

python -m tests.faults.long_jobs serve PORT   a model server that takes every request and answers none
python -m tests.faults.long_jobs prepare      a round that samples, and three judges, of two projects
python -m tests.faults.long_jobs import       one row that is imported into the first project; its id
"""

import json
import sys
import threading
from http.server import ThreadingHTTPServer

from tests.faults.talks import Models

PROJECTS = ("tea", "coffee")
MANAGER = "manager"


class _Silent(Models):
    """Says that it is ready, and then nothing."""

    def answer(self) -> None:
        """Keep the client waiting."""
        threading.Event().wait()


def serve(port: int) -> None:
    """Listen until killed."""
    ThreadingHTTPServer(("127.0.0.1", port), _Silent).serve_forever()


def prepare() -> None:
    """Four jobs that ask the model server: as many as the lane of long jobs takes at once."""
    from annotation.models import User
    from tests import factories
    from tests.loop.recipe import tiny_recipe
    from training.services.checkpoints import register_starter
    from training.services.judges import create_judge
    from training.services.rounds.controls import open_first_round

    manager = User.objects.create_user(MANAGER)
    tea, coffee = (factories.make_project(slug=slug, managers=[manager]) for slug in PROJECTS)
    for project, names in ((tea, ["Ada"]), (coffee, ["Ben", "Cem"])):
        for number in range(3):
            factories.make_comparison(project, [f"first {number}", f"second {number}"])
        for name in names:
            create_judge(
                project=project, name=name, checkpoint=register_starter(name="judge"), created_by=manager
            )
    factories.make_prompt(tea, "Which tea is green?")
    open_first_round(project=tea, started_by=manager, recipe=tiny_recipe())


def import_one_row() -> int:
    """Upload a file with one comparison and start its import, as the page does."""
    from django.core.files.uploadedfile import SimpleUploadedFile

    from annotation.exchange.uploads import receive_upload, start_import
    from annotation.models import Project, User

    manager = User.objects.get(username=MANAGER)
    row = {"prompt": "How long?", "chosen": "Two minutes.", "rejected": "Two hours."}
    record = receive_upload(
        project=Project.objects.get(slug=PROJECTS[0]),
        upload=SimpleUploadedFile("one.jsonl", json.dumps(row).encode()),
        user=manager,
    )
    start_import(record=record, skip_bad=False, user=manager)
    return int(record.pk)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
    else:
        import django

        django.setup()
        if sys.argv[1] == "prepare":
            prepare()
        else:
            json.dump(import_one_row(), sys.stdout)

"""Exports of checkpoints: cards, folders, a hub; and the picture of their descent."""

import io
import logging
import sys
import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st
from pytest_django import Settings

from annotation.models import AuditEntry, Project, User
from tests.refusals import refused
from tests.training.registry.registry_rows import make_starter, make_trained
from training.choices import CheckpointKind, RoundState
from training.figures.model_card import model_card
from training.models import Checkpoint, CheckpointExport, Evaluation, Round
from training.selectors.checkpoints import (
    BOX_HEIGHT,
    BOX_WIDTH,
    LineageNode,
    card_of,
    lineage_picture,
    picture_of,
)
from training.services import checkpoint_exports
from training.services.checkpoint_exports import do_export, request_export

SignIn = Callable[[User], Client]
TOKEN = "hf_a_very_secret_token"

# A stand-in for training.rlhf.export, which loads torch and a real base: same command line, same ending.
_FAKE_EXPORT = """
import argparse, pathlib, shutil, sys
parser = argparse.ArgumentParser()
parser.add_argument("checkpoint", type=pathlib.Path)
for name in ("--base", "--out", "--card"):
    parser.add_argument(name, type=pathlib.Path)
parser.add_argument("--merged", action="store_true")
told = parser.parse_args()
if (told.checkpoint.parent / "fail").exists():
    sys.exit("The base is another one")
told.out.mkdir()
shutil.copyfile(told.checkpoint / "adapter_model.safetensors", told.out / "adapter_model.safetensors")
shutil.copyfile(told.card, told.out / "README.md")
(told.out / "merged").write_text(str(told.merged))
"""


@pytest.fixture
def fake_export(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "export.py"
    script.write_text(textwrap.dedent(_FAKE_EXPORT))
    monkeypatch.setattr(checkpoint_exports, "EXPORT_COMMAND", (sys.executable, str(script)))


@pytest.fixture
def policy(project: Project) -> Checkpoint:
    return make_trained("policy-1", project, parent=make_starter(), metrics={
        "held_out_accuracy": 0.75, "held_out_accuracy_low": 0.5, "held_out_accuracy_high": 0.875,
    })  # fmt: skip


# ── folders ───────────────────────────────────────────────────────────────────────────


@pytest.mark.django_db
@pytest.mark.usefixtures("fake_export")
def test_a_checkpoint_is_exported_by_a_worker_and_fetched(
    policy: Checkpoint, carol: User, client_of: SignIn, sent, django_capture_on_commit_callbacks
):
    client = client_of(carol)
    with django_capture_on_commit_callbacks(execute=True):
        client.post(reverse("checkpoint-export", args=[policy.name]), {"form": "merged"})
    export = CheckpointExport.objects.get()
    assert sent == [("training.tasks.do_job", ["export", export.pk])]
    assert b"hx-get" in client.get(reverse("checkpoint-exports", args=[policy.name])).content
    do_export(export.pk)
    export.refresh_from_db()
    assert (export.state, export.error) == ("finished", "")
    page = client.get(reverse("checkpoint-exports", args=[policy.name])).content
    assert b"hx-get" not in page
    answer = client.get(reverse("checkpoint-export-download", args=[policy.name, export.pk]))
    assert answer["Content-Disposition"] == 'attachment; filename="policy-1-merged.zip"'
    with zipfile.ZipFile(io.BytesIO(b"".join(answer))) as archive:
        assert archive.read("policy-1/adapter_model.safetensors") == b"weights of policy-1"
        assert archive.read("policy-1/merged") == b"True"
        assert "# policy\\-1" in archive.read("policy-1/README.md").decode()
    assert AuditEntry.objects.get().action == "checkpoint.export"


@pytest.mark.django_db
def test_a_damaged_checkpoint_is_never_exported(policy: Checkpoint, carol: User):
    (policy.path / "adapter_model.safetensors").write_text("other")
    export = request_export(checkpoint=policy, merged=False, requested_by=carol)
    do_export(export.pk)
    export.refresh_from_db()
    assert export.state == "failed"
    assert "adapter_model.safetensors is changed" in export.error


@pytest.mark.django_db
@pytest.mark.usefixtures("fake_export")
def test_an_export_that_fails_says_why_in_the_words_of_the_process(policy: Checkpoint, carol: User):
    (policy.path.parent / "fail").touch()
    export = request_export(checkpoint=policy, merged=False, requested_by=carol)
    do_export(export.pk)
    export.refresh_from_db()
    assert (export.state, export.error) == ("failed", "The base is another one")
    again = request_export(checkpoint=policy, merged=False, requested_by=carol)
    assert again.pk != export.pk


@pytest.mark.django_db
def test_what_cannot_be_exported_is_refused(policy: Checkpoint, carol: User, settings: Settings):
    starter = Checkpoint.objects.get(kind=CheckpointKind.STARTER)
    with refused("base_model_not_exported", checkpoint="base"):
        request_export(checkpoint=starter, merged=False, requested_by=carol)
    with refused("hub_not_set"):
        request_export(checkpoint=policy, merged=False, repository="me/it", requested_by=carol)
    settings.RONDO_HUB_TOKEN = TOKEN
    for name in ("me", "me/it/more", "../it", "me/..", "https://x/y"):
        with refused("invalid_repository"):
            request_export(checkpoint=policy, merged=False, repository=name, requested_by=carol)
    request_export(checkpoint=policy, merged=False, requested_by=carol)
    with refused("export_under_way"):
        request_export(checkpoint=policy, merged=False, requested_by=carol)
    request_export(checkpoint=policy, merged=True, requested_by=carol)


# ── a hub ─────────────────────────────────────────────────────────────────────────────


class FakeHub:
    """In place of `huggingface_hub.HfApi`: remembers what was made and uploaded."""

    trouble: Exception | None = None
    calls: list[tuple[object, ...]] = []

    def __init__(self, endpoint: str | None, token: str) -> None:
        self.calls.append(("api", endpoint, token))

    def create_repo(self, name: str, *, private: bool, exist_ok: bool) -> str:
        if self.trouble:
            raise self.trouble
        self.calls.append(("create", name, private, exist_ok))
        return f"https://hub.example.org/{name}"

    def upload_folder(self, *, repo_id: str, folder_path: str, commit_message: str) -> None:
        files = sorted(path.name for path in Path(folder_path).iterdir())
        self.calls.append(("upload", repo_id, files, commit_message))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> type[FakeHub]:
    settings.RONDO_HUB_TOKEN = TOKEN
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.example.org")
    monkeypatch.setattr("huggingface_hub.HfApi", FakeHub)
    monkeypatch.setattr(FakeHub, "calls", [])
    monkeypatch.setattr(FakeHub, "trouble", None)
    return FakeHub


@pytest.mark.django_db
@pytest.mark.usefixtures("fake_export")
def test_a_checkpoint_is_pushed_to_the_hub_that_is_set(
    policy: Checkpoint, carol: User, client_of: SignIn, hub: type[FakeHub], rondo_home: Path
):
    client = client_of(carol)
    client.post(
        reverse("checkpoint-export", args=[policy.name]),
        {"form": "adapter", "repository": "team/tea", "push": "1"},
    )
    export = CheckpointExport.objects.get()
    do_export(export.pk)
    export.refresh_from_db()
    assert (export.state, export.url) == ("finished", "https://hub.example.org/team/tea")
    assert hub.calls == [
        ("api", "https://hub.example.org", TOKEN),
        ("create", "team/tea", True, True),
        (
            "upload",
            "team/tea",
            ["README.md", "adapter_model.safetensors", "merged"],
            f"policy-1 from Rondo, manifest {policy.digest[:12]}",
        ),
    ]
    assert not (rondo_home / "exports" / str(export.pk)).exists()
    assert "https://hub.example.org/team/tea" in client.get(policy.get_absolute_url()).content.decode()


@pytest.mark.django_db
@pytest.mark.usefixtures("fake_export")
def test_a_hub_that_refuses_is_quoted_without_the_token(
    policy: Checkpoint, carol: User, hub: type[FakeHub], caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    hub.trouble = ValueError(f"403: {TOKEN} may not write to team/tea\nmore")
    export = request_export(checkpoint=policy, merged=False, repository="team/tea", requested_by=carol)
    do_export(export.pk)
    export.refresh_from_db()
    assert export.error == "The hub refused: 403: [token] may not write to team/tea"
    assert TOKEN not in caplog.text
    assert TOKEN not in str(list(CheckpointExport.objects.values())) + str(list(AuditEntry.objects.values()))


# ── the card ──────────────────────────────────────────────────────────────────────────


@pytest.mark.django_db
def test_the_card_tells_the_facts(policy: Checkpoint, project: Project, carol: User, client_of: SignIn):
    child = make_trained("policy-2", project, parent=policy)
    answer = client_of(carol).get(reverse("checkpoint-card", args=[policy.name]))
    assert answer["Content-Disposition"] == 'attachment; filename="policy-1.md"'
    card = answer.content.decode()
    assert card.startswith(
        '---\nlibrary_name: peft\nbase_model: "base"\ntags: ["rondo", "text-generation"]\n---\n'
    )
    for line in (
        "| method | preference, 12 steps, seed 3 |",
        "| people who judged | 2 |",
        "| decided pairs, held out | 3 |",
        "| accuracy | 0.75 | 0.5 – 0.875 |",
        f"| digest of the manifest | `{policy.digest}` |",
        "policy\\-1 ← base (base)",
        "- The held-out figures rest on 3 decided pairs of the same project",
    ):
        assert line in card, line
    of_child = model_card(card_of(child))
    assert f"- policy\\-1: `{policy.digest}`" in of_child
    assert "None were measured." in of_child


@pytest.mark.django_db
def test_a_project_whose_name_is_markup_writes_no_markup(policy: Checkpoint, project: Project):
    project.name = "Tea | <img src=x> [click](http://evil)\n# Owned"
    project.save()
    policy.refresh_from_db()
    card = model_card(card_of(policy))
    assert "| project | Tea \\| \\<img src=x\\> \\[click\\]\\(http://evil\\) \\# Owned |" in card


# ── the picture ───────────────────────────────────────────────────────────────────────


def test_who_descends_stands_right_of_whom_it_continues():
    nodes = [
        LineageNode(name="base", kind="starter", parent=None),
        LineageNode(name="r1", kind="reward", parent="base", round_number=1),
        LineageNode(name="p1", kind="policy", parent="base", rewarded_by=("r1",), round_number=1),
        LineageNode(name="p2", kind="policy", parent="p1", round_number=2),
        LineageNode(name="gone", kind="policy", parent="deleted long ago", round_number=2),
    ]
    drawn = picture_of(nodes, here="p1")
    x = {box.node.name: box.x for box in drawn.boxes}
    assert x["base"] < x["r1"] < x["p1"] < x["p2"]
    assert [line.is_reward for line in drawn.lines] == [False, False, True, False]
    assert [box.node.name for box in drawn.boxes if box.is_here] == ["p1"]


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.sampled_from(["policy", "reward"]), st.integers(0, 9)), max_size=30
    )
)
def test_no_two_boxes_overlap_and_all_are_inside(family):
    nodes = [
        # Any parent, also itself and one that comes later: a damaged database must not hang a page.
        LineageNode(name=f"n{number}", kind=kind, parent=f"n{parent}", round_number=round_ or None)
        for number, (parent, kind, round_) in enumerate(family)
    ]
    drawn = picture_of(nodes)
    places = [(box.x, box.y) for box in drawn.boxes]
    assert len(set(places)) == len(nodes)
    for x, y in places:
        assert 0 <= x <= drawn.width - BOX_WIDTH
        assert 0 <= y <= drawn.height - BOX_HEIGHT
        assert all(abs(x - a) >= BOX_WIDTH or abs(y - b) >= BOX_HEIGHT for a, b in places if (a, b) != (x, y))


@pytest.mark.django_db
def test_the_picture_is_told_as_a_list_too(
    policy: Checkpoint, project: Project, carol: User, client_of: SignIn
):
    reward = make_trained("reward-1", project, kind=CheckpointKind.REWARD)
    spec = {"settings": {"rewards": [{"checkpoint": "../../checkpoints/reward-1"}]}}
    child = make_trained("policy-2", project, parent=policy, spec=spec)
    page = client_of(carol).get(child.get_absolute_url()).content.decode()
    assert "continues policy-1" in page
    assert "trained for reward-1" in page
    assert page.count("lineage__box--policy") == 2
    drawn = lineage_picture([policy, reward, child])
    assert sum(line.is_reward for line in drawn.lines) == 1


@pytest.mark.django_db
def test_a_page_of_a_large_family_asks_the_database_no_more(
    policy: Checkpoint, project: Project, carol: User, client_of: SignIn, django_assert_max_num_queries
):
    for number in range(2, 12):
        make_trained(f"policy-{number}", project, parent=policy)
    client = client_of(carol)
    with django_assert_max_num_queries(14):
        assert client.get(policy.get_absolute_url()).status_code == 200
    # Rounds to filter by and evaluations take one each.
    with django_assert_max_num_queries(10):
        assert client.get(reverse("checkpoints")).status_code == 200


@pytest.mark.django_db
def test_page_and_card_tell_what_the_evaluation_against_the_parent_found(
    policy: Checkpoint, project: Project, carol: User, client_of: SignIn
):
    child = make_trained("policy-2", project, parent=policy)
    round_ = Round.objects.create(project=project, number=1, policy=policy, state=RoundState.DECIDING)
    rate = {"value": 0.625, "low": 0.5, "high": 0.75, "prompts": 8}
    evaluation = Evaluation.objects.create(
        checkpoint=child,
        parent=policy,
        round=round_,
        digest="0" * 64,
        settings={},
        prompts=[],
        figures={"prompts": 8, "win_rate": rate},
    )
    assert "Against its parent" not in model_card(card_of(child))
    evaluation.finished_at = timezone.now()
    evaluation.save()
    assert "## Against its parent\n\n- 8 held\\-out prompts, win rate 62" in model_card(card_of(child))
    page = client_of(carol).get(child.get_absolute_url()).content.decode()
    assert "Win rate by the reward model" in page
    assert "62.5 %" in page

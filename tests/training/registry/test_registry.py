"""The registry: what people say of a checkpoint, whether its files are whole, and when they may go."""

import re
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import Settings

from annotation.errors import Refusal
from annotation.models import AuditEntry, Project, User
from tests.refusals import refused
from tests.training.registry.registry_rows import make_snapshot, make_starter, make_trained
from training.choices import CheckpointKind, RoundState, RunState
from training.contract.methods.policy import (
    KtoSettings,
    PolicyGradientSettings,
    PreferenceSettings,
    RewardPart,
)
from training.models import ArenaLink, Checkpoint, CheckpointExport, Judge, Round, Run
from training.selectors.checkpoints import uses_of
from training.selectors.projects import checkpoints_of
from training.services.checkpoint_files import (
    apply_retention,
    check_files,
    delete_files,
    expired_files,
    require_intact,
    require_registered,
    sweep_deleted,
)
from training.services.checkpoints import describe_checkpoint
from training.services.rounds.dry_run import refuse_unless_fits
from training.services.rounds.recipes import with_reward_models

SignIn = Callable[[User], Client]
pytestmark = pytest.mark.django_db


@pytest.fixture
def starter(db: None) -> Checkpoint:
    return make_starter()


@pytest.fixture
def old(project: Project, starter: Checkpoint) -> Checkpoint:
    """A policy that nothing needs: a newer one is there."""
    made = make_trained("policy-1", project, parent=starter)
    make_trained("policy-2", project)
    return made


# ── tags and notes ────────────────────────────────────────────────────────────────────


def test_tags_and_notes_are_changed_and_who_did_it_is_written_down(
    old: Checkpoint, carol: User, client_of: SignIn
):
    client = client_of(carol)
    url = reverse("checkpoint-describe", args=[old.name])
    client.post(url, {"tags": " best , for demo,, best", "notes": "# Good\r\n<script>alert(1)</script>"})
    old.refresh_from_db()
    assert (old.tags, old.notes) == (["best", "for demo"], "# Good\n<script>alert(1)</script>")
    page = client.get(old.get_absolute_url()).content.decode()
    assert "<script>alert(1)" not in page
    entries = AuditEntry.objects.filter(subject="policy-1").order_by("pk")
    assert [(entry.action, entry.actor) for entry in entries] == [
        ("checkpoint.tag", carol), ("checkpoint.note", carol),
    ]  # fmt: skip
    assert entries[0].details == {"before": [], "after": ["best", "for demo"]}
    client.post(url, {"tags": "best,for demo", "notes": old.notes})
    assert AuditEntry.objects.count() == 2  # nothing changed


@pytest.mark.parametrize(
    ("tags", "notes", "field"),
    [
        (["<b>"], "", "tags"),
        (["x" * 41], "", "tags"),
        ([f"t{n}" for n in range(21)], "", "tags"),
        ([], "x" * 20_001, "notes"),
    ],
)
def test_what_is_no_tag_or_too_much_is_refused_by_its_field(old: Checkpoint, carol: User, tags, notes, field):
    with pytest.raises(Refusal) as refusal:
        describe_checkpoint(checkpoint=old, tags=tags, notes=notes, described_by=carol)
    assert refusal.value.field == field
    old.refresh_from_db()
    assert (old.tags, old.notes) == ([], "")


def test_a_refused_form_keeps_what_was_typed(old: Checkpoint, carol: User, client_of: SignIn):
    url = reverse("checkpoint-describe", args=[old.name])
    answer = client_of(carol).post(url, {"tags": "<b>", "notes": "a long thought"})
    assert answer.status_code == 422
    assert "a long thought" in answer.content.decode()


def test_checkpoints_are_found_by_tag_kind_and_text(old: Checkpoint, project, carol: User, client_of: SignIn):
    make_trained("reward-1", project, kind=CheckpointKind.REWARD)
    Checkpoint.objects.filter(pk=old.pk).update(tags=["best"], notes="answers in rhyme")
    client = client_of(carol)

    def listed(**query: str) -> set[str]:
        page = client.get(reverse("checkpoints"), query).content.decode()
        return {name for name in ("policy-1", "policy-2", "reward-1") if f'/checkpoints/{name}/"' in page}

    assert listed() == {"policy-1", "policy-2", "reward-1"}
    assert listed(tag="best") == {"policy-1"}
    assert listed(tag="bes") == set()
    assert listed(kind="reward") == {"reward-1"}
    assert listed(text="rhyme") == {"policy-1"}
    assert listed(text="POLICY", kind="policy") == {"policy-1", "policy-2"}


def test_checkpoints_are_ordered_by_what_was_measured_and_lead_to_it(
    old: Checkpoint, project, carol: User, client_of: SignIn
):
    reward = make_trained("reward-1", project, kind=CheckpointKind.REWARD)
    better = make_trained("reward-2", project, kind=CheckpointKind.REWARD)
    for made, accuracy in ((reward, 0.6), (better, 0.8)):
        Run.objects.filter(pk=made.run_id).update(summary={"held_out_accuracy": accuracy})
    client = client_of(carol)

    def listed(**query: str) -> list[str]:
        page = client.get(reverse("checkpoints"), query)
        assert page.status_code == 200
        return re.findall(r'<th scope="row">\s*<a href="/checkpoints/([^/]+)/"', page.content.decode())

    assert listed(sort="-accuracy")[:2] == ["reward-2", "reward-1"]
    assert listed(sort="accuracy")[:2] == ["reward-1", "reward-2"]
    assert listed(sort="name")[:2] == ["base", "policy-1"]
    assert listed(sort="-created")[0] == "reward-2"
    assert listed(evaluated="1") == []
    assert listed(round="7") == []
    newest = listed()
    for hostile in ({"sort": "-run__spec"}, {"sort": "__class__"}, {"page": "-1"}, {"round": "9" * 30}):
        assert listed(**hostile) == newest
    page = client.get(reverse("checkpoints"), {"project": "tea"}).content.decode()
    assert better.run.get_absolute_url() in page
    # Only what writes text can be compared.
    assert sorted(re.findall(r'name="checkpoint" value="([^"]+)"', page)) == ["base", "policy-1", "policy-2"]
    part = client.get(reverse("checkpoints"), headers={"HX-Request": "true"}).content.decode()
    assert part.strip().startswith('<div id="checkpoints-table"')


# ── files ─────────────────────────────────────────────────────────────────────────────


def test_every_file_is_held_against_its_digest(old: Checkpoint):
    assert {file.name: file.state for file in check_files(old)} == {
        "manifest.json": "intact", "adapter_model.safetensors": "intact", "adapter_config.json": "intact",
    }  # fmt: skip
    (old.path / "adapter_model.safetensors").write_text("other weights")
    (old.path / "adapter_config.json").unlink()
    (old.path / "note.txt").write_text("hello")
    assert {file.name: file.state for file in check_files(old)} == {
        "manifest.json": "intact", "adapter_model.safetensors": "changed",
        "adapter_config.json": "missing", "note.txt": "unknown",
    }  # fmt: skip
    with refused(
        "checkpoint_damaged", damage="adapter_config.json is missing, adapter_model.safetensors is changed"
    ):
        require_intact(old)


def test_a_manifest_that_was_exchanged_with_its_files_is_found_out(old: Checkpoint, project: Project):
    other = make_trained("policy-3", project)
    for file in old.path.iterdir():
        file.write_bytes((other.path / file.name).read_bytes())
    assert [(checked.name, checked.state) for checked in check_files(old)] == [("manifest.json", "changed")]
    with refused("checkpoint_damaged", state="changed"):
        require_registered(old)
    require_registered(other)


def test_a_link_in_place_of_a_file_is_no_file(old: Checkpoint, project: Project):
    weights = old.path / "adapter_model.safetensors"
    weights.rename(old.path.parent / "elsewhere")
    weights.symlink_to(old.path.parent / "elsewhere")
    assert {file.name: file.state for file in check_files(old)}["adapter_model.safetensors"] == "missing"


def test_verify_now_shows_each_file(old: Checkpoint, carol: User, client_of: SignIn):
    (old.path / "adapter_config.json").write_text("[]")
    page = client_of(carol).post(reverse("checkpoint-verify", args=[old.name])).content.decode()
    assert page.count("badge--good") == 2
    assert page.count("badge--bad") == 1
    assert "adapter_config.json" in page


def test_the_command_names_damaged_checkpoints_and_fails(old: Checkpoint):
    (old.path / "adapter_model.safetensors").unlink()
    out = StringIO()
    with pytest.raises(CommandError, match="Damaged: policy-1"):
        call_command("verify_checkpoints", stdout=out)
    assert "policy-2: intact, 3 files" in out.getvalue()
    call_command("verify_checkpoints", "policy-2", stdout=out)
    with pytest.raises(CommandError, match="No such checkpoint: nobody"):
        call_command("verify_checkpoints", "nobody", stdout=out)


# ── deletion ──────────────────────────────────────────────────────────────────────────


def test_files_go_and_the_record_stays(
    old: Checkpoint, carol: User, client_of: SignIn, django_capture_on_commit_callbacks
):
    client, url = client_of(carol), reverse("checkpoint-delete", args=[old.name])
    assert "Nothing uses these files now" in client.get(url).content.decode()
    with django_capture_on_commit_callbacks(execute=True):
        client.post(url)
    assert not old.path.exists()
    old.refresh_from_db()
    assert old.files_deleted_at
    page = client.get(old.get_absolute_url()).content.decode()
    assert "Its files were deleted on" in page
    assert "Verify now" not in page
    entry = AuditEntry.objects.get(action="checkpoint.delete")
    assert (entry.subject, entry.actor, entry.details) == ("policy-1", carol, {"digest": old.digest})
    delete_files(checkpoint=old, deleted_by=carol)  # a second time is nothing new
    assert AuditEntry.objects.filter(action="checkpoint.delete").count() == 1


def make_round(project: Project, policy: Checkpoint, state: RoundState) -> Round:
    return Round.objects.create(project=project, number=1, policy=policy, state=state)


def words(checkpoint: Checkpoint) -> str:
    return "; ".join(use.what for use in uses_of(checkpoint))


@pytest.mark.parametrize("state", RoundState.values)
def test_a_round_needs_its_policy_until_it_has_ended(old: Checkpoint, project: Project, state: str):
    make_round(project, old, RoundState(state))
    ended = state in ("promoted", "rejected", "not_enough_evidence", "cancelled")
    assert ("which it answers" in words(old)) is not ended


def test_what_still_needs_a_checkpoint_is_named_and_nothing_is_deleted(
    old: Checkpoint, project: Project, starter: Checkpoint, carol: User
):
    child = make_trained("policy-3", project, parent=old)
    round_ = make_round(project, child, RoundState.LABELLING)
    run = Run.objects.create(
        name="next",
        method="preference",
        snapshot=make_snapshot(project),
        parent=old,
        spec={},
        folder="runs/next",
        state=RunState.STOPPED,
    )
    CheckpointExport.objects.create(checkpoint=old)
    with refused("checkpoint_in_use") as refusal:
        delete_files(checkpoint=old, deleted_by=carol)
    for named in (f"{round_}, whose rival it is", "run next, which continues it", "an export"):
        assert named in refusal.value.message
    assert old.path.is_dir()
    Run.objects.filter(pk=run.pk).update(state=RunState.FINISHED)
    Round.objects.update(state=RoundState.PROMOTED)
    CheckpointExport.objects.update(state="finished")
    assert uses_of(old) == []  # a child has weights of its own
    assert words(child) == "Tea, of which it is the newest policy"
    assert words(starter) == "every checkpoint that was trained on it"


@pytest.mark.parametrize("folder", ["../../checkpoints/reward-1", "../reward-1/checkpoint"])
def test_a_run_needs_the_reward_models_that_it_is_trained_for(project: Project, folder: str):
    reward = make_trained("reward-1", project, kind=CheckpointKind.REWARD)
    make_trained("reward-2", project, kind=CheckpointKind.REWARD)
    spec = {"settings": {"rewards": [{"name": "a", "checkpoint": folder}, {"name": "b", "checkpoint": None}]}}
    run = Run.objects.create(
        name="next", method="policy_gradient", snapshot=make_snapshot(project), spec=spec, folder="runs/next"
    )
    assert words(reward) == "run next, which it rewards"
    Run.objects.filter(pk=run.pk).update(state=RunState.FINISHED)
    assert uses_of(reward) == []


def test_a_checkpoint_that_a_recipe_names_or_an_open_arena_shows_stays(
    old: Checkpoint, project: Project, carol: User
):
    round_ = make_round(project, Checkpoint.objects.get(name="policy-2"), RoundState.LABELLING)
    round_.recipe = {"samplers": [{"checkpoint": "policy-1", "completions": 2}]}
    round_.save()
    arena = ArenaLink.objects.create(project=project, created_by=carol, name="Which?", prompts=1, sampling={})
    arena.checkpoints.add(old)
    machine = User.objects.create(username="judge-1", is_machine=True, is_active=False)
    judge = Judge.objects.create(project=project, user=machine, name="A judge", checkpoint=old, template="?")
    assert words(old) == f"the recipe of {round_}; {arena}, an open arena; {judge}, which it judges as"
    ArenaLink.objects.update(closed_at=timezone.now())
    Judge.objects.update(is_active=False)
    Round.objects.update(state=RoundState.REJECTED)
    assert uses_of(old) == []


def test_what_a_crash_left_of_a_deletion_goes_with_the_next_sweep(old: Checkpoint, carol: User):
    delete_files(checkpoint=old, deleted_by=carol)  # on_commit does not run in this test: as after a crash
    assert old.path.is_dir()
    torn = old.path.with_name(".deleted-policy-0")
    torn.mkdir()
    sweep_deleted()
    assert not old.path.exists()
    assert not torn.exists()
    assert (old.path.parent / "policy-2").is_dir()


def test_a_folder_outside_the_installation_is_left_alone(
    old: Checkpoint, carol: User, tmp_path, django_capture_on_commit_callbacks
):
    (tmp_path / "precious").write_text("x")
    Checkpoint.objects.filter(pk=old.pk).update(folder=str(tmp_path))
    with django_capture_on_commit_callbacks(execute=True):
        delete_files(checkpoint=old, deleted_by=carol)
    assert (tmp_path / "precious").exists()


# ── retention ─────────────────────────────────────────────────────────────────────────


def test_nothing_goes_by_itself_unless_it_is_wished(old: Checkpoint):
    assert expired_files() == []


def test_the_newest_that_nothing_needs_and_all_that_are_tagged_stay(
    project: Project, settings: Settings, django_capture_on_commit_callbacks
):
    made = [make_trained(f"policy-{n}", project) for n in range(6)]
    Checkpoint.objects.filter(pk=made[1].pk).update(tags=["keep"])
    settings.RONDO_KEEP_CHECKPOINTS = 2
    # policy-5 is needed: it is the newest. 4 and 3 are the two newest without uses, 1 is tagged.
    out = StringIO()
    call_command("retention", "--dry-run", stdout=out)
    assert [line.split(",")[0] for line in out.getvalue().splitlines()] == [
        "checkpoint policy-2", "checkpoint policy-0", "2 would be deleted",
    ]  # fmt: skip
    assert all(checkpoint.path.is_dir() for checkpoint in made)
    with django_capture_on_commit_callbacks(execute=True):
        apply_retention()
    assert [checkpoint.path.is_dir() for checkpoint in made] == [False, True, False, True, True, True]
    entry = AuditEntry.objects.filter(action="checkpoint.delete").first()
    assert (entry.actor, entry.details["reason"]) == (None, "retention")
    assert expired_files() == []


def test_states_of_all_but_the_newest_finished_runs_go(project: Project, settings: Settings):
    made = [make_trained(f"policy-{n}", project) for n in range(3)]
    for checkpoint in made:
        (checkpoint.run.path / "state").mkdir()
        (checkpoint.run.path / "state" / "optimiser").write_text("x" * 10)
        (checkpoint.run.path / "metrics.jsonl").write_text("")
    settings.RONDO_KEEP_RUN_STATES = 1
    assert [(expired.what, expired.size) for expired in expired_files()] == [
        ("state of run policy-1", 10), ("state of run policy-0", 10),
    ]  # fmt: skip
    apply_retention()
    assert [(policy.run.path / "state").is_dir() for policy in made] == [False, False, True]
    assert all((policy.run.path / "metrics.jsonl").exists() for policy in made)


def test_an_export_that_nobody_fetched_goes_after_a_week(old: Checkpoint, rondo_home):
    folder = rondo_home / "exports" / "1" / "abc" / "policy-1"
    folder.mkdir(parents=True)
    made = CheckpointExport.objects.create(
        pk=1,
        checkpoint=old,
        state="finished",
        folder="exports/1/abc/policy-1",
        finished_at=timezone.now() - timedelta(days=6),
    )
    assert apply_retention() == []
    CheckpointExport.objects.filter(pk=made.pk).update(finished_at=timezone.now() - timedelta(days=8))
    assert [expired.what for expired in apply_retention()] == ["export of policy-1, adapter"]
    assert not (rondo_home / "exports" / "1").exists()
    made.refresh_from_db()
    assert made.folder == ""


def test_a_starter_model_is_nobodys_to_describe_or_export_but_administrators(
    starter: Checkpoint, project: Project, carol: User, admin: User, client_of: SignIn
):
    url = reverse("checkpoint-describe", args=[starter.name])
    assert client_of(carol).post(url, {"tags": "mine"}).status_code == 403
    assert client_of(admin).post(url, {"tags": "base"}).status_code == 302
    assert "Delete its files" not in client_of(admin).get(starter.get_absolute_url()).content.decode()


def test_a_reward_model_whose_manifest_was_exchanged_trains_no_policy(project: Project, starter: Checkpoint):
    reward = make_trained("reward-1", project, kind=CheckpointKind.REWARD)
    round_ = make_round(project, starter, RoundState.LABELLING)
    part = RewardPart(name="people", kind="model", checkpoint="reward-1")
    settings = PolicyGradientSettings(rewards=(part,))
    assert isinstance(with_reward_models(round_, settings), PolicyGradientSettings)
    (reward.path / "manifest.json").write_text("{}")
    with refused("checkpoint_damaged", checkpoint="reward-1"):
        with_reward_models(round_, settings)


def test_the_reference_of_a_recipe_is_parent_base_or_a_policy_of_the_project_by_its_name(
    project: Project, starter: Checkpoint, settings: Settings
):
    older = make_trained("policy-1", project, kind=CheckpointKind.POLICY)
    round_ = make_round(project, starter, RoundState.LABELLING)
    for same in ("parent", "base"):
        assert with_reward_models(round_, PreferenceSettings(reference=same)).reference == same
    placed = with_reward_models(round_, PreferenceSettings(reference="policy-1"))
    assert Path(settings.RONDO_RUNS, "run", placed.reference).resolve() == older.path.resolve()
    assert placed.reference_digest == older.digest
    # A starter model is its base, adapters off.
    assert with_reward_models(round_, KtoSettings(reference=starter.name)).reference == "base"
    with pytest.raises(
        Refusal, match="The recipe’s reference names nobody, which is no policy of the project"
    ):
        with_reward_models(round_, PreferenceSettings(reference="nobody"))
    round_.recipe = {"policy": {"reference": "nobody"}}
    round_.save()
    with pytest.raises(Refusal, match="names nobody"):
        refuse_unless_fits(round_)


def test_what_has_no_files_any_more_is_offered_nowhere(old: Checkpoint, project: Project, carol: User):
    assert old in checkpoints_of(project, writing=True)
    delete_files(checkpoint=old, deleted_by=carol)
    assert old not in checkpoints_of(project, writing=True)
    with refused("files_deleted"):
        require_registered(old)

"""Base models from folders: added whole or refused with the reason, inspected, and removed."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from annotation.choices import JobState
from annotation.errors import NotAllowed, Refusal
from annotation.models import AuditEntry, CompletionSource, User
from tests.refusals import refused
from tests.rlhf.model.families import family_folder
from tests.training.registry.base_model_scene import added, change_json, leftovers, of_folder
from training.choices import BaseOrigin, CheckpointKind
from training.models import BaseModel, BaseModelAddition, Checkpoint, ProjectBase
from training.services import base_models
from training.services.base_models import (
    CACHE_TOKENS,
    STARTER_PACKAGE,
    NewBaseModel,
    do_addition,
    estimates_of,
    inspect_again,
    remove_base_model,
    request_base_model,
    sweep_additions,
)
from training.services.checkpoints import register_starter
from training.services.runs import launcher
from training.services.runs.memory import PROCESS_BYTES

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("forked_inspections")]


@pytest.fixture
def server_folder(tmp_path: Path, llama: Path, settings: Settings) -> Path:
    """A copy of it, below an allowed folder."""
    settings.RONDO_BASE_MODEL_FOLDERS = [str(tmp_path)]
    return Path(shutil.copytree(llama, tmp_path / "tiny-llama"))


def cut_short(file: Path) -> None:
    """Leave the first half of a file, as a download that broke off."""
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


# ── Folders ───────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_a_folder_becomes_a_base_model_with_its_facts_and_the_digest_of_every_file(
    server_folder: Path, admin: User, settings: Settings, monkeypatch: pytest.MonkeyPatch
):
    # The command itself, as workers run it.
    monkeypatch.setattr(base_models, "run_process", launcher.run_process)
    addition = added(of_folder(server_folder), admin)
    assert (addition.state, addition.error) == (JobState.FINISHED, "")
    base = BaseModel.objects.get(name="tiny-llama")
    assert {file["name"]: file["sha256"] for file in base.files} == {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in server_folder.iterdir()
    }
    assert (
        base.tokenizer_digest == hashlib.sha256((server_folder / "tokenizer.json").read_bytes()).hexdigest()
    )
    facts = base.facts
    assert (facts["architecture"], facts["context"], facts["vocabulary"]) == ("LlamaForCausalLM", 2048, 320)
    assert (facts["dtype"], facts["tied"], facts["takes_system"]) == ("float32", True, True)
    # One embedding, tied; three blocks of attention, network and two norms; the last norm.
    block = 48 * 48 * 2 + 48 * 24 * 2 + 3 * 48 * 128 + 2 * 48
    assert facts["parameters"] == 320 * 48 + 3 * block + 48
    assert facts["example"].endswith("<|im_start|>user\nAnd another?<|im_end|>\n<|im_start|>assistant\n")
    starter = base.starter
    assert (starter.name, starter.kind, starter.base_model) == (
        "tiny-llama",
        CheckpointKind.STARTER,
        base.name,
    )
    assert starter.path.resolve() == (Path(settings.RONDO_MODELS) / "tiny-llama").resolve()
    assert AuditEntry.objects.get(action="base_model.add").actor == admin
    # Nothing of it leads to the folder that it came from: back-ups and the store take it along.
    assert not any(file.is_symlink() for file in base.path.iterdir())


@pytest.mark.slow
def test_a_folder_in_rondos_own_models_is_used_where_it_lies(llama: Path, admin: User, settings: Settings):
    folder = Path(shutil.copytree(llama, Path(settings.RONDO_MODELS) / "mine"))
    assert added(of_folder(folder), admin).state == JobState.FINISHED
    assert not (folder / "config.json").is_symlink()
    assert BaseModel.objects.get(name="mine").path == folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda folder: change_json(folder, "config.json", model_type="bert"), "encoder"),
        (lambda folder: (folder / "chat_template.jinja").unlink(), "no chat template"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no weights"),
        (lambda folder: (folder / "config.json").unlink(), "config.json is missing"),
        (lambda folder: cut_short(folder / "model.safetensors"), "cannot be loaded"),
        (lambda folder: cut_short(folder / "tokenizer.json"), "tokenizer"),
        (lambda folder: cut_short(folder / "config.json"), "cannot be read"),
        (
            lambda folder: change_json(
                folder, "config.json", quantization_config={"quant_method": "gptq", "bits": 4}
            ),
            "quantised (gptq)",
        ),
        (
            lambda folder: change_json(
                folder, "config.json", model_type="strange", auto_map={"AutoModel": "code.Model"}
            ),
            "own code",
        ),
    ],
)
def test_what_is_not_supported_is_refused_with_the_reason_and_leaves_nothing(
    damage, reason: str, server_folder: Path, admin: User, settings: Settings
):
    damage(server_folder)
    addition = added(of_folder(server_folder), admin)
    assert addition.state == JobState.FAILED
    assert reason in addition.error
    assert leftovers(settings) == []
    assert not BaseModel.objects.exists()
    assert not CompletionSource.objects.exists()


def test_a_folder_outside_the_allowed_ones_is_refused_even_through_a_link(
    llama: Path, server_folder: Path, admin: User
):
    (server_folder.parent / "link").symlink_to(llama)
    for folder in (
        llama,
        server_folder.parent / "link",
        server_folder.parent,
        Path("/etc"),
        Path("relative"),
    ):
        with pytest.raises(Refusal) as refusal:
            request_base_model(new_base=of_folder(folder), requested_by=admin)
        assert refusal.value.field == "folder"


def test_only_an_administrator_adds_and_a_name_is_taken_once(server_folder: Path, admin: User, carol: User):
    with refused("administrator_changes_base_models", NotAllowed):
        request_base_model(new_base=of_folder(server_folder), requested_by=carol)
    request_base_model(new_base=of_folder(server_folder), requested_by=admin)
    with refused("model_under_way"):
        request_base_model(new_base=of_folder(server_folder), requested_by=admin)
    register_starter(name="taken")
    with refused("model_name_in_use", name="taken"):
        request_base_model(
            new_base=NewBaseModel(origin=BaseOrigin.FOLDER, folder=str(server_folder), name="taken"),
            requested_by=admin,
        )


def test_a_link_in_a_folder_that_leads_out_of_the_allowed_ones_is_refused(
    llama: Path, server_folder: Path, admin: User, settings: Settings
):
    (server_folder / "tokenizer.json").unlink()
    (server_folder / "tokenizer.json").symlink_to(llama / "tokenizer.json")
    addition = added(of_folder(server_folder), admin)
    assert addition.state == JobState.FAILED
    assert "outside the allowed folders" in addition.error
    assert leftovers(settings) == []


@pytest.mark.slow
def test_where_no_link_can_be_made_the_files_are_copied(
    server_folder: Path, admin: User, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("os.link", refuse)
    assert added(of_folder(server_folder), admin).error == ""
    weights = BaseModel.objects.get().path / "model.safetensors"
    assert weights.read_bytes() == (server_folder / "model.safetensors").read_bytes()


def test_a_gguf_file_is_refused_alone_and_in_a_folder_without_another_model(
    server_folder: Path, admin: User, client: Client
):
    file = server_folder / "tiny.Q8_0.gguf"
    file.write_bytes(b"GGUF")
    # Beside a model in transformers' format it is in nobody's way.
    assert request_base_model(new_base=of_folder(server_folder), requested_by=admin)
    (server_folder / "config.json").unlink()
    for named in (file, server_folder):
        with refused("gguf_not_supported", file=file.name, field="folder"):
            request_base_model(new_base=of_folder(named), requested_by=admin)
    client.force_login(admin)
    source = {"origin": BaseOrigin.FOLDER, "folder": str(file), "name": "other"}
    page = client.post(f"{reverse('base-model-add')}?origin={BaseOrigin.FOLDER}", source)
    assert (page.status_code, list(page.context["form"].errors)) == (422, ["folder"])
    answer = client.post(reverse("api-base-models"), source, content_type="application/json")
    assert (answer.status_code, answer.json()["code"]) == (422, "gguf_not_supported")
    assert not BaseModelAddition.objects.filter(name="other").exists()


@pytest.mark.usefixtures("project")
def test_a_model_that_an_earlier_version_converted_keeps_the_name_of_its_gguf_file(
    server_folder: Path, admin: User, client: Client
):
    (server_folder / "source.json").write_text(
        json.dumps(
            {"way": "gguf", "gguf_file": "a.gguf", "gguf_sha256": "f" * 64, "types": {"F16": 19, "Q8_0": 3}}
        )
    )
    assert added(of_folder(server_folder), admin).error == ""
    base = BaseModel.objects.get()
    assert base.facts["gguf"] == {"file": "a.gguf", "sha256": "f" * 64, "types": "19 × F16, 3 × Q8_0"}
    client.force_login(admin)
    assert "19 × F16, 3 × Q8_0" in client.get(base.get_absolute_url()).content.decode()


# ── Afterwards ────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_a_base_model_of_before_is_inspected_once_its_files_are_there(
    llama: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
):
    base = register_starter(name="old").base
    assert base is not None
    monkeypatch.setattr("annotation.services.jobs.send", lambda *args, **_: None)
    sweep_additions()
    assert not BaseModelAddition.objects.exists()
    shutil.copytree(llama, base.path)
    sweep_additions()
    sweep_additions()
    addition = BaseModelAddition.objects.get()
    do_addition(addition.pk)
    base.refresh_from_db()
    assert base.is_inspected
    assert base.facts["parameters"] > 0


def test_a_base_model_goes_with_its_files_unless_something_needs_it(
    llama: Path, admin: User, project, settings: Settings
):
    base = register_starter(name="spare").base
    assert base is not None
    shutil.copytree(llama, base.path)
    choice = ProjectBase.objects.create(project=project, base=base)
    with pytest.raises(Refusal, match="which chose it"):
        remove_base_model(base=base, removed_by=admin)
    choice.delete()
    remove_base_model(base=base, removed_by=admin)
    assert not base.path.exists()
    assert not Checkpoint.objects.filter(name="spare").exists()


@pytest.mark.slow
def test_the_memory_of_a_base_model_is_reckoned_by_the_formulas_of_the_dry_run(
    server_folder: Path, admin: User
):
    added(of_folder(server_folder), admin)
    base = BaseModel.objects.get()
    estimates = {estimate.name: estimate for estimate in estimates_of(base)}
    assert {"serving", "reward", "preference", "kto", "sft", "grpo", "ppo"} <= set(estimates)
    # Three layers with two key heads of twelve places, keys and values.
    places = CACHE_TOKENS * 2 * 3 * 2 * 12
    assert estimates["serving"].float32 == (base.facts["parameters"] + places) * 4 + PROCESS_BYTES
    assert estimates["preference"].full > estimates["preference"].float32 > PROCESS_BYTES
    inspect_again(base=base, requested_by=admin)


def test_the_administrator_of_an_empty_installation_reaches_base_models(
    admin: User, alice: User, client: Client
):
    client.force_login(admin)
    for name in ("base-models", "base-model-add", "api-base-models"):
        assert client.get(reverse(name)).status_code == 200, name
    client.force_login(alice)
    assert client.get(reverse("base-models")).status_code == 404


def test_constants_of_the_web_side_are_those_of_trainer_and_model_server():
    from training.rlhf.starter import STARTER_NAME
    from training.serving.startup import ServerLimits

    assert STARTER_PACKAGE == STARTER_NAME
    assert ServerLimits().cache_tokens + ServerLimits().kept_tokens == CACHE_TOKENS


@pytest.mark.slow
def test_a_qwen2_is_inspected_like_a_llama(tmp_path: Path, admin: User, settings: Settings):
    settings.RONDO_BASE_MODEL_FOLDERS = [str(tmp_path)]
    folder = family_folder(tmp_path / "tiny-qwen2", "qwen2")
    assert added(of_folder(folder), admin).error == ""
    assert BaseModel.objects.get().facts["model_type"] == "qwen2"

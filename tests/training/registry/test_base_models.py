"""Base models are added whole or refused with the reason, from a folder, a hub, the starter or a server."""

import hashlib
import json
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from django.test import Client
from django.urls import reverse
from gguf import GGMLQuantizationType
from pytest_django import Settings

from annotation.choices import JobState
from annotation.errors import NotAllowed, Refusal
from annotation.models import AuditEntry, CompletionSource, User
from tests.rlhf.gguf_files.writer import write_gguf
from tests.rlhf.model.families import family_folder
from tests.tiny import tiny_model_folder
from tests.training.registry.stub_hub import COMMIT, StubHub, running_hub
from training.choices import BaseOrigin, CheckpointKind
from training.engine import Engine
from training.files.hub.__main__ import download
from training.models import BaseModel, BaseModelAddition, Checkpoint, ProjectBase
from training.services.registry import base_adding, processes
from training.services.registry.base_adding import do_addition, sweep_additions
from training.services.registry.base_estimates import CACHE_TOKENS, estimates_of
from training.services.registry.base_models import (
    STARTER_PACKAGE,
    Wanted,
    cancel_addition,
    inspect_again,
    look_up_on_hub,
    remove_base_model,
    request_base_model,
)
from training.services.registry.checkpoints import register_starter
from training.services.runs.memory import PROCESS_BYTES

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("forked_inspections")]

MEBIBYTE = 1024**2


@pytest.fixture
def forked_inspections(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Fork inspections from a process that has imported torch: each is spared seconds."""
    from tests.forked import Forked

    def run(
        command: Sequence[str], *, environment: Mapping[str, str], beat: Callable[[], object]
    ) -> processes.Ended:
        if tuple(command[:3]) != base_adding.INSPECT_COMMAND:
            return processes.run_process(command, environment=environment, beat=beat)
        beat()
        output, errors = tmp_path / "inspection-output", tmp_path / "inspection-errors"
        for file in (output, errors):
            file.write_text("")
        code = Forked(command[2], command[3:], environment, output, errors).wait()
        lines = errors.read_text().strip().splitlines() or [""]
        return processes.Ended(code=code, output=output.read_text(), last_line=lines[-1].strip())

    monkeypatch.setattr(base_adding, "run_process", run)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama in a folder of the server."""
    return tiny_model_folder(tmp_path_factory.mktemp("models") / "tiny-llama")


@pytest.fixture
def server_folder(tmp_path: Path, llama: Path, settings: Settings) -> Path:
    """A copy of it, below an allowed folder."""
    settings.RONDO_BASE_MODEL_FOLDERS = [str(tmp_path)]
    return Path(shutil.copytree(llama, tmp_path / "tiny-llama"))


@pytest.fixture
def hub(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StubHub]:
    """A hub with the tiny Llama under the Apache licence."""
    with running_hub() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        running.folders["maker/tiny-llama"] = Path(shutil.copytree(llama, tmp_path / "on-hub"))
        running.licences["maker/tiny-llama"] = "apache-2.0"
        yield running


def added(request: Wanted, user: User) -> BaseModelAddition:
    """The addition after a worker has done it."""
    addition = request_base_model(new_base=request, requested_by=user)
    do_addition(addition.pk)
    addition.refresh_from_db()
    return addition


def of_folder(folder: Path) -> Wanted:
    return Wanted(origin=BaseOrigin.FOLDER, folder=str(folder))


def of_hub(licence: str | None = "apache-2.0", revision: str = "") -> Wanted:
    return Wanted(origin=BaseOrigin.HUB, repository="maker/tiny-llama", revision=revision, licence=licence)


def leftovers(settings: Settings) -> list[str]:
    """What lies in the folder of base models."""
    folder = Path(settings.RONDO_MODELS)
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


# ── Folders ───────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_a_folder_becomes_a_base_model_with_its_facts_and_the_digest_of_every_file(
    server_folder: Path, admin: User, settings: Settings, monkeypatch: pytest.MonkeyPatch
):
    # The command itself, as workers run it.
    monkeypatch.setattr(base_adding, "run_process", processes.run_process)
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
        (lambda folder: _set(folder, "config.json", model_type="bert"), "encoder"),
        (lambda folder: (folder / "chat_template.jinja").unlink(), "no chat template"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no weights"),
        (lambda folder: (folder / "config.json").unlink(), "config.json is missing"),
        (
            lambda folder: _set(
                folder, "config.json", quantization_config={"quant_method": "gptq", "bits": 4}
            ),
            "quantised (gptq)",
        ),
        (
            lambda folder: _set(
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


def _set(folder: Path, name: str, **values: object) -> None:
    file = folder / name
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


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
        with pytest.raises(Refusal) as refused:
            request_base_model(new_base=of_folder(folder), requested_by=admin)
        assert refused.value.field == "folder"


def test_only_an_administrator_adds_and_a_name_is_taken_once(server_folder: Path, admin: User, carol: User):
    with pytest.raises(NotAllowed):
        request_base_model(new_base=of_folder(server_folder), requested_by=carol)
    request_base_model(new_base=of_folder(server_folder), requested_by=admin)
    with pytest.raises(Refusal, match="is being added already"):
        request_base_model(new_base=of_folder(server_folder), requested_by=admin)
    register_starter(name="taken")
    with pytest.raises(Refusal, match="is called taken"):
        request_base_model(
            new_base=Wanted(origin=BaseOrigin.FOLDER, folder=str(server_folder), name="taken"),
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


@pytest.mark.slow
@pytest.mark.usefixtures("project")
def test_a_gguf_file_becomes_a_base_model_and_a_damaged_or_unclear_one_leaves_nothing(
    server_folder: Path, admin: User, settings: Settings, client: Client
):
    folder = server_folder.parent / "files"
    folder.mkdir()
    file = folder / "tiny.Q8_0.gguf"
    write_gguf(server_folder, file, GGMLQuantizationType.Q8_0)
    addition = added(of_folder(file), admin)
    assert (addition.state, addition.error) == (JobState.FINISHED, "")
    base = BaseModel.objects.get(name="tiny.Q8_0")
    # Rows of 48 and 24 numbers are no whole blocks of 32 and stay float16; those of 128 are quantised.
    assert base.facts["gguf"] == {
        "file": file.name,
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "types": "19 × F16, 7 × F32, 3 × Q8_0",
    }
    assert (base.facts["dtype"], base.facts["architecture"]) == ("float16", "LlamaForCausalLM")
    client.force_login(admin)
    assert "19 × F16, 7 × F32, 3 × Q8_0" in client.get(base.get_absolute_url()).content.decode()
    # A folder with one file is that file.
    assert added(Wanted(origin=BaseOrigin.FOLDER, folder=str(folder), name="again"), admin).error == ""
    (folder / "b.gguf").write_bytes(file.read_bytes()[:5000])
    assert "holds 2 GGUF files" in added(of_folder(folder), admin).error
    assert "not a whole GGUF file" in added(of_folder(folder / "b.gguf"), admin).error
    assert leftovers(settings) == ["again", "tiny.Q8_0"]


# ── The hub ───────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_a_model_of_the_hub_is_pinned_to_its_commit_and_downloaded_once_its_licence_is_accepted(
    hub: StubHub, admin: User, settings: Settings
):
    hub_model = look_up_on_hub(repository="maker/tiny-llama")
    assert (hub_model.revision, hub_model.licence) == (COMMIT, "apache-2.0")
    assert hub_model.size == sum(file.stat().st_size for file in hub.folders["maker/tiny-llama"].iterdir())
    for licence in (None, "mit"):
        with pytest.raises(Refusal, match=r"apache-2\.0") as refused:
            request_base_model(new_base=of_hub(licence), requested_by=admin)
        assert refused.value.field == "licence"
    addition = added(of_hub(), admin)
    assert (addition.state, addition.error) == (JobState.FINISHED, "")
    base = BaseModel.objects.get(name="tiny-llama")
    assert (base.repository, base.revision, base.licence) == ("maker/tiny-llama", COMMIT, "apache-2.0")
    assert leftovers(settings) == ["tiny-llama"]
    assert not (base.path / ".cache").exists()


def test_a_download_that_was_cut_off_goes_on_where_it_was(hub: StubHub, tmp_path: Path):
    weights = hub.folders["maker/tiny-llama"] / "model.safetensors"
    weights.write_bytes(random.Random(1).randbytes(25 * MEBIBYTE))
    hub.cut_after = {weights.name: 15 * MEBIBYTE}
    download("maker/tiny-llama", COMMIT, tmp_path / "into", token="")
    # The client writes pieces of 10 MiB: the first was whole.
    assert hub.ranges == [(weights.name, f"bytes={10 * MEBIBYTE}-")]
    assert (tmp_path / "into" / weights.name).read_bytes() == weights.read_bytes()
    download("maker/tiny-llama", COMMIT, tmp_path / "into", token="")
    assert hub.downloads.count(weights.name) == 2


@pytest.mark.slow
def test_what_is_not_supported_is_refused_before_its_weights_are_downloaded(
    hub: StubHub, admin: User, settings: Settings
):
    _set(hub.folders["maker/tiny-llama"], "config.json", model_type="bert")
    addition = added(of_hub(), admin)
    assert addition.state == JobState.FAILED
    assert "encoder" in addition.error
    assert "model.safetensors" not in hub.downloads
    assert leftovers(settings) == []


def test_a_private_model_needs_the_token_which_is_stored_nowhere(
    hub: StubHub, admin: User, settings: Settings
):
    hub.tokens["maker/tiny-llama"] = "hf_secret"
    with pytest.raises(Refusal, match="RONDO_HUB_TOKEN"):
        look_up_on_hub(repository="maker/tiny-llama")
    settings.RONDO_HUB_TOKEN = "hf_secret"
    addition = request_base_model(new_base=of_hub(), requested_by=admin)
    row = BaseModelAddition.objects.filter(pk=addition.pk).values().get()
    assert "hf_secret" not in repr(row)
    assert "hf_secret" not in repr(list(AuditEntry.objects.values()))


@pytest.mark.parametrize(
    ("repository", "revision", "says"),
    [
        ("maker/nothing", "", "has no model maker/nothing"),
        ("maker/tiny-llama", "v9", "no revision 'v9'"),
        ("no-owner", "", "OWNER/NAME"),
        ("../../etc/passwd", "", "OWNER/NAME"),
    ],
)
def test_a_wrong_hub_id_is_refused_at_once(repository: str, revision: str, says: str, hub: StubHub):
    with pytest.raises(Refusal) as refused:
        look_up_on_hub(repository=repository, revision=revision)
    assert says in refused.value.message


def test_without_a_network_the_hub_is_said_to_be_unreachable_with_remedies(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(Refusal) as refused:
        look_up_on_hub(repository="maker/tiny-llama")
    assert "http://127.0.0.1:9 cannot be reached" in refused.value.message
    assert "add it as a folder" in refused.value.message


def test_a_disk_without_room_refuses_a_download_before_it_begins(
    hub: StubHub, admin: User, settings: Settings, monkeypatch: pytest.MonkeyPatch
):
    usage = SimpleNamespace(total=10**9, used=10**9 - 1000, free=1000)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    addition = added(of_hub(), admin)
    assert addition.state == JobState.FAILED
    assert "Free some space" in addition.error
    assert hub.downloads == []
    assert leftovers(settings) == []


def test_a_hub_that_goes_away_lets_the_addition_wait_with_what_it_has(
    hub: StubHub, admin: User, monkeypatch: pytest.MonkeyPatch
):
    addition = request_base_model(new_base=of_hub(), requested_by=admin)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    do_addition(addition.pk)
    addition.refresh_from_db()
    assert addition.state == JobState.WAITING
    assert "cannot be reached" in addition.message
    cancel_addition(addition=addition, cancelled_by=admin)
    do_addition(addition.pk)
    addition.refresh_from_db()
    assert addition.state == JobState.FAILED
    assert "cancelled" in addition.error
    assert not addition.staging.exists()


# ── Servers ───────────────────────────────────────────────────────────────────────────


def _served(monkeypatch: pytest.MonkeyPatch, settings: Settings, answer: httpx.Response) -> None:
    settings.RONDO_MODEL_SERVER_HOSTS = ["gpu-box:8000"]

    def engine(**options: object) -> Engine:
        options["transport"] = httpx.MockTransport(lambda request: answer)
        return Engine(**options)  # type: ignore[arg-type]

    monkeypatch.setattr(base_adding, "Engine", engine)


def test_a_model_of_another_server_is_added_when_that_server_knows_it(
    admin: User, settings: Settings, monkeypatch: pytest.MonkeyPatch
):
    _served(monkeypatch, settings, httpx.Response(200, json={"data": [{"id": "maker/large"}]}))
    request = Wanted(
        origin=BaseOrigin.SERVER, server_url="http://gpu-box:8000/v1", server_model="maker/large"
    )
    assert added(request, admin).error == ""
    base = BaseModel.objects.get(name="large")
    assert (base.origin, base.has_files, base.files) == (BaseOrigin.SERVER, False, [])
    assert (base.starter.server_url, base.starter.server_model) == ("http://gpu-box:8000/v1", "maker/large")
    other = Wanted(origin=BaseOrigin.SERVER, server_url="http://gpu-box:8000/v1", server_model="small")
    refused = added(other, admin)
    assert refused.state == JobState.FAILED
    assert "It serves: maker/large" in refused.error
    assert not Checkpoint.objects.filter(name="small").exists()


def test_a_server_that_does_not_answer_is_not_added(
    admin: User, settings: Settings, monkeypatch: pytest.MonkeyPatch
):
    _served(monkeypatch, settings, httpx.Response(500, json={"error": {"message": "broken"}}))
    request = Wanted(origin=BaseOrigin.SERVER, server_url="http://gpu-box:8000/v1", server_model="large")
    assert added(request, admin).state == JobState.FAILED
    assert not BaseModel.objects.exists()
    inside = Wanted(origin=BaseOrigin.SERVER, server_url="http://169.254.169.254/v1", server_model="large")
    with pytest.raises(Refusal) as refused:
        request_base_model(new_base=inside, requested_by=admin)
    assert refused.value.field == "server_url"


# ── Afterwards ────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_a_base_model_of_before_is_inspected_once_its_files_are_there(
    llama: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
):
    base = register_starter(name="old").base
    assert base is not None
    monkeypatch.setattr("annotation.services.jobs.messages.send", lambda *args: None)
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


def test_the_administrator_of_an_empty_installation_reaches_base_models_and_scaling(
    admin: User, alice: User, client: Client
):
    client.force_login(admin)
    for name in ("base-models", "base-model-add", "scaling", "api-base-models"):
        assert client.get(reverse(name)).status_code == 200, name
    assert reverse("scaling") in client.get(reverse("search"), {"q": "scal"}).content.decode()
    client.force_login(alice)
    assert client.get(reverse("base-models")).status_code == 404


def test_constants_of_the_web_side_are_those_of_trainer_and_model_server():
    from training.rlhf.starter import STARTER_NAME
    from training.serving.limits import Limits

    assert STARTER_PACKAGE == STARTER_NAME
    assert Limits().cache_tokens + Limits().kept_tokens == CACHE_TOKENS


@pytest.mark.slow
def test_a_qwen2_is_inspected_like_a_llama(tmp_path: Path, admin: User, settings: Settings):
    settings.RONDO_BASE_MODEL_FOLDERS = [str(tmp_path)]
    folder = family_folder(tmp_path / "tiny-qwen2", "qwen2")
    assert added(of_folder(folder), admin).error == ""
    assert BaseModel.objects.get().facts["model_type"] == "qwen2"

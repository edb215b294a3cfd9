"""Metrics for Prometheus: who may read them, sums over several processes, and the value of every figure."""

import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from django.test import Client
from django.utils import timezone
from prometheus_client.parser import text_string_to_metric_families
from pytest_django import Settings

from annotation.models import FileImport, Project, User
from tests import factories
from tests.operations.conftest import MakeWorker
from training.contract.run import MachineUse
from training.models import Run, Snapshot
from webapp.operations import metrics as metrics_page
from webapp.operations import reach, requests, work
from webapp.operations.health import wrong

ROOT = Path(__file__).resolve().parents[2]
HERE = {"Host": "127.0.0.1:8000"}

Figures = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def read(text: str) -> Figures:
    """Every sample by its name and labels, as Prometheus' own parser reads them."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scrape(client: Client) -> Figures:
    answer = client.get("/metrics", headers=HERE)
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith("text/plain")
    return read(answer.content.decode())


@pytest.fixture(autouse=True)
def nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "depths", lambda names, seconds: {"celery": 3})
    monkeypatch.setattr(reach, "model_server", lambda: wrong("model_server", "away", "start it"))


# ── Who may ───────────────────────────────────────────────────────────────────────────


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("headers", "address", "status"),
    [
        ({"Host": "localhost"}, "127.0.0.1", 200),
        ({"Host": "[::1]:8000"}, "::1", 200),
        # A proxy of this machine, which passes on what comes from elsewhere.
        ({**HERE, "X-Forwarded-For": "203.0.113.9"}, "127.0.0.1", 302),
        ({**HERE, "Forwarded": "for=203.0.113.9"}, "127.0.0.1", 302),
        # A browser here that was led here by another site's name.
        ({"Host": "testserver"}, "127.0.0.1", 302),
        ({"Host": "testserver"}, "203.0.113.9", 302),
        ({**HERE}, "203.0.113.9", 302),
        # Whoever shows a token is judged by it alone.
        ({**HERE, "Authorization": "Bearer wrong"}, "127.0.0.1", 302),
    ],
)
def test_without_a_token_this_machine_alone_reads(
    client: Client, headers: dict[str, str], address: str, status: int
):
    assert client.get("/metrics", headers=headers, REMOTE_ADDR=address).status_code == status


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        ("Bearer opensesame", 200),
        ("bearer opensesame", 200),
        ("Basic opensesame", 302),
        ("Bearer wrong", 302),
        ("Bearer ", 302),
        ("Bearer öpen", 302),
    ],
)
def test_with_the_token_a_program_reads_from_anywhere(
    client: Client, settings: Settings, authorization: str, status: int
):
    settings.RONDO_METRICS_TOKEN = "opensesame"
    headers = (
        {"Authorization": authorization, "Host": "10.1.2.3:8000"}
        if status == 200
        else {"Authorization": authorization}
    )
    answer = client.get("/metrics", headers=headers, REMOTE_ADDR="203.0.113.9")
    assert answer.status_code == status


@pytest.mark.django_db
def test_no_token_is_set_and_none_opens(client: Client):
    answer = client.get("/metrics", headers={"Authorization": "Bearer "}, REMOTE_ADDR="203.0.113.9")
    assert answer.status_code == 302


@pytest.mark.django_db
@pytest.mark.parametrize("proxy", [{"RONDO_HTTPS": True}, {"ALLAUTH_TRUSTED_PROXY_COUNT": 1}])
def test_behind_a_proxy_this_machine_is_believed_no_more(
    client: Client, settings: Settings, proxy: dict[str, object]
):
    for name, value in proxy.items():
        setattr(settings, name, value)
    assert client.get("/metrics", headers=HERE).status_code == 302


def test_an_administrator_reads_in_the_browser(admin: User, alice: User, client_of: Callable[[User], Client]):
    assert client_of(admin).get("/metrics").status_code == 200
    assert client_of(alice).get("/metrics").status_code == 403


# ── Requests ──────────────────────────────────────────────────────────────────────────


def test_requests_are_counted_by_route_method_and_status_and_never_by_path(
    project: Project, oscar: User, client_of: Callable[[User], Client]
):
    browser = client_of(oscar)
    for path in ("/projects/tea/", "/projects/coffee/", "/projects/with-a-secret/"):
        browser.get(path)
    browser.get("/")
    browser.get("/nowhere/at/all/")
    browser.generic("BREW", "/")
    samples = scrape(browser)
    requests = {
        dict(labels)["route"]: value
        for (name, labels), value in samples.items()
        if name.endswith("requests_total") and dict(labels)["method"] == "GET"
    }
    assert requests == {"project": 3, "projects": 1, "none": 1}
    assert (
        samples["rondo_web_requests_total", (("method", "other"), ("route", "projects"), ("status", "405"))]
        == 1
    )
    assert "with-a-secret" not in str(samples)


def test_latencies_fall_into_buckets_from_which_a_quantile_is_read(db: None, client: Client):
    # 19 of 0.02 s and one of 0.4 s: the 95th percentile is at the end of the bucket to 0.025 s.
    for seconds in [0.02] * 19 + [0.4]:
        requests.request_counts.note(route="label", method="GET", status=200, seconds=seconds)
    samples = scrape(client)
    labels = (("method", "GET"), ("route", "label"))
    buckets = {
        dict(of)["le"]: value
        for (name, of), value in samples.items()
        if name == "rondo_web_request_seconds_bucket" and dict(of)["route"] == "label"
    }
    assert (buckets["0.025"], buckets["0.5"], buckets["+Inf"]) == (19, 20, 20)
    assert samples["rondo_web_request_seconds_count", labels] == 20
    assert samples["rondo_web_request_seconds_sum", labels] == pytest.approx(19 * 0.02 + 0.4)


_COUNT = """
import sys
from pathlib import Path
from webapp.operations import requests
requests.counts_folder = lambda: Path(sys.argv[1])
for _ in range(1000):
    requests.request_counts.note(route="label", method="GET", status=200, seconds=0.01)
requests.request_counts.save()
print("counted", flush=True)
if sys.argv[2] == "stay":
    sys.stdin.read()
"""


def counting_process(folder: Path, what: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", _COUNT, str(folder), what],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "counted\n"
    return process


def test_processes_add_up_and_what_the_dead_counted_stays_in_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(requests, "counts_folder", lambda: tmp_path)

    def total() -> float:
        counter, _latency = requests.collect()
        return sum(sample.value for sample in counter.samples)

    living = counting_process(tmp_path, "stay")
    try:
        killed = counting_process(tmp_path, "stay")
        killed.kill()
        killed.communicate()
        assert total() == 2000
        # The third takes over what the second left, and leaves the first alone.
        third = counting_process(tmp_path, "end")
        third.communicate()
        assert total() == 3000
        assert len(list(tmp_path.glob("*.json"))) == 2
    finally:
        living.communicate()


def test_counts_are_saved_within_a_second_or_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(requests, "counts_folder", lambda: tmp_path)
    monkeypatch.setattr(requests, "_SAVE_SECONDS", 0.01)
    requests.RequestCounts().note(route="label", method="GET", status=200, seconds=0.01)
    deadline = time.monotonic() + 10
    while not list(tmp_path.glob("*.json")):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_disk_that_is_full_costs_figures_and_no_answer(client: Client, settings: Settings, tmp_path: Path):
    (tmp_path / "file").write_text("")
    settings.RONDO_HOME = tmp_path / "file"
    assert client.get("/health/live").status_code == 200


# ── The work ──────────────────────────────────────────────────────────────────────────


def test_jobs_leases_queues_and_workers_are_told(
    project: Project, alice: User, bob: User, client: Client, make_worker: MakeWorker
):
    now = timezone.now()
    FileImport.objects.create(project=project, name="x", digest="0" * 64, state="waiting")
    FileImport.objects.update(created_at=now - timedelta(minutes=10))
    factories.make_judgment(factories.make_comparison(project), alice)
    factories.lease_to(factories.make_comparison(project), bob)
    bob.assignments.update(leased_at=now - timedelta(hours=1), lease_expires_at=now - timedelta(minutes=1))
    gpu = {"index": 0, "name": "H100", "utilisation": 0.5, "memory_bytes": 10, "memory_total_bytes": 80}
    make_worker("box", silent=5, machine={"gpus": [gpu]})
    samples = scrape(client)
    assert samples["rondo_jobs", (("kind", "import"), ("state", "waiting"))] == 1
    assert samples["rondo_jobs", (("kind", "import"), ("state", "failed"))] == 0
    assert 600 <= samples["rondo_job_oldest_waiting_seconds", (("kind", "import"),)] < 700
    assert (samples["rondo_leases", ()], samples["rondo_leases_overdue", ()]) == (1, 1)
    assert 3600 <= samples["rondo_lease_oldest_seconds", ()] < 3700
    assert samples["rondo_judgments_total", ()] == 1
    assert samples["rondo_queue_messages", (("queue", "celery"),)] == 3
    assert 5 <= samples["rondo_worker_silent_seconds", (("worker", "box"),)] < 60
    of_gpu = (("gpu", "0"), ("name", "H100"), ("worker", "box"))
    assert samples["rondo_gpu_utilisation_ratio", of_gpu] == 0.5
    assert samples["rondo_gpu_memory_bytes", of_gpu] == 10
    assert samples["rondo_rounds", (("state", "labelling"),)] == 0
    assert samples["rondo_disk_free_bytes", ()] > 0
    ups = {dict(labels)["part"]: value for (name, labels), value in samples.items() if name == "rondo_up"}
    assert ups == {"database": 1, "broker": 1, "model_server": 0}


def test_a_run_tells_its_pace(project: Project, client: Client, monkeypatch: pytest.MonkeyPatch):
    snapshot = Snapshot.objects.create(project=project, digest="d" * 64, rounds=[1], counts={}, folder="s")
    Run.objects.create(
        name="policy-1", method="preference", snapshot=snapshot, spec={}, folder="r", state="running", step=12
    )
    use = MachineUse(
        time=0.0,
        step=12,
        device="cuda",
        memory_bytes=1,
        cpu_cores=1.0,
        tokens_per_second=512.5,
        gpu_memory_bytes=7,
    )
    monkeypatch.setattr(metrics_page, "machine_of", lambda run: use)
    samples = scrape(client)
    of_run = (("run", "policy-1"),)
    assert samples["rondo_training_tokens_per_second", of_run] == 512.5
    assert samples["rondo_training_step", of_run] == 12
    assert samples["rondo_training_gpu_memory_bytes", of_run] == 7


def test_without_the_database_the_rest_is_told(db: None, client: Client, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reach, "database", lambda: wrong("database", "away", "start it"))
    samples = scrape(client)
    assert samples["rondo_up", (("part", "database"),)] == 0
    assert ("rondo_leases", ()) not in samples

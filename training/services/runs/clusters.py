"""Runs as jobs of a cluster: the launchers, the files that travel, the jobs that are watched and ended."""

import dataclasses
import functools
import logging
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import Any

from django.conf import settings
from django.db.models import Q
from django.db.models.functions import Coalesce, Now
from django.utils.translation import gettext as _

from annotation.errors import Refusal, Unavailable
from annotation.services.job_runs import call_with_heartbeat
from annotation.services.jobs import Heartbeat, still_held
from training.choices import LIVE_LAUNCH, LaunchState, RoundState, StepState
from training.contract import ContractError
from training.contract.run import (
    CANCEL_FILE,
    CHECKPOINT_FOLDER,
    EXIT_FAILED,
    EXIT_STOPPED,
    STATE_FOLDER,
    RunSpec,
    RunStatus,
    read_status,
    write_spec,
)
from training.files import shared as shared_files
from training.files.shared import OWN_FILES, bring_run
from training.launchers import (
    CANCELS,
    Beat,
    ClusterPaths,
    JobFile,
    JobReport,
    Launcher,
    LauncherError,
    LauncherUnreachableError,
    LaunchJob,
    Resources,
    read_beat,
    write_job_file,
)
from training.launchers.command import CommandTemplate
from training.launchers.ray import Ray
from training.models import Launch, Run
from training.recipe.recipe import ComputeSettings
from training.services.jobs import StopAskedError
from training.services.runs.files import checkpoints_of_run, spec_here
from training.services.runs.launcher import TrainerExit, forget_silent, trainer_environment
from training.store import StoreError

# ── Launchers of this installation, as its settings describe them ──


LOCAL = "local"
DEFAULT = "default"
_STORE_PREFIXES = ("AWS_", "FSSPEC_", "GOOGLE_", "AZURE_")
_SAME_THERE = (
    "RONDO_",
    "OMP_",
    "MKL_",
    "TORCH",
    "PYTORCH_",
    "NCCL_",
    "HF_HUB_",
    "TRANSFORMERS_",
    "TOKENIZERS_",
)
"""Variables of a trainer that mean the same on a node; paths and devices of this machine do not."""


def allowed_launchers() -> list[str]:
    """Return the launchers that recipes may choose; the first is the default."""
    return list(settings.RONDO_LAUNCHER)


def launcher_of(compute: ComputeSettings) -> str:
    """Return the name of the launcher that a recipe means. Refuses one that the installation lacks."""
    names = allowed_launchers()
    if compute.launcher == DEFAULT:
        return names[0]
    if compute.launcher not in names:
        raise Refusal(
            "unknown_launcher",
            _(
                "The recipe asks for the launcher %(name)s, and this installation has %(names)s: change "
                "compute, launcher, or add it to RONDO_LAUNCHER."
            ),
            field="recipe",
            name=compute.launcher,
            names=", ".join(names),
        )
    return compute.launcher


def resources_of(compute: ComputeSettings) -> dict[str, Any]:
    """Return what a run keeps of its recipe's compute: the launcher, and what is asked of it."""
    name = launcher_of(compute)
    if name == LOCAL and compute.nodes > 1:
        raise Refusal(
            "launcher_too_small",
            _("The recipe asks for %(nodes)d machines, and local has one: choose a cluster as launcher."),
            field="recipe",
            nodes=compute.nodes,
        )
    if compute.rollout_servers:
        _check_servers(name)
    return {
        "launcher": name,
        "nodes": compute.nodes,
        "gpus": compute.gpus,
        "memory_gb": compute.memory_gb,
        "hours": compute.time_limit_hours,
        "queue": compute.queue,
        "servers": compute.rollout_servers,
        "gpus_per_server": compute.gpus_per_server,
    }


def _check_servers(launcher: str) -> None:
    """Refuse rollout servers that nobody would start, or that could not read the adapters."""
    if launcher != "ray":
        raise Refusal(
            "rollout_servers_need_ray",
            _(
                "Rollout servers are started on Ray, and this round trains on %(name)s: set rollout_servers "
                "under compute to 0, or launcher to ray."
            ),
            field="recipe",
            name=launcher,
        )
    if not cluster_place().shares_files:
        raise Refusal(
            "rollout_servers_need_shared_folder",
            _(
                "Rollout servers read adapters from a folder that all nodes share, and RONDO_STORE_URL says "
                "that they share none: set rollout_servers under compute to 0, or share RONDO_CLUSTER_HOME."
            ),
            field="recipe",
        )


def cluster_resources(resources: Mapping[str, Any], *, processes: int) -> Resources:
    """Return what a run asks of a cluster: by default a GPU for each process."""
    gpus = resources.get("gpus")
    return Resources(
        nodes=resources.get("nodes") or 1,
        processes=processes,
        gpus=processes if gpus is None else gpus,
        memory_gb=resources.get("memory_gb"),
        hours=resources.get("hours"),
        queue=resources.get("queue") or "",
        servers=resources.get("servers") or 0,
        gpus_per_server=resources.get("gpus_per_server") or 0,
    )


def cluster(name: str) -> Launcher:
    """Return a launcher by its name; any but `local`."""
    if name == "command":
        return CommandTemplate(
            cluster_place(),
            runs=Path(settings.RONDO_RUNS),
            submit_command=settings.RONDO_COMMAND_SUBMIT,
            poll_command=settings.RONDO_COMMAND_POLL,
            cancel_command=settings.RONDO_COMMAND_CANCEL,
            logs_command=settings.RONDO_COMMAND_LOGS,
        )
    if name == "ray":
        return Ray(
            cluster_place(),
            url=settings.RONDO_RAY_URL,
            token=settings.RONDO_RAY_TOKEN,
            server_command=settings.RONDO_RAY_SERVER_COMMAND,
        )
    raise Refusal(
        "unknown_launcher",
        _("No launcher is called %(name)s: change compute, launcher in the recipe."),
        name=name,
    )


def cluster_place() -> ClusterPaths:
    """Return where Rondo is on the nodes."""
    return ClusterPaths(
        python=settings.RONDO_CLUSTER_PYTHON,
        code=settings.RONDO_CLUSTER_CODE,
        home=settings.RONDO_CLUSTER_HOME,
        shares_files=not settings.RONDO_STORE_URL,
    )


def node_environment() -> dict[str, str]:
    """Return the variables of a trainer on a node: those of one here, and the keys of the store."""
    here = trainer_environment(os.environ)
    environment = {name: value for name, value in here.items() if name.startswith(_SAME_THERE)}
    if settings.RONDO_STORE_URL:
        environment["RONDO_STORE_URL"] = settings.RONDO_STORE_URL
        environment |= {name: value for name, value in os.environ.items() if name.startswith(_STORE_PREFIXES)}
    return environment


def resources_said(resources: Resources) -> dict[str, Any]:
    """Return resources as JSON, for the row of a launch."""
    return dataclasses.asdict(resources)


# ── Files: sent before a run starts, read while it writes ──


logger = logging.getLogger(__name__)


def prepare(run: Run, job: str) -> None:
    """Write what the nodes read, and have it in the store where there is one. Raises `StoreRefusal`.

    The folder's newest state is fetched first: the job before this one may have run anywhere.
    """
    if shared_files.shared() is not None:
        bring_run(run.path)
    run.path.mkdir(parents=True, exist_ok=True)
    needs = needs_of(run)
    write_spec(run.path, spec_there(run))
    trainer = tuple(settings.RONDO_TRAINER_COMMAND)
    uses_own_trainer = trainer == settings.RONDO_OWN_TRAINER
    write_job_file(
        run.path, JobFile(job=job, needs=tuple(needs), trainer=() if uses_own_trainer else trainer)
    )
    if shared_files.shared() is None:
        return
    for need in needs:
        if (folder := Path(settings.RONDO_HOME) / need).exists():
            # What is here alone; the nodes fetch the rest from the store themselves.
            shared_files.both_have(folder)
    shared_files.publish(run.path, left_out=OWN_FILES)


def needs_of(run: Run) -> list[str]:
    """Return the folders below RONDO_HOME that the run's trainer reads besides its own."""
    home = Path(settings.RONDO_HOME)
    base = Path(spec_here(run).base_model)
    folders = [base, run.snapshot.path, *checkpoints_of_run(run)]
    inside = [
        Path(os.path.normpath(folder)).relative_to(home) for folder in folders if _is_below(folder, home)
    ]
    # A checkpoint of a run comes with the run's folder.
    return sorted({"/".join(path.parts[:2]) for path in inside})


def spec_there(run: Run) -> RunSpec:
    """Return the run's spec with the paths that it has on the nodes."""
    spec = spec_here(run)
    return dataclasses.replace(
        spec, base_model=path_there(spec.base_model), parent=path_there(spec.parent) if spec.parent else None
    )


def path_there(path: str) -> str:
    """Return a path below RONDO_HOME as the nodes see it; any other is the same there."""
    home = Path(settings.RONDO_HOME)
    if not _is_below(Path(path), home):
        return path
    return str(PurePosixPath(cluster_place().home) / Path(path).relative_to(home))


def bring_news(run: Run, *, whole: bool = False) -> None:
    """Bring what the job wrote here; `whole`: its state and checkpoint, too. Without a store it is here.

    Raises `StoreRefusal` with `whole`; else a store that does not answer is asked again next time.
    """
    if (store := shared_files.shared()) is None:
        return
    if whole:
        bring_run(run.path)
        return
    try:
        key = shared_files.key_of(run.path)[0]
        store.refresh(key, run.path, left_out=(STATE_FOLDER, CHECKPOINT_FOLDER), local=OWN_FILES)
    except StoreError as error:
        logger.warning("%s: %s", run, error)


def ask_to_stop(run: Run, job: str) -> None:
    """Tell the job to save and stop: by a file in the shared folder, or by an entry in the store."""
    (run.path / CANCEL_FILE).touch()
    if (store := shared_files.shared()) is None:
        return
    with tempfile.NamedTemporaryFile(prefix="cancel-") as empty, shared_files.translate_store_errors():
        store.publish(f"{CANCELS}/{job}", Path(empty.name))


def tidy(run: Run, job: str) -> None:
    """Take the request to stop away, once the job has ended."""
    (run.path / CANCEL_FILE).unlink(missing_ok=True)
    if (store := shared_files.shared()) is not None:
        try:
            if store.listing(f"{CANCELS}/{job}") is not None:
                store.remove(f"{CANCELS}/{job}")
        except StoreError as error:
            logger.warning("%s: %s", run, error)


def _is_below(path: Path, home: Path) -> bool:
    return Path(os.path.normpath(path)).is_relative_to(home)


# ── Jobs: submitted, watched by their heartbeat, submitted again where they were lost ──
#
# The job does not depend on the worker that watches it. A worker that ends leaves it running, and the next
# one that claims the step finds it by its row.


Watch = Callable[[RunStatus | None, str], bool]
"""Takes the latest status and what else there is to say; returns whether the job is to stop."""

_LOOK_SECONDS = 1.0
_SETTLE_SECONDS = 30.0
"""After the launcher reports the end, the last files may still be on their way through the store."""
_LEAVE_AFTER_CANCEL_SECONDS = 180.0
_DEATHS_WITHOUT_PROGRESS = 4
_PAUSE_SECONDS = 15.0
_LOG_LINES = 5


@dataclass(slots=True)
class _Seen:
    """State of a job as the watcher knows it."""

    report: JobReport
    beat: Beat | None = None
    beaten_at: float = 0.0
    """When the heartbeat last changed, by this process's clock."""
    unreachable: str = ""
    ended_at: float | None = None
    asked_at: float | None = None
    polled_at: float = float("-inf")


def run_on_cluster(run: Run, *, name: str, heartbeat: Heartbeat, watch: Watch) -> TrainerExit:
    """Start or resume a run as a job and stay until it ends; the caller holds the step's claim.

    A job that is there already is watched further. One that vanishes is submitted again and goes on from the
    last saved step, unless it does so three times without coming further. Raises `Refusal` where the launcher
    refuses, `Unavailable` where it does not answer; what `watch` raises leaves the job running.
    """
    launcher = cluster(name)
    furthest = deaths = 0
    while True:
        launch = _live(run, launcher, heartbeat) or _submit(run, launcher, heartbeat)
        ending, is_lost = _Watcher(run, launch, launcher, heartbeat, watch).follow()
        reached = ending.status.step if ending.status else 0
        deaths = 1 if reached > furthest else deaths + 1
        furthest = max(furthest, reached)
        if not is_lost or deaths >= _DEATHS_WITHOUT_PROGRESS:
            return ending
        if deaths > 1:
            # A scheduler needs some time to notice that a node is gone.
            _wait(heartbeat, launch)
        logger.warning("%s: job %s was lost at step %d; submitted again", run, launch, reached)


def _wait(heartbeat: Heartbeat, launch: Launch) -> None:
    until = time.monotonic() + _PAUSE_SECONDS
    while time.monotonic() < until:
        heartbeat(message=_("job %(name)s was lost; it is submitted again in a moment") % {"name": launch})
        time.sleep(_LOOK_SECONDS)


def job_of(run_name: str, resources: Resources, *, name: str, base_model: str = "") -> LaunchJob:
    """Return the job of a run. base_model: its folder on the nodes."""
    return LaunchJob(
        name=name,
        run=run_name,
        resources=resources,
        base_model=base_model,
        environment=node_environment(),
    )


@contextmanager
def launcher_errors() -> Iterator[None]:
    """Raise errors of a launcher as refusals."""
    try:
        yield
    except LauncherUnreachableError as error:
        raise Unavailable("launcher_not_answering", str(error)) from error
    except LauncherError as error:
        raise Refusal("launcher_refused", str(error)) from error


def _live(run: Run, launcher: Launcher, heartbeat: Heartbeat) -> Launch | None:
    """Return the run's job that may still be there; one that a dying worker was submitting is looked up."""
    launch = Launch.objects.filter(run=run, state__in=LIVE_LAUNCH).first()
    if launch is None or launch.handle:
        return launch
    with launcher_errors():
        handle = call_with_heartbeat(
            functools.partial(launcher.find, launch.name), lambda: heartbeat(message=_("looking for the job"))
        )
    if handle is None:
        _end(launch, LaunchState.LOST, _("It never reached the launcher."))
        return None
    Launch.objects.filter(pk=launch.pk).update(handle=handle, state=LaunchState.WAITING)
    launch.refresh_from_db()
    return launch


def _submit(run: Run, launcher: Launcher, heartbeat: Heartbeat) -> Launch:
    """Write the row, then submit: whoever comes after a crash in between finds the job by its name."""
    name = f"rondo-{run.pk}-{run.launches.count() + 1}-{uuid.uuid4().hex[:6]}"
    resources = cluster_resources(run.resources, processes=run.spec.get("processes", 1))
    spec = spec_there(run)
    if not spec.settings.samples_on_server:
        resources = replace(resources, servers=0)
    job = job_of(run.name, resources, name=name, base_model=spec.base_model)
    beat = functools.partial(heartbeat, message=_("sending what the job needs"))
    # The thread has no connection to the database.
    run.parent, run.snapshot  # noqa: B018 - read here
    call_with_heartbeat(functools.partial(prepare, run, name), beat)
    with still_held(heartbeat.job):
        launch = Launch.objects.create(
            run=run,
            launcher=launcher.name,
            name=name,
            resources=resources_said(resources),
            script=launcher.script(job),
        )

    def submitting() -> None:
        # Who is asked to stop hears of it again, once the job is known and can be ended.
        with suppress(StopAskedError):
            heartbeat(message=_("submitting the job"))

    try:
        handle = call_with_heartbeat(functools.partial(launcher.submit, job), submitting)
    except LauncherUnreachableError as error:
        # It may have arrived all the same: the next try looks for it first.
        Launch.objects.filter(pk=launch.pk).update(reason=str(error))
        raise Unavailable("launcher_not_answering", str(error)) from error
    except LauncherError as error:
        _end(launch, LaunchState.REFUSED, str(error))
        raise Refusal("launcher_refused", str(error)) from error
    Launch.objects.filter(pk=launch.pk).update(handle=handle, state=LaunchState.WAITING)
    launch.refresh_from_db()
    return launch


def _end(launch: Launch, state: LaunchState, reason: str, *, code: int | None = None) -> None:
    Launch.objects.filter(pk=launch.pk).update(state=state, reason=reason, exit_code=code, ended_at=Now())


class _Watcher:
    """Watches one job to its end."""

    def __init__(
        self, run: Run, launch: Launch, launcher: Launcher, heartbeat: Heartbeat, watch: Watch
    ) -> None:
        self._run = run
        self._launch = launch
        self._launcher = launcher
        self._heartbeat = heartbeat
        self._watch = watch
        self._seen = _Seen(JobReport(state="waiting"), beaten_at=time.monotonic())

    def follow(self) -> tuple[TrainerExit, bool]:
        """Stay until the job ends; its end, and whether it was lost and is worth another try."""
        seen = self._seen
        while True:
            self._bring()
            self._look_at_beat()
            if seen.beat is not None and seen.beat.code is not None:
                return self._ending(seen.beat.code)
            if time.monotonic() - seen.polled_at >= settings.RONDO_LAUNCHER_POLL_SECONDS:
                self._poll()
            if seen.ended_at is not None and time.monotonic() - seen.ended_at > self._patience():
                return self._without_last_word()
            if self._is_silent():
                self._cancel()
                return self._lost(
                    _("Its heartbeat stopped %(seconds)d seconds ago, so it was ended.")
                    % {"seconds": settings.RONDO_JOB_STALE_SECONDS}
                )
            if self._watch(self._status(), self._waiting_message()):
                self._stop()
            time.sleep(min(_LOOK_SECONDS, settings.RONDO_LAUNCHER_POLL_SECONDS))

    def _look_at_beat(self) -> None:
        beat = read_beat(self._run.path, self._launch.name)
        if beat is not None and (self._seen.beat is None or beat.number != self._seen.beat.number):
            self._seen.beat, self._seen.beaten_at = beat, time.monotonic()

    def _poll(self) -> None:
        """Ask the launcher; where it does not answer, the heartbeat still tells that the job lives."""
        seen = self._seen
        ask = functools.partial(self._launcher.poll, self._launch.handle)
        try:
            report = call_with_heartbeat(ask, self._beat)
            seen.unreachable = ""
        except LauncherError as error:
            seen.unreachable = str(error)
            seen.polled_at = time.monotonic()
            return
        seen.polled_at = time.monotonic()
        if report != seen.report or self._launch.state == LaunchState.WAITING:
            self._note(report)
        if report.state == "running" and seen.report.state != "running":
            seen.beaten_at = time.monotonic()
        is_over = report.state not in ("waiting", "running")
        seen.ended_at = (seen.ended_at or time.monotonic()) if is_over else None
        seen.report = report

    def _bring(self, *, whole: bool = False) -> None:
        """Bring what the job wrote; a checkpoint may take longer than a worker may be silent."""
        call_with_heartbeat(functools.partial(bring_news, self._run, whole=whole), self._beat)

    def _beat(self) -> None:
        """Give a sign of life; `watch` hears of a request to stop, too, and does what it asks."""
        with suppress(StopAskedError):
            self._heartbeat()

    def _note(self, report: JobReport) -> None:
        rows = Launch.objects.filter(pk=self._launch.pk)
        if report.state == "running":
            rows.update(
                state=LaunchState.RUNNING,
                reason=report.reason,
                nodes=", ".join(report.nodes),
                started_at=Coalesce("started_at", Now()),
            )
            self._launch.state = LaunchState.RUNNING
        elif report.state == "waiting":
            rows.update(state=LaunchState.WAITING, reason=report.reason)

    def _is_silent(self) -> bool:
        seen = self._seen
        return (
            seen.beat is not None
            and seen.report.state == "running"
            and not seen.unreachable
            and time.monotonic() - seen.beaten_at > settings.RONDO_JOB_STALE_SECONDS
        )

    def _status(self) -> RunStatus | None:
        """Return the trainer's status, unless an earlier job wrote it."""
        if self._seen.beat is None:
            return None
        try:
            status = read_status(self._run.path)
        except ContractError:
            return None
        return status if status and status.updated_at >= self._seen.beat.started_at else None

    def _waiting_message(self) -> str:
        seen = self._seen
        if seen.unreachable:
            return seen.unreachable
        words = {"launcher": self._launcher.name, "reason": seen.report.reason or "–"}
        if seen.report.state == "waiting":
            return _("waiting in the queue of %(launcher)s: %(reason)s") % words
        return _("starting on %(launcher)s") % words

    def _stop(self) -> None:
        """Ask the job to save and stop; one that only waits, or does not stop, is cancelled."""
        seen = self._seen
        if seen.asked_at is None:
            seen.asked_at = time.monotonic()
            if seen.beat is None:
                self._cancel()
            else:
                ask_to_stop(self._run, self._launch.name)
        elif time.monotonic() - seen.asked_at > _LEAVE_AFTER_CANCEL_SECONDS:
            self._cancel()

    def _cancel(self) -> None:
        cancel = functools.partial(self._launcher.cancel, self._launch.handle)
        try:
            call_with_heartbeat(cancel, self._beat)
        except LauncherError as error:
            logger.warning("%s: %s", self._launch, error)

    def _patience(self) -> float:
        # Nobody sends anything of a job that has never run.
        return _SETTLE_SECONDS if self._seen.beat is not None else settings.RONDO_LAUNCHER_POLL_SECONDS

    def _ending(self, code: int) -> tuple[TrainerExit, bool]:
        """The node had the last word. Stopped unasked, the job has lost a process or its time was up."""
        stop_requested = self._seen.asked_at is not None
        is_lost = not stop_requested and (code == EXIT_STOPPED or code < 0)
        if is_lost:
            self._poll()
            return self._lost(_("Its trainer ended without finishing."))
        return self._exit(code, LaunchState.ENDED, ""), False

    def _without_last_word(self) -> tuple[TrainerExit, bool]:
        """The launcher says that it is over, and the node said nothing of an end."""
        report = self._seen.report
        if self._seen.asked_at is not None:
            return self._exit(EXIT_STOPPED, LaunchState.CANCELLED, report.reason), False
        if report.state == "cancelled":
            reason = _(
                "The job %(handle)s was cancelled at %(launcher)s, not from here (%(reason)s). Start again, "
                "and training goes on from the last saved step."
            )
            return self._refused(reason, LaunchState.CANCELLED), False
        if report.state == "failed":
            reason = _(
                "%(launcher)s ended the job %(handle)s: %(reason)s. Raise memory_gb under compute, or lower "
                "micro_batch_tokens, and start again: training goes on from the last saved step."
            )
            return self._refused(reason, LaunchState.ENDED), False
        return self._lost(_("It vanished."))

    def _lost(self, why: str) -> tuple[TrainerExit, bool]:
        reason = _(
            "The job %(handle)s of %(launcher)s was lost, again and again without coming further. %(why)s "
            "%(reason)s %(log)s Start again once that is mended: training goes on from the last saved step."
        )
        # The row tells of this one loss: after it the run may well have gone on.
        of_row = f"{why} {self._seen.report.reason}".strip()
        return self._refused(reason, LaunchState.LOST, why=why, of_row=of_row), True

    def _refused(self, reason: str, state: LaunchState, *, why: str = "", of_row: str = "") -> TrainerExit:
        words = {
            "handle": self._launch.handle,
            "launcher": self._launcher.name,
            "reason": self._seen.report.reason or "–",
            "why": why,
            "log": self._log(),
        }
        return self._exit(EXIT_FAILED, state, reason % words, of_row=of_row)

    def _log(self) -> str:
        try:
            read = functools.partial(self._launcher.logs, self._launch.handle, lines=_LOG_LINES)
            text = call_with_heartbeat(read, self._beat)
        except LauncherError as error:
            return str(error)
        return _("It wrote last: %(text)s") % {"text": text} if text else ""

    def _exit(self, code: int, state: LaunchState, reason: str, *, of_row: str = "") -> TrainerExit:
        """Bring everything here, then close the row."""
        self._bring(whole=True)
        self._look_at_beat()
        _end(self._launch, state, of_row or reason or self._seen.report.reason, code=code)
        tidy(self._run, self._launch.name)
        return TrainerExit(code=code, status=self._status(), output_tail="", reason=reason)


# ── Jobs and leases that nobody watches are ended ──


_GOES_ON = (StepState.WAITING, StepState.RUNNING)


def sweep_launches() -> None:
    """End jobs whose round was cancelled or paused while no worker watched them; they save before they end.

    A launcher that does not answer is asked again with the next sweep.
    """
    forget_silent()
    silent = Q(run__round_step__heartbeat_at__lt=Now() - timedelta(seconds=settings.RONDO_STALE_SECONDS))
    unwatched = Q(run__round_step__worker="") | silent | Q(run__round_step__isnull=True)
    unwanted = ~Q(run__round_step__state__in=_GOES_ON) | Q(run__round_step__round__state=RoundState.PAUSED)
    for launch in Launch.objects.filter(unwatched, unwanted, state__in=LIVE_LAUNCH):
        try:
            launcher = cluster(launch.launcher)
            handle = launch.handle or launcher.find(launch.name)
            if handle:
                launcher.cancel(handle)
        except (LauncherError, Refusal) as error:
            logger.warning("%s: %s", launch, error)
            continue
        ended = Launch.objects.filter(pk=launch.pk, state__in=LIVE_LAUNCH)
        ended.update(state=LaunchState.CANCELLED, reason="Its round was paused or cancelled.", ended_at=Now())

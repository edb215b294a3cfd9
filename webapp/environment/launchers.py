"""Environment variables of launchers and clusters, and those that earlier releases read."""

from webapp.environment.setting import WEB, Kind, Setting

LAUNCHERS = (
    Setting(
        "RONDO_LAUNCHER",
        Kind.NAMES,
        "where recipes may train, by commas: `local`, `ray`, `command`; the first is the default",
        default=("local",),
        default_note="`local`",
    ),
    Setting(
        "RONDO_JOBS_PER_GPU",
        Kind.WHOLE_NUMBER,
        "how many runs may train on one GPU at once, with `local`",
        default=1,
        low=1,
        high=64,
    ),
    Setting(
        "RONDO_CLUSTER_PYTHON",
        Kind.TEXT,
        "Python with torch on the nodes of a cluster",
        default=None,
        default_note="that of this machine",
    ),
    Setting(
        "RONDO_CLUSTER_CODE",
        Kind.TEXT,
        "folder with Rondo's code on the nodes",
        default=None,
        default_note="that of this machine",
    ),
    Setting(
        "RONDO_CLUSTER_HOME",
        Kind.TEXT,
        "`RONDO_HOME` on the nodes: the same folder by a shared file system, or with `RONDO_STORE_URL` each "
        "node's copy",
        default=None,
        default_note="that of this machine",
    ),
    Setting(
        "RONDO_LAUNCHER_POLL_SECONDS",
        Kind.NUMBER,
        "how often a cluster is asked about a job",
        default=5,
        low=0.1,
        high=3600,
    ),
    Setting(
        "RONDO_JOB_STALE_SECONDS",
        Kind.NUMBER,
        "silence of a job's heartbeat after which it is ended and submitted again",
        default=300,
        low=1,
        high=86400,
    ),
    Setting(
        "RONDO_RAY_URL",
        Kind.ADDRESS,
        "dashboard of a Ray cluster, which takes jobs: `http://ray-head:8265`",
        choices=WEB,
        default_note="none",
    ),
    Setting(
        "RONDO_RAY_TOKEN", Kind.TEXT, "its token, where it wants one", default_note="none", is_secret=True
    ),
    Setting(
        "RONDO_RAY_SERVER_COMMAND",
        Kind.TEXT,
        "command of a rollout server that a job on Ray starts",
        default=(
            "vllm serve {base} --host {host} --port {port} --tensor-parallel-size {gpus} --enable-lora "
            "--max-lora-rank 64"
        ),
    ),
    Setting(
        "RONDO_COMMAND_SUBMIT",
        Kind.TEXT,
        "command template: submits `{script}` and writes the job's handle; also `{name}`, `{folder}`, "
        "`{nodes}`, `{processes}`, `{gpus}`, `{memory_gb}`, `{hours}`, `{queue}`, `{variables}`",
        default_note="none",
    ),
    Setting(
        "RONDO_COMMAND_POLL",
        Kind.TEXT,
        "writes the state of `{handle}`: `waiting`, `running`, `ended`, `cancelled`, `failed` or `unknown`, "
        "and why",
        default_note="none",
    ),
    Setting("RONDO_COMMAND_CANCEL", Kind.TEXT, "ends `{handle}`", default_note="none"),
    Setting("RONDO_COMMAND_LOGS", Kind.TEXT, "writes the log of `{handle}`", default_note="none"),
)

_BY_COMMANDS = (
    "Launch with commands in its place: the guide, how-to/train-on-a-cluster, has a program for them"
)
REMOVED = {
    f"RONDO_{name}": _BY_COMMANDS
    for name in (
        *("SLURM_OPTIONS", "KUBERNETES_URL", "KUBERNETES_TOKEN", "KUBERNETES_CA", "KUBERNETES_NAMESPACE"),
        *("KUBERNETES_IMAGE", "KUBERNETES_CLAIM", "KUBERNETES_SECRET", "KUBERNETES_SERVICE_ACCOUNT"),
        "KUBERNETES_JOBSET",
    )
} | {"RONDO_TRL": "Name a trainer of yours by RONDO_TRAINER_COMMAND: guide, how-to/train-with-your-trainer"}
"""Variables of 1.0 that nothing reads any more, and what takes their place."""

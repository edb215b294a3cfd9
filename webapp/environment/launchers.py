"""Environment variables of launchers and clusters."""

from webapp.environment.setting import WEB, Kind, Setting

LAUNCHERS = (
    Setting(
        "RONDO_LAUNCHER",
        Kind.NAMES,
        "where recipes may train, by commas: `local`, `slurm`, `ray`, `kubernetes`, `command`; the first "
        "is the default",
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
        "RONDO_SLURM_OPTIONS",
        Kind.TEXT,
        "more options of `sbatch` for every job: `--account=nlp --constraint=h100`",
        default_note="none",
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
        "RONDO_KUBERNETES_URL",
        Kind.ADDRESS,
        "API server of a Kubernetes cluster; inside it `https://kubernetes.default.svc`",
        choices=WEB,
        default_note="none",
    ),
    Setting(
        "RONDO_KUBERNETES_TOKEN",
        Kind.TEXT,
        "its token; inside the cluster that of the pod's service account",
        default_note="none",
        is_secret=True,
    ),
    Setting(
        "RONDO_KUBERNETES_CA",
        Kind.TEXT,
        "file of its certificate authority",
        default_note="that of the pod's service account",
    ),
    Setting("RONDO_KUBERNETES_NAMESPACE", Kind.TEXT, "namespace of the jobs", default="default"),
    Setting(
        "RONDO_KUBERNETES_IMAGE", Kind.TEXT, "image with Rondo and torch for the pods", default_note="none"
    ),
    Setting(
        "RONDO_KUBERNETES_CLAIM",
        Kind.TEXT,
        "PersistentVolumeClaim with `RONDO_HOME`, mounted at `RONDO_CLUSTER_HOME`; none where the store "
        "carries files",
        default_note="none",
    ),
    Setting(
        "RONDO_KUBERNETES_SECRET",
        Kind.TEXT,
        "Secret whose entries the pods get as variables: keys of the store and of judges",
        default_note="none",
    ),
    Setting(
        "RONDO_KUBERNETES_SERVICE_ACCOUNT",
        Kind.TEXT,
        "service account of the pods",
        default_note="none, and no token in the pods",
    ),
    Setting(
        "RONDO_KUBERNETES_JOBSET",
        Kind.BOOLEAN,
        "make each job a JobSet (`jobset.x-k8s.io/v1alpha2`), whose controller the cluster must have",
        default=False,
    ),
    Setting(
        "RONDO_COMMAND_SUBMIT",
        Kind.TEXT,
        "command template: submits `{script}` and writes the job's handle; also `{name}`, `{folder}`, "
        "`{nodes}`, `{processes}`, `{gpus}`, `{memory_gb}`, `{hours}`, `{queue}`",
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

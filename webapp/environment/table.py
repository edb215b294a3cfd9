"""Every environment variable of Rondo, in the order of the guide."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

# An environment variable: its type, its default, its limits.

WEB = ("http", "https")


class Kind(Enum):
    """Types of variables."""

    TEXT = auto()
    NAMES = auto()
    """A list, separated by commas."""
    WHOLE_NUMBER = auto()
    NUMBER = auto()
    BOOLEAN = auto()
    CHOICE = auto()
    TIME_ZONE = auto()
    ADDRESS = auto()
    """A URL; `choices` are its schemes, any if empty."""


@dataclass(frozen=True, slots=True)
class Setting:
    """An environment variable."""

    name: str
    kind: Kind
    help: str
    """Description in Markdown, for the guide."""
    default: Any = ""
    """Value if unset; None if `webapp.settings` computes it."""
    low: float = 0
    high: float = 0
    choices: tuple[str, ...] = ()
    default_note: str = ""
    """Description of the default, if its value would say less."""
    is_secret: bool = False
    """Hide the value in messages."""

    @property
    def documented_default(self) -> str:
        """The default in the spelling of the variable; empty without one."""
        if isinstance(self.default, bool):
            return str(self.default).lower()
        if self.default is None or self.default_note or isinstance(self.default, tuple):
            return ""
        return str(self.default)


# Environment variables of launchers and clusters, and those that earlier releases read.

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


TABLE = (
    Setting(
        "RONDO_HOME",
        Kind.TEXT,
        "where database, models, runs, checkpoints and logs are",
        default=None,
        default_note="`var` in a checkout, `~/.local/share/rondo` for an installed wheel",
    ),
    Setting(
        "RONDO_STORE_URL",
        Kind.ADDRESS,
        "store that machines share in place of a disk: `s3://bucket/prefix` (`pip install s3fs`; "
        "keys and address as `AWS_*`), `file:///folder`, whatever fsspec knows; `RONDO_HOME` is "
        "then each machine's copy",
        default_note="none",
    ),
    Setting("RONDO_HOST", Kind.TEXT, "address on which the web server listens", default="127.0.0.1"),
    Setting("RONDO_PORT", Kind.WHOLE_NUMBER, "its port", default=8000, low=1, high=65535),
    Setting(
        "RONDO_WEB_PROCESSES",
        Kind.WHOLE_NUMBER,
        "processes of the web server, about 100 MB each; one per core that labelling may use",
        default=2,
        low=1,
        high=256,
    ),
    Setting(
        "RONDO_MODEL_SERVER_PORT",
        Kind.WHOLE_NUMBER,
        "port of the model server that `up` starts",
        default=8001,
        low=1,
        high=65535,
    ),
    Setting(
        "RONDO_MODEL_SERVER_URL",
        Kind.ADDRESS,
        "another OpenAI-compatible server; set it, and `up` starts none",
        default=None,
        choices=WEB,
        default_note="`http://127.0.0.1:8001`",
    ),
    Setting(
        "RONDO_MODEL_SERVER_HOSTS",
        Kind.NAMES,
        "hosts of private networks that a checkpoint may name as its server, by commas: "
        "`gpu-box,10.0.0.7:8000`",
        default=(),
    ),
    Setting(
        "RONDO_WEBHOOK_HOSTS",
        Kind.NAMES,
        "hosts of private networks, or without TLS, that managers may have told of events "
        "(webhooks), by commas",
        default=(),
    ),
    Setting(
        "RONDO_TOKEN_REQUESTS_PER_MINUTE",
        Kind.WHOLE_NUMBER,
        "how many requests a program may make with one API token in a minute",
        default=60,
        low=1,
        high=1_000_000,
    ),
    Setting(
        "RONDO_API_REQUESTS_PER_MINUTE",
        Kind.WHOLE_NUMBER,
        "how many requests of one person to `/api/v1/` each web process answers in a minute",
        default=600,
        low=1,
        high=1_000_000,
    ),
    Setting(
        "RONDO_REWARD_FUNCTIONS",
        Kind.NAMES,
        "functions of yours that runs may name as rewards: dotted paths, by commas",
        default=(),
    ),
    Setting(
        "RONDO_JUDGE_URL",
        Kind.ADDRESS,
        "OpenAI-compatible server of the judge that rewards ask by default, without `/v1`",
        choices=WEB,
    ),
    Setting("RONDO_JUDGE_KEY", Kind.TEXT, "its key, which is sent to no other server", is_secret=True),
    Setting(
        "RONDO_MODEL_SERVER_KEY",
        Kind.TEXT,
        "the key that the model server asks for",
        default_note="drawn once",
        is_secret=True,
    ),
    Setting(
        "RONDO_STARTER_MODEL",
        Kind.TEXT,
        "a local folder with the starter model, used instead of a download",
        default_note="none",
    ),
    Setting(
        "RONDO_STARTER_MODEL_NAME",
        Kind.TEXT,
        "name of the base model in `RONDO_HOME/models`",
        default="SmolLM2-135M-Instruct",
    ),
    Setting(
        "RONDO_BASE_MODEL_FOLDERS",
        Kind.NAMES,
        "folders of the server, by commas, below which administrators may add base models",
        default=(),
    ),
    Setting(
        "DATABASE_URL",
        Kind.ADDRESS,
        "`postgres://user:password@host:5432/name` for a team",
        choices=(
            "postgres",
            "postgresql",
            "sqlite",
        ),
        default_note="SQLite in `RONDO_HOME`",
    ),
    Setting(
        "RONDO_BROKER_URL",
        Kind.ADDRESS,
        "`redis://host:6379/0` or `amqp://…` for a team",
        default="filesystem://localhost//",
        choices=(
            "redis",
            "rediss",
            "amqp",
            "amqps",
            "pyamqp",
            "filesystem",
        ),
        default_note="a folder in `RONDO_HOME`",
    ),
    Setting("RONDO_SECRET_KEY", Kind.TEXT, "Django's secret key", default_note="drawn once", is_secret=True),
    Setting(
        "RONDO_ALLOWED_HOSTS",
        Kind.NAMES,
        "names under which people reach Rondo, with commas between",
        default=("127.0.0.1", "localhost", "[::1]"),
        default_note="loopback names",
    ),
    Setting(
        "RONDO_TRUSTED_ORIGINS",
        Kind.NAMES,
        "origins whose forms are accepted behind a proxy, such as `https://rondo.example.org`",
        default=(),
        default_note="none",
    ),
    Setting(
        "RONDO_TRUSTED_PROXIES",
        Kind.WHOLE_NUMBER,
        "proxies of your own before Rondo: so many last addresses of `X-Forwarded-For` are believed",
        default=None,
        low=0,
        high=10,
        default_note="1 with `RONDO_HTTPS`, else 0",
    ),
    Setting(
        "RONDO_ADDRESS",
        Kind.ADDRESS,
        "address under which people reach Rondo, for links in e-mails: `https://rondo.example.org`",
        default=None,
        choices=WEB,
        default_note="`http://` with `RONDO_HOST` and `RONDO_PORT`",
    ),
    Setting(
        "RONDO_EMAIL_URL",
        Kind.ADDRESS,
        "server that sends e-mails: `smtp+tls://user:password@host:587` (STARTTLS), `smtp+ssl://…:465`, "
        "`smtp://host:25`; `consolemail://` prints them where the worker runs. Percent-encode special "
        "characters",
        choices=("smtp", "smtp+tls", "smtp+ssl", "consolemail"),
        default_note="none: no e-mail is sent",
        is_secret=True,
    ),
    Setting(
        "RONDO_EMAIL_FROM",
        Kind.TEXT,
        "sender of e-mails: `Rondo <rondo@example.org>`",
        default="Rondo <rondo@localhost>",
    ),
    Setting(
        "RONDO_SIGN_IN_ATTEMPTS",
        Kind.WHOLE_NUMBER,
        "wrong passwords or codes of one person from one address before they wait",
        default=5,
        low=1,
        high=1000,
    ),
    Setting(
        "RONDO_SIGN_IN_WAIT_MINUTES",
        Kind.WHOLE_NUMBER,
        "how long they wait then",
        default=15,
        low=1,
        high=10080,
    ),
    Setting(
        "RONDO_OPENID_URL",
        Kind.ADDRESS,
        "issuer of an OpenID Connect provider; with its client it is offered at sign-in",
        choices=WEB,
        default_note="none",
    ),
    Setting("RONDO_OPENID_NAME", Kind.TEXT, "what the button for it says", default="OpenID Connect"),
    Setting("RONDO_OPENID_CLIENT_ID", Kind.TEXT, "what that provider calls this Rondo", default_note="none"),
    Setting(
        "RONDO_OPENID_CLIENT_SECRET",
        Kind.TEXT,
        "the secret between the two",
        default_note="none",
        is_secret=True,
    ),
    Setting(
        "RONDO_GITHUB_CLIENT_ID",
        Kind.TEXT,
        "an OAuth app of GitHub; with its secret GitHub is offered at sign-in",
        default_note="none",
    ),
    Setting("RONDO_GITHUB_CLIENT_SECRET", Kind.TEXT, "its secret", default_note="none", is_secret=True),
    Setting(
        "RONDO_GOOGLE_CLIENT_ID",
        Kind.TEXT,
        "an OAuth client of Google; with its secret Google is offered at sign-in",
        default_note="none",
    ),
    Setting("RONDO_GOOGLE_CLIENT_SECRET", Kind.TEXT, "its secret", default_note="none", is_secret=True),
    Setting(
        "RONDO_HTTPS",
        Kind.BOOLEAN,
        "a proxy with TLS stands before Rondo: secure cookies, forwarded protocol",
        default=False,
    ),
    Setting(
        "RONDO_STATIC_COLLECTED",
        Kind.BOOLEAN,
        "serve `RONDO_HOME/static`, compressed, with far expiry; `up` sets it by itself",
        default=False,
    ),
    Setting(
        "RONDO_TRAINING_QUEUE",
        Kind.TEXT,
        "queue that rounds go to; with `gpu` those workers do them that run with `--queues gpu`",
        default="celery",
    ),
    Setting(
        "RONDO_JOBS_PER_PROJECT",
        Kind.WHOLE_NUMBER,
        "long jobs of one project at work at once: steps of rounds, judges, suggestions, measurements; one "
        "is kept for its round, and others wait",
        default=3,
        low=1,
        high=1000,
    ),
    *LAUNCHERS,
    Setting(
        "RONDO_SWEEP_SECONDS",
        Kind.NUMBER,
        "how often the worker looks for work that nobody does",
        default=5,
        low=0.1,
        high=3600,
    ),
    Setting(
        "RONDO_HEARTBEAT_SECONDS",
        Kind.NUMBER,
        "how often a working worker says that it lives",
        default=3,
        low=0.1,
        high=3600,
    ),
    Setting(
        "RONDO_STALE_SECONDS",
        Kind.NUMBER,
        "silence after which a worker is taken for dead",
        default=20,
        low=0.1,
        high=86400,
    ),
    Setting(
        "RONDO_LEAST_FREE_MB",
        Kind.WHOLE_NUMBER,
        "free space below `RONDO_HOME` under which uploads, sampling and training wait, while labelling goes "
        "on; 0 never has them wait",
        default=1024,
        low=0,
        high=1_000_000_000,
    ),
    Setting(
        "RONDO_SOURCES",
        Kind.NAMES,
        "folders and buckets, by commas, that managers may have watched and imported with what is below "
        "them, by the rights and credentials of the server: `/srv/prompts,s3://bucket/prompts`; none "
        "unless set",
        default=(),
    ),
    Setting(
        "RONDO_SOURCE_SECONDS",
        Kind.WHOLE_NUMBER,
        "seconds between two checks of a watched folder or bucket",
        default=300,
        low=10,
        high=86_400,
    ),
    Setting(
        "RONDO_IMPORT_MAX_MB",
        Kind.WHOLE_NUMBER,
        "size of a file that a manager may upload; a command imports larger ones",
        default=200,
        low=1,
        high=1_000_000,
    ),
    Setting(
        "RONDO_IMPORT_MAX_ROWS",
        Kind.WHOLE_NUMBER,
        "rows of such a file",
        default=1_000_000,
        low=1,
        high=1_000_000_000,
    ),
    Setting(
        "RONDO_UPLOADS_PER_MINUTE",
        Kind.WHOLE_NUMBER,
        "how many files one person may upload in a minute",
        default=10,
        low=1,
        high=1_000_000,
    ),
    Setting(
        "RONDO_KEEP_CHECKPOINTS",
        Kind.WHOLE_NUMBER,
        "of each project and kind, how many of the newest checkpoints that nothing needs and "
        "nobody tagged keep their files; 0 keeps all",
        default=0,
        low=0,
        high=1_000_000,
    ),
    Setting(
        "RONDO_KEEP_RUN_STATES",
        Kind.WHOLE_NUMBER,
        "of each project, how many finished runs keep the state of their optimiser; 0 keeps all",
        default=0,
        low=0,
        high=1_000_000,
    ),
    Setting(
        "RONDO_HUB_TOKEN",
        Kind.TEXT,
        "token of a hub that base models are downloaded from and checkpoints pushed to; `HF_ENDPOINT` "
        "names another hub than huggingface.co",
        default_note="none",
        is_secret=True,
    ),
    Setting("RONDO_TIME_ZONE", Kind.TIME_ZONE, "time zone of the pages", default="UTC"),
    Setting(
        "RONDO_LOG_LEVEL",
        Kind.CHOICE,
        "how much the logs say",
        default="INFO",
        choices=("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"),
    ),
    Setting(
        "RONDO_LOG_FORMAT",
        Kind.CHOICE,
        "`json` writes one object per line, for programs",
        default="text",
        choices=("text", "json"),
    ),
    Setting(
        "RONDO_METRICS_TOKEN",
        Kind.TEXT,
        "token with which a program may read `/metrics`; without it this machine and "
        "administrators alone may",
        default_note="none",
        is_secret=True,
    ),
    Setting("RONDO_DEBUG", Kind.BOOLEAN, "Django's debug pages; never where others reach it", default=False),
    Setting(
        "RONDO_REWARD_URL",
        Kind.ADDRESS,
        "model server that scores where the reward model has another base than the policy, without `/v1`; "
        "read by the trainer",
        choices=WEB,
        default_note="the model server, on this machine",
    ),
    Setting("RONDO_REWARD_KEY", Kind.TEXT, "its key", default_note="that server's", is_secret=True),
    Setting(
        "RONDO_ROLLOUT_URL",
        Kind.ADDRESS,
        "server that draws the answers of runs with `server` rollouts, without `/v1`; read by the trainer",
        choices=WEB,
        default_note="none",
    ),
    Setting(
        "RONDO_ENVIRONMENT_URL",
        Kind.ADDRESS,
        "server of the environment `http`, in which policies take several turns; read by the trainer",
        choices=WEB,
        default_note="none",
    ),
    Setting("RONDO_ROLLOUT_KEY", Kind.TEXT, "its key", default_note="none", is_secret=True),
    Setting(
        "RONDO_ROLLOUT_FOLDER",
        Kind.TEXT,
        "folder that it loads adapters from, under the same path here and there",
        default_note="none",
    ),
    Setting(
        "RONDO_TEACHER_URL",
        Kind.ADDRESS,
        "server of the teacher that a policy is distilled from, without `/v1`; read by the trainer",
        choices=WEB,
        default_note="none",
    ),
    Setting("RONDO_TEACHER_KEY", Kind.TEXT, "its key", default_note="none", is_secret=True),
    Setting(
        "RONDO_TRAINER_COMMAND",
        Kind.TEXT,
        "command of a trainer of yours, which gets the run's folder",
        default_note="Rondo's own",
    ),
)

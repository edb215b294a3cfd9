"""All settings, from environment variables; the guide's table lists every one.

The defaults run everything on one machine: SQLite, a broker in a folder, `var/` for files.
"""

import shlex
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import environ
from kombu import Exchange, Queue

from training.contract import log_lines
from training.contract.files import make_home_private
from webapp import __version__
from webapp.api.schema import ENUM_NAMES, TAGS
from webapp.database import OF_POSTGRESQL, OF_REDIS
from webapp.environment import (
    ASSETS,
    beat_schedule,
    default_home,
    providers,
    read_environment,
    stored_secret,
    writable_folder,
)
from webapp.environment import BASE_DIR as BASE_DIR

env = read_environment()

# ── Where things are ──────────────────────────────────────────────────────────────────
RONDO_HOME = Path(env["RONDO_HOME"] or default_home()).resolve()
RONDO_MODELS = RONDO_HOME / "models"
RONDO_BASE_MODEL_FOLDERS = list(env["RONDO_BASE_MODEL_FOLDERS"])
RONDO_SNAPSHOTS = RONDO_HOME / "snapshots"
RONDO_RUNS = RONDO_HOME / "runs"
RONDO_CHECKPOINTS = RONDO_HOME / "checkpoints"
RONDO_IMPORTS = RONDO_HOME / "imports"
# Files shared between machines; each works in its RONDO_HOME. Empty: only RONDO_HOME.
RONDO_STORE_URL = env["RONDO_STORE_URL"].rstrip("/")
RONDO_UPLOADED_FILES = (
    "training.files.shared.SharedUploads" if RONDO_STORE_URL else "annotation.exchange.uploads.UploadedFiles"
)
RONDO_HOST = env["RONDO_HOST"]
RONDO_PORT = env["RONDO_PORT"]
# Python uses one core per process; more than two busy ones leave none to the model on a small machine. A
# connection stays with its process: with more processes, some serve several people and others none.
RONDO_WEB_PROCESSES = env["RONDO_WEB_PROCESSES"]
RONDO_MODEL_SERVER_PORT = env["RONDO_MODEL_SERVER_PORT"]
RONDO_MODEL_SERVER_URL = env["RONDO_MODEL_SERVER_URL"] or f"http://127.0.0.1:{RONDO_MODEL_SERVER_PORT}"
# Hosts inside private networks that checkpoints may name as their server, alone or with a port. Public
# hosts are always allowed; any other would let a page of Rondo reach into the network it runs in.
RONDO_MODEL_SERVER_HOSTS = list(env["RONDO_MODEL_SERVER_HOSTS"])
# The same for webhooks, with a separate list, since every manager of a project may create them.
RONDO_WEBHOOK_HOSTS = list(env["RONDO_WEBHOOK_HOSTS"])
# Access of rewards to this machine: the trainer reads these from its environment, here they are checked.
RONDO_REWARD_FUNCTIONS = list(env["RONDO_REWARD_FUNCTIONS"])
RONDO_JUDGE_URL = env["RONDO_JUDGE_URL"]
RONDO_JUDGE_KEY = env["RONDO_JUDGE_KEY"]
RONDO_TOKEN_REQUESTS_PER_MINUTE = env["RONDO_TOKEN_REQUESTS_PER_MINUTE"]
RONDO_API_REQUESTS_PER_MINUTE = env["RONDO_API_REQUESTS_PER_MINUTE"]
# Programs with this token may read /metrics; without it only this machine and administrators may.
RONDO_METRICS_TOKEN = env["RONDO_METRICS_TOKEN"]
RONDO_STARTER_MODEL_NAME = env["RONDO_STARTER_MODEL_NAME"]
# Program that trains a run; its folder follows. The demo project and tests put another in its place.
RONDO_OWN_TRAINER = (sys.executable, "-m", "training.rlhf")
RONDO_TRAINER_COMMAND = tuple(shlex.split(env["RONDO_TRAINER_COMMAND"])) or RONDO_OWN_TRAINER

writable_folder(RONDO_HOME)
make_home_private(RONDO_HOME, checked=("secret_key", "model_server_key"))
SECRET_KEY = env["RONDO_SECRET_KEY"] or stored_secret(RONDO_HOME / "secret_key")
RONDO_MODEL_SERVER_KEY = env["RONDO_MODEL_SERVER_KEY"] or stored_secret(RONDO_HOME / "model_server_key")

# ── Django ────────────────────────────────────────────────────────────────────────────
DEBUG = env["RONDO_DEBUG"]
ALLOWED_HOSTS = list(env["RONDO_ALLOWED_HOSTS"])
CSRF_TRUSTED_ORIGINS = list(env["RONDO_TRUSTED_ORIGINS"])
ROOT_URLCONF = "webapp.urls"
WSGI_APPLICATION = "webapp.wsgi.application"
AUTH_USER_MODEL = "annotation.User"
# The first only counts wrong attempts and locks out after too many.
AUTHENTICATION_BACKENDS = ["axes.backends.AxesStandaloneBackend", "django.contrib.auth.backends.ModelBackend"]
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "projects"
LOGOUT_REDIRECT_URL = "login"

INSTALLED_APPS = [
    "webapp.apps.WebappConfig",
    "training",
    "annotation",
    "webapp.apps.RondoAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.humanize",
    "django.contrib.staticfiles",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "allauth.usersessions",
    "allauth.socialaccount",
    "allauth.socialaccount.providers.github",
    "allauth.socialaccount.providers.google",
    "allauth.socialaccount.providers.openid_connect",
    "axes",
    "django_htmx",
    "rest_framework",
    "drf_spectacular",
    "csp",
]

MIDDLEWARE = [
    # Outermost, so that it measures and logs the whole request.
    "webapp.operations.requests.RequestLine",
    "webapp.operations.pages.Probes",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "webapp.security.middleware.PermissionsPolicy",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "webapp.security.middleware.LanguageMiddleware",
    "webapp.security.middleware.RefuseNul",
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "webapp.security.middleware.ParticipantsLabelOnly",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "webapp.security.middleware.SessionActivity",
    "axes.middleware.AxesMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [ASSETS / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
            "builtins": ["webapp.templatetags.rondo"],
        },
    },
]

# ── Database ──────────────────────────────────────────────────────────────────────────
_sqlite: dict[str, Any] = {"ENGINE": "webapp.database.sqlite", "NAME": str(RONDO_HOME / "rondo.sqlite3")}
DATABASES = {"default": environ.Env.db_url_config(env["DATABASE_URL"]) if env["DATABASE_URL"] else _sqlite}
if DATABASES["default"]["ENGINE"] in ("webapp.database.sqlite", "django.db.backends.sqlite3"):
    DATABASES["default"]["ENGINE"] = "webapp.database.sqlite"
    # Connecting costs more than most requests, so each thread keeps its connection.
    DATABASES["default"].setdefault("CONN_MAX_AGE", None)
    DATABASES["default"]["OPTIONS"] = {
        # A transaction takes the write lock when it begins: two that read and then write
        # wait for each other instead of failing.
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        # FULL: an acknowledged judgment survives a power cut, not only a killed process.
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON;",
    }
else:
    DATABASES["default"].setdefault("CONN_MAX_AGE", 60)
    DATABASES["default"].setdefault("CONN_HEALTH_CHECKS", True)
    if DATABASES["default"]["ENGINE"] == "django.db.backends.postgresql":
        DATABASES["default"]["OPTIONS"] = {**OF_POSTGRESQL, **DATABASES["default"].get("OPTIONS", {})}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.locmem.LocMemCache",
        # Django keeps 300 entries and throws away a third of them when they are full. A labelling screen
        # keeps four small ones for each annotator: with more than 75 at work every label counts again.
        "OPTIONS": {"MAX_ENTRIES": 20_000},
    }
}
"""Counts and medians that may be a minute old, of each web process for itself."""

# ── Jobs: messages that wake workers ──────────────────────────────────────────────────
CELERY_BROKER_URL = env["RONDO_BROKER_URL"]
if CELERY_BROKER_URL.startswith("filesystem:"):
    CELERY_BROKER_TRANSPORT = "webapp.broker:Transport"
    CELERY_BROKER_TRANSPORT_OPTIONS = {
        "data_folder_in": str(writable_folder(RONDO_HOME / "broker" / "messages")),
        "data_folder_out": str(RONDO_HOME / "broker" / "messages"),
        "control_folder": str(writable_folder(RONDO_HOME / "broker" / "control")),
        "polling_interval": 0.5,
    }
elif CELERY_BROKER_URL.startswith(("redis:", "rediss:")):
    CELERY_BROKER_TRANSPORT_OPTIONS = OF_REDIS
# Retry forever: a worker that gave up would have to be restarted by a person.
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_BROKER_HEARTBEAT = 20
# Once more over a new connection; a sweep finds lost messages.
CELERY_TASK_PUBLISH_RETRY_POLICY = {"max_retries": 1, "interval_start": 0, "interval_step": 0.1}
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_IGNORE_RESULT = True
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_TIMEZONE = "UTC"
# Remote control is unused, and costs the file-system broker a queue per worker.
CELERY_WORKER_ENABLE_REMOTE_CONTROL = False
# A separate queue sends rounds to workers started for it: those with a GPU.
RONDO_TRAINING_QUEUE = env["RONDO_TRAINING_QUEUE"]
# Two lanes, each with workers of its own: what people wait for never stands behind a job of hours. A worker
# that is started without --queues takes from both.
CELERY_TASK_DEFAULT_QUEUE, RONDO_SHORT_QUEUE = "celery", "short"
CELERY_TASK_QUEUES = [
    Queue(name, Exchange(name), routing_key=name) for name in (CELERY_TASK_DEFAULT_QUEUE, RONDO_SHORT_QUEUE)
]
CELERY_TASK_ROUTES = {
    "annotation.tasks.*": {"queue": RONDO_SHORT_QUEUE},
    "training.tasks.sweep": {"queue": RONDO_SHORT_QUEUE},
    "training.tasks.retention": {"queue": RONDO_SHORT_QUEUE},
    "training.tasks.advance_round": {"queue": RONDO_TRAINING_QUEUE},
}
RONDO_JOBS_PER_PROJECT = env["RONDO_JOBS_PER_PROJECT"]
# Where runs train: a process of the worker, or a job of a cluster whose nodes have Rondo at these places.
RONDO_LAUNCHER = list(env["RONDO_LAUNCHER"])
RONDO_JOBS_PER_GPU = env["RONDO_JOBS_PER_GPU"]
RONDO_CLUSTER_PYTHON = env["RONDO_CLUSTER_PYTHON"] or sys.executable
RONDO_CLUSTER_CODE = env["RONDO_CLUSTER_CODE"] or str(BASE_DIR)
RONDO_CLUSTER_HOME = env["RONDO_CLUSTER_HOME"] or str(RONDO_HOME)
RONDO_LAUNCHER_POLL_SECONDS = env["RONDO_LAUNCHER_POLL_SECONDS"]
RONDO_JOB_STALE_SECONDS = env["RONDO_JOB_STALE_SECONDS"]
RONDO_RAY_URL, RONDO_RAY_TOKEN = env["RONDO_RAY_URL"], env["RONDO_RAY_TOKEN"]
RONDO_RAY_SERVER_COMMAND = env["RONDO_RAY_SERVER_COMMAND"]
RONDO_COMMAND_SUBMIT, RONDO_COMMAND_POLL = env["RONDO_COMMAND_SUBMIT"], env["RONDO_COMMAND_POLL"]
RONDO_COMMAND_CANCEL, RONDO_COMMAND_LOGS = env["RONDO_COMMAND_CANCEL"], env["RONDO_COMMAND_LOGS"]
RONDO_SWEEP_SECONDS = env["RONDO_SWEEP_SECONDS"]
RONDO_HEARTBEAT_SECONDS = env["RONDO_HEARTBEAT_SECONDS"]
RONDO_STALE_SECONDS = env["RONDO_STALE_SECONDS"]
# Number of checkpoints per project that keep their files; 0 keeps all.
RONDO_KEEP_CHECKPOINTS = env["RONDO_KEEP_CHECKPOINTS"]
RONDO_KEEP_RUN_STATES = env["RONDO_KEEP_RUN_STATES"]
# Used only when a checkpoint is pushed; HF_ENDPOINT names another hub than huggingface.co.
RONDO_HUB_TOKEN = env["RONDO_HUB_TOKEN"]
# Below it uploads, sampling and training wait.
RONDO_LEAST_FREE_MB = env["RONDO_LEAST_FREE_MB"]
# Folders and buckets that managers may have watched.
RONDO_SOURCES = list(env["RONDO_SOURCES"])
RONDO_SOURCE_SECONDS = env["RONDO_SOURCE_SECONDS"]
# The largest upload of a manager; a command imports larger files.
RONDO_IMPORT_MAX_MB = env["RONDO_IMPORT_MAX_MB"]
RONDO_IMPORT_MAX_ROWS = env["RONDO_IMPORT_MAX_ROWS"]
RONDO_UPLOADS_PER_MINUTE = env["RONDO_UPLOADS_PER_MINUTE"]
CELERY_BEAT_SCHEDULE = beat_schedule(sweep_seconds=RONDO_SWEEP_SECONDS)
CELERY_BEAT_SCHEDULER = "celery.beat:Scheduler"

# ── People ────────────────────────────────────────────────────────────────────────────
PASSWORD_HASHERS = ["django.contrib.auth.hashers.Argon2PasswordHasher"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in ("UserAttributeSimilarityValidator", "MinimumLengthValidator", "CommonPasswordValidator")
]
# Number of our own proxies: that many last addresses of X-Forwarded-For are trusted.
# Behind an uncounted proxy everybody shares one address and one lockout.
ALLAUTH_TRUSTED_PROXY_COUNT = (
    int(env["RONDO_HTTPS"]) if env["RONDO_TRUSTED_PROXIES"] is None else env["RONDO_TRUSTED_PROXIES"]
)
AXES_FAILURE_LIMIT = env["RONDO_SIGN_IN_ATTEMPTS"]
AXES_COOLOFF_TIME = timedelta(minutes=env["RONDO_SIGN_IN_WAIT_MINUTES"])
# By user and address: guessing from elsewhere does not lock the user out.
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_CLIENT_IP_CALLABLE = "annotation.selectors.access.client_address"
AXES_LOCKOUT_CALLABLE = "webapp.security.forms.locked_out"
AXES_RESET_ON_SUCCESS = True
# allauth's 30 posts a minute for each address, right passwords among them, would stop an office behind one
# address in the morning. This only bounds the work of hashing.
ACCOUNT_RATE_LIMITS = {"login": "600/m/ip"}
# An attempt during the lockout does not extend it.
AXES_RESET_COOL_OFF_ON_FAILURE_DURING_LOCKOUT = False
# The list of sessions shows addresses already; a second log of them is not kept.
AXES_DISABLE_ACCESS_LOG = True
AXES_VERBOSE = False

ACCOUNT_ADAPTER = "webapp.security.adapters.AccountAdapter"
SOCIALACCOUNT_ADAPTER = "webapp.security.adapters.SocialAccountAdapter"
MFA_ADAPTER = "webapp.security.adapters.MFAAdapter"
ACCOUNT_FORMS = {
    "login": "webapp.security.forms.LoginForm",
    "reset_password": "webapp.security.forms.ResetPasswordForm",
}
ACCOUNT_LOGIN_METHODS = {"username"}
ACCOUNT_SIGNUP_FIELDS = ["username*", "password1*", "password2*"]
ACCOUNT_EMAIL_VERIFICATION = "none"
# An address without an account gets no e-mail: anybody may type one in.
ACCOUNT_EMAIL_UNKNOWN_ACCOUNTS = False
ACCOUNT_SESSION_REMEMBER = True
ACCOUNT_REAUTHENTICATION_REQUIRED = True
ACCOUNT_LOGOUT_ON_PASSWORD_CHANGE = False
MFA_SUPPORTED_TYPES = ["totp", "webauthn", "recovery_codes"]
MFA_PASSKEY_LOGIN_ENABLED = True
# Addresses are never verified: accounts are created by invitation only, and are found by one only for
# a new password.
MFA_ALLOW_UNVERIFIED_EMAIL = True
MFA_FORMS = {
    "authenticate": "webapp.security.forms.AuthenticateForm",
    "reauthenticate": "webapp.security.forms.ReauthenticateForm",
}
# ── E-mail ────────────────────────────────────────────────────────────────────────────
RONDO_ADDRESS = (env["RONDO_ADDRESS"] or f"http://{RONDO_HOST}:{RONDO_PORT}").rstrip("/")
# Without a server no e-mail is written; pages say so.
RONDO_EMAIL = bool(env["RONDO_EMAIL_URL"])
_mail = environ.Env.email_url_config(env["RONDO_EMAIL_URL"] or "dummymail://")
EMAIL_BACKEND = _mail["EMAIL_BACKEND"]
EMAIL_HOST, EMAIL_PORT = _mail["EMAIL_HOST"] or "localhost", _mail["EMAIL_PORT"] or 25
EMAIL_HOST_USER, EMAIL_HOST_PASSWORD = _mail["EMAIL_HOST_USER"] or "", _mail["EMAIL_HOST_PASSWORD"] or ""
EMAIL_USE_TLS, EMAIL_USE_SSL = _mail.get("EMAIL_USE_TLS", False), _mail.get("EMAIL_USE_SSL", False)
# A server that does not answer must not hold a worker.
EMAIL_TIMEOUT = 20
DEFAULT_FROM_EMAIL = SERVER_EMAIL = env["RONDO_EMAIL_FROM"]

# Identity providers; each is offered only if its two or three variables are set.
SOCIALACCOUNT_PROVIDERS = providers(
    github=(env["RONDO_GITHUB_CLIENT_ID"], env["RONDO_GITHUB_CLIENT_SECRET"]),
    google=(env["RONDO_GOOGLE_CLIENT_ID"], env["RONDO_GOOGLE_CLIENT_SECRET"]),
    openid=(env["RONDO_OPENID_CLIENT_ID"], env["RONDO_OPENID_CLIENT_SECRET"]),
    openid_url=env["RONDO_OPENID_URL"],
    openid_name=env["RONDO_OPENID_NAME"],
)
SOCIALACCOUNT_EMAIL_AUTHENTICATION = False
SOCIALACCOUNT_LOGIN_ON_GET = False
SOCIALACCOUNT_STORE_TOKENS = False

SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
# Rondo runs on plain HTTP on a loopback address until someone puts a proxy in front of it.
RONDO_HTTPS = env["RONDO_HTTPS"]
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = RONDO_HTTPS
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if RONDO_HTTPS else None
SECURE_SSL_REDIRECT = RONDO_HTTPS
SECURE_HSTS_SECONDS = 30 * 24 * 3600 if RONDO_HTTPS else 0
# Subdomains and browsers' preload lists are decisions for the owner of the domain.
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"

_SELF = "'self'"
_NONE = "'none'"
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [_NONE],
        "script-src": [_SELF],
        "style-src": [_SELF],
        "img-src": [_SELF, "data:"],
        "font-src": [_SELF],
        "connect-src": [_SELF],
        "form-action": [_SELF],
        "frame-ancestors": [_NONE],
        "base-uri": [_NONE],
        "manifest-src": [_SELF],
        # Strings become neither scripts nor their URLs; see static/js/trusted-types.js.
        "require-trusted-types-for": ["'script'"],
        "trusted-types": ["default"],
    }
}

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["rest_framework.authentication.SessionAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Rondo",
    "DESCRIPTION": (
        "People compare, rank and mark up model outputs; their judgments train the next checkpoint. "
        "Everything that can be done in the browser can be done here, by the same rules."
    ),
    "VERSION": __version__,
    "OAS_VERSION": "3.1.1",
    "SCHEMA_PATH_PREFIX": "/api/v1/",
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "webapp.api.schema.complete",
    ],
    "APPEND_COMPONENTS": {},
    "COMPONENT_SPLIT_REQUEST": True,
    "ENUM_NAME_OVERRIDES": ENUM_NAMES,
    "TAGS": TAGS,
    # It asks about the code, not about a deployment, and takes the status page half a second.
    "ENABLE_DJANGO_DEPLOY_CHECK": False,
}

# ── Words, time, files ────────────────────────────────────────────────────────────────
LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("de", "Deutsch")]
FORMAT_MODULE_PATH = "webapp.locale"
TIME_ZONE = env["RONDO_TIME_ZONE"]
USE_TZ = True
STATIC_URL = "static/"
STATIC_ROOT = RONDO_HOME / "static"
STATICFILES_DIRS = [ASSETS / "static"]
# `manage.py up` collects the files and then sets this. Elsewhere (tests, `runserver`) they come from
# their source folders, so that a folder collected last week is never served in place of today's files.
RONDO_STATIC_COLLECTED = env["RONDO_STATIC_COLLECTED"]
WHITENOISE_USE_FINDERS = not RONDO_STATIC_COLLECTED
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": (
            "webapp.storage.HashedStorage"
            if RONDO_STATIC_COLLECTED
            else "django.contrib.staticfiles.storage.StaticFilesStorage"
        )
    },
}

RONDO_LOG_FORMAT = env["RONDO_LOG_FORMAT"]
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {
            "()": "training.contract.log_lines.formatter",
            "kind": RONDO_LOG_FORMAT,
            # Redacted wherever they occur.
            "known": [SECRET_KEY, RONDO_MODEL_SERVER_KEY, *log_lines.secrets_of_environment()],
        }
    },
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": env["RONDO_LOG_LEVEL"]},
    "loggers": {
        "httpx": {"level": "WARNING"},
        # The source of a store's credentials, logged each time it is opened.
        "aiobotocore": {"level": "WARNING"},
        "botocore": {"level": "WARNING"},
        # Several lines per sign-in, whose relevant facts are in the database.
        "axes": {"level": "ERROR"},
        # A sweep every few seconds would fill the log.
        "celery.beat": {"level": "WARNING"},
        "celery.worker.strategy": {"level": "WARNING"},
        "celery.app.trace": {"level": "WARNING"},
    },
}

"""Settings that hold everywhere, from the environment. What differs by use is in local, production and test."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Any

import dj_database_url
from celery.schedules import crontab
from csp.constants import NONCE, NONE, SELF
from django.core.exceptions import ImproperlyConfigured

from chatapp.settings import redis_urls
from chatapp.settings.environment import listed, on, seconds, setting, whole
from engine.protocol import MAX_IN_ALL, model_name, served_models

ROOT = Path(__file__).resolve().parents[2]
OCTAVO_DOCS = ROOT / "docs"  # a few of its pages are served
DATA = (ROOT / os.environ.get("OCTAVO_DATA", "var")).resolve()

REDIS_URL = setting("REDIS_URL") or "redis://127.0.0.1:6379/0"
try:
    redis_urls.check(REDIS_URL)
except ValueError:
    raise ImproperlyConfigured(
        "REDIS_URL (or REDIS_URL_FILE) must read redis://:password@host:6379/0, or sentinel://:password@host:port,"
        "host:port/master/db; what is special in the password is written as %XX."
    ) from None
OCTAVO_MODEL = os.environ.get("OCTAVO_MODEL", "")
# Several models, each with workers of its own: "small=/path/a,large=/path/b". The first is the platform's default.
OCTAVO_MODELS = os.environ.get("OCTAVO_MODELS", "")
# What the engine serves a model as: web and worker derive the same names from the same settings.
if OCTAVO_MODELS:
    try:
        OCTAVO_MODEL_NAMES = tuple(served_models(OCTAVO_MODELS))
    except ValueError as error:
        raise ImproperlyConfigured(f"OCTAVO_MODELS: {error}.") from None
else:
    OCTAVO_MODEL_NAMES = (os.environ.get("OCTAVO_MODEL_NAME") or model_name(OCTAVO_MODEL or "default"),)
OCTAVO_MODEL_NAME = OCTAVO_MODEL_NAMES[0]
OCTAVO_URL = os.environ.get("OCTAVO_URL", "http://127.0.0.1:8000")
# Shared by all tenants, in front of their own prompts; its KV blocks are the only ones that tenants share.
OCTAVO_PREAMBLE = os.environ.get("OCTAVO_PREAMBLE", "")
# Where this machine's workers keep published prompts' KV (engine.prompt_store): a deleted team's are looked for there.
OCTAVO_PROMPT_STORE = Path(os.environ.get("OCTAVO_WORKER_PROMPT_STORE") or DATA / "prompts")
# Webhooks go to public addresses over TLS only; these are the operator's own networks, for receivers inside them.
OCTAVO_WEBHOOK_ALLOW = listed("OCTAVO_WEBHOOK_ALLOW")
for _network in OCTAVO_WEBHOOK_ALLOW:
    try:
        ipaddress.ip_network(_network, strict=False)
    except ValueError:
        raise ImproperlyConfigured(f"OCTAVO_WEBHOOK_ALLOW: {_network!r} is no network such as 10.0.0.0/8.") from None
# Without TLS, for development: what is told could be read on its way.
OCTAVO_WEBHOOK_PLAIN = on("OCTAVO_WEBHOOK_PLAIN")
# Of batches: how many answers of a team may be under way at once, so that chats keep their speed.
OCTAVO_BATCH_AT_ONCE = whole("OCTAVO_BATCH_AT_ONCE", 4)
# What whoever reads /metrics has to know; empty: it is not there. Sessions and API keys do not open it.
OCTAVO_METRICS_TOKEN = setting("OCTAVO_METRICS_TOKEN")
# Of each model: how many requests of all teams together may wait or run before new ones are refused.
OCTAVO_QUEUE_IN_ALL = whole("OCTAVO_QUEUE_IN_ALL", MAX_IN_ALL)
# For how long questions are taken for a model that no engine runs; 0: always. A restart is over by then.
OCTAVO_UNSERVED_S = whole("OCTAVO_UNSERVED_S", 120)
# Websockets of one web process; fewer where it may not have as many files open (chatapp.api.seats).
OCTAVO_MAX_SOCKETS = whole("OCTAVO_MAX_SOCKETS", 4000)
# How long a web process that is told to end lets requests under way end (chatapp.daphne). With the three seconds that
# follow it has to be less than what the supervisor waits.
OCTAVO_WEB_GRACE_S = whole("OCTAVO_WEB_GRACE_S", 6)
OCTAVO_ANSWER_TIMEOUT_S = whole("OCTAVO_ANSWER_TIMEOUT_S", 600)


# How long whoever asks may wait: for SQLite's one writer, and for a PostgreSQL to be reached.
OCTAVO_DATABASE_WAIT_S = seconds("OCTAVO_DATABASE_WAIT_S", 20)


def sqlite(path: Path) -> dict[str, Any]:
    """SQLite as a server's database: WAL lets readers and the writer pass, IMMEDIATE and a wait end lock errors."""
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(path),
        "CONN_MAX_AGE": 0,
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": OCTAVO_DATABASE_WAIT_S,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
    }


DATABASES: dict[str, Any] = {"default": sqlite(DATA / "db.sqlite3")}
if _database_url := setting("DATABASE_URL"):
    try:
        # Under ASGI a kept connection would outlive the thread that made it.
        DATABASES["default"] = dj_database_url.parse(_database_url, conn_max_age=0)
    except ValueError:
        raise ImproperlyConfigured(
            "DATABASE_URL (or DATABASE_URL_FILE) must read postgres://user:password@host:5432/name; what is special in "
            "the password is written as %XX."
        ) from None
    if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
        DATABASES["default"] = sqlite(Path(DATABASES["default"]["NAME"]))
    elif DATABASES["default"]["ENGINE"] == "django.db.backends.postgresql":
        DATABASES["default"]["ENGINE"] = "chatapp.postgresql"  # with row-level security that follows the scope
        # One that does not answer is away: libpq would wait for it for minutes, and whoever asks with it.
        _alive = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3, "tcp_user_timeout": 10_000}
        _options = DATABASES["default"].get("OPTIONS", {})
        DATABASES["default"]["OPTIONS"] = {"connect_timeout": 5, **_alive, **_options}

DEBUG = False
ALLOWED_HOSTS: list[str] = listed("OCTAVO_HOSTS")

INSTALLED_APPS = [
    "unfold",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.humanize",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "allauth.socialaccount",
    "allauth.usersessions",
    "csp",
    "chatapp.accounts",
    "chatapp.audit",
    "chatapp.site",
    "chatapp.tenants",
    "chatapp.limits",
    "chatapp.prompts",
    "chatapp.chat",
    "chatapp.streaming",
    "chatapp.api",
    "chatapp.usage",
    "chatapp.data",
    "chatapp.files",
    "chatapp.responses",
    "chatapp.batches",
    "chatapp.webhooks",
    "chatapp.moving",
    "chatapp.feedback",
    "chatapp.shares",
    "chatapp.operators",
    "chatapp.dashboard",
    "chatapp.backups",
]

MIDDLEWARE = [
    # Counts what all others answer.
    "chatapp.metrics.http.MetricsMiddleware",
    # First, so that what any other answers has them too.
    "csp.middleware.CSPMiddleware",
    "chatapp.hygiene.HygieneMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "chatapp.middleware.StaticFilesMiddleware",
    "chatapp.middleware.ScopeMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "chatapp.languages.LanguageMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "chatapp.middleware.AdminPolicyMiddleware",
]

ROOT_URLCONF = "chatapp.urls"
ASGI_APPLICATION = "chatapp.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [ROOT / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "csp.context_processors.nonce",
                "chatapp.site.context.site",
                "chatapp.api.guides.context",
            ]
        },
    }
]

AUTH_USER_MODEL = "accounts.User"
AUTHENTICATION_BACKENDS = [
    "django.contrib.auth.backends.ModelBackend",
    "allauth.account.auth_backends.AuthenticationBackend",
]
PASSWORD_HASHERS = [
    "django.contrib.auth.hashers.Argon2PasswordHasher",
    "django.contrib.auth.hashers.PBKDF2PasswordHasher",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
ACCOUNT_LOGIN_METHODS = {"email"}
ACCOUNT_SIGNUP_FIELDS = ["email*", "password1*", "password2*"]
ACCOUNT_USER_MODEL_USERNAME_FIELD = None
ACCOUNT_ADAPTER = "chatapp.accounts.adapter.AccountAdapter"
ACCOUNT_EMAIL_VERIFICATION = "optional"
# One address an account; a new one counts once it is confirmed.
ACCOUNT_CHANGE_EMAIL = True
ACCOUNT_EMAIL_SUBJECT_PREFIX = ""
# Whoever's password, address or second factor is changed learns of it by mail.
ACCOUNT_EMAIL_NOTIFICATIONS = True
ACCOUNT_LOGOUT_ON_GET = False
ACCOUNT_SESSION_REMEMBER = True
# Nobody can ask the login page whether an address has an account.
ACCOUNT_PREVENT_ENUMERATION = True
# Counted in the cache, so all web processes agree. "key" is the address that somebody tries.
ACCOUNT_RATE_LIMITS = {
    # By the machine loosely: a whole office may be behind one, and comes to work at nine. By account tightly.
    "login": "120/m/ip",
    "login_failed": "30/m/ip,5/5m/key",
    "signup": "20/m/ip",
    "reset_password": "20/m/ip,5/m/key",
    "reset_password_from_key": "20/m/ip",
    "change_password": "5/m/user",
    "manage_email": "10/m/user",
    "reauthenticate": "10/m/user",
    "confirm_email": "1/3m/key",
}
ACCOUNT_FORMS = {
    "add_email": "chatapp.accounts.forms.NewAddressForm",
    "change_password": "chatapp.accounts.forms.NewPasswordForm",
    "set_password": "chatapp.accounts.forms.FirstPasswordForm",
    "reset_password_from_key": "chatapp.accounts.forms.ForgottenPasswordForm",
}
MFA_ADAPTER = "chatapp.accounts.adapter.SecondFactorAdapter"
MFA_SUPPORTED_TYPES = ["totp", "recovery_codes", "webauthn"]
MFA_FORMS = {
    "add_webauthn": "chatapp.accounts.forms.AddPasskeyForm",
    "authenticate": "chatapp.accounts.forms.SecondFactorForm",
    "reauthenticate": "chatapp.accounts.forms.ConfirmBySecondFactorForm",
    "activate_totp": "chatapp.accounts.forms.ActivateAppForm",
}
MFA_TOTP_ISSUER = "Octavo"
# Half a minute off is common among phones.
MFA_TOTP_TOLERANCE = 1
MFA_PASSKEY_LOGIN_ENABLED = True
MFA_RECOVERY_CODES_SHOW_ONCE = True
# Accounts are made by invitation or by an operator, so an unconfirmed address is no stranger's: without this, nobody
# could have a second factor where no mail is set up.
MFA_ALLOW_UNVERIFIED_EMAIL = True
MFA_RATE_LIMITS = {"webauthn_login": "20/m/ip"}
# Operators without a second factor get no further than to setting one up.
OCTAVO_OPERATOR_MFA = on("OCTAVO_OPERATOR_MFA", "required")
# Sign-in services (OIDC) may be named by plain http: for a service on one's own machine, and for tests.
OCTAVO_OIDC_PLAIN = on("OCTAVO_OIDC_PLAIN")
LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "account_login"
EMAIL_BACKEND = "chatapp.site.mail.EmailBackend"
# Where mail goes, as smtp://user:password@host:587, and its sender: they win over what operators enter on the pages.
OCTAVO_MAIL_URL = setting("OCTAVO_MAIL_URL")
OCTAVO_MAIL_FROM = os.environ.get("OCTAVO_MAIL_FROM", "")
# A web process of a site without an operator says in its log where one is made.
OCTAVO_ANNOUNCE_SETUP = True

# A code by mail is offered only where mail goes out (chatapp.accounts.adapter).
ACCOUNT_REAUTHENTICATION_METHODS = ["password", "mfa", "code"]

DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
LANGUAGE_CODE = "en"
# Each under its own name, since whoever looks for it may read no other.
LANGUAGES = [("en", "English"), ("de", "Deutsch"), ("es", "Español"), ("zh-hans", "简体中文")]
LOCALE_PATHS = [ROOT / "locale"]
FORMAT_MODULE_PATH = ["chatapp.formats"]
LANGUAGE_COOKIE_NAME = "octavo-language"
LANGUAGE_COOKIE_SECURE = False
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = True

STATIC_URL = "/static/"
# Where the pages' files were collected: an image brings them along, and nobody writes there.
STATIC_ROOT = Path(os.environ.get("OCTAVO_STATIC") or DATA / "staticfiles")
STATICFILES_DIRS = [ROOT / "static"]
# People's files (chatapp.files.contents): readable by this user of the machine alone, with no address of their own.
FILES = {
    "BACKEND": "chatapp.files.storage.PrivateFiles",
    "OPTIONS": {
        "location": DATA / "files",
        "file_permissions_mode": 0o600,
        "directory_permissions_mode": 0o700,
    },
}
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"},
    "files": FILES,
}

SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_HTTPONLY = True
CSRF_COOKIE_SAMESITE = "Lax"
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CONTENT_TYPE_NOSNIFF = True
# In the session: a cookie of their own would be one more to guard.
MESSAGE_STORAGE = "django.contrib.messages.storage.session.SessionStorage"
X_FRAME_OPTIONS = "DENY"
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF, NONCE],
        "style-src": [SELF, NONCE],
        "img-src": [SELF, "data:"],
        "font-src": [SELF],
        "connect-src": [SELF],
        "form-action": [SELF],
        "base-uri": [NONE],
        "frame-ancestors": [NONE],
        "manifest-src": [SELF],
        "object-src": [NONE],
    }
}
# A request body is a chat at most; files come with their own issue. More is a 413 (chatapp.hygiene).
DATA_UPLOAD_MAX_MEMORY_SIZE = 2 * 1024 * 1024
DATA_UPLOAD_MAX_NUMBER_FIELDS = 2000
DATA_UPLOAD_MAX_NUMBER_FILES = 10
OCTAVO_MAX_BODY = 1024 * 1024
OCTAVO_MAX_MESSAGE = 200_000
# The largest file that is kept. Only the addresses that take files let bodies of this size in (chatapp.hygiene).
OCTAVO_MAX_FILE = whole("OCTAVO_MAX_FILE_MB", 100) * 1024 * 1024

CACHES = {"default": redis_urls.cache(REDIS_URL, 2)}
OCTAVO_CELERY_DATABASE = 4
CELERY_BROKER_URL, CELERY_BROKER_TRANSPORT_OPTIONS = redis_urls.celery_broker(REDIS_URL, OCTAVO_CELERY_DATABASE)
CELERY_TASK_IGNORE_RESULT = True
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_SERIALIZER = "json"
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_TIMEZONE = "UTC"
CELERY_BEAT_SCHEDULE = {
    "greet": {"task": "chatapp.chat.tasks.greet", "schedule": 2.0, "options": {"expires": 2.0}},
    "readings": {"task": "chatapp.audit.tasks.end_expired_readings", "schedule": 15.0, "options": {"expires": 15.0}},
    "reap": {"task": "chatapp.chat.tasks.reap", "schedule": 5.0, "options": {"expires": 5.0}},
    "usage": {"task": "chatapp.usage.tasks.roll_up", "schedule": 60.0, "options": {"expires": 60.0}},
    "budgets": {"task": "chatapp.usage.tasks.reconcile_budgets", "schedule": crontab(hour=3, minute=17)},
    "release-expired": {"task": "chatapp.limits.tasks.release_expired", "schedule": 60.0, "options": {"expires": 60.0}},
    "tend-data": {"task": "chatapp.data.tasks.tend", "schedule": 15.0, "options": {"expires": 15.0}},
    "webhooks": {"task": "chatapp.webhooks.tasks.tend", "schedule": 5.0, "options": {"expires": 5.0}},
    "old-deliveries": {"task": "chatapp.webhooks.tasks.forget_old", "schedule": crontab(minute="41")},
    "read-files": {"task": "chatapp.files.tasks.tend", "schedule": 10.0, "options": {"expires": 10.0}},
    "sweep-files": {"task": "chatapp.files.tasks.sweep", "schedule": crontab(minute="37")},
    "batches": {"task": "chatapp.batches.tasks.tend", "schedule": 2.0, "options": {"expires": 2.0}},
    "old-batches": {"task": "chatapp.batches.tasks.forget_old", "schedule": crontab(hour="4", minute="11")},
    "retention": {"task": "chatapp.data.tasks.apply_retention", "schedule": crontab(hour="2", minute="20")},
}

UNFOLD = {
    "SITE_TITLE": "chatapp.dashboard.theme.name",
    "SITE_HEADER": "chatapp.dashboard.theme.name",
    "SITE_SUBHEADER": "Operators",
    "SHOW_HISTORY": True,
    "SITE_ICON": "chatapp.dashboard.theme.mark",
    "SITE_FAVICONS": [{"rel": "icon", "type": "image/svg+xml", "href": "chatapp.dashboard.theme.mark"}],
    "COLORS": {"base": "chatapp.dashboard.theme.greys", "primary": "chatapp.dashboard.theme.teals"},
    "SIDEBAR": {"navigation": "chatapp.dashboard.theme.navigation"},
    "DASHBOARD_CALLBACK": "chatapp.dashboard.operations.index",
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "structured": {"()": "chatapp.logs.formatter"},
    },
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "structured"}},
    "root": {"handlers": ["console"], "level": "INFO"},
    "loggers": {
        "django.request": {"level": "ERROR"},
        "django.channels.server": {"level": "WARNING"},
        "daphne": {"level": "WARNING"},
        "httpx": {"level": "WARNING"},
        "celery": {"level": "WARNING"},  # each task that comes and goes, and beat's ticks
    },
}

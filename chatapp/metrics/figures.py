"""What the product's processes count and time. Each says it where it happens; the web's /metrics has all of them.

The processes of one machine write into the files of one folder, PROMETHEUS_MULTIPROC_DIR (the library looks at that
once, when it is first imported); without it, each process has figures of its own. Labels have few values, and never a
tenant, a person or an id among them: what a team uses is for its own pages.
"""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from chatapp.metrics import sharing

sharing.begin()

HTTP_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
TRIP_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
LAG_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)
TASK_S = (0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0, 600.0)

# --- the web ------------------------------------------------------------------------------------------------------

http_requests = Counter(
    "octavo_http_requests", "HTTP requests by route, as the addresses are declared.", ["method", "route", "status"]
)
http_seconds = Histogram(
    "octavo_http_request_duration_seconds", "Until a request's answer begins.", ["route"], buckets=HTTP_S
)
sockets_open = Gauge("octavo_websocket_connections", "Open websockets.", ["socket"], multiprocess_mode="livesum")
sockets_opened = Counter("octavo_websocket_connections_opened", "Websockets that were opened.", ["socket"])
sockets_closed = Counter("octavo_websocket_connections_closed", "Ended ones by their codes.", ["socket", "code"])
sockets_behind = Gauge(
    "octavo_websocket_outbox_behind",
    "Those that took no frame for a second.",
    multiprocess_mode="livesum",
)
outbox_lag = Gauge(
    "octavo_websocket_outbox_lag_seconds",
    "For how long the slowest websocket has not taken the frame that is next.",
    multiprocess_mode="livemax",
)
outbox_chars = Gauge(
    "octavo_websocket_outbox_chars", "Characters of answers that wait for their sockets.", multiprocess_mode="livesum"
)
lagged = Counter("octavo_websocket_lagged", "Answers that a socket left off for later, since it does not read.")
loop_lag = Histogram(
    "octavo_event_loop_lag_seconds", "How late the web's event loop comes to what is due.", buckets=LAG_S
)
submissions = Counter(
    "octavo_submissions",
    "Requests given to the engine's queues: accepted, full (the team's own bound), overloaded (the machine's).",
    ["outcome"],
)
# From the start, so that the first refusal is an increase: Prometheus sees none in a series that begins.
for _outcome in ("accepted", "full", "overloaded"):
    submissions.labels(_outcome)

# --- all that talk to Redis ---------------------------------------------------------------------------------------

redis_trip = Histogram(
    "octavo_redis_round_trip_seconds", "Between a call of Redis and its answer.", ["program"], buckets=TRIP_S
)

# --- the recorder -------------------------------------------------------------------------------------------------

recorded = Counter(
    "octavo_recorded", "Ended generations written to the database, by how they ended.", ["status", "model_name"]
)
record_seconds = Histogram("octavo_record_duration_seconds", "Of writing one of them.", buckets=HTTP_S)
recorder_lag = Histogram(
    "octavo_recorder_lag_seconds", "From a generation's end until the database has it.", buckets=LAG_S
)
record_failures = Counter("octavo_record_failures", "Attempts at writing one that failed.")
set_aside = Counter("octavo_recorder_set_aside", "Those given up after several attempts.")

# --- Celery -------------------------------------------------------------------------------------------------------

tasks = Counter("octavo_celery_tasks", "Tasks that have run, by how they ended.", ["task", "state"])
task_seconds = Histogram("octavo_celery_task_duration_seconds", "Of running one.", ["task"], buckets=TASK_S)
task_success = Gauge(
    "octavo_celery_task_last_success_timestamp_seconds", "When one last ended well.", ["task"], multiprocess_mode="max"
)

_program = "other"


def this_is(program: str) -> None:
    """Which of the product's programs this process is: web, recorder or celery."""
    global _program
    _program = program


def redis_took(seconds: float) -> None:
    redis_trip.labels(_program).observe(seconds)

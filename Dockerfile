# The product as images: `web` (also recorder, celery, beat and the migrations; no torch in it), `engine` for CPUs, and
# `engine-gpu`. All run as a user of their own with nothing to write but /data, /engine and /tmp, so the root file system
# can be read-only. No stage is given a secret: what a build step needs of that kind lives and ends in that step.
#
#   docker build --target web --tag octavo/web .
#
# The bases are named to the patch; for builds that never change, put their digests behind (name@sha256:…).
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm
ARG NODE_IMAGE=node:24.11.1-bookworm-slim

# --- what all stages are made on --------------------------------------------------------------------------------------

FROM ${PYTHON_IMAGE} AS base
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PATH=/opt/venv/bin:$PATH \
    HOME=/tmp \
    OCTAVO_DATA=/data \
    OCTAVO_STATIC=/app/staticfiles \
    OCTAVO_WORKER_PROMPT_STORE=/engine/prompts
# A volume that is new takes its owner from these folders.
RUN groupadd --system --gid 10001 octavo \
    && useradd --system --uid 10001 --gid octavo --home-dir /tmp --no-create-home --shell /usr/sbin/nologin octavo \
    && install -d -o octavo -g octavo -m 0700 /data /data/tmp /engine
WORKDIR /app

# --- web --------------------------------------------------------------------------------------------------------------

FROM base AS web-packages
COPY requirements/ requirements/
COPY ops/ ops/
# Every file by its hash: what the list leads to, in the versions of the lock, and then the lock's part for it (ops/hashed.py).
RUN python -m venv /opt/venv \
    && sed -E 's/[[:space:]]*\\$//; /^[[:space:]]*--hash/d' requirements/lock.txt > /tmp/constraints.txt \
    && pip install --no-cache-dir --quiet --dry-run --report /tmp/report.json -r requirements/web.txt -c /tmp/constraints.txt \
    && python -m ops.hashed /tmp/report.json > /tmp/hashed.txt \
    && pip install --no-cache-dir --no-compile --no-deps --require-hashes -r /tmp/hashed.txt

FROM ${NODE_IMAGE} AS browser-libraries
WORKDIR /app
COPY package.json package-lock.json ./
RUN npm ci --ignore-scripts --no-audit --no-fund

# Everything that is made once for all: browser libraries, catalogues, collected files with their compressed forms.
FROM web-packages AS pages
RUN pip install --no-cache-dir --quiet --dry-run --report /tmp/babel.json babel -c /tmp/constraints.txt \
    && python -m ops.hashed /tmp/babel.json > /tmp/babel.txt \
    && pip install --no-cache-dir --no-deps --require-hashes -r /tmp/babel.txt
COPY manage.py package.json package-lock.json ./
COPY ops/ ops/
COPY engine/ engine/
COPY chatapp/ chatapp/
COPY docs/ docs/
COPY templates/ templates/
COPY locale/ locale/
COPY static/ static/
COPY --from=browser-libraries /app/node_modules/ node_modules/
RUN python ops/vendor.py \
    && python -m ops.messages compile \
    && OCTAVO_DATA=/tmp/build DJANGO_SETTINGS_MODULE=chatapp.settings.local \
       python manage.py collectstatic --noinput --verbosity 0

FROM base AS web
# pg_dump and pg_restore, of the server's version (docker-compose.yml), for `manage.py backup` and `restore`.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends postgresql-client-15 && rm -rf /var/lib/apt/lists/*
ENV DJANGO_SETTINGS_MODULE=chatapp.settings.production
COPY --from=web-packages /opt/venv/ /opt/venv/
COPY manage.py LICENSE ./
COPY ops/ ops/
COPY engine/ engine/
COPY chatapp/ chatapp/
COPY docs/ docs/
COPY templates/ templates/
COPY static/ static/
COPY --from=pages /app/locale/ locale/
COPY --from=pages /app/staticfiles/ staticfiles/
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=10s --start-period=60s --retries=3 CMD ["python", "-m", "ops.alive", "web"]
CMD ["python", "-m", "chatapp.daphne", "--bind", "0.0.0.0", "--port", "8000", "--no-server-name", "--access-log", "/dev/null", "--ping-interval", "20", "--ping-timeout", "30", "chatapp.asgi:application"]

# --- engine -----------------------------------------------------------------------------------------------------------

# For every CPU that can run one of the levels: the image is built on one machine and runs on others.
FROM base AS kernels
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY kernels/ kernels/
RUN OCTAVO_KERNEL_CACHE=/app/built python -m kernels.cpu.build --every-cpu

# The usual build of torch brings CUDA's libraries along, gigabytes that a CPU never loads. TORCH_INDEX: an index that has
# the build for CPUs alone, as torch's own instructions name one.
FROM base AS engine-packages
ARG TORCH_INDEX=
COPY requirements/ requirements/
COPY ops/ ops/
RUN python -m venv /opt/venv \
    && pip install --no-cache-dir --no-compile ${TORCH_INDEX:+--index-url "${TORCH_INDEX}"} -r requirements/torch.txt \
    && sed -E 's/[[:space:]]*\\$//; /^[[:space:]]*--hash/d' requirements/lock.txt > /tmp/constraints.txt \
    && pip install --no-cache-dir --quiet --dry-run --report /tmp/report.json -r requirements/engine.txt -c /tmp/constraints.txt \
    && python -m ops.hashed /tmp/report.json > /tmp/hashed.txt \
    && pip install --no-cache-dir --no-compile --no-deps --require-hashes -r /tmp/hashed.txt

FROM base AS engine
ENV HF_HUB_OFFLINE=1 \
    XDG_CACHE_HOME=/engine/cache \
    OCTAVO_KERNEL_CACHE=/app/built
COPY --from=engine-packages /opt/venv/ /opt/venv/
COPY --from=kernels /app/built/ built/
COPY LICENSE ./
COPY ops/ ops/
COPY kernels/ kernels/
COPY engine/ engine/
USER 10001:10001
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=10s --start-period=300s --retries=3 CMD ["python", "-m", "ops.alive", "engine"]
CMD ["python", "-m", "engine.worker"]

# --- engine, on a GPU -------------------------------------------------------------------------------------------------

FROM base AS engine-gpu-packages
COPY requirements/ requirements/
COPY ops/ ops/
RUN python -m venv /opt/venv \
    && pip install --no-cache-dir --no-compile -r requirements/torch.txt \
    && sed -E 's/[[:space:]]*\\$//; /^[[:space:]]*--hash/d' requirements/lock.txt > /tmp/constraints.txt \
    && pip install --no-cache-dir --quiet --dry-run --report /tmp/report.json -r requirements/engine.txt -c /tmp/constraints.txt \
    && python -m ops.hashed /tmp/report.json > /tmp/hashed.txt \
    && pip install --no-cache-dir --no-compile --no-deps --require-hashes -r /tmp/hashed.txt

FROM base AS engine-gpu
# Triton builds a small launcher for each kernel when it is first used, with a C compiler.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
ENV HF_HUB_OFFLINE=1 \
    OCTAVO_KERNEL_CACHE=/app/built \
    XDG_CACHE_HOME=/engine/cache \
    TRITON_CACHE_DIR=/engine/triton \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=engine-gpu-packages /opt/venv/ /opt/venv/
COPY --from=kernels /app/built/ built/
COPY LICENSE ./
COPY ops/ ops/
COPY kernels/ kernels/
COPY engine/ engine/
USER 10001:10001
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=10s --start-period=600s --retries=3 CMD ["python", "-m", "ops.alive", "engine"]
CMD ["python", "-m", "engine.worker"]

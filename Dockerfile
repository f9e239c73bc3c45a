# One image for every role. The first stage builds and installs from the locks; the second holds only the result.
FROM python:3.12.11-slim-bookworm AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_INPUT=1
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
WORKDIR /build
COPY requirements.lock requirements-compiled.lock ./
RUN python -m venv /opt/iotsphere \
 && /opt/iotsphere/bin/pip install --require-hashes -r requirements.lock \
 && python -m venv /opt/build \
 && /opt/build/bin/pip install --require-hashes -r requirements-compiled.lock
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src src
COPY entities entities
COPY use_cases use_cases
COPY adapters adapters
COPY drivers drivers
COPY gateways gateways
RUN IOTSPHERE_COMPILED=1 /opt/build/bin/python -m build --no-isolation --wheel --outdir dist . \
 && /opt/iotsphere/bin/pip install --no-deps dist/*.whl \
 && /opt/iotsphere/bin/pip check

FROM python:3.12.11-slim-bookworm
COPY --from=build /opt/iotsphere /opt/iotsphere
ENV PATH=/opt/iotsphere/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# The number is the same as in docker-compose.yml. It owns one empty folder, which a fresh volume takes over.
RUN install -d -o 10001 -g 10001 -m 0700 /var/lib/iotsphere
USER 10001:10001
EXPOSE 1883 8080 8765
STOPSIGNAL SIGTERM
ENTRYPOINT ["iotsphere"]
CMD ["--help"]

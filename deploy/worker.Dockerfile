# The Python worker: `docker build -f deploy/worker.Dockerfile -t trunkline-worker .` in the root of the repository.
# For vLLM: --build-arg PYTHON_IMAGE=vllm/vllm-openai:VERSION --build-arg EXTRA= keeps the vLLM of that image (0.32 or 0.33).
ARG PYTHON_IMAGE=docker.io/library/python:3.13-slim-bookworm

FROM ${PYTHON_IMAGE} AS wheel
WORKDIR /src
COPY src/pyworker .
RUN python3 -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM ${PYTHON_IMAGE}
# torch, vllm, or nothing for an image that has the engine.
ARG EXTRA=torch
COPY --from=wheel /wheels /wheels
RUN python3 -m pip install --no-cache-dir "$(echo /wheels/*.whl)${EXTRA:+[$EXTRA]}"
# The worker dials the server: no port is open here. SIGTERM answers what was delivered, and ends.
STOPSIGNAL SIGTERM
USER 65532:65532
ENTRYPOINT ["trunkline-worker"]
CMD ["--help"]

# The service in a container. The learner is a volume at /state; the token comes from a file or HOLDFAST_TOKEN.
#   docker build -t holdfast .
#   docker run -p 127.0.0.1:8000:8000 -v intents:/state -e HOLDFAST_TOKEN="$(openssl rand -hex 32)" holdfast
FROM python:3.12-slim

ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 HOLDFAST_CACHE=/models
WORKDIR /app

# torch for a CPU first: asked for through another package, pip would take a build with CUDA.
COPY constraints.txt ./
RUN pip install "$(grep '^torch==' constraints.txt)" --index-url https://download.pytorch.org/whl/cpu

COPY pyproject.toml README.md LICENSE ./
COPY holdfast ./holdfast
RUN pip install -c constraints.txt ".[serve,onnx]"

# The encoder is part of the image, so that a container starts without a network.
RUN holdfast models get minilm

RUN useradd --uid 10001 --no-create-home holdfast \
    && mkdir /state && chown holdfast /state
USER holdfast
VOLUME /state
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/healthz', timeout=2)"]
ENTRYPOINT ["holdfast", "serve", "/state", "--host", "0.0.0.0", "--port", "8000"]

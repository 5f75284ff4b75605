# The page in a container: `make setup`, then what `make run` starts, for others than this machine.
#   docker build -t decode-derby .
#   docker run -p 7860:7860 --cpus 4 decode-derby
# With --build-arg RAY=1 it is also what a cluster's machines run: see docs/deploy.md.
FROM python:3.11-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends make \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home derby \
    && install -d -o derby /derby /snapshots
USER derby
WORKDIR /derby
ENV DECODE_DERBY_CACHE=/derby/.cache \
    PYTHONPATH=/derby \
    PATH=/derby/.venv/bin:$PATH \
    RAY_USAGE_STATS_ENABLED=0
COPY --chown=derby . .
RUN make setup
ARG RAY=""
RUN test -z "$RAY" || python -m pip install --no-cache-dir -r requirements-ray.txt
EXPOSE 7860
CMD ["python", "app.py", "--host", "0.0.0.0"]

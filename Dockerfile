# The page in a container: `make setup`, then what `make run` starts, for others than this machine.
#   docker build -t decode-derby .      (--build-arg TORCH_INDEX=ADDRESS: see README.md)
#   docker run -p 7860:7860 --cpus 4 decode-derby
FROM python:3.11-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends make \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home derby \
    && install -d -o derby /derby
USER derby
WORKDIR /derby
ENV DECODE_DERBY_CACHE=/derby/.cache \
    PATH=/derby/.venv/bin:$PATH
COPY --chown=derby . .
ARG TORCH_INDEX
RUN make setup TORCH_INDEX=$TORCH_INDEX
EXPOSE 7860
CMD ["python", "app.py", "--host", "0.0.0.0"]

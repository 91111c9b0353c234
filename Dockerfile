# The three images of Millrace: `docker build --target operator .`, likewise cache-worker and csi-driver.
# They are empty but for static programs and the usual certificate authorities.
#
# Where the programs are there already, they are taken from prebuilt/ of the build context (with ca-certificates.crt), and
# BUILDER may be any image with a shell.
ARG BUILDER=docker.io/library/rust:1.95-bookworm

FROM ${BUILDER} AS build
WORKDIR /src
COPY . .
RUN set -e; mkdir /out; \
  if [ -d prebuilt ]; then cp prebuilt/* /out/; exit; fi; \
  cargo build --profile dist --locked --bin operator --bin cache-worker --bin csi-driver --bin millrace --bin train-mnist; \
  for program in operator cache-worker csi-driver millrace train-mnist; do \
    cp target/x86_64-unknown-linux-gnu/dist/$program /out/; \
  done; \
  cp /etc/ssl/certs/ca-certificates.crt /out/

FROM scratch AS operator
ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="millrace-operator" \
      org.opencontainers.image.description="Reconciles Datasets and serves the pod webhook." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /out/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/operator /operator
USER 65532:65532
ENTRYPOINT ["/operator"]

FROM scratch AS cache-worker
ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="millrace-cache-worker" \
      org.opencontainers.image.description="Reads a dataset from S3 once and serves it to nodes." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /out/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/cache-worker /cache-worker
USER 65532:65532
ENTRYPOINT ["/cache-worker"]

# Mounts, so it runs as root. With the cli, which also is the embedded S3 server of tests and demonstrations.
FROM scratch AS csi-driver
ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="millrace-csi-driver" \
      org.opencontainers.image.description="Mounts datasets into the pods of a node." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /out/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/csi-driver /csi-driver
COPY --from=build /out/millrace /millrace
ENTRYPOINT ["/csi-driver"]

# No part of Millrace: the training job of examples/kubernetes/train-mnist.yaml.
FROM scratch AS train-mnist
ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="millrace-train-mnist" \
      org.opencontainers.image.description="Fits a small model to MNIST: an example of a training job." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /out/train-mnist /train-mnist
USER 65532:65532
ENTRYPOINT ["/train-mnist"]

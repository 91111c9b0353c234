# The three images of Millrace: `docker build --target operator .`, likewise cache-worker and csi-driver.
# They are empty but for static programs and the usual certificate authorities.
#
# The csi-driver's image holds the program millrace, which is the csi-driver too where it is called by that name: a link.
#
# Where the programs are there already, they are taken from prebuilt/ of the build context (with ca-certificates.crt), and
# BUILDER may be any image with a shell. From source, BUILDER is any image with cargo, a linker for glibc's static libraries,
# a C compiler for jemalloc and ring, and CA certificates.
ARG BUILDER=docker.io/library/rust:1.95-bookworm

FROM ${BUILDER} AS build
WORKDIR /src
COPY . .
RUN set -e; \
  if [ ! -d prebuilt ]; then \
    cargo build --profile dist --locked --bin operator --bin cache-worker --bin millrace --bin train-mnist; \
    mkdir prebuilt; \
    for program in operator cache-worker millrace train-mnist; do \
      mv target/x86_64-unknown-linux-gnu/dist/$program prebuilt/; \
    done; \
    cp /etc/ssl/certs/ca-certificates.crt prebuilt/; \
  fi; \
  mkdir -p /out/driver; \
  cp prebuilt/* /out/; \
  mv /out/millrace /out/driver/; \
  ln -s millrace /out/driver/csi-driver

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

# Mounts, so it runs as root. /csi-driver is a link to /millrace, which also is the embedded S3 server of demonstrations.
FROM scratch AS csi-driver
ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="millrace-csi-driver" \
      org.opencontainers.image.description="Mounts datasets into the pods of a node." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /out/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/driver/ /
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

# Images without a registry: built by buildah, kept as archives, imported on each node. Sourced by scripts/cluster.
# shellcheck shell=bash

# What is promised of an image, also of programs that are not optimised across crates as those of the profile `dist` are.
max_image_bytes=$((40 * 1000 * 1000))

buildah() { command buildah --root "$state/buildah" --runroot "$state/buildah-run" --storage-driver vfs "$@"; }

# Further names of images, by which examples and the chart's defaults call them: there is no registry to pull from.
aliases() {
  local version target
  version=$(sed -n 's/^appVersion: *"\{0,1\}\([^"]*\)"\{0,1\}$/\1/p' "$repository/charts/millrace/Chart.yaml")
  echo 'registry.test/shell:1 docker.io/library/busybox:1.36'
  for target in operator cache-worker csi-driver train-mnist; do
    echo "registry.test/millrace/$target:dev ghcr.io/millrace/$target:$version"
  done
}

# Makes an image of a folder: image_of FOLDER NAME [buildah-config-options...]
image_of() {
  local folder=$1 name=$2 container
  shift 2
  container=$(buildah from scratch)
  buildah copy -q "$container" "$folder" / >/dev/null
  buildah config "$@" "$container"
  buildah commit -q --rm "$container" "$name" >/dev/null
  save_image "$name"
}

# Writes an image where each node finds it at its start.
save_image() { # name
  local file
  file=$images/$(echo "${1#registry.test/}" | tr '/:' '--').tar
  rm -f "$file.new"
  buildah push -q "$1" "docker-archive:$file.new:$1" >/dev/null
  mv "$file.new" "$file"
}

# What is no part of Millrace: the pods' first process, and a shell with the usual commands.
build_base_images() {
  local root applet
  aliases >"$images/aliases"
  rm -rf "$state"/image.*
  root=$(mktemp -d "$state/image.XXXXXX")
  if [ ! -f "$images/pause-1.tar" ]; then
    cc -static -O2 -o "$root/pause" "$here/pause.c"
    image_of "$root" registry.test/pause:1 --entrypoint '["/pause"]'
    rm "$root/pause"
  fi
  if [ ! -f "$images/shell-1.tar" ]; then
    mkdir -p "$root"/{bin,tmp,etc}
    cp "$(command -v busybox)" "$root/bin/busybox"
    for applet in $(busybox --list); do [ -e "$root/bin/$applet" ] || ln -s busybox "$root/bin/$applet"; done
    chmod 1777 "$root/tmp"
    image_of "$root" registry.test/shell:1 --env PATH=/bin --cmd /bin/sh
  fi
  rm -rf "$root"
}

# Our three images and that of an example, from the programs of a folder: build_images FOLDER
build_images() {
  local from=$1 context target program size
  build_base_images
  rm -rf "$state"/context.*
  context=$(mktemp -d "$state/context.XXXXXX")
  mkdir "$context/prebuilt"
  for program in operator cache-worker millrace train-mnist; do
    [ -x "$from/$program" ] || fail "$from/$program is missing: build the programs first (make build)"
    strip -o "$context/prebuilt/$program" "$from/$program"
  done
  cp /etc/ssl/certs/ca-certificates.crt "$context/prebuilt/"
  for target in operator cache-worker csi-driver train-mnist; do
    buildah bud -q --isolation chroot --pull-never --layers=false --file "$repository/Dockerfile" --target "$target" \
      --build-arg BUILDER=registry.test/shell:1 --tag "registry.test/millrace/$target:dev" "$context" >/dev/null
    save_image "registry.test/millrace/$target:dev"
    size=$(stat -c %s "$images/millrace-$target-dev.tar")
    [ "$size" -le "$max_image_bytes" ] || fail "image $target has $size bytes, more than $max_image_bytes"
    say "image $target: $((size / 1000000)) MB"
  done
  rm -rf "$context"
  # Layers of images that have been replaced.
  buildah rmi --prune >/dev/null 2>&1 || true
}

# Imports archives on the nodes that run: load_images [FILE...]
load_images() {
  local node
  [ $# -gt 0 ] || set -- "$images"/*.tar
  aliases >"$images/aliases"
  for node in $(nodes); do
    ! runs "$node" || in_node "$node" bash "$here/import-images" "$(node_dir "$node")/containerd.sock" "$images/aliases" "$@"
  done
}

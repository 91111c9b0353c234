# A node: containerd, kubelet and kube-proxy in network, mount and process namespaces of their own. The end of its one
# process is the end of all that runs on it, as when a machine loses its power. Sourced by scripts/cluster.
# shellcheck shell=bash

nodes() { (cd "$state/nodes" 2>/dev/null && ls -d node[0-9]* 2>/dev/null | sort -V) || true; }
node_dir() { echo "$state/nodes/$1"; }

# A device pair to the bridge, and routes to the pods of all nodes.
start_node_network() { # node
  local node=$1 space other
  space=$(netns "$node")
  ip netns add "$space"
  ip link add "$(veth "$node")" type veth peer name eth0 netns "$space"
  ip link set "$(veth "$node")" master "$bridge" up
  ip -n "$space" addr add "$(node_ip "$node")/24" dev eth0
  ip -n "$space" link set eth0 up
  ip -n "$space" link set lo up
  ip -n "$space" route add default via "$api"
  ip route replace "$(pod_network "$node")" via "$(node_ip "$node")"
  for other in $(nodes); do
    [ "$other" = "$node" ] || ip -n "$space" route replace "$(pod_network "$other")" via "$(node_ip "$other")"
  done
  nsenter --net="/run/netns/$space" sysctl -qw net.ipv4.ip_forward=1
}

stop_node_network() { # node
  # The device goes with its peer, but some time after the namespace: a new one of its name would be refused.
  ip link del "$(veth "$1")" 2>/dev/null || true
  ip netns del "$(netns "$1")" 2>/dev/null || true
}

# The root of the node's cgroups must exist. Version 1: in every hierarchy, and cpuset starts empty.
start_node_cgroup() { # node
  local own hierarchy file
  own=$(cgroup "$1")
  if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    mkdir -p "/sys/fs/cgroup/$own"
    return
  fi
  for hierarchy in /sys/fs/cgroup/*/; do [ ! -e "$hierarchy/cgroup.procs" ] || mkdir -p "$hierarchy/$own"; done
  [ -d /sys/fs/cgroup/cpuset ] || return 0
  for file in cpuset.cpus cpuset.mems; do cat "/sys/fs/cgroup/cpuset/$file" >"/sys/fs/cgroup/cpuset/$own/$file"; done
}

stop_node_cgroup() { # node
  local own hierarchy tries
  own=$(cgroup "$1")
  for hierarchy in /sys/fs/cgroup/ /sys/fs/cgroup/*/; do
    tries=50
    while [ -d "$hierarchy$own" ] && [ $((tries -= 1)) -gt 0 ]; do
      # Those of processes that have just ended may be busy for a moment.
      find "$hierarchy$own" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.1
    done
  done
}

write_node_config() { # node
  local node=$1 dir
  dir=$(node_dir "$node")
  mkdir -p "$dir"/{var-lib/kubelet,containerd,cni,podlogs,volumeplugins}
  cat >"$dir/cni/10-net.conflist" <<C
{"cniVersion":"0.4.0","name":"net","plugins":[
 {"type":"bridge","bridge":"cni0","isGateway":true,"ipMasq":false,"hairpinMode":true,
  "ipam":{"type":"host-local","dataDir":"/run/cni","ranges":[[{"subnet":"$(pod_network "$node")"}]],"routes":[{"dst":"0.0.0.0/0"}]}},
 {"type":"portmap","capabilities":{"portMappings":true}}]}
C
  # Lowering the OOM score needs CAP_SYS_RESOURCE, which a sandboxed machine may lack.
  cat >"$dir/containerd.toml" <<C
version = 2
root = "$dir/containerd"
state = "/run/containerd-state"
oom_score = 0
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
  address = "$dir/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.test/pause:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$dir/cni"
C
  cat >"$dir/kubelet.yaml" <<C
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $(node_ip "$node")
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $pki/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $pki/$node.crt
tlsPrivateKeyFile: $pki/$node.key
cgroupDriver: cgroupfs
cgroupRoot: /$(cgroup "$node")
enforceNodeAllocatable: []
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
clusterDNS: [$api]
clusterDomain: cluster.local
resolvConf: ""
containerRuntimeEndpoint: unix://$dir/containerd.sock
podLogsDir: $dir/podlogs
volumePluginDir: $dir/volumeplugins
healthzBindAddress: 127.0.0.1
nodeStatusUpdateFrequency: 5s
evictionHard: {memory.available: "100Mi", nodefs.available: "1%", imagefs.available: "1%", nodefs.inodesFree: "1%"}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
C
  # The node has a /var/lib, a /run and a boot id of its own. kubelet is started again when it ends: see restart_kubelet.
  cat >"$dir/node" <<C
set -e
mount --bind $dir/var-lib /var/lib
mount --make-rshared /
mount -t tmpfs -o mode=755 tmpfs /run
cat /proc/sys/kernel/random/uuid >/run/boot-id
mount --bind /run/boot-id /proc/sys/kernel/random/boot_id
rm -f $dir/containerd.sock
containerd --config $dir/containerd.toml >>$logs/containerd-$node.log 2>&1 &
for _ in \$(seq 100); do ctr -a $dir/containerd.sock version >/dev/null 2>&1 && break; sleep 0.1; done
bash $here/import-images $dir/containerd.sock $images/aliases $images/*.tar
$bin/kube-proxy --kubeconfig=$pki/kube-proxy.kubeconfig --hostname-override=$node --proxy-mode=nftables --cluster-cidr=10.244.0.0/16 \
  --oom-score-adj=0 --conntrack-max-per-core=0 --conntrack-tcp-timeout-established=0 --conntrack-tcp-timeout-close-wait=0 >>$logs/kube-proxy-$node.log 2>&1 &
while :; do
  $bin/kubelet --config=$dir/kubelet.yaml --kubeconfig=$pki/$node.kubeconfig --hostname-override=$node --node-ip=$(node_ip "$node") \
    --root-dir=/var/lib/kubelet --cert-dir=$dir/certificates &
  echo \$! >/run/kubelet.pid
  wait \$! || true
  sleep 0.5
done
C
}

# Starts a node, new or with the state that it had when it ended.
start_node() { # node
  local node=$1
  runs "$node" && return
  stop_node_network "$node"
  stop_node_cgroup "$node"
  write_node_config "$node"
  start_node_cgroup "$node"
  start_node_network "$node"
  # nsenter, not "ip netns exec": the latter mounts a new /sys, without the cgroups.
  start "$node" nsenter --net="/run/netns/$(netns "$node")" \
    unshare --mount --pid --fork --kill-child --mount-proc --propagation private bash "$(node_dir "$node")/node"
}

# Ends all processes of a node at once. Its state stays.
crash_node() { # node
  thaw_node "$1" 2>/dev/null || true
  stop "$1" KILL
  stop_node_network "$1"
  stop_node_cgroup "$1"
}

signal_node() { # node signal
  runs "$1" || fail "$1 does not run"
  local pid
  for pid in $(tree "$(cat "$state/pids/$1")"); do kill "-$2" "$pid" 2>/dev/null || true; done
}
freeze_node() { signal_node "$1" STOP; signal_node "$1" STOP; } # twice: some may have been born meanwhile
thaw_node() { signal_node "$1" CONT; }

# The first process in the node's own process namespace, as the machine sees it.
node_init() { # node
  local pid
  for pid in $(tree "$(cat "$state/pids/$1")"); do
    case $(tr '\0' ' ' <"/proc/$pid/cmdline") in "bash $(node_dir "$1")/node "*) echo "$pid"; return ;; esac
  done
  return 1
}

in_node() { # node command...
  local pid
  runs "$1" && pid=$(node_init "$1") || fail "$1 does not run"
  shift
  nsenter --target "$pid" --mount --net --pid -- "$@"
}

restart_kubelet() { # node
  in_node "$1" bash -c 'kill -KILL "$(cat /run/kubelet.pid)"'
}

node_is_ready() { # node
  [ "$(kubectl get node "$1" -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}')" = True ]
}

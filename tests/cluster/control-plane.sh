# etcd, API server, controller manager, scheduler and cluster DNS, beside the nodes. Sourced by scripts/cluster.
# shellcheck shell=bash

start_bridge() {
  ip link show "$bridge" >/dev/null 2>&1 || ip link add "$bridge" type bridge
  ip addr replace "$api/24" dev "$bridge"
  ip link set "$bridge" up
  sysctl -qw net.ipv4.ip_forward=1
}

start_etcd() {
  runs etcd || start etcd "$bin/etcd" --data-dir "$state/etcd" --unsafe-no-fsync --log-level warn \
    --listen-client-urls "http://$api:2379" --advertise-client-urls "http://$api:2379" \
    --listen-peer-urls "http://$api:2380" --initial-advertise-peer-urls "http://$api:2380" --initial-cluster "default=http://$api:2380"
}

# Every write, and all that Millrace's own accounts ask, so that tests can say who wrote and who read what.
audit_policy() {
  cat <<'A'
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Request, userGroups: ["system:serviceaccounts:millrace-system"], resources: [{group: millrace.dev}]}
- {level: Metadata, userGroups: ["system:serviceaccounts:millrace-system"]}
- {level: None, userGroups: ["system:nodes", "system:serviceaccounts:kube-system"]}
- {level: None, users: ["system:kube-controller-manager", "system:kube-scheduler", "system:kube-proxy", "system:apiserver"]}
- {level: None, verbs: [get, list, watch]}
- {level: Metadata}
A
}

start_api() {
  runs kube-apiserver && return
  audit_policy >"$state/audit-policy.yaml"
  # Aggregator routing: webhooks are called at pod addresses, for no kube-proxy runs beside the API server.
  start kube-apiserver "$bin/kube-apiserver" --etcd-servers="http://$api:2379" --advertise-address=$api --bind-address=$api \
    --service-cluster-ip-range=10.96.0.0/16 --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
    --allow-privileged=true --enable-aggregator-routing=true \
    --client-ca-file="$pki/ca.crt" --tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key" \
    --service-account-issuer=https://kubernetes.default.svc --service-account-key-file="$pki/sa.pub" \
    --service-account-signing-key-file="$pki/sa.key" --kubelet-preferred-address-types=InternalIP \
    --kubelet-client-certificate="$pki/apiserver-kubelet.crt" --kubelet-client-key="$pki/apiserver-kubelet.key" \
    --requestheader-client-ca-file="$pki/ca.crt" --requestheader-allowed-names=front-proxy-client \
    --requestheader-username-headers=X-Remote-User --requestheader-group-headers=X-Remote-Group \
    --requestheader-extra-headers-prefix=X-Remote-Extra- \
    --proxy-client-cert-file="$pki/front-proxy.crt" --proxy-client-key-file="$pki/front-proxy.key" \
    --audit-policy-file="$state/audit-policy.yaml" --audit-log-path="$logs/audit.jsonl" --audit-log-maxsize=200 --audit-log-maxbackup=1
}

wait_for_api() { wait_for "the API server" 60 kubectl get --raw /readyz; }

start_controllers() {
  local shared=(--leader-elect=false --bind-address=127.0.0.1)
  local config=$pki/kube-controller-manager.kubeconfig
  # Pods of a node that is silent move after seconds, not after the five minutes of a real cluster.
  runs kube-controller-manager || start kube-controller-manager "$bin/kube-controller-manager" "${shared[@]}" --kubeconfig="$config" \
    --authentication-kubeconfig="$config" --authorization-kubeconfig="$config" --use-service-account-credentials=true \
    --service-account-private-key-file="$pki/sa.key" --root-ca-file="$pki/ca.crt" \
    --cluster-signing-cert-file="$pki/ca.crt" --cluster-signing-key-file="$pki/ca.key" --node-monitor-grace-period=20s
  config=$pki/kube-scheduler.kubeconfig
  runs kube-scheduler || start kube-scheduler "$bin/kube-scheduler" "${shared[@]}" --kubeconfig="$config" \
    --authentication-kubeconfig="$config" --authorization-kubeconfig="$config"
}

start_dns() {
  runs coredns && return
  cat >"$state/Corefile" <<C
cluster.local:53 in-addr.arpa:53 {
  bind $api
  errors
  kubernetes cluster.local in-addr.arpa {
    kubeconfig $pki/coredns.kubeconfig
    ttl 5
  }
}
C
  start coredns "$bin/coredns" -conf "$state/Corefile"
}

start_control_plane() {
  start_bridge
  start_etcd
  start_api
  wait_for_api
  start_controllers
  start_dns
}

stop_control_plane() {
  local each
  for each in coredns kube-scheduler kube-controller-manager kube-apiserver etcd; do stop "$each" KILL; done
  ip link del "$bridge" 2>/dev/null || true
}

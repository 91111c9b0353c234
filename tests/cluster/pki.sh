# Certificates and kubeconfigs of a cluster that is thrown away. Sourced by scripts/cluster.
# shellcheck shell=bash

certificate() { # name subject extensions
  [ -f "$1.crt" ] && return
  openssl req -newkey rsa:2048 -nodes -subj "$2" -keyout "$1.key" -out "$1.csr" 2>/dev/null
  openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 3650 -out "$1.crt.new" \
    -extfile <(printf '%s' "$3") 2>/dev/null
  mv "$1.crt.new" "$1.crt"
}

kubeconfig() { # name
  cat >"$1.kubeconfig" <<K
apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "https://$api:6443", certificate-authority-data: $(base64 -w0 ca.crt)}}]
users: [{name: $1, user: {client-certificate-data: $(base64 -w0 "$1.crt"), client-key-data: $(base64 -w0 "$1.key")}}]
contexts: [{name: test, context: {cluster: test, user: $1}}]
current-context: test
K
}

make_pki() ( # nodes...
  umask 077
  mkdir -p "$pki"
  cd "$pki"
  if [ ! -f ca.crt ]; then
    openssl req -x509 -newkey rsa:2048 -nodes -days 3650 -subj /CN=test-ca -keyout ca.key -out ca.crt.new \
      -addext keyUsage=critical,keyCertSign,cRLSign,digitalSignature 2>/dev/null
    mv ca.crt.new ca.crt
  fi
  [ -f sa.pub ] || { openssl genrsa -out sa.key 2048 && openssl rsa -in sa.key -pubout -out sa.pub; } 2>/dev/null
  certificate apiserver /CN=kube-apiserver "extendedKeyUsage=serverAuth
subjectAltName=DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,\
DNS:kubernetes.default.svc.cluster.local,IP:127.0.0.1,IP:10.96.0.1,IP:$api"
  local client=extendedKeyUsage=clientAuth name
  for name in admin coredns apiserver-kubelet; do certificate "$name" "/O=system:masters/CN=$name" $client; done
  for name in kube-controller-manager kube-scheduler kube-proxy; do certificate "$name" "/CN=system:$name" $client; done
  certificate front-proxy /CN=front-proxy-client $client
  for name in "$@"; do
    certificate "$name" "/O=system:nodes/CN=system:node:$name" "extendedKeyUsage=clientAuth,serverAuth
subjectAltName=DNS:$name,IP:$(node_ip "$name")"
  done
  for name in admin coredns kube-controller-manager kube-scheduler kube-proxy "$@"; do kubeconfig "$name"; done
)

# Names, addresses and processes of the cluster. Sourced by scripts/cluster.
# shellcheck shell=bash

state=${MILLRACE_CLUSTER_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/millrace/cluster}
case $state in
  /var/lib/*) echo "cluster: MILLRACE_CLUSTER_DIR cannot be below /var/lib: each node has a /var/lib of its own" >&2; exit 2 ;;
esac
pki=$state/pki
logs=$state/logs
images=$state/images

# All clusters of a machine have the same bridge and addresses: there is one at a time.
bridge=mrbr
api=10.88.0.1
owner_file=/run/millrace-cluster
node_ip() { echo "10.88.0.$((10 + ${1#node}))"; }
pod_network() { echo "10.244.${1#node}.0/24"; }
netns() { echo "millrace-$1"; }
cgroup() { echo "millrace-$1"; }
# The node's network device on the machine's side.
veth() { echo "mrv${1#node}"; }

say() { echo "cluster: $*" >&2; }
fail() { say "$*"; exit 1; }

wait_for() { # what seconds command...
  local what=$1 tries=$(($2 * 10))
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ $((tries -= 1)) -gt 0 ] || fail "timed out: $what (logs: $logs)"
    sleep 0.1
  done
}

# Every process of the cluster carries this in its environment, so that the end of one that crashed finds them all.
marker=MILLRACE_CLUSTER_PROCESS
start() { # name command...: in a process group of its own; its id is in the folder of pids
  local name=$1
  shift
  env "$marker=$state" setsid "$@" >>"$logs/$name.log" 2>&1 </dev/null 9>&- &
  echo $! >"$state/pids/$name"
}

# Whether a process, named by the file of its id, runs and is ours. Ids are used again.
runs() { # name
  local pid
  pid=$(cat "$state/pids/$1" 2>/dev/null) && is_ours "$pid" && [ "$(sed 's/.*) //;s/ .*//' "/proc/$pid/stat" 2>/dev/null)" != Z ]
}
is_ours() { # pid
  grep -qzxF "$marker=$state" "/proc/$1/environ" 2>/dev/null
}
ours() {
  local each
  for each in /proc/[0-9]*; do ! is_ours "${each#/proc/}" || echo "${each#/proc/}"; done
}

# A process and all below it, as the machine sees them.
tree() { # pid
  local child
  echo "$1"
  for child in $(cat "/proc/$1/task"/*/children 2>/dev/null); do tree "$child"; done
}

# Ends a program that was started by its name; waits for its end.
stop() { # name [signal]
  local pid tries=100
  runs "$1" || { rm -f "$state/pids/$1"; return 0; }
  pid=$(cat "$state/pids/$1")
  kill "-${2:-TERM}" -- "-$pid" 2>/dev/null || kill "-${2:-TERM}" "$pid" 2>/dev/null || true
  while runs "$1"; do
    [ $((tries -= 1)) -gt 0 ] || { kill -KILL "$pid" 2>/dev/null || true; break; }
    sleep 0.1
  done
  rm -f "$state/pids/$1"
}

kubectl() { "$bin/kubectl" --kubeconfig "$pki/admin.kubeconfig" "$@"; }

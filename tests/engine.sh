#!/usr/bin/env bash
# A Docker engine with Compose v2 for the end-to-end test, on a bare Debian 12 (root, no systemd), and stand-ins for
# the two base images where none can be pulled. Where an engine already answers, it is used as it is.
#
# usage: engine.sh install DIR   brings the engine's and Compose's packages, and starts nothing
#        engine.sh up DIR     prints "export DOCKER_HOST=..." when it started one
#        engine.sh down DIR   stops what `up` started and takes its network rules away
set -euo pipefail
verb=${1:?install, up or down}
dir=$(realpath -m "${2:?a folder for the engine}")
host=unix://$dir/docker.sock
python_image=python:3.11-slim-bookworm
redis_image=redis:8-bookworm
say() { echo "engine: $*" >&2; }

down() {
  [ -f "$dir/dockerd.pid" ] || return 0
  export DOCKER_HOST=$host
  docker ps -aq | xargs -r docker rm -f >/dev/null || true
  pid=$(cat "$dir/dockerd.pid")
  kill "$pid" 2>/dev/null || true
  for _ in $(seq 100); do kill -0 "$pid" 2>/dev/null || break; sleep 0.2; done
  rm -f "$dir/dockerd.pid" "$dir/docker.sock"
  # dockerd leaves its chains, a FORWARD policy of DROP and its bridge behind.
  for table in filter nat; do
    iptables -t $table -S 2>/dev/null | grep -E '^-A (FORWARD|POSTROUTING|PREROUTING|OUTPUT) ' | grep -E 'DOCKER|docker0|br-|198\.18\.' |
      sed 's/^-A/-D/' | while read -r rule; do eval "iptables -t $table $rule" || true; done
    for chain in $(iptables -t $table -S 2>/dev/null | awk '/^-N DOCKER/ {print $2}'); do iptables -t $table -F "$chain" || true; done
    for chain in $(iptables -t $table -S 2>/dev/null | awk '/^-N DOCKER/ {print $2}'); do iptables -t $table -X "$chain" || true; done
  done
  iptables -P FORWARD ACCEPT 2>/dev/null || true
  ip link delete docker0 2>/dev/null || true
  [ -f "$dir/ip_forward" ] && cat "$dir/ip_forward" >/proc/sys/net/ipv4/ip_forward
  say "stopped"
}

debian_mirror() { apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m1 '/debian/$'; }

install_engine() {
  export DEBIAN_FRONTEND=noninteractive
  if ! command -v dockerd >/dev/null || ! command -v iptables >/dev/null; then
    say "installing the engine"
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends docker.io iptables iproute2 >/dev/null
  fi
}

# Debian 12 has Compose 1 only; Debian 13's packages need nothing newer than Debian 12 has.
install_compose() {
  docker compose version >/dev/null 2>&1 && docker buildx version >/dev/null 2>&1 && return
  say "installing compose"
  local state=$dir/apt
  mkdir -p "$state"/lists/partial "$state"/archives/partial
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(debian_mirror) trixie main" >"$state/sources.list"
  local apt=(apt-get -qq -o Dir::Etc::sourcelist="$state/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o Dir::Etc::preferencesparts=/dev/null -o Dir::State="$state" -o Dir::State::status=/var/lib/dpkg/status -o Dir::Cache="$state")
  "${apt[@]}" update
  (cd "$state" && "${apt[@]}" download docker-compose/trixie docker-buildx/trixie)
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$state"/docker-{compose,buildx}_*.deb >/dev/null
}

# 198.18.0.0/15 is kept for tests by RFC 2544, so it meets no network of this machine's.
start_engine() {
  cat /proc/sys/net/ipv4/ip_forward >"$dir/ip_forward"
  setsid nohup dockerd --data-root "$dir/data" --exec-root "$dir/exec" --pidfile "$dir/dockerd.pid" -H "$host" \
    --bip 198.18.0.1/24 --default-address-pool base=198.18.16.0/20,size=24 >"$dir/dockerd.log" 2>&1 </dev/null &
  for _ in $(seq 150); do docker info >/dev/null 2>&1 && return; sleep 0.2; done
  tail -n 20 "$dir/dockerd.log" >&2
  exit 1
}

stand_ins() {
  say "no image can be pulled: building stand-ins from packages"
  command -v mmdebstrap >/dev/null || apt-get install -y -qq --no-install-recommends mmdebstrap >/dev/null
  local mirror ca
  mirror=$(debian_mirror)
  ca=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}
  mkdir -p "$dir/python" "$dir/redis"
  [ -f "$dir/base.tar" ] || mmdebstrap -q --variant=minbase --include=ca-certificates,python3,python3-venv,python3-pip \
    bookworm "$dir/base.tar" "$mirror"
  docker import -c 'ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8' \
    -c 'CMD ["bash"]' "$dir/base.tar" heddle-test/debian:bookworm >/dev/null
  cp "$ca" "$dir/python/ca.crt"
  cat >"$dir/python/Dockerfile" <<'END'
FROM heddle-test/debian:bookworm
COPY ca.crt /etc/ssl/certs/ca-certificates.crt
RUN python3 -m venv /usr/local && ln -sf python3 /usr/local/bin/python && ln -sf pip3 /usr/local/bin/pip
ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_CERT=/etc/ssl/certs/ca-certificates.crt
END
  cat >"$dir/redis/Dockerfile" <<END
FROM heddle-test/debian:bookworm
RUN echo 'deb $mirror trixie main' > /etc/apt/sources.list.d/trixie.list && apt-get update -qq \\
 && apt-get install -y -qq --no-install-recommends -t trixie redis-server && mkdir -p /data && chown redis /data
WORKDIR /data
VOLUME /data
USER redis
CMD ["redis-server", "--protected-mode", "no"]
END
  docker build -q -t $python_image "$dir/python" >&2
  docker build -q -t $redis_image "$dir/redis" >&2
}

have() { docker image inspect "$1" >/dev/null 2>&1 || docker pull -q "$1" >/dev/null 2>&1; }

if [ "$verb" = down ]; then down; exit 0; fi
mkdir -p "$dir"
if [ -z "${DOCKER_HOST:-}" ] && docker info >/dev/null 2>&1 && docker compose version >/dev/null 2>&1; then
  say "using the engine that is there"
  exit 0
fi
[ "$(id -u)" = 0 ] || { say "not root, and no engine answers"; exit 3; }
command -v apt-get >/dev/null || { say "no apt-get, and no engine answers"; exit 3; }
export DOCKER_HOST=$host
install_engine
install_compose
[ "$verb" = up ] || exit 0
docker info >/dev/null 2>&1 || start_engine
{ have $python_image && have $redis_image; } || stand_ins
say "ready"
echo "export DOCKER_HOST=$host"

#!/usr/bin/env bash
# Unpack the distribution's Prometheus into a folder, without installing it. usage: prometheus.sh FOLDER
set -euo pipefail
folder=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ "$(id -u)" = 0 ]; then apt-get update -qq; fi
(cd "$work" && apt-get download -qq prometheus)
mkdir -p "$folder"
dpkg -x "$work"/prometheus_*.deb "$folder"
"$folder/usr/bin/prometheus" --version 2>&1 | head -1

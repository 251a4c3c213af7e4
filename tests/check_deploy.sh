#!/usr/bin/env bash
# Static checks of deploy/: no daemon, no network. usage: check_deploy.sh BIN_FOLDER
set -euo pipefail
bin=$1
cd "$(dirname "$0")/.."
"$bin/check-jsonschema" -q --builtin-schema vendor.compose-spec deploy/compose.yaml
"$bin/hadolint" deploy/Dockerfile
if docker compose version >/dev/null 2>&1; then
  docker compose -f deploy/compose.yaml --profile obs config -q
else
  echo "docker compose is not installed: its own check of deploy/compose.yaml was left out" >&2
fi

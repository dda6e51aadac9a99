#!/usr/bin/env bash
# Write the generated messages into services/common (or into $1, for the drift test).
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-services/common}
${PYTHON:-python} -m grpc_tools.protoc -I protos --python_out="$out" --pyi_out="$out" --grpc_python_out="$out" \
  protos/specgrove/proto/v1/*.proto

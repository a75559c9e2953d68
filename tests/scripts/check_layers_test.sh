#!/bin/sh
# scripts/check_layers.sh accepts this tree and finds each kind of include that breaks the layer rule.
set -eu
check=$1/scripts/check_layers.sh
"$check" "$1"

tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
mkdir -p "$tree/nanovllm/ops/cpu/kernels" "$tree/nanovllm/ops/cuda/gemm/hopper" "$tree/nanovllm/ops/cuda/attention" "$tree/apps/cli" "$tree/python/views"
(cd "$tree/nanovllm" && mkdir -p base hub params server text trace model families runtime engine front)

plant() { printf '#pragma once\n\n#  include %s\n' "$2" >"$tree/$1"; }
accepts() {
  plant "$1" "$2"
  "$check" "$tree" || { echo "refused in $1: $2"; exit 1; }
  rm "$tree/$1"
}
refuses() {
  plant "$1" "$2"
  ! "$check" "$tree" >"$tree/out" || { echo "accepted in $1: $2"; exit 1; }
  grep -q "^$1:3:" "$tree/out" || { echo "line not reported: $1: $2"; exit 1; }
  rm "$tree/$1"
}

accepts nanovllm/engine/a.h '"nanovllm/model/b.h"'
accepts nanovllm/engine/a.h '"nanovllm/text/b.h"'
accepts nanovllm/engine/a.h '"nanovllm/trace/b.h"'
accepts nanovllm/params/a.h '"nanovllm/base/b.h"'
accepts nanovllm/server/a.cpp '"nanovllm/params/b.h"'
accepts nanovllm/llm.cpp '"nanovllm/params/b.h"'
accepts apps/a.cpp '"nanovllm/params/b.h"'
accepts python/a.cpp '<nanovllm/params/b.h>'
accepts nanovllm/ops/cpu/kernels/a.cpp '"nanovllm/ops/b.h"'
accepts nanovllm/ops/cuda/attention/a.cu '<cuda_runtime.h>'
accepts nanovllm/ops/cuda/gemm/hopper/a.cu '"nanovllm/ops/cuda/attention/b.h"'
accepts nanovllm/families/a.cpp '"nanovllm/model/b.h"'
accepts nanovllm/llm.cpp '"nanovllm/engine/b.h"'
accepts apps/a.cpp '"nanovllm/llm.h"'
accepts apps/a.cpp '"nanovllm/hub/hub.h"'
accepts nanovllm/llm.cpp '"nanovllm/hub/hub.h"'
accepts apps/a.cpp '"b.h"'
accepts apps/cli/command.cpp '<CLI/CLI.hpp>'
accepts python/a.cpp '<nanovllm/llm.h>'
accepts nanovllm/front/a.h '"nanovllm/engine/b.h"'
accepts python/a.cpp '<nanovllm/front/async_engine.h>'
accepts python/a.cpp '<nanovllm/text/chat_template.h>'
accepts python/a.cpp '"b.h"'
accepts python/views/a.cpp '"python/b.h"'

refuses nanovllm/base/a.h '"nanovllm/text/b.h"'
refuses nanovllm/base/a.h '"nanovllm/params/b.h"'
refuses nanovllm/base/a.h '"nanovllm/trace/b.h"'
refuses nanovllm/params/a.cpp '"nanovllm/text/b.h"'
refuses nanovllm/trace/a.cpp '"nanovllm/text/b.h"'
refuses nanovllm/engine/a.cpp '"nanovllm/params/b.h"'
refuses nanovllm/runtime/a.cpp '"nanovllm/trace/b.h"'
refuses nanovllm/server/a.cpp '"nanovllm/trace/b.h"'
refuses nanovllm/text/a.h '"nanovllm/engine/b.h"'
refuses nanovllm/engine/a.h '"nanovllm/front/b.h"'
refuses nanovllm/hub/a.cpp '"nanovllm/text/b.h"'
refuses nanovllm/engine/a.cpp '"nanovllm/hub/b.h"'
refuses nanovllm/model/a.cpp '"nanovllm/runtime/b.h"'
refuses nanovllm/model/a.cpp '"nanovllm/ops/cpu/b.h"'
refuses nanovllm/model/a.cpp '<nanovllm/ops/cpu/b.h>'
refuses nanovllm/runtime/a.cpp '"nanovllm/text/b.h"'
refuses nanovllm/engine/a.cpp '"nanovllm/llm.h"'
refuses nanovllm/engine/a.cpp '"scheduler.h"'
refuses nanovllm/engine/a.cpp '"../runtime/b.h"'
refuses nanovllm/model/a.cpp '"nanovllm/families/b.h"'
refuses nanovllm/ops/cuda/attention/a.cu '"nanovllm/ops/cuda/gemm/b.h"'
refuses nanovllm/ops/cuda/attention/a.cu '"nanovllm/ops/cuda/collectives/b.h"'
refuses nanovllm/ops/cpu/kernels/a.cpp '"nanovllm/ops/cuda/device/b.h"'
refuses nanovllm/ops/cpu/a.cpp '<cublasLt.h>'
refuses nanovllm/ops/a.h '"nanovllm/model/b.h"'
accepts apps/a.cpp '"nanovllm/runtime/b.h"'
refuses apps/a.cpp '"nanovllm/model/b.h"'
refuses apps/a.cpp '"../nanovllm/runtime/b.h"'
refuses apps/a.cpp '<nccl.h>'
refuses apps/cli/help.h '<CLI/CLI.hpp>'
refuses python/a.cpp '<nanovllm/runtime/step_io.h>'
refuses python/a.cpp '"nanovllm/model/b.h"'

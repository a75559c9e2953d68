#!/bin/sh
# Checks every include of nanovllm/, apps/ and python/ against the layer rule of docs/architecture.md, and prints those that break
# it. In the order
#   llm > front > engine > runtime > families > model > checkpoint > ops > cpu | cuda
# a folder may include the folders to its right, and base/. The exceptions are: hub, params, text and trace may include only base;
# engine may also include text and trace; llm also hub and params; server only front, engine, runtime, text and params; apps only
# llm, server, engine, runtime, text, hub and params; python only llm, front, engine, text, hub and params; ops/cpu and ops/cuda may
# include the interface ops/, but no other folder may include them; only ops/cuda may include CUDA's headers. Only
# apps/cli/command.cpp may include CLI11, because compiling its header takes seconds. Inside ops/cuda the order is
#   backend > backend/parts > experts | sampling > gemm > attention | collectives | tuning > elementwise > device
#   scripts/check_layers.sh [ROOT]
set -eu
cd "${1:-$(dirname "$0")/..}"
folders=
for folder in nanovllm apps python; do [ ! -d $folder ] || folders="$folders $folder"; done

find $folders -type f \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) |
  sort | xargs awk '
  BEGIN {
    sees["base"] = "base"
    sees["text"] = "base text"
    sees["hub"] = "base hub"
    sees["params"] = "base params"
    sees["trace"] = "base trace"
    sees["ops"] = "base ops"
    sees["ops/cpu"] = "base ops ops/cpu"
    sees["ops/cuda/device"] = "base ops ops/cuda/device"
    sees["ops/cuda/elementwise"] = sees["ops/cuda/device"] " ops/cuda/elementwise"
    n = split("attention collectives tuning", parts)
    for (i = 1; i <= n; ++i) sees["ops/cuda/" parts[i]] = sees["ops/cuda/elementwise"] " ops/cuda/" parts[i]
    sees["ops/cuda/gemm"] = sees["ops/cuda/elementwise"] " ops/cuda/attention ops/cuda/collectives ops/cuda/tuning ops/cuda/gemm"
    n = split("experts sampling", parts)
    for (i = 1; i <= n; ++i) sees["ops/cuda/" parts[i]] = sees["ops/cuda/gemm"] " ops/cuda/" parts[i]
    sees["ops/cuda/backend/parts"] = sees["ops/cuda/gemm"] " ops/cuda/experts ops/cuda/sampling ops/cuda/backend/parts"
    sees["ops/cuda/backend"] = sees["ops/cuda/backend/parts"] " ops/cuda/backend"
    sees["checkpoint"] = "base ops checkpoint"
    sees["model"] = "base ops checkpoint model"
    sees["families"] = "base ops checkpoint model families"
    sees["runtime"] = "base ops checkpoint model families runtime"
    sees["engine"] = "base text trace ops checkpoint model families runtime engine"
    sees["front"] = "base text engine front"
    sees["llm"] = "base text hub params ops checkpoint model families runtime engine front llm"
    sees["server"] = "base text params runtime engine front server"
    sees["apps"] = "base text hub params runtime engine llm server apps"
    sees["python"] = "base text hub params engine front llm python"
  }
  # The layer of a path is the innermost of its folders that the table names; files in nanovllm/ itself belong to llm.
  function layer(path) {
    if (path ~ /^(apps|python)\//) return substr(path, 1, index(path, "/") - 1)
    sub(/^nanovllm\//, "", path)
    if (!sub(/\/[^\/]*$/, "", path)) return "llm"
    while (!(path in sees) && sub(/\/[^\/]*$/, "", path)) {}
    return path
  }
  function wrong(why) { print FILENAME ":" FNR ": " $0 "  (" why ")"; failed = 1 }
  /^[ \t]*#[ \t]*include[ \t]*[<"]/ {
    from = layer(FILENAME)
    target = $0
    sub(/^[^<"]*[<"]/, "", target)
    sub(/[>"].*/, "", target)
    if (target ~ /^(nanovllm|apps|python)\//) {
      to = layer(target)
      if (index(" " sees[from] " ", " " to " ") == 0) wrong(from " must not see " to)
    } else if ($0 ~ /"/ && (from !~ /^(apps|python)$/ || target ~ /\//)) {
      wrong("write the path from the root")
    } else if (target ~ /^(cuda|cublas|cudnn|cutlass|cute|cub|nccl|nv)[^\/]*(\.|\/)/ && from !~ /^ops\/cuda\//) {
      wrong("CUDA outside nanovllm/ops/cuda")
    } else if (target ~ /^CLI\// && FILENAME != "apps/cli/command.cpp") {
      wrong("CLI11 outside apps/cli/command.cpp")
    }
  }
  END { exit failed }'

#!/bin/sh
# The program names no library of NVIDIA's: one build serves machines with and without a GPU.
#   no_cuda_test.sh BINARY
set -eu
needed=$(readelf -d "$1" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p')
[ -n "$needed" ] || { echo "readelf shows no library of $1" >&2; exit 1; }
if echo "$needed" | grep -iE 'cuda|cublas|cudnn|nccl|nvidia'; then
  echo "$1 must not name the libraries above" >&2
  exit 1
fi

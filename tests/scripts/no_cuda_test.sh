#!/bin/sh
# The program is not linked with NVIDIA's libraries, so that one build serves machines with and without a GPU.
#   no_cuda_test.sh BINARY
set -eu
needed=$(readelf -d "$1" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p')
[ -n "$needed" ] || { echo "readelf shows no library of $1" >&2; exit 1; }
if echo "$needed" | grep -iE 'cuda|cublas|cudnn|nccl|nvidia'; then
  echo "$1 must not be linked with the libraries above" >&2
  exit 1
fi

#!/bin/sh
# bundle.sh BUILD FILE.tar.xz packs the programs of a build, with the libraries that not every distribution has, for a machine
# with a GPU but without packages or compilers. On that machine, run in the unpacked folder:
#   LD_LIBRARY_PATH=lib ./nanovllm ...
set -eu
[ $# = 2 ] || { echo "usage: $0 BUILD FILE.tar.xz" >&2; exit 2; }
[ -e "$1/libnanovllm_cuda.so" ] || { echo "$1/libnanovllm_cuda.so does not exist: build with nvcc first" >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder" "$2.part"' EXIT
mkdir "$folder/lib" "$folder/tests" "$folder/bench"
for program in nanovllm libnanovllm_cuda.so tests/gpu_test tests/llm_test tests/apps_test bench/cuda_bench; do
  strip -o "$folder/$program" "$1/$program"
  for library in $(ldd "$1/$program" | awk '$3 ~ /^\// && $3 !~ /\/lib(c|m|gcc_s|stdc\+\+)\.so/ {print $3}'); do
    cp -Lu "$library" "$folder/lib"
  done
done
# The file gets its final name only when it is complete.
XZ_OPT=${XZ_OPT:--T0} tar -C "$folder" -cJf "$2.part" .
mv "$2.part" "$2"

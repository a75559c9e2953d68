#!/bin/sh
# The programs of a bundle start with the bundle's libraries. Without a build, no bundle and no part of one is written.
#   bundle_test.sh SOURCE_DIR BUILD_DIR
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
XZ_OPT=-0 "$1/scripts/bundle.sh" "$2" "$folder/bundle.tar.xz"
mkdir "$folder/there"
tar -C "$folder/there" -xJf "$folder/bundle.tar.xz"
cd "$folder/there"
for program in nanovllm tests/gpu_test tests/llm_test bench/cuda_bench; do
  if LD_LIBRARY_PATH=lib ldd $program | grep -E 'not found|=> /.*/lib(spdlog|fmt|pcre2)'; then
    echo "$program does not find the libraries above in the bundle" >&2
    exit 1
  fi
done
[ "$(LD_LIBRARY_PATH=lib ./nanovllm --version)" = "$("$2/nanovllm" --version)" ]
if "$1/scripts/bundle.sh" "$folder/there/tests" "$folder/none.tar.xz" 2>"$folder/error"; then
  echo "bundle.sh accepted a folder without a build" >&2
  exit 1
fi
grep -q 'does not exist' "$folder/error"
for file in "$folder"/none*; do [ ! -e "$file" ]; done

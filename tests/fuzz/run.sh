#!/bin/sh
# Runs each fuzz target, one after the other, for FUZZ_SECONDS.
#   tests/fuzz/run.sh BUILD_DIR [TARGET...]
# New inputs are written to BUILD_DIR/corpus/TARGET, and the next run reads them. An input that is a finding is written to
# BUILD_DIR/found/TARGET. Reduce it (the target has the option -minimize_crash=1), and add it to tests/fuzz/seeds/TARGET.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$1
shift
[ $# -gt 0 ] || set -- safetensors config tokenizer chat_template detokenizer prompts requests answers http hub

# An input that takes 5 s, or 256 MiB at once, is a finding too: bounded work takes far less, even under the sanitizers.
# Some targets write files. These are in memory if there is a file system for this.
TMPDIR=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d)
trap 'rm -rf "$TMPDIR"' EXIT
trap 'exit 1' INT TERM
export TMPDIR
export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1 UBSAN_OPTIONS=print_stacktrace=1
failed=
for target; do
  echo "== $target"
  mkdir -p "$build/corpus/$target" "$build/found/$target"
  dictionary=
  [ ! -f "$here/$target.dict" ] || dictionary=-dict=$here/$target.dict
  "$build/tests/fuzz/${target}_fuzz" -max_total_time="${FUZZ_SECONDS:-60}" -timeout=5 -malloc_limit_mb=256 -rss_limit_mb=1024 -max_len=16384 \
    -print_final_stats=1 -artifact_prefix="$build/found/$target/" $dictionary \
    "$build/corpus/$target" "$here/seeds/$target" >"$build/$target.log" 2>&1 || failed="$failed $target"
  grep -E '^#[0-9]+.*(DONE|INITED)|^(stat::|SUMMARY|==[0-9]+==ERROR|artifact_prefix)|terminate|what\(\)' "$build/$target.log" || true
done
[ -z "$failed" ] || { echo "findings in$failed; logs: $build/TARGET.log, inputs: $build/found/TARGET" >&2; exit 1; }

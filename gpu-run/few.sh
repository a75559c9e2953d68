#!/bin/sh
# few.sh NEW OLD: the first look on a GPU at the kernels for few tokens with quantized weights, dense and of experts. NEW and
# OLD are folders with unpacked bundles (scripts/bundle.sh) of this build and of the one before; run it in the repository, whose
# bench/shapes it reads. All outputs stay in $OUT. FIRST=bench leaves the tests out.
set -u
new=$(cd "$1" && pwd)
old=$(cd "$2" && pwd)
out=${OUT:-$(mktemp -d)}
root=$(cd "$(dirname "$0")/.." && pwd)
nvidia-smi --query-gpu=name,driver_version,clocks.max.sm --format=csv,noheader

# step NAME SECONDS COMMAND...: at most SECONDS; prints the result and the lines that matter.
step() {
  name=$1 limit=$2
  shift 2
  began=$(date +%s)
  LD_LIBRARY_PATH=$new/lib timeout -k 5 "$limit" "$@" >"$out/$name.txt" 2>&1
  rc=$?
  echo "== $name: rc $rc, $(($(date +%s) - began)) s"
  grep -E '^\[  (FAILED|PASSED)|Failure|^Expected|ERROR SUMMARY|Invalid|error' "$out/$name.txt" | head -15
  return $rc
}
gtest() { step "$1" "$2" "$new/tests/gpu_test" --gtest_brief=1 --gtest_filter="$3"; }

if [ "${FIRST:-tests}" = tests ]; then
  # A kernel that hangs ends after its limit, and the next step still runs.
  NANOVLLM_TEST_ONE_IN=9 gtest small_some 60 'Gpu/GpuQuantized.OfAllFormats/Native'
  gtest begun 90 'Gpu/GpuFewQuantized.OfNormsThatHaveBegun/Native'
  gtest small_all 120 'Gpu/GpuQuantized.OfAllFormats/Native:Gpu/GpuQuantized.OfModels/Native'
  gtest small_rest 90 'Gpu/GpuQuantized.OfStackedParts/*:Gpu/GpuQuantized.OfQuantizedActivations/Native'
  NANOVLLM_TEST_ONE_IN=3 gtest portable 90 'Gpu/GpuQuantized.*/Portable'
  NANOVLLM_TEST_ONE_IN=3 gtest bfloat16 90 'Gpu/GpuGemms.*:Gpu/GpuRows.*'
  gtest experts 120 'Gpu/GpuExperts.AgreeWithDoublePrecision/Native:Gpu/GpuExperts.FewTokens*'
  gtest experts_quantized 150 'Gpu/GpuExperts.OfAllFormats/Native'
  if command -v compute-sanitizer >/dev/null; then
    for test in GpuQuantized.OfAllFormats GpuFewQuantized.OfNormsThatHaveBegun GpuExperts.OfAllFormats; do
      NANOVLLM_TEST_ONE_IN=61 step "memcheck_$test" 120 compute-sanitizer --tool memcheck --print-limit 10 \
        "$new/tests/gpu_test" --gtest_brief=1 --gtest_filter="Gpu/$test/Native"
    done
  fi
fi

# The shapes, each with a quantization_config; its modules are those that the checkpoints quantize.
shape() {  # NAME SHAPE CONFIG
  mkdir -p "$out/shapes/$1"
  cp "$root/bench/shapes/$2"/* "$out/shapes/$1"
  [ -n "$3" ] || return 0
  # The configuration becomes the last key of the object.
  sed -i '$s/}[[:space:]]*$//' "$out/shapes/$1/config.json"
  printf ', "quantization_config": %s}\n' "$3" >>"$out/shapes/$1/config.json"
}
e4m3='{"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic",
  "modules_to_not_convert": ["lm_head"]}'
int4='{"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": true, "version": "gemm"}'
int8='{"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
  "ignore": ["lm_head"], "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int",
  "symmetric": true, "strategy": "channel"}}}}'
shape 8B Qwen3-8B ''
shape 8B-e4m3 Qwen3-8B "$e4m3"
shape 8B-int4 Qwen3-8B "$int4"
shape 8B-int8 Qwen3-8B "$int8"
shape A3B-e4m3 Qwen3-30B-A3B "$e4m3"
shape A3B-int4 Qwen3-30B-A3B "$int4"

latency() {  # SHAPE BATCH_SIZES: the old build and the new one in turn
  for build in old new; do
    eval "folder=\$$build"
    echo "-- $1, $build"
    LD_LIBRARY_PATH=$folder/lib timeout -k 5 150 "$folder/nanovllm" bench latency "$out/shapes/$1" --load-format dummy \
      --batch-size "$2" --input-len 128 --output-len 33 >"$out/latency_$1_$build.txt" 2>&1
    echo "rc $?"
    tail -8 "$out/latency_$1_$build.txt"
  done
}
for model in 8B-int4 8B-e4m3 8B-int8 8B; do latency $model 1,4,8; done
# The old build keeps the experts as floats: 57 GB.
for model in A3B-int4 A3B-e4m3; do latency $model 1,8; done
echo "outputs: $out"

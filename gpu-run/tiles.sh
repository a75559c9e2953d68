#!/bin/sh
# tiles.sh NEW [OLD] runs what a first look at quantized weights on Hopper needs, on a machine with a GPU. NEW and OLD are
# unpacked bundles (scripts/bundle.sh) of this and of the previous build; without OLD nothing is compared. Everything is printed
# and also written to $OUT, if that is set. SKIP_TESTS=1 leaves the tests out.
set -u
new=$(cd "$1" && pwd)
old=${2:+$(cd "$2" && pwd)}
out=${OUT:-$(mktemp -d)}
nvidia-smi --query-gpu=name,driver_version,clocks.max.sm --format=csv

# run NAME SECONDS COMMAND...: its output goes to a file; here only the end of it, and how it ended.
run() {
  name=$1 seconds=$2
  shift 2
  echo "== $name"
  start=$(date +%s)
  LD_LIBRARY_PATH=$new/lib timeout "$seconds" "$@" >"$out/$name.txt" 2>&1
  echo "rc $?, $(($(date +%s) - start)) s"
  grep -E '^\[  (FAILED|PASSED)|Failure|ERROR SUMMARY|wrong|error' "$out/$name.txt" | head -20
}
tests() { run "$1" "$2" "$new/tests/gpu_test" --gtest_filter="$3"; }

if [ -z "${SKIP_TESTS:-}" ]; then
  # The order is that of suspicion: the layout, then single kernels, then what they share with bfloat16.
  tests place 120 'Gpu/GpuQuantizedTiles.EveryElementIsAtItsPlace/Native'
  tests numbers 60 'Gpu/GpuQuantizedTiles.EveryNumberOfE4M3/Native'
  tests batches 120 'Gpu/GpuQuantized.OfBatches/Native:Gpu/GpuQuantized.OfAllFormats/Native'
  tests norms 60 'Gpu/GpuQuantized.WithANormBetween/Native'
  tests rotation 60 'Gpu/GpuAttention.RotationInTheEpilogue*/Native'
  NANOVLLM_TEST_ONE_IN=5 tests tiles 120 'Gpu/GpuQuantizedTiles.OfAllConfigurations/Native'
  tests quantized 120 'Gpu/GpuQuantized.*-*OfBatches*:*OfAllFormats/Native:*WithANormBetween/Native'
  NANOVLLM_TEST_ONE_IN=5 tests bfloat16 120 'Gpu/GpuTiles.*:Gpu/GpuGemms.*:Gpu/GpuExperts.*'
  # memcheck takes copies to other thread blocks' shared memory in swap_ab_kernel for errors.
  if command -v compute-sanitizer >/dev/null; then
    NANOVLLM_TEST_ONE_IN=97 run memcheck 120 compute-sanitizer --tool memcheck --print-limit 10 \
      --kernel-name-exclude kns=swap_ab_kernel "$new/tests/gpu_test" \
      --gtest_filter='Gpu/GpuQuantizedTiles.OfAllConfigurations/Native'
  fi
fi

# The shape of Qwen3-8B in each format.
shapes=$out/shapes
shape=$(dirname "$0")/../bench/shapes/Qwen3-8B
[ -d "$shape" ] || shape=bench/shapes/Qwen3-8B
make_shape() {  # NAME QUANTIZATION_CONFIG
  mkdir -p "$shapes/$1"
  cp "$shape"/* "$shapes/$1"
  [ -z "$2" ] && return
  # The configuration is the last key of the object.
  sed -i '$!b;s/}[[:space:]]*$//' "$shapes/$1/config.json"
  printf ', "quantization_config": %s}\n' "$2" >>"$shapes/$1/config.json"
}
awq='{"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": true, "version": "gemm"}'
int8='{"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
  "ignore": ["lm_head"], "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int",
  "symmetric": true, "strategy": "channel"}}}}'
make_shape bf16 ''
make_shape e4m3 '{"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}'
make_shape int4 "$awq"
make_shape int8 "$int8"

latency() {  # BUILD NAME ARGUMENTS...
  build=$1 name=$2
  shift 2
  echo "-- $(basename "$build") $name: $*"
  (cd "$build" && LD_LIBRARY_PATH=lib timeout 150 ./nanovllm bench latency "$shapes/$name" --load-format dummy "$@" 2>&1 |
    tee -a "$out/latency.txt" | tail -8)
}
for name in bf16 e4m3 int4 int8; do
  for build in $old $new; do
    latency "$build" $name --input-len 128 --output-len 33 --batch-size 1,8,16,64,256
    latency "$build" $name --input-len 1024 --output-len 2 --batch-size 16
  done
done

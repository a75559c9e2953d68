#!/bin/sh
# sanitized.sh TOOL GPU_TEST runs the tests of the kernels under a tool of compute-sanitizer. The exit status is 77 (skipped) if
# the tool or a GPU is missing.
set -eu
[ -e /proc/driver/nvidia/version ] || { echo "skipped: no GPU"; exit 77; }
command -v compute-sanitizer >/dev/null || { echo "skipped: no compute-sanitizer"; exit 77; }
# Tests with contexts of 40,000 keys and tests that repeat a run are left out, because they would take too long.
case $1 in
  # memcheck stops swap_ab_kernel, because it takes bulk copies to the shared memory of other thread blocks for errors.
  memcheck) exec compute-sanitizer --tool memcheck --error-exitcode 1 --print-limit 20 \
    --kernel-name-exclude kns=swap_ab_kernel "$2" --gtest_filter='-*LongContexts*:*IsDeterministic*' ;;
  # racecheck is slow, so it tests one shape of 29, always including the first of a test. Tests that use cuBLASLt are left out,
  # because its kernels fail under this tool, even where they are excluded by name. So are tests in which the tool reports races
  # that do not exist: it does not know that thread blocks of a cluster end only after the other ones' messages (the samplers of
  # special rows), and it does not follow named barriers (E4M3 in swap_ab_kernel).
  racecheck) NANOVLLM_TEST_ONE_IN=29 exec compute-sanitizer --tool racecheck --error-exitcode 1 --print-limit 20 "$2" \
    --gtest_filter='*GpuAttention*:*GpuFewQuantized*:*GpuRows*:*GpuTiles*:*GpuQuantizedTiles*:*OfOwnKernels*:*SwapAb*:*ManyPlainRows*:*SamplerInTheEpilogue/Native-*LongContexts*:*SplitK*:*RotationInTheEpilogue*:*QuantizesItsOutput*:*EveryElementIsAtItsPlace/Native:*OfNormsThatHaveBegun/Portable' ;;
  *) echo "unknown tool: $1" >&2; exit 2 ;;
esac

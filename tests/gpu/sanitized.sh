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
  # The other tools are slow, so they test one shape of 29, always including the first of a test. cuBLASLt's kernels and most
  # tests that use them are left out, because the tools report races in them, and so are the samplers of special rows: the tools
  # do not know that a thread block of a cluster ends only after the other ones' messages.
  *) NANOVLLM_TEST_ONE_IN=29 exec compute-sanitizer --tool "$1" --error-exitcode 1 --print-limit 20 \
    --kernel-name-exclude kns=nvjet "$2" \
    --gtest_filter='-*LongContexts*:*SplitKIsDeterministic*:*GpuGemmChoices*:*OfAllDtypes*:*OfModels*:*RotationInTheEpilogue*:*SamplerInTheEpilogue/Portable:*LogitsAreRead*:*GpuSharing*:*GpuSampler.Filters*:*GpuSampler.Ties*:*GpuSampler.RowsThatAreNot*:*GpuSampler.*Logprobs*' ;;
esac

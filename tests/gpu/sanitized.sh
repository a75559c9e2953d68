#!/bin/sh
# sanitized.sh TOOL GPU_TEST: the kernels' tests under a tool of compute-sanitizer; exit 77 where that or a GPU is missing.
set -eu
[ -e /proc/driver/nvidia/version ] || { echo "skipped: no GPU"; exit 77; }
command -v compute-sanitizer >/dev/null || { echo "skipped: no compute-sanitizer"; exit 77; }
# Not the contexts of 40,000 keys and what is repeated: they would take too long under it.
case $1 in
  # It names each block's own shared memory where mid_matmul's bulk copies go to other blocks', and stops the kernel.
  memcheck) exec compute-sanitizer --tool memcheck --error-exitcode 1 --print-limit 20 \
    --kernel-name-exclude kns=mid_matmul_kernel "$2" --gtest_filter='-*LongContexts*:*SameEachTime*' ;;
  # Slow: few shapes, the first of a test among them. Not what cuBLASLt has a part in: it reports races in its kernels.
  *) NANOVLLM_TEST_ONE_IN=29 exec compute-sanitizer --tool "$1" --error-exitcode 1 --print-limit 20 "$2" \
    --gtest_filter='-*LongContexts*:*PartsAreTheSame*:*OfAllDtypes*:*OfModels*:*BehindTheProduct*:*EndOfTheProduct/Portable:*LogitsAreRead*' ;;
esac

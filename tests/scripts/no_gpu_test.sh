#!/bin/sh
# Without a GPU, the scripts and the make target that need one say so in one line.
#   no_gpu_test.sh SOURCE_DIR
set -eu
cd "$1"
[ ! -e /proc/driver/nvidia/version ] || { echo "skipped: this machine has a driver"; exit 77; }
for command in "python3 bench/gpu_bench.py" "python3 bench/shape_bench.py bench/shapes/Qwen3-0.6B" \
    "python3 bench/kernel_times.py -- true" "python3 bench/nccl_all_reduce.py" "make -s gpu-test"; do
  if said=$($command 2>&1 | grep -Ev '^make(\[[0-9]+\])?: '); then :; fi
  case $said in
    *" needs "*) ;;
    *) echo "$command printed: $said"; exit 1 ;;
  esac
  [ "$(echo "$said" | wc -l)" = 1 ] || { echo "$command printed more than a line: $said"; exit 1; }
done

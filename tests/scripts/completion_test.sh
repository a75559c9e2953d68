#!/bin/bash
# apps/completion.bash offers the commands, options and values of the binary.
#   completion_test.sh SOURCE_DIR BINARY
set -eu
source "$1/apps/completion.bash"
binary=$2

# expect WANTED WORD...: completing the last word offers WANTED.
expect() {
  local wanted=$1
  shift
  COMP_WORDS=("$binary" "$@")
  COMP_CWORD=$#
  COMPREPLY=()
  _nanovllm
  for word in "${COMPREPLY[@]}"; do [[ $word == "$wanted" ]] && return; done
  echo "completing '$*' offers '${COMPREPLY[*]}' and not '$wanted'"
  exit 1
}
expect generate gen
expect chat ''
expect throughput bench th
expect --prompts-file generate model --pr
expect --max-num-seqs generate model --max
expect --input-len bench latency --inp
expect float32 generate model --dtype fl
cd "$1"
expect models/tiny-tales generate models/tiny

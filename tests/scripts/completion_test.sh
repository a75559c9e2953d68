#!/bin/bash
# The completions of bash, zsh and fish offer the commands, options, values and files of the binary. A shell that is not
# installed is left out.
#   completion_test.sh SOURCE_DIR BINARY
set -eu
completions=$1/apps/completions
PATH=$(dirname "$2"):$PATH
cd "$1"

# Each line: what completing the last word of a command line offers, and the command line.
cases='generate|nanovllm gen
chat|nanovllm 
throughput|nanovllm bench th
--prompts-file|nanovllm generate model --pr
--max-num-seqs|nanovllm generate model --max
--input-len|nanovllm bench latency --inp
float32|nanovllm generate model --dtype fl
csv|nanovllm bench latency model --format c
arriving|nanovllm bench cold model --traffic ar
models/|nanovllm generate mod
models/tiny-tales|nanovllm chat models/tiny
Makefile|nanovllm generate models/tiny-tales --prompts-file Makef'

compopt() { :; }  # bash's own works only while the user completes

in_bash() {
  source "$completions/nanovllm.bash"
  local wanted command word
  while IFS='|' read -r wanted command; do
    read -ra COMP_WORDS <<<"$command"
    [[ $command == *' ' ]] && COMP_WORDS+=('')
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _nanovllm
    for word in "${COMPREPLY[@]}"; do [[ $word == "${wanted%/}" ]] && continue 2; done
    echo "bash: completing '$command' offers '${COMPREPLY[*]}' and not '$wanted'"
    return 1
  done <<<"$cases"
  # bash makes three words of --device=c.
  COMP_WORDS=(nanovllm info model --device = c)
  COMP_CWORD=5
  _nanovllm
  [[ ${COMPREPLY[*]} == 'cpu cuda' ]] || { echo "bash: --device=c offers '${COMPREPLY[*]}'"; return 1; }
}

in_fish() {
  local wanted command offered
  while IFS='|' read -r wanted command; do
    offered=$(fish --no-config -c "source $completions/nanovllm.fish; complete -C '$command'" | cut -f1)
    grep -qxE -- "$wanted/?" <<<"$offered" && continue
    echo "fish: completing '$command' offers '$offered' and not '$wanted'"
    return 1
  done <<<"$cases"
}

in_zsh() {
  CASES=$cases FUNCTIONS=$(mktemp -d)
  cp "$completions/nanovllm.zsh" "$FUNCTIONS/_nanovllm"
  CASES=$cases FUNCTIONS=$FUNCTIONS zsh -f "$1/tests/scripts/completion_test.zsh" || { rm -r "$FUNCTIONS"; return 1; }
  rm -r "$FUNCTIONS"
}

in_bash
for shell in fish zsh; do
  if command -v $shell >/dev/null; then in_$shell "$1"
  else echo "$shell is not installed, so its completion is not tested"; fi
done

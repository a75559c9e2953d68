# Completion for bash. The program itself says what may come next (nanovllm complete WORD...).
_nanovllm() {
  local binary=${COMP_WORDS[0]/#\~/$HOME} current=${COMP_WORDS[COMP_CWORD]} candidate _
  [[ $current == = ]] && current=
  COMPREPLY=()
  while IFS=$'\t' read -r candidate _; do
    case $candidate in
      '<folders>') compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$current") ;;
      '<files>') compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$current") ;;
      *) COMPREPLY+=("$candidate") ;;
    esac
  done < <("$binary" complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _nanovllm nanovllm

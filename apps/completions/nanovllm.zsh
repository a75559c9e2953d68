#compdef nanovllm
# Completion for zsh. The program itself says what may come next (nanovllm complete WORD...).
_nanovllm() {
  local line
  local -a candidates descriptions
  for line in "${(@f)$(${~words[1]} complete "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
    case $line in
      '<folders>') _files -/ ;;
      '<files>') _files ;;
      ?*)
        candidates+=("${line%%$'\t'*}")
        descriptions+=("${line/$'\t'/  -- }")
        ;;
    esac
  done
  compadd -l -d descriptions -a candidates
}
_nanovllm "$@"

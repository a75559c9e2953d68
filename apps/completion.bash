# Completion for bash. It takes the commands and options from nanovllm's own help.
_nanovllm() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} word
  local -a command=()
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    [[ $word == -* ]] && break
    [[ ${#command[@]} == 0 || (${#command[@]} == 1 && ${command[0]} == bench) ]] && command+=("$word")
  done
  case $previous in
    --device) COMPREPLY=($(compgen -W 'auto cpu cuda' -- "$current")); return ;;
    --dtype) COMPREPLY=($(compgen -W 'auto bfloat16 float16 float32' -- "$current")); return ;;
    --load-format) COMPREPLY=($(compgen -W 'auto dummy' -- "$current")); return ;;
    --generation-config) COMPREPLY=($(compgen -W 'auto vllm' -- "$current")); return ;;
  esac
  local help
  help=$("${COMP_WORDS[0]}" "${command[@]}" --help 2>/dev/null) || return
  if [[ $current == -* ]]; then
    COMPREPLY=($(compgen -W "$(grep -oE -- '^ +-[^ ]+' <<<"$help" | tr ',' '\n')" -- "$current"))
  elif [[ $help == *Subcommands:* ]]; then
    COMPREPLY=($(compgen -W "$(sed -n '/^Subcommands:/,/^$/s/^  \([a-z]*\) .*/\1/p' <<<"$help")" -- "$current"))
  else
    COMPREPLY=($(compgen -f -- "$current"))
  fi
}
complete -o filenames -F _nanovllm nanovllm

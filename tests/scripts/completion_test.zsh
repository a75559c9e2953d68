# The part of completion_test.sh for zsh: types each command line of $CASES and a tab in an interactive zsh, which finds the
# completion in the folder $FUNCTIONS.
zmodload zsh/zpty
zpty -b shell zsh -f -i
answer=
# Reads what the shell prints up to the text $1.
read_until() {
  answer=
  local piece
  repeat 2000; do
    if zpty -r -t shell piece; then answer+=$piece; else sleep 0.02; fi
    [[ $answer == *$1* ]] && return
  done
  print -r "zsh printed no '$1' but '$answer'"
  exit 1
}
zpty -w shell "PROMPT= RPROMPT= LISTMAX=1000 fpath=($FUNCTIONS \$fpath); autoload -U compinit; compinit -D -u
unsetopt zle_bracketed_paste 2>/dev/null; zle_highlight=(none); stty columns 200 rows 200
setopt auto_list; unsetopt beep list_beep list_ambiguous menu_complete auto_menu; print -r READY\${:-}NOW"
read_until READYNOW
for line in ${(f)CASES}; do
  wanted=${line%%|*} command=${line#*|}
  zpty -w -n shell "$command"$'\t'
  zpty -w -n shell $'\x15print -r DO""NE\r'
  read_until $'DONE\r\n'
  [[ $answer == *$wanted* ]] && continue
  print -r "zsh: completing '$command' offers '$answer' and not '$wanted'"
  exit 1
done

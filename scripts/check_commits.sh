#!/bin/sh
# Checks the subjects of the commits since REVISION: `area: what`, or `area, area: what`, with at most 72 characters, which is what
# `git log --oneline` shows in a narrow terminal. An area is a word in lower case, such as server or docs. Merges are not checked.
#   scripts/check_commits.sh REVISION [ROOT]
set -eu
[ $# -gt 0 ] || { echo "usage: $0 REVISION [ROOT]" >&2; exit 2; }
cd "${2:-$(dirname "$0")/..}"
# An archive of the sources has no history. A folder of another repository is none of this project's either.
[ -e .git ] || { echo "skipped: $PWD is no git repository" >&2; exit 77; }
command -v git >/dev/null || { echo "skipped: git is not installed" >&2; exit 77; }

subjects=$(git log --no-merges --format='%h %s' "$1..HEAD" --)
# grep counts characters only in a locale that knows UTF-8.
wrong() { printf '%s\n' "$subjects" | LC_ALL=C.UTF-8 grep "$@" || true; }
long=$(wrong -E '^[0-9a-f]+ .{73}')
formless=$(wrong -vE '^[0-9a-f]+ [a-z0-9][a-z0-9_./-]*(, [a-z0-9][a-z0-9_./-]*)*: [^ ]|^$')
[ -z "$long" ] || printf 'more than 72 characters:\n%s\n' "$long"
[ -z "$formless" ] || printf 'not of the form "area: what":\n%s\n' "$formless"
[ -z "$long$formless" ]

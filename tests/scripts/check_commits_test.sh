#!/bin/sh
# scripts/check_commits.sh accepts subjects of the form `area: what` and reports all others since a revision.
#   check_commits_test.sh SOURCE_DIR
set -eu
check=$1/scripts/check_commits.sh
command -v git >/dev/null || { echo "skipped: git is not installed"; exit 77; }
# A hook or `git rebase --exec` may run this test with variables that name another repository.
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT

status=0
"$check" HEAD "$tree" 2>"$tree/out" || status=$?
[ $status = 77 ] || { echo "a folder without history: status $status"; exit 1; }
grep -q 'no git repository' "$tree/out"

git -C "$tree" init -q
commit() { git -C "$tree" -c user.name=a -c user.email=a commit -q --allow-empty -m "$1"; }
accepts() {
  commit "$1"
  "$check" HEAD~1 "$tree" || { echo "refused: $1"; exit 1; }
}
refuses() {
  commit "$1"
  ! "$check" HEAD~1 "$tree" >"$tree/out" || { echo "accepted: $1"; exit 1; }
  grep -qF -- "$1" "$tree/out" || { echo "not reported: $1"; exit 1; }
}
x65=$(printf '%065d' 0)

commit 'Older subjects have no form'
accepts 'server: a limit'
accepts 'python, docs: format'
accepts 'ops/cuda: a kernel; tests: its grid'
accepts "$(printf 'server: a limit\n\nThe second paragraph may have long lines: %s%s' "$x65" "$x65")"
accepts "docs: é$x65"  # 72 characters in 73 bytes
refuses "docs: ab$x65"
refuses 'A sentence'
refuses 'Server: a limit'
refuses 'server:a limit'
refuses 'server : a limit'
refuses 'python,docs: format'
refuses 'fixup! server: a limit'

# All commits since the revision count, and merges do not.
git -C "$tree" checkout -q -b other HEAD~1
accepts 'server: another limit'
git -C "$tree" -c user.name=a -c user.email=a merge -q -s ours -m 'Merge' '@{-1}'
if "$check" HEAD~1 "$tree" >"$tree/out"; then echo "accepted a merged commit"; exit 1; fi
grep -q 'fixup!' "$tree/out"
if grep Merge "$tree/out"; then echo "reported a merge"; exit 1; fi
if "$check" nothing "$tree" 2>"$tree/out"; then echo "accepted an unknown revision"; exit 1; fi
grep -q nothing "$tree/out"

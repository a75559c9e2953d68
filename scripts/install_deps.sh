#!/bin/sh
# Installs the missing Debian or Ubuntu packages; prints nothing if none is missing.
#   scripts/install_deps.sh [build|lint|fuzz|python|page]
# docs/dependencies.md says what each package is for.
set -eu

build="g++ make cmake ninja-build ccache python3
  nlohmann-json3-dev libxxhash-dev libutf8proc-dev libpcre2-dev libcli11-dev libfmt-dev libspdlog-dev
  libboost-dev prometheus-cpp-dev libcurl4-openssl-dev nettle-dev
  libgtest-dev libgmock-dev"
lint="clang-format-14 python3-venv"
fuzz="clang-16 libclang-rt-16-dev"
python="python3-venv python3-dev"
page="chromium"

case "${1:-build}" in
  build) needed=$build ;;
  lint) needed="$build $lint" ;;
  fuzz) needed="$build $fuzz" ;;
  python) needed="$build $python" ;;
  page) needed=$page ;;
  *) echo "usage: $0 [build|lint|fuzz|python|page]" >&2; exit 2 ;;
esac

if ! command -v apt-get >/dev/null; then
  # Not an error: the same libraries may be installed under other names, and CMake reports those that are missing.
  echo "no apt-get to install missing packages; these are needed (Debian's names):" $needed >&2
  exit 0
fi

missing=
for package in $needed; do
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
    missing="$missing $package"
done
[ -n "$missing" ] || exit 0

sudo=
if [ "$(id -u)" != 0 ]; then
  sudo=sudo
  command -v sudo >/dev/null || {
    echo "neither root nor sudo; run as root: apt-get install$missing" >&2
    exit 1
  }
fi
echo "Installing$missing"
# A bare image has no package lists. If they cannot be updated, old lists may be good enough.
$sudo apt-get update -qq || true
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing

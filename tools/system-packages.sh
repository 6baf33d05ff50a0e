#!/bin/sh
# Makes sure that the compiler finds what the build needs: jpeglib.h, Python.h and the venv module.
# Does nothing when all are there. Otherwise root on a machine with apt-get installs them, and anybody
# else is told what to type. libdeflate and libwebp are treated so too, but the build can do without.
# Usage: system-packages.sh PYTHON
set -eu

python=${1:-python3}

if ! command -v "${CXX:-g++}" >/dev/null 2>&1; then
    echo "A C++20 compiler is missing: install g++ (11 or later) and try again." >&2
    exit 1
fi

compiles() {
    printf '%s\n' "$1" | "${CXX:-g++}" $2 -x c++ -fsyntax-only - >/dev/null 2>&1
}

has_jpeg() {
    compiles '#include <cstdio>
#include <jpeglib.h>' ''
}

has_python_headers() {
    include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    compiles '#include <Python.h>' "-I$include"
}

has_venv() {
    "$python" -c 'import ensurepip, venv' >/dev/null 2>&1
}

has_header() {
    compiles "#include <$1>" ''
}

# The dummy package libjpeg-dev exists on both Debian and Ubuntu; the direct names differ.
jpeg_package() {
    for name in libjpeg62-turbo-dev libjpeg-turbo8-dev; do
        if apt-cache show "$name" >/dev/null 2>&1; then
            echo "$name"
            return
        fi
    done
    echo libjpeg-dev
}

# python3.12 may stand beside the system's python3, so its packages go by its own version.
version=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')

optional=
has_header libdeflate.h || optional="$optional libdeflate-dev"
has_header webp/decode.h || optional="$optional libwebp-dev"
if [ -n "$optional" ]; then
    installed=
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "Installing system packages that make PNG and WebP quick:$optional"
        quietly="-qq -o Acquire::Retries=0 -o Acquire::http::Timeout=10 -o Acquire::https::Timeout=10"
        export DEBIAN_FRONTEND=noninteractive
        # shellcheck disable=SC2086 -- lists of words
        apt-get $quietly update >/dev/null 2>&1 &&
            apt-get $quietly install -y --no-install-recommends $optional >/dev/null 2>&1 && installed=yes
    fi
    [ -n "$installed" ] || echo "Without$optional, PNG or WebP will be decoded by Pillow, which is slower."
fi

packages=
has_jpeg || packages="$packages libjpeg-dev"
has_python_headers || packages="$packages $version-dev"
has_venv || packages="$packages $version-venv"
[ -n "$packages" ] || exit 0

if ! command -v apt-get >/dev/null 2>&1; then
    echo "Missing on this machine (by Debian's names):$packages. Install them and try again." >&2
    exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "Some system packages are missing; type: sudo apt-get install$packages" >&2
    exit 1
fi

export DEBIAN_FRONTEND=noninteractive
echo "Installing system packages:$packages"
apt-get update -qq
packages=$(echo "$packages" | sed "s/ libjpeg-dev/ $(jpeg_package)/")
# shellcheck disable=SC2086 -- a list of names, one word each
apt-get install -qq -y --no-install-recommends $packages >/dev/null

for need in has_jpeg has_python_headers has_venv; do
    if ! $need; then
        echo "Installed$packages, yet $need still fails for $python: where does this Python come from?" >&2
        exit 1
    fi
done

#!/bin/sh
# Installs the newest wheel of a folder into an empty environment, away from the checkout, and tries it there.
#   sh tools/test_wheel.sh python3 dist
set -e
here=$(cd "$(dirname "$0")/.." && pwd)
wheel=$(ls -t "$2"/*.whl | head -1)
wheel=$(cd "$(dirname "$wheel")" && pwd)/$(basename "$wheel")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$1" -m venv "$scratch/venv"
started=$(date +%s)
"$scratch/venv/bin/python" -m pip --disable-pip-version-check -q install "$wheel"
echo "installed in $(($(date +%s) - started)) s: $(basename "$wheel")"
cp "$here/tests/wheel/smoke.py" "$scratch"
cd "$scratch"
venv/bin/python -I smoke.py

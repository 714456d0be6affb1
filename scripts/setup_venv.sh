#!/bin/sh
# Makes the virtual environment, with torch and what is needed to build against it. Does nothing if that
# has been done for this TORCH_SPEC.
set -eu
stamp="$VENV/fused_attention_setup"
wanted="$TORCH_SPEC $(cksum < pyproject.toml)"
[ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && exit 0

if ! "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
  echo "Python 3.10 or newer is needed, but $PYTHON is $("$PYTHON" --version 2>&1)." \
    "Point at another one: make PYTHON=python3.12 ..." >&2
  exit 1
fi
if ! "$PYTHON" -c 'import ensurepip, venv' 2> /dev/null; then
  . scripts/apt.sh
  version=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  apt_install "python$version-venv" || {
    echo "$PYTHON cannot make virtual environments. Install them, on Debian and Ubuntu with:" \
      "apt-get install python$version-venv" >&2
    exit 1
  }
fi
"$VENV/bin/python" -m pip --version > /dev/null 2>&1 || "$PYTHON" -m venv "$VENV"
echo "Installing $TORCH_SPEC and the build tools into $VENV (torch is a large download)"
"$VENV/bin/python" -m pip install --disable-pip-version-check \
  "$TORCH_SPEC" 'setuptools>=77' 'cmake>=3.28' 'ninja>=1.11'
echo "$wanted" > "$stamp"

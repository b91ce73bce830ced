#!/bin/sh
# The last step of each image: our own wheel, the list of everything that is in it, and where there is
# Spark an archive of its classes, with which a job starts in half the time.
set -eu
/usr/local/bin/python3 -m pip --python /opt/penstock/bin/python install -q --no-index --no-deps --no-cache-dir \
  --disable-pip-version-check --root-user-action=ignore /dist/*.whl
/opt/penstock/bin/python -m compileall -q /opt/penstock/lib/python3*/site-packages/penstock
/opt/penstock/bin/python /recipes/sbom.py "penstock-$1" >/usr/share/penstock/sbom.cdx.json
penstock version >/dev/null
case $1 in
router | appliance) penstock router prepare ;;
esac

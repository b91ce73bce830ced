"""Certificates made on the fly with the openssl program: an authority and what it signs."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

_EXTENSIONS = """
[ca]
default_ca = local
[local]
database = {directory}/index
serial = {directory}/serial
new_certs_dir = {directory}
default_md = sha256
policy = anything
unique_subject = no
[anything]
commonName = supplied
[signed]
subjectAltName = {names}
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, as PEM files."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates; its own is `cert`."""

    def __init__(self, directory: Path) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("no openssl program")
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self.cert, self._key = directory / "ca.pem", directory / "ca.key"
        (directory / "index").write_text("")
        (directory / "serial").write_text("01\n")
        _openssl(
            "req", "-x509", *_NEW_KEY, "-keyout", self._key, "-out", self.cert, "-days", "2",
            "-subj", "/CN=test authority", "-addext", "basicConstraints=critical,CA:TRUE",
            "-addext", "keyUsage=critical,keyCertSign,cRLSign",
        )  # fmt: skip

    def sign(self, name: str, names: str, *, expired: bool = False) -> Certificate:
        """Make a certificate for `names`, as in `DNS:localhost,IP:127.0.0.1`."""
        made = Certificate(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        request, config = self._directory / f"{name}.csr", self._directory / f"{name}.conf"
        config.write_text(_EXTENSIONS.format(directory=self._directory, names=names))
        _openssl("req", "-new", *_NEW_KEY, "-keyout", made.key, "-out", request,
                 "-subj", f"/CN={name}")  # fmt: skip
        dates = ("20200101000000Z", "20200102000000Z" if expired else "20990101000000Z")
        _openssl(
            "ca", "-batch", "-notext", "-config", config, "-cert", self.cert,
            "-keyfile", self._key, "-in", request, "-out", made.cert, "-extensions", "signed",
            "-startdate", dates[0], "-enddate", dates[1],
        )  # fmt: skip
        return made


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

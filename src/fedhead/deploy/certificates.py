"""Certificates and keys of a federation: a certificate authority, the server's certificate, one key per site."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedhead.core.system.errors import BadInput

if TYPE_CHECKING:
    from cryptography import x509

DAYS = 365
LOOPBACK = ("127.0.0.1", "localhost")  # where `deploy up` and Flower's own processes on the server's machine connect


def write(folder: Path, hosts: Sequence[str], sites: Sequence[str]) -> list[Path]:
    """Write certificates and keys that do not exist yet, and a new server certificate.

    Args:
        folder: Where to write.
        hosts: Host names and addresses of the server, besides those of its loopback interface.
        sites: Names of the sites.

    Returns:
        The files written.

    Raises:
        BadInput: If Flower's libraries are missing, or the authority's key is not one written by this function.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError as error:
        raise BadInput("certificates need Flower's libraries: pip install 'fedhead[flower]'") from error

    names = list(dict.fromkeys([*hosts, *LOOPBACK]))  # the first is the certificate's common name
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    now = datetime.datetime.now(datetime.UTC)

    def name(common: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])

    def save(path: Path, content: bytes, secret: bool) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # created with its final permissions: a secret is never readable by others
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if secret else 0o644)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        written.append(path)

    def private(key: ec.EllipticCurvePrivateKey, kind: serialization.PrivateFormat) -> bytes:
        return key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption())

    ca_key_file, ca_file = folder / "ca.key", folder / "ca.crt"
    if ca_key_file.exists() and ca_file.exists():
        loaded = serialization.load_pem_private_key(ca_key_file.read_bytes(), None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise BadInput(f"{ca_key_file} is not a key that this command wrote")
        ca_key, authority = loaded, x509.load_pem_x509_certificate(ca_file.read_bytes())
    else:
        ca_key = ec.generate_private_key(ec.SECP384R1())
        authority = (
            x509.CertificateBuilder()
            .subject_name(name("fedhead federation CA"))
            .issuer_name(name("fedhead federation CA"))
            .public_key(ca_key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=10 * DAYS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
            .add_extension(
                x509.KeyUsage(
                    False, False, False, False, False, True, True, False, False
                ),  # may only sign certificates
                critical=True,
            )
            .sign(ca_key, hashes.SHA384())
        )
        save(ca_key_file, private(ca_key, serialization.PrivateFormat.PKCS8), secret=True)
        save(ca_file, authority.public_bytes(serialization.Encoding.PEM), secret=False)

    server_key = ec.generate_private_key(ec.SECP384R1())
    server = (
        x509.CertificateBuilder()
        .subject_name(name(names[0]))
        .issuer_name(authority.subject)
        .public_key(server_key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    save(folder / "server.key", private(server_key, serialization.PrivateFormat.PKCS8), secret=True)
    save(folder / "server.crt", server.public_bytes(serialization.Encoding.PEM), secret=False)

    for site in sites:
        if (folder / "sites" / site).exists():
            continue  # a site's key is its identity: it is never replaced automatically
        key = ec.generate_private_key(ec.SECP384R1())
        public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        save(folder / "sites" / site, private(key, serialization.PrivateFormat.OpenSSH), secret=True)
        save(folder / "sites" / f"{site}.pub", public + f" {site}\n".encode(), secret=False)
    return written


def check(folder: Path, sites: Sequence[str]) -> None:
    """Check that certificates and keys exist, are readable and valid, and belong to one authority.

    Raises:
        BadInput: With the file and what to do.
    """
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    needed = ["ca.crt", "server.crt", "server.key", *(f"sites/{s}" for s in sites), *(f"sites/{s}.pub" for s in sites)]
    for file in needed:
        if not (folder / file).is_file():
            raise BadInput(f"{folder / file} is missing: write it with fedhead deploy certs, or deploy with --insecure")
    try:
        authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
        server = x509.load_pem_x509_certificate((folder / "server.crt").read_bytes())
    except ValueError as error:
        raise BadInput(f"{folder}: ca.crt or server.crt is not a certificate ({error}): write them again") from error
    try:
        server.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError) as error:
        raise BadInput(f"{folder / 'server.crt'} was not issued by {folder / 'ca.crt'}: write them again") from error
    now = datetime.datetime.now(datetime.UTC)
    for file, certificate in (("ca.crt", authority), ("server.crt", server)):
        if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
            raise BadInput(
                f"{folder / file} is valid from {certificate.not_valid_before_utc:%Y-%m-%d} to "
                f"{certificate.not_valid_after_utc:%Y-%m-%d} only: write it again with fedhead deploy certs"
            )
    try:
        hosts = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        hosts = x509.SubjectAlternativeName([])
    if _host(LOOPBACK[0]) not in hosts:
        raise BadInput(
            f"{folder / 'server.crt'} is not valid for {LOOPBACK[0]}, where the SuperLink is reached on this machine: "
            "write it again with fedhead deploy certs"
        )


def _host(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)

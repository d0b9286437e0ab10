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
LOOPBACK = ("127.0.0.1", "localhost")  # addresses at which processes on the server's machine reach it


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

    def certificate(
        common: str,
        key: ec.EllipticCurvePrivateKey,
        issuer: x509.Certificate | None,
        days: int,
        extensions: Sequence[tuple[x509.ExtensionType, bool]],
    ) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
        builder = x509.CertificateBuilder(
            subject_name=subject,
            issuer_name=subject if issuer is None else issuer.subject,
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - datetime.timedelta(minutes=5),
            not_valid_after=now + datetime.timedelta(days=days),
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        return builder.sign(ca_key, hashes.SHA384())

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
        may_only_sign = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        authority = certificate(
            "fedhead federation CA",
            ca_key,
            None,
            10 * DAYS,
            [
                (x509.BasicConstraints(ca=True, path_length=0), True),
                (x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), False),
                (may_only_sign, True),
            ],
        )
        save(ca_key_file, private(ca_key, serialization.PrivateFormat.PKCS8), secret=True)
        save(ca_file, authority.public_bytes(serialization.Encoding.PEM), secret=False)

    server_key = ec.generate_private_key(ec.SECP384R1())
    server = certificate(
        names[0],
        server_key,
        authority,
        DAYS,
        [
            (x509.SubjectAlternativeName([_host(host) for host in names]), False),
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), False),
        ],
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
    """Check that all certificates and keys exist and that the server's certificate is valid on this machine now.

    Raises:
        BadInput: With the file and what to do.
    """
    from cryptography import x509
    from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

    needed = ["ca.crt", "server.crt", "server.key", *(f"sites/{s}" for s in sites), *(f"sites/{s}.pub" for s in sites)]
    missing = [folder / file for file in needed if not (folder / file).is_file()]
    if missing:
        raise BadInput(f"{missing[0]} is missing: write it with fedhead deploy certs, or deploy with --insecure")
    try:
        authority, server = (
            x509.load_pem_x509_certificate((folder / name).read_bytes()) for name in ("ca.crt", "server.crt")
        )
        address = x509.IPAddress(ipaddress.ip_address(LOOPBACK[0]))
        PolicyBuilder().store(Store([authority])).build_server_verifier(address).verify(server, [])
    except (ValueError, VerificationError) as error:
        raise BadInput(
            f"{folder}: server.crt is not valid for {LOOPBACK[0]} by ca.crt ({error}): write them again with "
            "fedhead deploy certs"
        ) from error


def _host(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)

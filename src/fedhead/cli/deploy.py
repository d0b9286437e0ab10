"""The commands deploy init, certs and up."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedhead.cli.app import app
from fedhead.cli.options import Assignments
from fedhead.cli.output import interruptible

deploy = typer.Typer(help="Run over real sites, on Flower.", rich_markup_mode=None)
app.add_typer(deploy, name="deploy")

DeploymentFolder = Annotated[Path, typer.Argument(help="The deployment's folder.", metavar="DIR")]


@deploy.command()
def init(
    folder: DeploymentFolder,
    assignments: Assignments = None,
    recipe: Annotated[str, typer.Option(help="What is trained: a recipe's name or file.")] = "digits",
    sites: Annotated[int, typer.Option(min=1, help="How many sites, named site-0, site-1 …")] = 3,
    site: Annotated[list[str] | None, typer.Option(help="A site's name, once per site, in place of --sites.")] = None,
    data: Annotated[list[str] | None, typer.Option(help="A site's data, in the order of the sites.")] = None,
) -> None:
    """Write a ready project: app/ for flwr run, server.yaml, and a site.yaml for each site.

    \b
    Examples:
      fedhead deploy init demo rounds=3
      fedhead deploy init clinic --recipe my.yaml --site north --site south --data north.npz --data south.npz
    """
    from fedhead.deploy.project import Project

    names = site or [f"site-{k}" for k in range(sites)]
    project = Project.init(folder, recipe, names, assignments or [], data or [])
    print(f"{project.path} is ready: look into server.yaml and sites/*/site.yaml, then")
    print(f"  fedhead deploy up {folder} --insecure")
    print("runs all of it on this machine, without TLS. With TLS and keys:")
    print(f"  fedhead deploy certs {folder}")
    print(f"  fedhead deploy up {folder}")
    print("docs/deployment.md shows how to use several machines")


@deploy.command()
def certs(
    folder: DeploymentFolder,
    host: Annotated[
        list[str] | None,
        typer.Option(help="A name or address of the server, besides 127.0.0.1 and localhost, once per name."),
    ] = None,
) -> None:
    """Write a certificate authority, the server's certificate, and a key for each site.

    \b
    Examples:
      fedhead deploy certs demo
      fedhead deploy certs demo --host fl.example.org --host 10.0.0.5
    """
    from fedhead.deploy import certificates
    from fedhead.deploy.project import Project

    project = Project.open(folder)
    for path in certificates.write(project.certs, host or [], project.server().sites):
        print(path)


@deploy.command()
def up(
    folder: DeploymentFolder,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Without TLS and keys: on one machine, for trying out.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the run's last checkpoint.")] = False,
) -> None:
    """Run a whole federation on this machine: the SuperLink, one SuperNode per site, and the run, until it ends.

    \b
    Examples:
      fedhead deploy up demo --insecure
      fedhead deploy certs demo && fedhead deploy up demo
      fedhead deploy up demo --resume
    """
    from fedhead.deploy.local_federation import LocalFederation
    from fedhead.deploy.project import Project
    from fedhead.runs.run_folder import RunFolder

    project = Project.open(folder)
    if not resume:
        RunFolder.refuse_taken(project.server().at(project.server().out))
    with interruptible(f"stopped; go on with fedhead deploy up {folder} --resume"):
        LocalFederation(project, secure=not insecure, resume=resume).run()

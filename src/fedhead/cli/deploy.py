"""The commands deploy init, certs and up."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fedhead.cli.app import Argument, Option, command
from fedhead.cli.options import Assignments
from fedhead.cli.output import interruptible
from fedhead.core.components.ranges import AtLeast

DeploymentFolder = Annotated[Path, Argument("Folder of the deployment.", label="DIR")]


@command("Deploy", "deploy init")
def init(
    folder: DeploymentFolder,
    assignments: Assignments = None,
    recipe: Annotated[str, Option("Recipe to train: a name or a YAML file.")] = "digits",
    sites: Annotated[int, AtLeast(1), Option("Number of sites, which are named site-0, site-1 and so on.")] = 3,
    site: Annotated[
        list[str] | None, Option("Name of a site, in place of --sites; repeat the option for each site.")
    ] = None,
    data: Annotated[
        list[str] | None, Option("Data of a site; repeat the option for each site, in the same order.")
    ] = None,
    schema: Annotated[
        Path | None, Option("Schema of the sites' tables, a YAML file; each site gets a copy, to accept it.")
    ] = None,
) -> None:
    """Write a project for real sites: app/ for `flwr run`, server.yaml, and a site.yaml for each site.

    Examples:
      fedhead deploy init demo rounds=3
      fedhead deploy init clinic --recipe my.yaml --site north --site south --data north.npz --data south.npz
    """
    from fedhead.deploy.project import Project

    names = site or [f"site-{k}" for k in range(sites)]
    project = Project.init(folder, recipe, names, assignments or [], data or [], schema)
    print(f"{project.path} is ready: look into server.yaml and sites/*/site.yaml, then")
    print(f"  fedhead deploy up {folder} --insecure")
    print("runs all of it on this machine, without TLS. With TLS and keys:")
    print(f"  fedhead deploy certs {folder}")
    print(f"  fedhead deploy up {folder}")
    print("docs/deployment.md shows how to use several machines")


@command("Deploy", "deploy certs")
def certs(
    folder: DeploymentFolder,
    host: Annotated[
        list[str] | None, Option("Name or address of the server besides 127.0.0.1 and localhost; may be repeated.")
    ] = None,
) -> None:
    """Write certificates for the server and a key for each site.

    Examples:
      fedhead deploy certs demo
      fedhead deploy certs demo --host fl.example.org --host 10.0.0.5
    """
    from fedhead.deploy import certificates
    from fedhead.deploy.project import Project

    project = Project.open(folder)
    for path in certificates.write(project.certs, host or [], project.server().sites):
        print(path)


@command("Deploy", "deploy up")
def up(
    folder: DeploymentFolder,
    insecure: Annotated[bool, Option("Use neither TLS nor keys, for trials on one machine.")] = False,
    resume: Annotated[bool, Option("Continue from the run's last checkpoint.")] = False,
) -> None:
    """Run a whole deployment on this machine: SuperLink, one SuperNode per site, and the run.

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
    with interruptible(f"stopped; resume with fedhead deploy up {folder} --resume{' --insecure' if insecure else ''}"):
        LocalFederation(project, secure=not insecure, resume=resume).run()

"""The commands deploy init, check, certs, up, evaluate and health."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from fedhead.cli.app import Argument, Option, command
from fedhead.cli.options import Assignments
from fedhead.cli.output import interruptible
from fedhead.core.components.ranges import AtLeast, AtMost, Matches
from fedhead.core.system.errors import BadInput, require

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
        Path | None, Option("Schema of the sites' tables, a YAML file; copied beside server.yaml and each site.yaml.")
    ] = None,
    target: Annotated[
        Literal["local", "compose", "kubernetes", "systemd"],
        Option("Also write the files with which this tool runs the server and the sites; local: none."),
    ] = "local",
    address: Annotated[
        str,
        Matches(r"[A-Za-z0-9.-]+:\d{1,5}", "the server's name and port"),
        Option("Name and port at which sites reach the server, for --target."),
    ] = "server.example.org:8443",
) -> None:
    """Write a project for real sites: app/ for `flwr run`, server.yaml, and a site.yaml for each site.

    Examples:
      fedhead deploy init demo rounds=3
      fedhead deploy init clinic --recipe my.yaml --site north --site south --data north.npz --data south.npz
      fedhead deploy init clinic --recipe my.yaml --schema schema.yaml --site north --data north.csv
      fedhead deploy init clinic --site north --site south --target compose --address fl.example.org:8443
    """
    from fedhead.deploy import table_check, targets
    from fedhead.deploy.processes import require_flower
    from fedhead.deploy.project import Project

    names = site or [f"site-{k}" for k in range(sites)]
    if target != "local":
        require_flower()  # its version is that of the image
        targets.check(target, names, data or [])
    project = Project.init(folder, recipe, names, assignments or [], data or [], schema, target == "local")
    print(f"{project.path} is ready: look into server.yaml and sites/*/site.yaml")
    if schema is not None:
        server = project.server()
        for error in table_check.refusals(project.sites()[server.sites[0]], server):
            print(f"The sites refuse this run so far: {error}")
    if target == "local":
        print("To run all of it on this machine, with TLS and keys:")
        print(f"  fedhead deploy certs {folder}")
        print(f"  fedhead deploy up {folder}")
        print("For a trial without them (not with secure_sum):")
        print(f"  fedhead deploy up {folder} --insecure")
        print("docs/deployment.md shows how to use several machines")
        return
    for path in targets.write(project, target, address):
        print(path)
    print("docs/containers.md shows how to start them")


@command("Deploy", "deploy check")
def check(
    folder: Annotated[Path, Argument("Folder of a site.yaml, or of a deployment with the folders of its sites.")],
) -> None:
    """Check the tables of sites against their schemas, and list rows, empty cells and values; nothing is sent.

    In the folder of a deployment it also checks that each site.yaml permits the run of server.yaml.

    Examples:
      fedhead deploy check clinic/sites/north
      fedhead deploy check clinic
    """
    from fedhead.cli.output import print_table
    from fedhead.core.system.errors import FedheadError, messages, raise_first
    from fedhead.deploy import table_check
    from fedhead.deploy.project import Project
    from fedhead.flower.config import SiteFile

    alone = (folder / "site.yaml").is_file()
    server = None if alone else Project.open(folder).server()
    if server is None:
        sites = {folder.resolve().name: folder / "site.yaml"}
    else:
        sites = {name: server.path.parent / "sites" / name / "site.yaml" for name in server.sites}
    bad = list[str]()
    for name, path in sites.items():
        if not path.is_file():
            continue
        try:
            file = SiteFile.read(path)
            fix = "each site needs its own, as in server.yaml"
            require(alone or file.name == name, f"{path} has the name {file.name!r}: {fix}")
            table, notes = table_check.check(file, None if server is None else server.recipe_of_run())
            print_table(table, left=3)
            for note in notes:
                print(f"site {name}: {note}", flush=True)
            if server is not None:
                raise_first(table_check.refusals(file, server))
        except BadInput as error:
            for message in messages(error):
                print(f"site {name}: {message}", flush=True)
            bad.append(name)
    if bad:
        raise FedheadError(f"{', '.join(bad)}: correct the files named above, and check again")


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
    leave_out_site: Annotated[
        str | None, Option("Site that does not train: it tests the global model. The run folder is run-without-SITE.")
    ] = None,
) -> None:
    """Run a whole deployment on this machine: SuperLink, one SuperNode per site, and the run.

    Examples:
      fedhead deploy up demo --insecure
      fedhead deploy certs demo && fedhead deploy up demo
      fedhead deploy up demo --resume
      fedhead deploy up demo --insecure --leave-out-site site-0
    """
    from fedhead.deploy.local_federation import LocalFederation
    from fedhead.deploy.project import Project
    from fedhead.runs.run_folder import RunFolder

    project = Project.open(folder)
    file = project.server().without(leave_out_site)
    if not resume:
        RunFolder.refuse_taken(file.at(file.out))
    with interruptible(f"stopped; resume with fedhead deploy up {folder} --resume{' --insecure' if insecure else ''}"):
        LocalFederation(project, secure=not insecure, resume=resume, leave_out_site=leave_out_site).run()


@command("Deploy", "deploy evaluate")
def evaluate(
    folder: DeploymentFolder,
    insecure: Annotated[bool, Option("Use neither TLS nor keys, for trials on one machine.")] = False,
) -> None:
    """Test the global model and every site's final model on every site's test samples, after a finished run.

    A site sends its model only if its site.yaml sets share_model. Between machines:
    flwr run DIR/app --run-config 'evaluate=true' --stream

    Examples:
      fedhead deploy evaluate demo --insecure
    """
    from fedhead.cli.output import print_table
    from fedhead.deploy.local_federation import LocalFederation
    from fedhead.deploy.project import Project
    from fedhead.flower.server_run import finished_run
    from fedhead.report.cross_site import matrix

    project = Project.open(folder)
    run = finished_run(project.server())
    with interruptible("stopped"):
        LocalFederation(project, secure=not insecure, evaluate=True).run()
    for table in matrix(run.path):
        print_table(table)


@command("Deploy", "deploy health")
def health(
    folder: Annotated[Path, Argument("Folder of a server.yaml or a site.yaml.", label="DIR")],
    ready: Annotated[bool, Option("Also check that the run folder or the site's state can be written to.")] = False,
    port: Annotated[
        int | None, AtLeast(0), AtMost(65535), Option("Serve /healthz, /readyz and /metrics (Prometheus) at this port.")
    ] = None,
    host: Annotated[str, Option("Address to listen at, for --port.")] = "127.0.0.1",
    flower: Annotated[
        str | None,
        Option(
            "Address of Flower's process; default: https://127.0.0.1:8000 of a server, http://127.0.0.1:9094 of a site."
        ),
    ] = None,
) -> None:
    """Check that the Flower process of a server or a site on this machine is alive; serve metrics.

    Examples:
      fedhead deploy health /srv/fedhead/north --ready
      fedhead deploy health /srv/fedhead/clinic --port 9464
    """
    from fedhead.core.system.errors import FedheadError
    from fedhead.deploy.health import Monitor, http_server

    monitor = Monitor.open(folder, flower)
    if port is None:
        fault = monitor.fault(ready)
        if fault is not None:
            raise FedheadError(fault)
        print("ready" if ready else "alive")
        return
    with http_server(monitor, host, port) as server, interruptible("stopped"):
        print(f"http://{host}:{server.server_port}/metrics", flush=True)
        server.serve_forever()

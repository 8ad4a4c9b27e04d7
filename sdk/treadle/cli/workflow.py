"""``treadle workflow``: definitions in files and in the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.cli import exits, output
from treadle.cli.options import Json, Namespace, Url

if TYPE_CHECKING:
    from treadle.sdk.client import Client
    from treadle.sdk.definition import WorkflowDefinition

app = typer.Typer(name="workflow", help="Define and register workflows.", no_args_is_help=True)

File = Annotated[
    str,
    typer.Argument(metavar="FILE", help="A .py (or module:name), .yaml, .yml or .json file."),
]
Name = Annotated[str, typer.Argument(metavar="WORKFLOW", help="Name of the workflow.")]


@app.command()
def register(file: File, json: Json = False, url: Url = None, namespace: Namespace = None) -> int:
    """Register the workflows of a file; new runs take this version."""
    from treadle.cli import runs

    definitions = definitions_in(file)

    async def act(client: Client) -> int:
        for definition in definitions:
            version = await client.register(definition)
            if json:
                output.emit({"workflow": definition.name, "version": version})
            else:
                output.say(f"{definition.name}  {version}")
        return exits.OK

    return runs.run(url, namespace, act)


@app.command("list")
def list_(json: Json = False, url: Url = None, namespace: Namespace = None) -> int:
    """List the registered workflows."""
    from treadle.cli import runs

    async def act(client: Client) -> int:
        versions = await client.workflows()
        if json:
            for name, version in versions.items():
                output.emit({"workflow": name, "version": version})
        elif versions:
            output.table(("WORKFLOW", "VERSION"), [*versions.items()])
        else:
            output.remark("no workflows; register one: treadle workflow register FILE")
        return exits.OK

    return runs.run(url, namespace, act)


@app.command()
def show(
    name: Name,
    version: Annotated[
        str | None, typer.Option("--version", metavar="HASH", help="Not the newest one.")
    ] = None,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """Print a registered workflow as YAML."""
    from treadle.cli import runs

    async def act(client: Client) -> int:
        from treadle.sdk.definition import content_hash, to_plain
        from treadle.sdk.document import format_definition

        definition = await client.workflow(name, version)
        content = content_hash(definition)
        if json:
            output.emit({"version": content, "definition": to_plain(definition)})
        else:
            output.say(f"# version {content}\n{format_definition(definition, 'yaml')}".rstrip())
        return exits.OK

    return runs.run(url, namespace, act)


@app.command()
def validate(file: File, json: Json = False) -> int:
    """Check the workflows of a file and print everything that is wrong; no server is needed."""
    from treadle.sdk.errors import InvalidDefinition

    try:
        definitions = definitions_in(file)
    except InvalidDefinition as error:
        if not json:
            raise
        problems = [{"path": p.path, "text": p.text} for p in error.problems]
        output.emit({"valid": False, "workflow": error.workflow, "problems": problems})
        return exits.USAGE
    for definition in definitions:
        _say_valid(definition, as_json=json)
    return exits.OK


def definitions_in(file: str) -> tuple[WorkflowDefinition, ...]:
    """Return the workflows of a file, checked; raise ``UserError`` if there is none."""
    from treadle.sdk.errors import UserError

    if file.endswith((".yaml", ".yml", ".json")):
        from treadle.sdk.document import load_definition

        try:
            return (load_definition(file),)
        except OSError as exc:
            raise UserError(
                f"{file} cannot be read: {exc.strerror or exc}. Name an existing file."
            ) from exc
    from treadle.cli.app import load
    from treadle.sdk.validation import check

    found = tuple(check(definition) for definition in load(file).workflows)
    if not found:
        raise UserError(
            f"{file} defines no Workflow, so there is nothing to do. Add one: "
            '`workflow = Workflow("name")`.'
        )
    return found


def _say_valid(definition: WorkflowDefinition, *, as_json: bool) -> None:
    from treadle.sdk.definition import content_hash

    version = content_hash(definition)
    told: dict[str, Any] = {"valid": True, "workflow": definition.name, "version": version}
    if as_json:
        output.emit({**told, "steps": len(definition.steps)})
    else:
        count = len(definition.steps)
        steps = f"{count} step{'' if count == 1 else 's'}"
        output.say(f"{definition.name}  {version}  is valid, {steps}")

"""`demo`: five kernels on every ready device."""

from __future__ import annotations

import click


@click.command()
@click.option("--device", "devices", multiple=True, help="Only this device; may be repeated.")
def demo(devices: tuple[str, ...]) -> None:
    """Run five kernels on every ready device, check them against NumPy and time them.

    \b
    Example:
      retarget demo
      retarget demo --device llvm
    """
    from .. import demo as product
    from .. import registry
    from .output import console

    names = [registry.device(name).name for name in devices] or [device.name for device in registry.devices()]
    if not product.run(names, console=console()):
        raise click.exceptions.Exit(1)

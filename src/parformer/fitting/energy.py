"""What did a job draw, emit and cost? An estimate: nothing here measures power.

>>> round(estimate(3600, cores=2, watts=0, grid=0.4, price=0.3, currency="EUR").kwh, 3)
0.02
"""

from __future__ import annotations

from parformer.fitting.result import Energy

WATTS_PER_CORE = 10.0
"""A busy core of a server or laptop, with its share of memory and power supply: 5 to 20."""


def estimate(
    seconds: float, *, cores: int, watts: float, grid: float, price: float, currency: str
) -> Energy:
    """Energy, CO₂ and money of so many seconds with all cores busy."""
    given = watts > 0
    power = watts if given else WATTS_PER_CORE * cores
    kwh = power * seconds / 3.6e6
    each = f"{WATTS_PER_CORE:g} W for each of {cores} cores" if cores > 1 else f"{power:g} W"
    source = f"{power:g} W as given" if given else each
    return Energy(
        seconds=seconds,
        watts=power,
        kwh=kwh,
        co2_kg=kwh * grid,
        money=kwh * price,
        currency=currency,
        grid=grid,
        price=price,
        source=f"estimate: {source}, {grid:g} kg CO₂ and {price:g} {currency} per kWh",
    )

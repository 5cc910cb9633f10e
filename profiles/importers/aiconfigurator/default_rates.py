"""What puts times on operations here: the measured tables where they are installed, otherwise the achieved rates."""

from dataclasses import replace
from functools import lru_cache

from profiles.estimates.achieved_rates import known_rates
from profiles.estimates.operations import Rates


@lru_cache(maxsize=12)
def default_rates_of(gpu: str, *, network_bytes_per_s: int | None = None) -> Rates:
    """Of a device type by the tables' name, one of `known_rates()`; between nodes by its sheet, or as is stated."""
    from profiles.importers.aiconfigurator.rates import MeasuredRates
    from profiles.importers.aiconfigurator.tables import NoTablesError, find_package

    try:
        package = find_package()
        return MeasuredRates(package=package, gpu=package.find_gpu(gpu), network_bytes_per_s=network_bytes_per_s)
    except NoTablesError:
        rates = known_rates()[gpu]
        if network_bytes_per_s is None or rates.network is None:
            return rates
        return replace(rates, network=replace(rates.network, bytes_per_s=network_bytes_per_s))

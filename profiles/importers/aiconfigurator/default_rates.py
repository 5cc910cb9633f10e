"""What puts times on operations here: the measured tables where they are installed, otherwise the achieved rates."""

from functools import cache

from profiles.estimates.achieved_rates import known_rates
from profiles.estimates.operations import Rates


@cache
def default_rates_of(gpu: str) -> Rates:
    """Of a device type by the tables' name, one of `known_rates()`."""
    from profiles.importers.aiconfigurator.rates import MeasuredRates
    from profiles.importers.aiconfigurator.tables import NoTablesError, find_package

    try:
        package = find_package()
        return MeasuredRates(package=package, gpu=package.find_gpu(gpu))
    except NoTablesError:
        return known_rates()[gpu]

"""Reports: tables of measurements, figures, and one self-contained page with both."""

from pstn.report.page import Page
from pstn.report.table import Column, Measured, Table
from pstn.report.units import plain_units

__all__ = ["Column", "Measured", "Page", "Table", "plain_units"]

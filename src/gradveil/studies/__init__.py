"""Every figure and every claim of the paper as grids of cells, kept in a store.

>>> from gradveil.studies import Cell, Table
>>> Cell("attack", {"ratio": 0.9, "seed": 0}).settings["seed"]
0
"""

from .runner import Cell, Result, Study, Table, cell_function, data_folder

__all__ = ["Cell", "Result", "Study", "Table", "cell_function", "data_folder"]

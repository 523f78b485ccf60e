"""Cells of the standard preset on a Ray cluster of two nodes, each with one processor."""

import sys
from pathlib import Path

from gradveil.studies.reproduce import STUDIES, work_of
from gradveil.studies.runner import Cell, RayEngine, distinct_cells


def cheap_cells() -> list[Cell]:
    """The first cell of some kinds of the standard preset, and an attack with fewer steps."""
    every = distinct_cells(work_of([*STUDIES.values()], "standard"))
    kinds = ("layer-sizes", "short-training", "plan-quality")
    first = [next(cell for cell in every if cell.kind == kind) for kind in kinds]
    attack = next(c for c in every if c.settings.get("attack") == "paper(steps=500)")
    return [*first, Cell("attack", {**attack.settings, "attack": "paper(steps=5)"})]


def run(folder: Path) -> None:
    """Start the nodes, run the cells on them, and stop the nodes."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    try:
        ray.init(cluster.address)
        assert len([node for node in ray.nodes() if node["Alive"]]) == 2
        RayEngine(jobs=2).run(folder, cheap_cells(), lambda: None)
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    run(Path(sys.argv[1]))

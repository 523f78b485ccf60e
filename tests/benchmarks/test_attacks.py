"""The bench of attacks measures what it says; its numbers are never compared with seconds."""

from benchmarks.attacks import attack_contenders, bench_attack, draw_attacks
from gradveil.attacks import IDLG, InvertingGradients
from gradveil.data import load_dataset


def test_attacks_are_timed_and_scored(tmp_path):
    data = load_dataset("mnist", limit=8)
    attacks = {"signed": InvertingGradients(steps=40), "quasi-Newton": IDLG(steps=20, restarts=1)}
    rows = bench_attack(data, attacks, starts=(0, 4), images=2, budgets=(0.0, 60.0))
    assert [(row.attack, row.budget) for row in rows] == [
        (name, budget) for name in attacks for budget in (0.0, 60.0)
    ]
    assert all(row.seconds > 0 and row.psnr > 0 for row in rows)
    assert rows[1].steps_per_second > 0
    assert rows[1].psnr > rows[0].psnr
    draw_attacks(rows, tmp_path / "attack.png")
    assert (tmp_path / "attack.png").stat().st_size > 1000


def test_every_contender_can_be_stopped_and_tells_its_progress():
    def tell(step, steps, cost): ...

    for attack in attack_contenders().values():
        configured = attack.configured(time_budget=2.0, progress=tell)
        assert (configured.time_budget, configured.progress) == (2.0, tell)

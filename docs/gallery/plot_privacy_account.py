"""
What a private run spends
=========================

Each round of training with ``PrivateNoise`` spends some of a privacy budget. An account adds it
up. The figure shows ε after each round for three noise multipliers z, when each example takes
part in a round with a probability of 1 %, and what it means for an attacker who has to pick one
of ten candidates. The rate is a public number, so ε is about one example more or less.
"""

import matplotlib.pyplot as plt

from gradveil.privacy import PrivacyAccount, recognition_bound, solve_noise_multiplier

RATE, DELTA = 0.01, 1e-5
rounds = [1, 10, 30, 100, 300, 1000, 2000]

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
for z in (0.7, 1.0, 2.0):
    spent, recognised = [], []
    for count in rounds:
        account = PrivacyAccount(noise_multiplier=z, sample_rate=RATE, delta=DELTA)
        account.step(count)
        spent.append(account.epsilon())
        recognised.append(recognition_bound(0.1, noise_multiplier=z, sample_rate=RATE, steps=count))
    left.plot(rounds, spent, marker="o", label=f"z = {z}")
    right.plot(rounds, recognised, marker="o", label=f"z = {z}")
left.set(xscale="log", xlabel="rounds", ylabel=f"ε at δ = {DELTA:g}")
left.legend()
right.axhline(0.1, color="grey", linestyle=":", label="chance")
right.set(xscale="log", xlabel="rounds", ylabel="picks the right one of ten, at most", ylim=(0, 1))
right.legend()
plt.show()

# %%
# The other way round: the noise that 1,000 rounds need to stay within ε = 3.

print(round(solve_noise_multiplier(3.0, DELTA, sample_rate=RATE, steps=1000), 2))

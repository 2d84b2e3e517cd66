"""
Tasks that are alike, unrelated, or opposites
=============================================

A graph of edges can say that two tasks are alike. It cannot say that they are opposites:
what raises one lowers the other. ``ct.relationship`` learns a covariance of the tasks
together with their models (DMTRL: Liu, Pan, Ho, 2017), so that a task learns from its
opposites as much as from its likes. The sixteen tasks are generated: three families, in
each of which some members are turned round.
"""

import matplotlib.pyplot as plt
import numpy as np

import coterie as ct

# %%
# Sixty rows for twenty features: too few for a good model of one task alone. The result
# comes with a certificate, how far it can be from the joint optimum of models and
# covariance.

tasks = ct.datasets.related_tasks(n=16, p=20, rows=60, seed=0)
found = ct.relationship(tasks.train, "logistic", lam=3e-2)
alone = ct.relationship(tasks.train, "logistic", lam=0.1, method="single-task")
print(f"converged: {found.converged}, within {found.gap / found.value:.1e} of the optimum")

# %%
# The truth and what was learned, members of a family side by side. Red tasks are alike,
# blue ones are opposites.

order = np.lexsort([-tasks.sign, tasks.parent])
figure, panels = plt.subplots(1, 2, figsize=(9.4, 4.4), layout="constrained")
ct.plots.correlations(tasks.correlation, ax=panels[0], order=order, title="the truth")
ct.plots.correlations(
    found.correlation, ax=panels[1], order=order, title="learned from 60 rows a task"
)
figure.suptitle("Families and their opposites are found")
ct.plots.show(figure)

# %%
# What it is good for: fewer errors on test rows.

error_alone, error = tasks.error(alone.weights).mean(), tasks.error(found.weights).mean()
off = ~np.eye(16, dtype=bool)
match = np.corrcoef(found.correlation[off], tasks.correlation[off])[0, 1]
print(f"test error: {error_alone:.3f} alone, {error:.3f} together")
print(f"correlation of learned and true correlations: {match:.2f}")
assert error < error_alone
assert match > 0.9

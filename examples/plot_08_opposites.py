"""
Tasks that are alike, unrelated, or opposites
=============================================

An edge of a graph can express that two tasks are alike, but not that they are opposites,
whose weights have opposite signs. ``ct.relationship`` learns a covariance of the tasks
together with their models (DMTRL: Liu, Pan, Ho, 2017), so that a task learns from its
opposites as much as from similar tasks. The sixteen tasks are generated: three families,
in each of which some members have the opposite sign.
"""

import matplotlib.pyplot as plt
import numpy as np

import coterie as ct

# %%
# Sixty rows for twenty features are too few for a good model of one task alone. The result
# has a certificate: a bound of its distance to the joint optimum of models and covariance.

tasks = ct.datasets.related_tasks(n=16, p=20, rows=60, seed=0)
found = ct.relationship(tasks.train, "logistic", lam=3e-2)
alone = ct.relationship(tasks.train, "logistic", lam=0.1, method="single-task")
print(f"converged: {found.converged}, within {found.gap / found.value:.1e} of the optimum")

# %%
# True and learned correlations, with the members of a family side by side. Red tasks are
# alike, blue tasks are opposites.

order = np.lexsort([-tasks.sign, tasks.parent])
figure, panels = plt.subplots(1, 2, figsize=(9.4, 4.4), layout="constrained")
ct.plots.correlations(tasks.correlation, ax=panels[0], order=order, title="the truth")
ct.plots.correlations(
    found.correlation, ax=panels[1], order=order, title="learned from 60 rows a task"
)
figure.suptitle("Families and their opposites are found")
ct.plots.show(figure)

# %%
# The learned covariance reduces the errors on test rows.

error_alone, error = tasks.error(alone.weights).mean(), tasks.error(found.weights).mean()
off = ~np.eye(16, dtype=bool)
match = np.corrcoef(found.correlation[off], tasks.correlation[off])[0, 1]
print(f"test error: {error_alone:.3f} alone, {error:.3f} together")
print(f"correlation of learned and true correlations: {match:.2f}")
assert error < error_alone
assert match > 0.9

"""
Curves of patients with five measurements each
==============================================

After a dose, the concentration of a drug rises and falls, in each patient in its own way.
Five blood samples are too few to draw such a curve for one patient. They are enough if
forty patients share what their curves have in common. The patients are generated here, so
that we know the true curves.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import coterie as ct

# %%
# One compartment, absorption by mouth: patients differ in how fast they absorb the drug,
# in how fast they clear it, and in the volume that it spreads to. Each is measured five
# times in a day, more often in the first hours, with an error of 0.3 mg/l.

rng = np.random.default_rng(0)
n, samples = 40, 5
absorption, clearance, volume = (
    np.exp(rng.normal(np.log(middle), 0.25, size=n)) for middle in (0.6, 0.12, 30.0)
)


def concentration(patient, hour):
    """In mg/l, after a dose of 300 mg."""
    fast, slow = absorption[patient], clearance[patient]
    return (
        300.0
        / volume[patient]
        * fast
        / (fast - slow)
        * (np.exp(-slow * hour) - np.exp(-fast * hour))
    )


patient, hour = np.repeat(np.arange(n), samples), 24.0 * rng.uniform(size=n * samples) ** 2
rows = pd.DataFrame({"patient": patient, "hour": hour})
measured = concentration(patient, hour) + 0.3 * rng.normal(size=len(rows))

# %%
# One fit. The data determine that curves are needed, and how smooth they are.

model = ct.CollaborativeRegressor().fit(rows, measured, agents="patient")
print(model.report())

# %%
# Where a patient has no measurements, the curve takes the common shape of the patients.

hours = np.linspace(0.0, 24.0, 97)
figure, panels = plt.subplots(
    2, 3, figsize=(7.6, 4.6), sharex=True, sharey=True, layout="constrained"
)
for axes, who in zip(panels.flat, range(6), strict=True):
    grid = pd.DataFrame({"patient": who, "hour": hours})
    own = patient == who
    low, high = model.predict_interval(grid, coverage=0.9).T
    axes.fill_between(hours, low, high, color=ct.plots.COLOURS[0], alpha=0.15, lw=0)
    axes.plot(hours, concentration(who, hours), "--", color="black", lw=1.0)
    axes.plot(hours, model.predict(grid), color=ct.plots.COLOURS[0], lw=2.0)
    axes.plot(hour[own], measured[own], "o", color=ct.plots.COLOURS[1])
    axes.set_title(f"patient {who + 1}", fontsize=9)
    axes.set_xticks([0, 6, 12, 18, 24])
panels[0, 0].text(9.0, 9.2, "true curve: dashed", fontsize=8)
panels[0, 0].text(9.0, 8.1, "learned: blue", color=ct.plots.COLOURS[0], fontsize=8)
panels[0, 0].text(9.0, 7.0, "measured: dots", color=ct.plots.COLOURS[1], fontsize=8)
figure.supxlabel("hours after the dose")
figure.supylabel("concentration, mg/l")
figure.suptitle("Five measurements each: patients share the shape of the curve")
ct.plots.show(figure)

# %%
# Over all patients and hours: the error of the learned curves, and of one mean curve for
# all patients.

everyone = pd.DataFrame(
    {"patient": np.repeat(np.arange(n), len(hours)), "hour": np.tile(hours, n)}
)
truth = concentration(everyone["patient"].to_numpy(), everyone["hour"].to_numpy())
one = ct.CollaborativeRegressor().fit(rows[["hour"]], measured)
error, error_one = (
    float(np.sqrt(np.mean((predicted - truth) ** 2)))
    for predicted in (model.predict(everyone), one.predict(everyone[["hour"]]))
)
print(f"error: {error:.2f} mg/l with own curves, {error_one:.2f} with one curve for all")
assert error < 0.8 * error_one

"""
What five methods cost to send
==============================

Methods differ in the content of their messages and in how often messages are sent.
``ct.compare`` runs methods up to the same number of bytes and compares them. Here five
methods with the same optimum are compared: asynchronous coordinate descent, coordinate
descent with messages compressed in two ways, DJAM, and ADMM.
"""

import coterie as ct

# %%
# Fifty agents (generated), fifty features, ten neighbours each.

task = ct.datasets.linear_classification(n=50, p=50, seed=0)
problem = ct.Problem.personalized(
    task.train, ct.graphs.knn(task.targets, 10), loss=ct.Logistic()
)
methods = {
    "descent": ct.CoordinateDescent(),
    "descent, 8 bits a number": ct.compression.Compressed(
        "cd", ct.compression.Quantised(8)
    ),
    "descent, top 10 %": ct.compression.Compressed("cd", ct.compression.TopK(0.1)),
    "DJAM": ct.DJAM(),
    "ADMM": ct.CollaborativeADMM(),
}
result = ct.compare(methods, problem, bytes=6_000_000, points=40)
print(result.summary[["gap", "wakes", "bytes"]].to_string())

# %%
# ADMM sends eight vectors in an exchange, coordinate descent one to each neighbour. Numbers
# of 8 bits are enough, since the rounding error of a message is added to the next message.

figure = result.figure(gap=True)
figure.axes[0].set_title(
    "Compressed messages reach the optimum with a fraction of the bytes"
)
figure.set_size_inches(7.2, 4.4)
ct.plots.label_lines(figure.axes[0])
ct.plots.show(figure)

# %%
gap = result.summary["gap"]
assert gap["descent, 8 bits a number"] < gap["descent"] < gap["ADMM"]

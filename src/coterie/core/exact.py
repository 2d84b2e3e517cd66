"""Loops of the exact solvers: losses of all rows, sums over edges, projections onto balls."""

from __future__ import annotations

from .compile import kernel


@kernel
def loss_kernel(loss, margins, labels, value, slope, curvature):
    """Compute loss, first and second derivative of every example; outputs without room are skipped."""
    for r in range(value.shape[0]):
        value[r] = loss.value(margins[r], labels[r])
    for r in range(slope.shape[0]):
        slope[r] = loss.derivative(margins[r], labels[r])
    for r in range(curvature.shape[0]):
        curvature[r] = loss.curvature(margins[r], labels[r])


@kernel
def loss_table_kernel(loss, margins, labels, step, out):
    """Compute all five functions of a loss at every example, for the check of its contract."""
    for r in range(margins.shape[0]):
        z, y = margins[r], labels[r]
        out[0, r] = loss.value(z, y)
        out[1, r] = loss.derivative(z, y)
        out[2, r] = loss.curvature(z, y)
        out[3, r] = loss.prox(z, step, y)
        out[4, r] = loss.conjugate(loss.derivative(z, y), y)


@kernel
def pool_table_kernel(loss, margins, labels, value, slopes):
    """As :func:`loss_table_kernel`, for a loss of all examples of an agent; each row of margins is one agent."""
    for k in range(margins.shape[0]):
        value[k] = loss.pool(margins[k], labels)
        loss.slopes(margins[k], labels, slopes[k])


@kernel
def pull_kernel(start, peer, weight, scale, first, theta, out):
    """``out_i += scale sum_j W_ij (theta_i - theta_j)`` for agents from `first` on, one for each row of `out`.

    Computed from differences, because neighbours are nearly equal.
    """
    for k in range(out.shape[0]):
        i = first + k
        mine, pull = theta[i], out[k]  # views: a loop over vectors is several times faster
        for e in range(start[i], start[i + 1]):
            edge, theirs = scale * weight[e], theta[peer[e]]
            for c in range(mine.shape[0]):
                pull[c] += edge * (mine[c] - theirs[c])


@kernel
def project_kernel(radius, blocks, out):
    """Project every row of ``blocks`` onto the l1 ball: ``sign(x) max(|x| - t, 0)``, by Michelot's search for t."""
    for b in range(blocks.shape[0]):
        x, projected = blocks[b], out[b]
        total, count, t = 0.0, x.shape[0], 0.0
        for k in range(x.shape[0]):
            total += abs(x[k])
        while total > radius and count > 0:  # t only grows, and so does the set of coordinates that are cut to zero
            bound = (total - radius) / count if t == 0.0 else t + (total - radius) / count
            total, left = 0.0, 0
            for k in range(x.shape[0]):
                if abs(x[k]) > bound:
                    total += abs(x[k]) - bound
                    left += 1
            t = bound
            if left == count:
                break
            count = left
        for k in range(x.shape[0]):
            size = abs(x[k]) - t
            projected[k] = (size if x[k] > 0.0 else -size) if size > 0.0 else 0.0

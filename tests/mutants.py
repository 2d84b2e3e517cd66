"""Plant faults, one at a time, and see that the tests find each of them: ``make mutants``.

A mutant is a wrong line in a copy of the library. The tests named beside it are run by `make test` or `make test-all`,
and pass without the fault; with it, one of them must fail. A mutant that survives means that something is no longer
proved.

Loops run in plain Python here: it is the same source, and a fault in it would have every kernel compiled anew.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent / "src" / "coterie"


class Mutant(NamedTuple):
    """A fault: in this file, ``before`` (which stands there once) becomes ``after``.

    ``tests`` are files or functions, not cases: of a function, those run that the default run takes.
    """

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]


MUTANTS = (
    # losses
    Mutant(
        "logistic-slope",
        "core/losses.py",
        "return -label * (e if t > 0.0 else 1.0) / (1.0 + e)",
        "return label * (e if t > 0.0 else 1.0) / (1.0 + e)",
        ("tests/contract/test_losses.py::test_every_loss_keeps_its_contract",),
    ),
    Mutant(
        "huber-prox",
        "core/losses.py",
        "center - step * min(max(r / (1.0 + step), -self.delta), self.delta)",
        "center - step * min(max(r, -self.delta), self.delta)",
        ("tests/contract/test_losses.py::test_every_loss_keeps_its_contract",),
    ),
    Mutant(
        "smooth-hinge-bound",
        "core/losses.py",
        "        return 1.0 / self.gamma\n",
        "        return 0.5 / self.gamma\n",
        ("tests/contract/test_losses.py::test_every_loss_keeps_its_contract",),
    ),
    # methods
    Mutant(
        "descent-step",
        "core/methods/descent.py",
        "lipschitz = 2.0 * data.smooth * degree + a * curvature",
        "lipschitz = data.smooth * degree + a * curvature",
        ("tests/engines/test_replay.py::test_coordinate_descent",),
    ),
    Mutant(
        "admm-half",
        "core/methods/admm.py",
        "edges.mine[slot, k] += 0.5 * (2.0 * text[p + k]",
        "edges.mine[slot, k] += 0.7 * (2.0 * text[p + k]",
        ("tests/engines/test_replay.py::test_admm_gossip",),
    ),
    Mutant(
        "admm-two-rho",
        "core/methods/admm.py",
        "edges.mine[slot, k] = z - mine / mean * (z - edges.mine[slot, k])",
        "edges.mine[slot, k] = z - mean / mine * (z - edges.mine[slot, k])",
        ("tests/engines/test_replay.py::test_ends_of_an_edge_with_two_rho_keep_its_z_and_its_multipliers",),
    ),
    Mutant(
        "admm-residual",
        "core/methods/admm.py",
        "dual += 2.0 * rho * rho * step * step",
        "dual += rho * rho * step * step",
        ("tests/engines/test_replay.py::test_residuals_of_an_edge_are_those_of_admm",),
    ),
    Mutant(
        "djam-weight",
        "core/methods/djam.py",
        "weight = 2.0 * data.smooth * degree",
        "weight = data.smooth * degree",
        ("tests/engines/test_replay.py::test_djam",),
    ),
    Mutant(
        "propagation-round",
        "core/methods/propagation.py",
        "        update(data, me, edges, outbox.scratch)\n        send(outbox, EVERYONE, MODEL, me.theta)",
        "        send(outbox, EVERYONE, MODEL, me.theta)\n        update(data, me, edges, outbox.scratch)",
        ("tests/engines/test_replay.py::test_mp_synchronous",),
    ),
    Mutant(
        "boosting-stride",
        "core/methods/boosting.py",
        "return 2.0 / (clock + rule.head + 2.0)",
        "return 2.0 / (clock + rule.head + 3.0)",
        ("tests/engines/test_boosting.py::test_steps_are_those_of_the_paper",),
    ),
    Mutant(
        "gossip-flow",
        "core/methods/pooling.py",
        "edges.flow[slot, k] = -message.text[k]",
        "edges.flow[slot, k] = message.text[k]",
        ("tests/engines/test_gossip_pooling.py::test_no_message_can_take_away_or_add_to_the_sum",),
    ),
    Mutant(
        "newton-without-ridge",
        "core/proximal.py",
        "weight * center[k] / kappa, math.sqrt(a / kappa)",
        "weight * center[k] / kappa, math.sqrt(a / weight)",
        ("tests/engines/test_replay.py::test_newton_ends_where_the_gradient_is_zero",),
    ),
    # what wraps a method
    Mutant(
        "graph-log-slope",
        "core/wrap/graph_objective.py",
        "2.0 * lam * weight[l] - 1.0 / degree - 1.0",
        "2.0 * lam * weight[l] + 1.0 / degree - 1.0",
        (
            "tests/unit/test_graph_objective.py::test_proximal_steps_never_increase_the_objective_and_end_at_the_block_solution",
        ),
    ),
    Mutant(
        "edge-weights-differ",
        "core/wrap/learned.py",
        "tell(peer, line[NEW], stamp, square, outbox)",
        "tell(peer, 0.5 * line[NEW], stamp, square, outbox)",
        ("tests/contract/test_graph_rules.py::test_every_graph_rule_keeps_its_promise",),
    ),
    Mutant(
        "trimmed-count",
        "core/trimming.py",
        "min(int(fraction * neighbours + ROUNDING_TOLERANCE), ",
        "min(int(0.5 * fraction * neighbours + ROUNDING_TOLERANCE), ",
        ("tests/engines/test_robust.py::test_copies_are_what_was_said_or_the_trimmed_mean_of_it",),
    ),
    Mutant(
        "others-degree",
        "core/wrap/learned.py",
        "max(0.0, degree - weight)",
        "max(0.0, degree)",
        ("tests/contract/test_graph_rules.py::test_every_graph_rule_keeps_its_promise",),
    ),
    # privacy
    Mutant(
        "clip-ignored",
        "core/private/mechanism.py",
        """unit = math.copysign(GRID / norm, slope) if abs(slope) * norm > clip else slope * (GRID / clip)
        if not math.isfinite(unit):  # no row can balance this slope
            continue
        if grid_size(data.rows, r, unit, laplace) > limit:""",
        """unit = slope * (GRID / clip)
        if not math.isfinite(unit):
            continue
        if limit < 0:""",
        ("tests/privacy/test_private.py::test_sums_are_those_of_the_clipped_gradients",),
    ),
    Mutant(
        "noise-for-one-clip",
        "core/private/mechanism.py",
        "1.0 - terms.loss_fraction, 2 * GRID)",
        "1.0 - terms.loss_fraction, GRID)",
        ("tests/privacy/test_private.py::test_descent_is_the_noisy_step_of_the_paper",),
    ),
    Mutant(
        "debit-one-more",
        "core/private/account.py",
        "spent <= limit * (1.0 + ROUNDING_SLACK)",
        "account[SPENT] < limit * (1.0 + ROUNDING_SLACK)",
        ("tests/privacy/test_ledger.py::test_a_refusal_changes_nothing",),
    ),
    Mutant(
        "debit-one-fewer",
        "core/private/account.py",
        "if k >= cost.shape[0]:",
        "if k >= cost.shape[0] - 1:",
        ("tests/privacy/test_ledger.py::test_the_rule",),
    ),
    Mutant(
        "debit-not-synced",
        "_journal.py",
        "        sync(fd)\n        self.size += len(content)",
        "        self.size += len(content)",
        ("tests/privacy/test_ledger.py::test_a_record_is_on_disk_before_debit_returns",),
    ),
    Mutant(
        "torn-record-not-spent",
        "privacy/ledger.py",
        "            if k == NOTHING:\n                journal.cut()",
        "            if k >= NOTHING:\n                journal.cut()",
        ("tests/privacy/test_ledger.py::test_a_crash_at_any_system_call_of_a_recovery",),
    ),
    Mutant(
        "budget-renewed-by-restart",
        "privacy/ledger.py",
        "        self._replay(journal)\n",
        "        self._replay(journal)\n        self._account[:] = 0.0\n",
        ("tests/privacy/test_ledger.py::test_what_was_spent_stays_spent",),
    ),
    Mutant(
        "peer-budget-renewed-by-restart",
        "engines/peer.py",
        "            self._own.account[0] = self._ledger.account  #",
        "            pass  #",
        ("tests/privacy/test_private.py::test_a_peer_made_anew_has_what_is_left",),
    ),
    Mutant(
        "cost-forgotten-by-restart",
        "privacy/ledger.py",
        "        self._replay(journal)\n",
        "        self._replay(journal)\n        self._account[1] = 0.0\n",
        ("tests/privacy/test_ledger.py::test_what_was_spent_stays_spent",),
    ),
    Mutant(
        "vote-sensitivity",
        "core/private/boosting.py",
        "terms.noise[release] * (2 * SENSITIVITY)",
        "terms.noise[release] * SENSITIVITY",
        ("tests/privacy/test_private_boosting.py::test_vertices_are_chosen_as_often_as_the_mechanism_says",),
    ),
    Mutant(
        "debit-after-the-noise",
        "engines/peer.py",
        "self._ledger.debit()  # before the noise is drawn: a crash loses budget, and never spends it twice\n"
        "        if dice is None:\n"
        "            # the key of the noise: no bit of it exists before\n"
        "            dice = system_dice(self.method.traffic.dice)\n",
        "pass\n"
        "        if dice is None:\n"
        "            dice = system_dice(self.method.traffic.dice)\n"
        "        if releases:\n"
        "            self._ledger.debit()\n",
        ("tests/privacy/test_order.py::test_a_debit_is_durable_before_its_noise_is_drawn",),
    ),
    Mutant(
        "release-lost-by-power",
        "_files.py",
        "    os.fsync(fd)\n",
        "    os.fstat(fd)\n",
        ("tests/privacy/test_order.py::test_no_more_noise_is_ever_drawn_than_was_paid_for",),
    ),
    Mutant(
        "seeded-noise",
        "core/arrays.py",
        "    return (np.frombuffer(os.urandom(8 * count), np.uint64) >> np.uint64(11)) * 2.0**-53",
        "    return _SEEDED.random(count)\n\n\n_SEEDED = np.random.default_rng(0)",
        ("tests/privacy/test_order.py::test_a_member_of_a_group_keeps_the_order",),
    ),
    Mutant(
        "gaussian-cut-at-six",
        "core/private/noise.py",
        "        while _series(stream, 1, 2):\n            k += 1\n",
        "        while k < 6 and _series(stream, 1, 2):\n            k += 1\n",
        ("tests/privacy/test_exact_laws.py::test_every_number_has_its_probability",),
    ),
    Mutant(
        "gaussian-tail-rate",
        "core/private/noise.py",
        "        trials = k * (k - 1)\n",
        "        trials = min(k, 6) * (k - 1)\n",
        ("tests/privacy/test_exact_laws.py::test_every_number_has_its_probability",),
    ),
    Mutant(
        "laplace-cut",
        "core/private/noise.py",
        "        while _series(stream, 1, 1):\n            v += 1\n",
        "        while v < 20 and _series(stream, 1, 1):\n            v += 1\n",
        ("tests/privacy/test_exact_laws.py::test_every_number_has_its_probability",),
    ),
    Mutant(
        "laplace-tail-rate",
        "core/private/noise.py",
        "        while _series(stream, 1, 1):\n            v += 1\n",
        "        while _series(stream, 1, 1 if v < 12 else 2):\n            v += 1\n",
        ("tests/privacy/test_exact_laws.py::test_every_number_has_its_probability",),
    ),
    Mutant(
        "clear-winner-taken",
        "core/private/noise.py",
        "        if bernoulli_exp(stream, best - int(scores[r]), scale):",
        "        if best - int(scores[r]) < 20 * scale and bernoulli_exp(stream, best - int(scores[r]), scale):",
        ("tests/privacy/test_exact_laws.py::test_a_clear_winner_does_not_always_win",),
    ),
    Mutant(
        "clear-vertex-taken",
        "core/private/boosting.py",
        "    choice = exponential_choice(",
        """    first = int(np.argmax(scores))
    if scores[first] - np.sort(scores)[-2] > 5 * scale:
        return first + 1 if first < p else p - first - 1
    choice = exponential_choice(""",
        ("tests/privacy/test_exact_laws.py::test_a_vertex_that_loses_clearly_is_sent_at_times",),
    ),
    Mutant(
        "votes-of-no-number",
        "core/private/boosting.py",
        "            if not math.isnan(part):\n",
        "            if part == part or part != part:\n",
        ("tests/privacy/test_private_boosting.py::test_absurd_examples_have_no_part",),
    ),
    Mutant(
        "run-publishes-clean-models",
        "engines/simulator.py",
        "published=driver.theta.copy()",
        "published=driver.final.copy()",
        ("tests/privacy/test_published.py::test_a_run_publishes_what_it_would_without_a_final_step",),
    ),
    Mutant(
        "file-publishes-clean-model",
        "peers/model/scores.py",
        '"published": node.theta.tolist()',
        '"published": theta.tolist()',
        ("tests/privacy/test_published.py::test_the_model_file_of_a_peer",),
    ),
    Mutant(
        "peer-sends-clean-model",
        "engines/peer.py",
        "        loop.meet(*self._state())\n",
        "        if self.method.final is not None:\n            self._own.theta[0] = self.final\n"
        "        loop.meet(*self._state())\n",
        ("tests/privacy/test_published.py::test_peers_send_nothing_else",),
    ),
    Mutant(
        "ledger-of-two",
        "privacy/ledger.py",
        "if not follows or record",
        "if record",
        ("tests/privacy/test_ledger.py::test_a_record_of_another_ledger",),
    ),
    # what comes from others, and what a group agrees on
    Mutant(
        "gate-any-norm",
        "core/messages.py",
        "if not norm <= self.bounds.radius:",
        "if norm != norm:",
        ("tests/peers/test_gate.py::test_what_any_method_is_sent",),
    ),
    Mutant(
        "gate-replay",
        "peers/wire/gate.py",
        "packet.sequence <= last[1]",
        "packet.sequence < last[1]",
        ("tests/peers/test_gate.py::test_the_order_of_numbers",),
    ),
    Mutant(
        "question-answered-twice",
        "peers/node/freshness.py",
        "        del self._asked[j]\n",
        "",
        ("tests/peers/test_gate.py::test_a_question_is_answered_once",),
    ),
    Mutant(
        "fork-unseen",
        "peers/group/roster.py",
        "return reached or (version, digest) in new.history",
        "return True",
        ("tests/peers/test_roster.py::test_a_fork_is_seen_from_both_sides_whatever_the_versions",),
    ),
    Mutant(
        "hand-over-forgotten",
        "peers/group/roster.py",
        "before = [] if held is None else held.delegations",
        "before = []",
        ("tests/peers/test_roster.py::test_who_has_handed_over_signs_no_more",),
    ),
    Mutant(
        "gate-any-member",
        "peers/wire/gate.py",
        "if packet.sender != owner:",
        "if packet.sender not in self._keys:",
        ("tests/peers/test_gate.py::test_impersonation",),
    ),
    Mutant(
        "resilient-evidence",
        "core/laplace.py",
        "return -level - 0.5 * log_det",
        "return -level + 0.5 * log_det",
        ("tests/engines/test_resilient_pooling.py::test_evidence_and_mode_are_those_of_the_marginal_distribution",),
    ),
    Mutant(
        "gate-unsigned",
        "peers/wire/gate.py",
        "if not is_signed(key, signature, signed):",
        "if not signature:",
        ("tests/peers/test_gate.py::test_a_forged_message_does_not_count",),
    ),
    Mutant(
        "transport-any-name",
        "peers/transport/hub.py",
        "if proof.name != channel.expect:",
        "if proof.name == self.me:",
        ("tests/peers/test_transports.py::test_messages_do_not_go_to_who_sits_at_anothers_endpoint",),
    ),
    Mutant(
        "transport-any-run",
        "peers/transport/proofs.py",
        "tls.selected_alpn_protocol() == self._protocol",
        "bool(self._protocol)",
        ("tests/peers/test_transports.py::test_another_run_is_another_group",),
    ),
    Mutant(
        "transport-no-revocation",
        "peers/transport/hub.py",
        'channel.fail("revoked")\n            elif name not in self.admitted:',
        "pass\n            elif name not in self.admitted:",
        ("tests/peers/test_transports.py::test_tls_keeps_the_contract",),
    ),
    Mutant(
        "transport-any-pre-authentication",
        "peers/transport/proofs.py",
        "if not is_signed(self._keys[name], signature, _signed(name, self._me, moment)):",
        "if not signature:",
        ("tests/peers/test_front.py::test_a_preauth_is_good_once_for_one_and_from_one",),
    ),
    Mutant(
        "transport-old-pre-authentication",
        "peers/transport/proofs.py",
        "moment > self._last.get(name, 0) and ",
        "",
        ("tests/peers/test_front.py::test_a_preauth_is_good_once_for_one_and_from_one",),
    ),
    Mutant(
        "transport-nobody-pre-authentications",
        "peers/transport/front.py",
        "stranger.preauthenticated = name",
        "self._preauths_of[name].rate += 0.0",
        ("tests/peers/test_front.py::test_strangers_at_a_members_own_address_do_not_keep_it_out",),
    ),
    Mutant(
        "transport-seal-both-ways",
        "peers/transport/proofs.py",
        "return text[len(mark) :] if text.startswith(mark) else None",
        "return text[len(mark) :]",
        ("tests/peers/test_transports.py::test_seals_are_good_for_one_way_only",),
    ),
    Mutant(
        "transport-all-descriptors",
        "peers/transport/front.py",
        "if len(own) > most_of_one:",
        "if len(own) > 10 * most_of_one:",
        ("tests/peers/test_front.py::test_those_go_first_that_say_nothing",),
    ),
    Mutant(
        "charter-any-trim",
        "peers/group/charter.py",
        "Meta(ge=0, lt=0.5)",
        "Meta(ge=0, le=0.5)",
        ("tests/peers/test_charter.py::test_every_field_has_its_bounds",),
    ),
    Mutant(
        "charter-any-message",
        "peers/group/charter.py",
        "Meta(ge=1_000, le=MAX_MESSAGE_BYTES)",
        "Meta(ge=1_000)",
        ("tests/peers/test_charter.py::test_every_field_has_its_bounds",),
    ),
    # accounts
    Mutant(
        "numbers-counted-once",
        "core/loop.py",
        "account[NUMBERS] += messages * length",
        "account[NUMBERS] += length",
        ("tests/engines/test_replay.py::test_coordinate_descent",),
    ),
    Mutant(
        "kinds-counted-once",
        "core/loop.py",
        "account[KINDS + 2 * kind + 1] += messages * length",
        "account[KINDS + 2 * kind + 1] += length",
        ("tests/engines/test_boosting.py::test_a_wake_sends_a_few_numbers_to_each_neighbour",),
    ),
    Mutant(
        "one-header-for-all",
        "engines/wire.py",
        "return HEADER_SIZE * messages + NUMBER_SIZE * numbers",
        "return HEADER_SIZE + NUMBER_SIZE * numbers",
        ("tests/contract/test_graph_rules.py::test_every_graph_rule_keeps_its_promise",),
    ),
    Mutant(
        "loss-not-counted",
        "core/events.py",
        "                copies = 0\n                account[LOST] += 1\n",
        "                copies = 0\n",
        ("tests/engines/test_mail.py::test_what_is_sent_is_received_lost_or_doubled",),
    ),
    Mutant(
        "duplication-not-counted",
        "core/events.py",
        "                account[DUPLICATED] += 1\n",
        "",
        ("tests/engines/test_mail.py::test_what_is_sent_is_received_lost_or_doubled",),
    ),
    Mutant(
        "loss-away-not-counted",
        "core/events.py",
        "            if queue.away[k] > 0:\n                account[LOST] += 1\n",
        "            if queue.away[k] > 0:\n                account[LOST] += 0\n",
        ("tests/engines/test_simulate.py::test_an_agent_that_is_away_for_good",),
    ),
    # pooling, relationships, values and words
    Mutant(
        "evidence-prior",
        "pooling/population.py",
        "0.5 * (q - 1) * np.log(r) - 0.5 * log_det",
        "0.5 * q * np.log(r) - 0.5 * log_det",
        ("tests/pooling/test_population.py::test_the_evidence_of_squared_losses_is_the_marginal_likelihood",),
    ),
    Mutant(
        "left-out-variance",
        "pooling/sample.py",
        "* s / left, s / left",
        "* s / left, s",
        ("tests/pooling/test_population.py::test_a_row_left_out_is_really_left_out",),
    ),
    Mutant(
        "gap-too-small",
        "core/dual_ascent.py",
        "out[k, 2] += row_weight[k] * max",
        "out[k, 2] += 0.5 * row_weight[k] * max",
        ("tests/unit/test_relationship.py::test_value_and_bound_are_those_of_the_workers_dual_variables",),
    ),
    Mutant(
        "rules-equal-by-fields",
        "core/rules.py",
        "return (type(value), *map(_content, value))",
        "return tuple(map(_content, value))",
        ("tests/unit/test_rules.py::test_rules_are_values",),
    ),
    Mutant(
        "proof-of-a-solved-system-only",
        "problem/exact/certificate.py",
        "found = np.maximum(known + unknown, 0.0)",
        "found = np.maximum(known, 0.0)",
        ("tests/unit/test_exact.py::test_a_proof_does_not_need_a_solved_system",),
    ),
    Mutant(
        "unseen-directions-kept",
        "problem/exact/apart.py",
        "self.flat = flat = unseen(self.batch.bend(self.batch.scale), free)",
        "flat = None",
        ("tests/unit/test_exact.py::test_of_several_local_models_the_one_of_least_norm",),
    ),
    Mutant(
        "coupling-inverted",
        "problem/coupling.py",
        "return coupling if objective in MU_IS_AGREEMENT else 1.0 / coupling",
        "return coupling if objective not in MU_IS_AGREEMENT else 1.0 / coupling",
        ("tests/unit/test_coupling.py::test_more_coupling_is_more_agreement",),
    ),
    # splits, shifts and files of other benchmarks
    Mutant(
        "dirichlet-prior",
        "datasets/splits/labels.py",
        "alpha * supply / supply.sum()",
        "alpha * np.ones(supply.size) / supply.size",
        ("tests/unit/test_splits.py",),
    ),
    Mutant(
        "dirichlet-order",
        "datasets/splits/labels.py",
        "order = rng.permutation(sizes.size)",
        "order = np.arange(sizes.size)",
        ("tests/unit/test_splits.py",),
    ),
    Mutant(
        "largest-remainder",
        "datasets/splits/sizes.py",
        "-(exact - parts).round(9)",
        "(exact - parts).round(9)",
        ("tests/unit/test_splits.py",),
    ),
    Mutant(
        "stratified",
        "datasets/splits/labels.py",
        "np.lexsort((rng.random(data.n_rows), label, data.owner))",
        "np.lexsort((rng.random(data.n_rows), data.owner))",
        ("tests/unit/test_splits.py",),
    ),
    Mutant(
        "turned-columns",
        "datasets/splits/shifts.py",
        "cos * first - sin * second",
        "cos * first + sin * second",
        ("tests/unit/test_shifts.py",),
    ),
    Mutant(
        "drift-scale",
        "datasets/splits/shifts.py",
        "lambda scale, part: scale**part",
        "lambda scale, part: scale",
        ("tests/unit/test_shifts.py",),
    ),
    Mutant(
        "calls-of-any-name",
        "datasets/object_arrays.py",
        "if name in MAKE_ARRAY and arguments[0] == _Name(ARRAY):",
        "if name not in (DTYPE, *MAKE_NUMBER):",
        ("tests/unit/test_federated.py",),
    ),
)


def planted(mutant: Mutant, folder: Path) -> None:
    """Copy the library to a folder, with the fault in it."""
    shutil.copytree(PACKAGE, folder / "coterie", ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "coterie" / mutant.file
    text = path.read_text()
    if text.count(mutant.before) != 1:
        raise SystemExit(f"{mutant.name}: {mutant.before!r} stands {text.count(mutant.before)} times in {mutant.file}")
    path.write_text(text.replace(mutant.before, mutant.after))


def pass_on(source: Path, tests: list[str], cache: Path) -> tuple[bool, str]:
    """Whether the tests pass on the library in this folder, and what they said."""
    ours = {"PYTHONPATH": os.pathsep.join([str(source), str(HERE.parent)]), "COTERIE_PLAIN": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "slow or not slow", *tests]
    environment = {**os.environ, **ours, "COTERIE_CACHE": str(cache), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=HERE.parent, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):  # 1: tests failed; anything else: they did not run
        raise SystemExit(f"pytest ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.returncode == 0, done.stdout


def is_killed(mutant: Mutant, cache: Path) -> bool:
    """Do the tests that are named for it fail on this fault, those of the default run or of `make test-all`?"""
    with tempfile.TemporaryDirectory() as folder:
        planted(mutant, Path(folder))
        return not pass_on(Path(folder), list(mutant.tests), cache)[0]


def main() -> int:
    """Say of every mutant whether it was killed; 1 if one survives."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="name", help="only these; default: all")
    names = parser.parse_args().names
    unknown = set(names) - {mutant.name for mutant in MUTANTS}
    if unknown:
        parser.error(f"there is no mutant {', '.join(sorted(unknown))}")
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        # Tests that fail anyway would prove nothing.
        tests = sorted({test for mutant in chosen for test in mutant.tests})
        passed, said = pass_on(PACKAGE.parent, tests, cache)
        if not passed:
            raise SystemExit(f"{said}\nthese tests fail without any fault: mend them first")
        print(f"without a fault  {said.splitlines()[-1]}", flush=True)
        for mutant in chosen:
            start = time.perf_counter()
            killed = is_killed(mutant, cache)
            word, seconds = "killed  " if killed else "SURVIVED", time.perf_counter() - start
            print(f"{word}  {seconds:5.1f} s  {mutant.name}", flush=True)
            survivors += [] if killed else [mutant.name]
    print(f"{len(survivors)} of {len(chosen)} survived" if survivors else f"all {len(chosen)} killed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())

"""Another charter for the same group: proposed by the admin, accepted by each member, begun from what was learned."""

import os
import shutil
import stat

import msgspec
import numpy as np
import pytest
from club import Club, snapshot
from small_group import SmallGroup
from tls_people import contact_of, eventually, free_endpoint, seed_of
from typed import said, typed

from coterie.errors import DataError, ParameterError
from coterie.peers.group import amendments
from coterie.peers.group.announcements import CHARTER, Announcement, read_announcement, sign_announcement, signed_in
from coterie.peers.group.charter import charter_in, make_charter
from coterie.peers.group.groups import enroll, invite, join, load_group, membership, request
from coterie.peers.group.identity import Identity
from coterie.peers.group.renewal import post, update
from coterie.peers.node.mailbox import NOBODY
from coterie.peers.node.past import _converted
from coterie.peers.node.process import only_one
from coterie.peers.node.state import FileStore, read_record, write_record
from coterie.peers.transport.over_tls import TlsTransport
from coterie.privacy import Ledger

pytestmark = pytest.mark.plain


@pytest.fixture
def club(tmp_path):
    return Club(tmp_path)


def proposal(club, run=None):
    signed = (club.group / f"announcements/charter-{run or club.charter.run}").read_bytes()
    return read_announcement(signed, {club.charter.admin})


# -- the admin -------------------------------------------------------------------------------------------------------


def test_a_new_run_of_the_same_members(club):
    old = load_group(club.group)
    new = amendments.amend(club.group, coupling=2.0, title="again")
    loaded = load_group(club.group)
    assert loaded.charter == new
    assert (new.amends, new.admin, new.coupling) == (old.charter.run, old.charter.admin, 2.0)
    assert new.run != old.charter.run
    for name in ("members", "edges", "relays", "addresses", "revoked"):
        assert getattr(loaded.roster, name) == getattr(old.roster, name)
    assert (loaded.roster.run, loaded.roster.version, loaded.roster.history) == (new.run, 1, [])
    assert (loaded.register, loaded.ca) == (old.register, old.ca)
    aside = club.group / "runs" / old.charter.run
    assert charter_in(aside) == old.charter
    assert stat.S_IMODE(aside.stat().st_mode) == 0o700
    found = amendments.read_amendment(proposal(club))
    assert (found.charter, found.roster) == (new, (club.group / "roster").read_bytes())


def test_there_and_back_is_another_run(club):
    """Or an old roster would be good again."""
    runs = {
        club.charter.run,
        amendments.amend(club.group, coupling=2.0).run,
        amendments.amend(club.group, coupling=1.0).run,
    }
    assert len(runs) == 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"coupling": 1.0}, "nothing would change"),
        ({}, "nothing would change"),
        ({"coupling": -1.0}, "coupling"),
        ({"admin": bytes(32)}, "'admin' cannot be changed"),
        ({"amends": None}, "'amends' cannot be changed"),
        ({"colour": 1}, "'colour' cannot be changed: choose from title"),
        ({"method": "nothing"}, "method='nothing' is not known"),
        ({"loss": "logistic"}, "loss='logistic' is for classes"),
    ],
)
def test_what_cannot_be_a_charter_is_not_proposed(tmp_path, changes, words):
    club = Club(tmp_path, ("ann",))
    before = snapshot(club.group)
    with pytest.raises(ParameterError) as refused:
        amendments.amend(club.group, **changes)
    assert words in str(refused.value)
    assert snapshot(club.group) == before


def test_what_no_message_of_the_old_run_can_carry_is_refused(tmp_path):
    club = Club(tmp_path, message_bytes=1000)
    before = snapshot(club.group)
    with pytest.raises(ParameterError, match=r"the new charter with its roster takes \d+ bytes, and messages"):
        amendments.amend(club.group, message_bytes=400_000)
    assert {path: content for path, content in snapshot(club.group).items() if "runs" not in path} == before
    assert load_group(club.group).charter == club.charter


def test_messages_follow_the_rate_where_nobody_said_otherwise(tmp_path):
    usual = {"messages_per_second": 50.0}
    assert amendments.amend(Club(tmp_path / "a", ("ann",), **usual).group, rate=10.0).messages_per_second == 250.0
    assert amendments.amend(Club(tmp_path / "b", ("ann",)).group, rate=10.0).messages_per_second == 1e6


def test_changes_as_they_are_typed():
    charter = make_charter(
        features=["a", "b"], target="y", objective="personalized", method="cd", privacy={"epsilon": 1.0},
        admin=bytes(32),
    )  # fmt: skip
    typed = ["coupling=2", "title=7", "features=a, b ,c", "center=0,1,2", "ridge=1/m", "intercept=false"]
    assert amendments.changes_of(charter, typed) == {
        "coupling": 2, "title": "7", "features": ["a", "b", "c"], "center": [0.0, 1.0, 2.0], "ridge": "1/m",
        "intercept": False,
    }  # fmt: skip
    assert amendments.changes_of(charter, ["privacy=none"]) == {"privacy": None}
    assert amendments.changes_of(charter, ["privacy.epsilon=3", "privacy.delta=1e-6"]) == {
        "privacy": {"epsilon": 3, "delta": 1e-6}
    }
    assert amendments.changes_of(charter, ["privacy.epsilon=none"]) == {"privacy": {}}
    assert amendments.changes_of(charter, ["learned.kappa=2"]) == {"learned": {"kappa": 2}}
    for bad in ("coupling", "=1", "title.x=1"):
        with pytest.raises(ParameterError, match="--set"):
            amendments.changes_of(charter, [bad])


# -- a member ----------------------------------------------------------------------------------------------------------


def test_members_hear_of_it_accept_it_and_go_on_from_their_models(club):
    """From the command of the admin to the messages of the new run."""
    club.start().run(20.0)
    new = said("group", "amend", club.group, "--set", "coupling=4", "--set", "rate=2")["run"]
    said("peer", "update", club.root / "ann", club.group / "announcements")
    club.run_until(lambda: all(program.maintenance.proposal for program in club.programs.values()))
    for name in club.names:
        shown = club.programs[name].maintenance.proposal
        assert shown["run"] == new
        assert shown["changes"] == "coupling: 1.0 -> 4.0; rate: 1.0 -> 2.0"
        told = [event for event in club.events(name) if event["event"] == "proposal"]
        assert len(told) == 1
        assert f"accept with coterie peer accept {club.root / name}" in told[0]["what"]
    club.run(5.0)
    models = {name: program.node.theta for name, program in club.programs.items()}
    keys = {name: (club.root / name / "sign.key").read_bytes() for name in club.names}
    club.stop()
    for name in club.names:
        assert said("peer", "accept", club.root / name, new) == {
            "run": new, "changes": ["coupling", "rate"], "notes": [], "running": False,
        }  # fmt: skip
        joined = membership(club.root / name)
        assert (joined.charter.run, joined.roster.version) == (new, 1)
        assert (club.root / name / "sign.key").read_bytes() == keys[name]
        aside = club.root / name / "runs" / club.charter.run
        assert {path.name for path in aside.iterdir()} == {"charter.json", "roster", "state", "model.json"}
    club.start()
    assert "begins from what was learned" in club.words
    for name, program in club.programs.items():
        assert np.allclose(program.node.theta, models[name])
        assert program.node.wakes == 0
    club.run(20.0)
    messages = [program.node.mail.received["messages"] for program in club.programs.values()]
    assert min(messages) > 0
    assert not any(program.node.mail.gate.refused["run"] for program in club.programs.values())
    moved = [np.abs(program.node.theta - models[name]).max() for name, program in club.programs.items()]
    assert min(moved) > 1e-6  # towards another optimum


def test_without_a_proposal_and_with_another_run(club):
    ann = club.root / "ann"
    with pytest.raises(DataError, match="ann has received no charter other"):
        amendments.accept(ann)
    new = amendments.amend(club.group, coupling=2.0)
    update(ann, club.group / "announcements")
    before = snapshot(ann)
    with pytest.raises(DataError, match=f"proposes run {new.run}, and not"):
        amendments.accept(ann, "0" * 32)
    assert snapshot(ann) == before
    assert amendments.accept(ann, new.run).charter == new
    with pytest.raises(DataError, match="has received no charter other"):
        amendments.accept(ann)


def test_several_amendments_are_accepted_at_once(club):
    amendments.amend(club.group, coupling=2.0)
    last = amendments.amend(club.group, ridge=0.2)
    update(club.root / "ann", club.group)
    done = amendments.accept(club.root / "ann")
    assert done.charter == last
    assert amendments.in_words(done.changes) == "coupling: 1.0 -> 2.0; ridge: 0.1 -> 0.2"
    assert (club.root / "ann/runs" / club.charter.run).is_dir()
    middle = charter_in(club.group / "runs" / last.amends)
    held = {one.topic: one for one in (proposal(club), proposal(club, middle.run))}
    assert amendments.proposed(held, middle).charter == last
    assert amendments.proposed(held, last) is None


def test_nobody_but_the_admin_amends(club):
    eve = Identity.load(club.root / "bob").signing_key
    loaded = load_group(club.group)
    mine = msgspec.structs.replace(loaded.charter, coupling=9.0, amends=loaded.charter.run)
    body = msgspec.msgpack.encode(amendments.Amendment(mine, (club.group / "roster").read_bytes()))
    forged = sign_announcement(Announcement(CHARTER, loaded.charter.run, 1, body), eve, 10**6, "it")
    (club.root / "forged").write_bytes(forged)
    with pytest.raises(DataError):
        update(club.root / "ann", club.root / "forged")
    club.start("ann", "bob").run(2.0)
    node = club.programs["ann"].node
    node.take_announcements(club.now, [forged])
    assert node.mail.gate.refused["signature"] == 1
    # One that was signed for another run is not one for this; and one with a roster that nobody signed is none at all.
    amendments.amend(club.group, coupling=2.0)
    good = amendments.read_amendment(proposal(club))
    with pytest.raises(DataError, match="says that it follows run"):
        amendments.read_amendment(Announcement(CHARTER, "0" * 32, 1, msgspec.msgpack.encode(good)))
    with pytest.raises(DataError):
        amendments.read_amendment(
            Announcement(
                CHARTER, club.charter.run, 1, msgspec.msgpack.encode(amendments.Amendment(good.charter, b"x" * 100))
            )
        )
    stranger = make_charter(features=["a"], target="y", admin=bytes(32), amends=club.charter.run)
    with pytest.raises(DataError):
        amendments.read_amendment(
            Announcement(
                CHARTER, club.charter.run, 1, msgspec.msgpack.encode(amendments.Amendment(stranger, good.roster))
            )
        )


def test_a_charter_that_cannot_be_read_is_an_error_and_no_more(club):
    loaded = load_group(club.group)
    post(loaded, CHARTER, club.charter.run, b"nonsense", "it")
    club.start("ann")
    club.programs["ann"].node.take_announcements(club.now, signed_in(club.group / "announcements"))
    club.run(3.0)
    assert club.programs["ann"].maintenance.proposal is None
    assert [event for event in club.events("ann") if "cannot be read" in event.get("what", "")]
    with pytest.raises(DataError):
        amendments.accept(club.root / "ann")


def test_one_that_this_version_cannot_make_is_not_accepted(club, monkeypatch):
    amendments.amend(club.group, coupling=2.0)
    update(club.root / "ann", club.group / "announcements")
    before = snapshot(club.root / "ann")

    def refuse(charter):
        raise ParameterError("method='later' is not known")

    monkeypatch.setattr("coterie.peers.model.work.check_parts", refuse)
    with pytest.raises(DataError, match="cannot be used with this version"):
        amendments.accept(club.root / "ann")
    assert snapshot(club.root / "ann") == before


def test_who_is_not_in_the_new_list_cannot_accept(club):
    from coterie.peers.group.groups import remove

    remove(club.group, "ann")
    amendments.amend(club.group, coupling=2.0)
    update(club.root / "ann", club.group / "announcements")
    with pytest.raises(DataError, match="leaves 'ann' out"):
        amendments.accept(club.root / "ann")


def test_a_running_peer_notices_and_begins_again(club):
    club.start("ann").run(3.0)
    amendments.amend(club.group, coupling=2.0)
    with only_one(club.root / "ann"):  # as a process does
        update(club.root / "ann", club.group / "announcements")
        assert amendments.accept(club.root / "ann").running
        assert amendments.waits(club.root / "ann")
        assert membership(club.root / "ann").charter == club.charter  # nothing is taken from under it
        club.run(2.0)
        assert club.programs["ann"].again
        assert club.programs["ann"]._stopping
    club.stop("ann")
    assert amendments.settle(club.root / "ann")
    assert not amendments.settle(club.root / "ann")
    assert membership(club.root / "ann").charter.coupling == 2.0
    assert "begins from" in club.start("ann").words


def test_a_crash_on_the_way_is_made_good(tmp_path, monkeypatch):
    """Whatever write is the last one."""
    private = {"privacy": {"epsilon": 1.0, "wakes_per_agent": 5}, "confidence": "public"}
    club, left = Club(tmp_path, ("bob", "ann"), **private), [0]
    (club.root / "ann/state").write_bytes(b"the old state")
    old_ledger = (club.root / "ann/ledger").read_bytes()
    new = amendments.amend(club.group, coupling=2.0)
    update(club.root / "ann", club.group / "announcements")

    def crash(act):
        def acting(*given, **named):
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            return act(*given, **named)

        return acting

    for last in range(40):
        ann = tmp_path / f"ann{last}"
        shutil.copytree(club.root / "ann", ann)
        left[0] = last
        with monkeypatch.context() as patch:
            for name in ("replace", "unlink"):
                patch.setattr(os, name, crash(getattr(os, name)))
            try:
                amendments.accept(ann)
                done = True
            except KeyboardInterrupt:
                done = False
        if not done and not amendments.waits(ann):  # it was never accepted
            assert membership(ann).charter == club.charter
            assert (ann / "state").exists()
            continue
        amendments.settle(ann)
        assert membership(ann).charter == new
        past = ann / "runs" / club.charter.run
        assert (past / "state").read_bytes() == b"the old state"
        assert (past / "ledger").read_bytes() == old_ledger
        assert charter_in(past) == club.charter
        with Ledger.open(ann / "ledger") as ledger:
            assert ledger.releases == 0
        assert not (ann / "state").exists()
        if done:
            break
    assert done
    assert last > 5


def test_budgets_add_up_and_the_owner_is_told(tmp_path):
    club = Club(tmp_path, privacy={"epsilon": 1.0, "wakes_per_agent": 5})
    ann = club.root / "ann"
    club.start()
    club.run_until(lambda: club.programs["ann"].node.ledger.releases > 1)
    club.stop()
    done = club.amend("ann", privacy={"epsilon": 2.0, "wakes_per_agent": 5})
    assert any("epsilon 1 + 2 = 3 in all" in note for note in done.notes)
    assert any("begins from zero" in note for note in done.notes)
    with Ledger.open(ann / "runs" / club.charter.run / "ledger") as old, Ledger.open(ann / "ledger") as new:
        assert old.releases > 1
        assert (new.releases, new.committed) == (0, 2.0)
    done = club.amend("ann", privacy={"epsilon": 4.0, "wakes_per_agent": 5})
    assert any("epsilon 1 + 2 + 4 = 7 in all" in note for note in done.notes)
    done = club.amend("ann", privacy=None)
    assert done.notes == ["the new charter is not private: what this peer sends from now on tells of its rows"]
    assert not (ann / "ledger").exists()


def test_a_private_run_begins_from_zeros(club):
    club.start().run(10.0)
    assert np.abs(club.programs["ann"].node.theta).max() > 0.1
    club.stop()
    notes = club.amend("ann", privacy={"epsilon": 1.0}).notes
    assert any("was not private" in note for note in notes)
    club.start("ann")
    assert "a private run begins from zeros" in club.words
    assert not club.programs["ann"].node.theta.any()
    club.stop()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gossip-pooling", "resilient-pooling"])
def test_pooling_keeps_what_it_knows_of_the_population(tmp_path, method):
    club = Club(tmp_path, objective="pooling", method=method)
    club.start().run(30.0)
    before = {name: program.node.peer.own for name, program in club.programs.items()}
    club.stop()
    club.amend(*club.names, rate=3.0)
    club.start()
    for name, program in club.programs.items():
        now = program.node.peer.own
        assert np.array_equal(now.theta, before[name].theta)
        assert np.array_equal(now.shared[:, :-1], before[name].shared[:, :-1])  # the last one is room for a number
        assert now.shared.any()
        assert not any(part.any() for part in program.node.peer.edge)  # nothing between neighbours
    club.run(10.0)
    club.stop()
    other = {"gossip-pooling": "resilient-pooling", "resilient-pooling": "gossip-pooling"}[method]
    club.amend("ann", method=other)  # the model alone
    club.start("ann")
    assert not club.programs["ann"].node.peer.own.shared.any()


# -- models under another charter --------------------------------------------------------------------------------------


def charters(old, new, **both):
    given = {"target": "y", "objective": "personalized", "method": "cd", "admin": bytes(32)} | both
    return make_charter(**given | old), make_charter(**given | new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"features": ["a", "b"]}, {"features": ["a", "b"], "center": [1.0, -2.0], "scale": [2.0, 0.5]}),
        ({"features": ["a", "b"], "center": [1.0, -2.0], "scale": [2.0, 0.5]}, {"features": ["b", "a"]}),
        ({"features": ["a", "b"], "scale": [2.0, 4.0]}, {"features": ["a", "c", "b"], "center": [1.0, 2.0, 3.0]}),
    ],
)
def test_a_model_in_other_units_predicts_the_same(old, new):
    one, other = charters(old, new)
    rng = np.random.default_rng(0)
    rows = {name: rng.normal(size=7) for name in "abc"}

    def predicted(charter, theta):
        X = np.column_stack([rows[name] for name in charter.features])
        X = (X - (charter.center or 0.0)) / (charter.scale or 1.0)
        return np.column_stack([X, np.ones(7)]) @ theta

    theta = rng.normal(size=3)
    moved = _converted(theta, one, other, set(amendments.differences(one, other)))
    assert np.allclose(predicted(one, theta), predicted(other, moved))


def test_a_feature_that_is_gone_is_at_its_centre():
    one, other = charters({"features": ["a", "b"], "center": [0.0, 5.0], "scale": [1.0, 2.0]}, {"features": ["a"]})
    moved = _converted(np.array([1.0, 2.0, 3.0]), one, other, set(amendments.differences(one, other)))
    assert moved.tolist() == [1.0, 3.0]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"labels": None}, {"labels": ["no", "yes"]}),
        ({"target": "y"}, {"target": "z"}),
        ({"intercept": False}, {"intercept": True}),
        ({"intercept": False}, {"intercept": False, "center": [1.0]}),
    ],
)
def test_a_model_of_something_else_is_not_used(old, new):
    one, other = charters(old, new, features=["a"])
    with pytest.raises(DataError):
        _converted(np.ones(1 + one.intercept), one, other, set(amendments.differences(one, other)))


def test_boosting_needs_the_same_stumps():
    boosted = {"features": ["a"], "labels": ["no", "yes"], "objective": "boosting", "method": "boosting"}
    one, other = charters(boosted, boosted | {"settings": {"stumps": 10}})
    with pytest.raises(DataError, match="another settings"):
        _converted(np.ones(3), one, other, set(amendments.differences(one, other)))
    one, other = charters(boosted, boosted | {"coupling": 3.0})
    assert _converted(np.ones(3), one, other, set(amendments.differences(one, other))).tolist() == [1.0, 1.0, 1.0]


def test_a_model_beyond_the_new_radius_is_not_used(club):
    club.start().run(5.0)
    club.stop()
    state = FileStore(club.root / "ann/state")
    record = read_record(state.load())
    far = record.arrays | {"own.theta": ("<f8", [1, 4], np.full(4, 3.0).tobytes())}
    state.save(write_record(msgspec.structs.replace(record, arrays=far)))
    club.amend("ann", radius=4.0)
    node = club.node("ann")
    assert "norm is greater than 4" in club.words
    assert np.linalg.norm(node.theta) <= 4.0  # its own


# -- those who were away -----------------------------------------------------------------------------------------------


def test_one_that_was_away_is_told_by_those_that_have_moved_on(club):
    """All that they can hand to one of another run is what they have for non-members."""
    club.amend("ann", "bob", coupling=2.0)
    club.start("ann").start("cat")
    ann, cat = (club.programs[name].node for name in ("ann", "cat"))
    kept = []
    club.programs["ann"].transport.keep_roster = kept.append
    club.run(2.0)
    assert kept == [ann.group.for_non_members]
    before = cat.mail.gate.refused.copy()
    club.programs["cat"]._receive(club.now, NOBODY, kept[0])
    club.run(3.0)
    assert club.programs["cat"].maintenance.proposal["run"] == ann.charter.run
    assert not (cat.mail.gate.refused - before)["signature"]
    club.stop()
    assert amendments.accept(club.root / "cat").charter == ann.charter


def test_over_tls_members_of_another_run_are_non_members(authority, closing):
    """Although each is a member in the roster of the other."""
    contacts = [contact_of(name, free_endpoint()) for name in ("ann", "bob")]
    came = {"ann": [], "bob": []}
    for contact, run in zip(contacts, ("old", "new"), strict=True):
        transport = closing(
            TlsTransport(
                run, contact.name, contact.address, contact.endpoint, contacts=contacts, seed=seed_of(contact.name),
                credentials=authority.credentials(contact.name),
            )
        )  # fmt: skip
        transport.keep_roster(f"what {contact.name} has".encode())
        transport.open(lambda owner, data: pytest.fail("a message"), came[contact.name].append)
        transport.link(contacts)
    assert eventually(lambda: b"what bob has" in came["ann"] and b"what ann has" in came["bob"])


def test_newcomers_of_the_new_run_know_how_it_came_about(club, tmp_path):
    """So that they can tell others, too."""
    club.amend(*club.names, coupling=2.0)
    club.start()
    enroll(club.group, tmp_path / "dan", "dan", edges={"cat": 1.0})
    club.start("dan")
    club.run_until(lambda: (CHARTER, club.charter.run) in club.programs["dan"].node.group.board.held)


def test_an_invitation_to_the_new_run_says_what_to_do(club):
    amendments.amend(club.group, coupling=2.0)
    with pytest.raises(DataError, match="coterie peer accept"):
        join(club.root / "ann", invite(club.group, request(club.root / "ann")))


def test_a_state_of_another_charter_says_what_to_do():
    from coterie.errors import StateError

    group = SmallGroup().start()
    other = SmallGroup(coupling=2.0)
    with pytest.raises(StateError, match="coterie peer accept FOLDER"):
        other.make(0, store=group.stores[0])


def test_what_the_command_shows(club):
    amendments.amend(club.group, coupling=2.0)
    update(club.root / "ann", club.group)
    assert "coupling: 1.0 -> 2.0" in typed("peer", "accept", club.root / "ann")
    assert amendments.ACCEPTED not in os.listdir(club.root / "ann")


def test_what_was_carried_out_is_not_carried_out_again(tmp_path):
    """If the mark of it comes back after a crash of the machine: the ledger of the new run may be spent by then."""
    club = Club(tmp_path, ("bob", "ann"))
    amendments.amend(club.group, privacy={"epsilon": 1.0, "wakes_per_agent": 5}, confidence="public")
    ann = club.root / "ann"
    update(ann, club.group / "announcements")
    with only_one(ann):  # it is running
        amendments.accept(ann)
    mark = (ann / "accepted").read_bytes()
    amendments.settle(ann)
    (ann / "ledger").write_bytes(b"spent")
    (ann / "state").write_bytes(b"learned")
    (ann / "accepted").write_bytes(mark)
    (ann / "accepted").chmod(0o600)
    assert amendments.settle(ann)
    assert not amendments.waits(ann)
    assert (ann / "ledger").read_bytes() == b"spent"
    assert (ann / "state").read_bytes() == b"learned"

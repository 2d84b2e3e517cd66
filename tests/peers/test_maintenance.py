"""Certificates that are renewed over the network, and a peer that does the admin's chores."""

import os
import time
from datetime import UTC, datetime, timedelta

import pytest
from club import Club
from typed import said

from coterie.errors import DataError, IdentityError
from coterie.peers.app.metrics import Log
from coterie.peers.group import announcements, groups
from coterie.peers.group.announcements import (
    CERTIFICATE,
    PACKAGE_PREFIX,
    Announcement,
    read_announcement,
    sign_announcement,
    signed_in,
)
from coterie.peers.group.identity import Identity, certificate_der, read_certificate, sign_csr
from coterie.peers.group.renewal import install_certificate, renew, update, update_announcements
from coterie.peers.node.maintenance import RelayMaintenance

pytestmark = pytest.mark.plain


SOON = 825 - 20  # days after which a member's certificate is good for 20 more


def later(days):
    return datetime.now(UTC) + timedelta(days=days)


@pytest.fixture
def club(tmp_path):
    return Club(tmp_path)


def posted(club, name, body=None, by=None, version=None, **more):
    """A certificate for somebody, signed by the admin but made by hand."""
    loaded = groups.load_group(club.group)
    if body is None:
        old, ca = read_certificate((club.root / name / "tls.crt").read_bytes()), (loaded.ca_key, loaded.ca)
        more = {"endpoint": None, "days": 900, "now": club.today} | more
        body = certificate_der(sign_csr(old, *ca, name=name, **more))
    announcement = Announcement(CERTIFICATE, name, version or int(club.moment()), body)
    return sign_announcement(announcement, by or loaded.admin, 10**6, "it")


# -- the admin -------------------------------------------------------------------------------------------------------


def test_only_what_expires_soon_is_renewed(club):
    done = renew(club.group)
    assert (done.renewed, done.unknown, done.capped) == ([], [], [])
    assert not (club.group / "announcements").exists()
    done = renew(club.group, within=60, now=later(800))
    assert done.renewed == ["ann", "bob", "cat"]
    loaded = groups.load_group(club.group)
    for signed in signed_in(club.group / "announcements"):
        announcement = read_announcement(signed, {loaded.charter.admin})
        assert announcement.kind == CERTIFICATE
        assert loaded.register.certificates[announcement.about] == announcement.body
    assert renew(club.group, now=later(801)).renewed == []  # they are known to be good now
    assert renew(club.group, now=later(801), within=900).renewed == ["ann", "bob", "cat"]


def test_certificates_that_a_wrong_clock_has_made_are_good_today(club):
    """The admin's machine may think that it is two years later: all would be renewed, and nobody could use it."""
    assert renew(club.group, now=later(800)).renewed
    signed = (club.group / "announcements/certificate-ann").read_bytes()
    assert install_certificate(club.root / "ann", read_announcement(signed, {club.charter.admin}))
    assert groups.membership(club.root / "ann").expires > later(1600)


def test_versions_grow_whatever_the_clock_says(club):
    def version():
        signed = (club.group / "announcements/certificate-ann").read_bytes()
        return read_announcement(signed, {club.charter.admin}).version

    renew(club.group, 900, 900, now=later(900))
    first = version()
    renew(club.group, 10_000, 900, now=later(1000))
    second = version()
    assert second > first
    loaded = groups.load_group(club.group)
    from coterie.peers.group.renewal import post

    post(loaded, CERTIFICATE, "ann", loaded.register.certificates["ann"], "it", later(-900))
    assert version() == second + 1


def test_members_that_have_left_and_certificates_that_are_not_known(club):
    groups.remove(club.group, "bob")
    loaded = groups.load_group(club.group)
    (club.group / "group.json").write_bytes(
        (club.group / "group.json").read_bytes().replace(b'"ann": "', b'"nobody": "', 1)
    )
    assert loaded.register.certificates.keys() == {"ann", "bob", "cat"}
    done = renew(club.group, 900, 900)
    assert (done.renewed, done.unknown) == (["cat"], ["ann"])
    assert renew(club.group, 900, 900) == ([], ["ann"], [], [], 0)  # no better than those


def test_a_key_that_was_lost_is_not_certified_again(club):
    groups.revoke(club.group, "ann")
    done = renew(club.group, 900, 900)
    assert (done.renewed, done.revoked) == (["bob", "cat"], ["ann"])
    bob = groups.load_group(club.group).register.issued["bob"]
    assert len(bob) == 2  # both can be revoked
    assert set(bob) <= set(groups.revoke(club.group, "bob").revoked)


def test_a_few_at_a_time(club):
    done = renew(club.group, 900, 900, most=2, now=later(100))
    assert (done.renewed, done.left) == (["ann", "bob"], 1)
    done = renew(club.group, 900 - 101, 900, most=2, now=later(100))
    assert (done.renewed, done.left) == (["cat"], 0)


def test_an_authority_that_ends_itself(club):
    when = later(3652 - 20)
    assert renew(club.group, now=when).renewed == ["ann", "bob", "cat"]
    done = renew(club.group, now=when)
    assert (done.renewed, done.capped) == ([], ["ann", "bob", "cat"])  # not again and again


def test_the_commands(club):
    assert said("group", "renew", club.group) == {"renewed": [], "unknown": [], "capped": [], "revoked": []}
    assert said("group", "renew", club.group, "--within", "900", "--days", "1000")["renewed"] == ["ann", "bob", "cat"]
    before = club.expires("ann")
    found = said("peer", "update", club.root / "ann", club.group / "announcements")
    assert found["announcements"] == ["certificate-ann", "certificate-bob", "certificate-cat"]
    assert club.expires("ann") - before > timedelta(days=100)
    assert said("peer", "update", club.root / "ann", club.group / "announcements")["announcements"] == []
    one = club.group / "announcements/certificate-bob"
    assert said("peer", "update", club.root / "bob", one)["announcements"] == ["certificate-bob"]
    groups.edge(club.group, "ann", "cat", 2.0)
    version = groups.load_group(club.group).roster.version
    assert said("peer", "update", club.root / "cat", club.group)["version"] == version  # all that there is
    assert groups.membership(club.root / "cat").roster.version == version
    assert said("peer", "update", club.root / "cat", club.group) == {"version": version, "announcements": []}


# -- the one whom it is about ------------------------------------------------------------------------------------------


def test_it_is_checked_as_the_first_one_was(club, tmp_path):
    ann = club.root / "ann"
    loaded = groups.load_group(club.group)
    before = (ann / "tls.crt").read_bytes()
    bob = read_certificate((club.root / "bob/tls.crt").read_bytes())
    groups.create(tmp_path / "other", features=["a"], target="b")
    other = groups.load_group(tmp_path / "other")
    old = read_certificate(before)
    given = {"name": "ann", "endpoint": None, "days": 2000}
    for body, words in (
        (sign_csr(bob, loaded.ca_key, loaded.ca, **given), "another TLS key"),
        (sign_csr(old, other.ca_key, other.ca, **given), "not signed by the authority"),
        (sign_csr(old, loaded.ca_key, loaded.ca, **given | {"name": "bob"}), "another name"),
    ):
        with pytest.raises(DataError, match=words):
            install_certificate(ann, Announcement(CERTIFICATE, "ann", 1, certificate_der(body)))
    with pytest.raises(DataError, match="is not a certificate of ann"):
        install_certificate(ann, Announcement(CERTIFICATE, "bob", 1, certificate_der(bob)))
    short = sign_csr(old, loaded.ca_key, loaded.ca, **given | {"days": 10})
    assert install_certificate(ann, Announcement(CERTIFICATE, "ann", 1, certificate_der(short))) is None
    assert (ann / "tls.crt").read_bytes() == before
    good = sign_csr(old, loaded.ca_key, loaded.ca, **given)
    ends = install_certificate(ann, Announcement(CERTIFICATE, "ann", 1, certificate_der(good)))
    assert ends == good.not_valid_after_utc == groups.membership(ann).expires


def test_one_who_has_expired_can_still_be_helped(tmp_path):
    """It cannot connect to anybody: so the announcement is brought to it by hand."""
    groups.create(tmp_path / "club", features=["a"], target="b")
    Identity.make(tmp_path / "ann", "ann")
    groups.join(tmp_path / "ann", groups.invite(tmp_path / "club", groups.request(tmp_path / "ann"), days=1))
    os.utime(tmp_path / "ann/tls.crt")
    done = renew(tmp_path / "club", now=later(10), days=2000)
    assert done.renewed == ["ann"]
    assert update(tmp_path / "ann", tmp_path / "club/announcements")[1] == [("certificate", "ann")]


def test_what_the_admin_did_not_sign_is_not_taken_over(club):
    forged = posted(club, "ann", by=Identity.load(club.root / "bob").signing_key)
    path = club.root / "forged"
    path.write_bytes(forged)
    with pytest.raises(DataError, match="not signed with the admin's key"):
        update(club.root / "ann", path)
    with pytest.raises(DataError, match="not signed with the admin's key"):
        update_announcements(club.root / "ann", [forged])
    assert not (club.root / "ann/announcements").exists()


# -- over the network --------------------------------------------------------------------------------------------------


def test_certificates_are_renewed_over_the_network_without_a_restart(club):
    """Bob is given all of them, and is a neighbour of both."""
    club.start()
    club.run(5.0)
    renew(club.group, 900, 2000)
    said("peer", "update", club.root / "bob", club.group / "announcements")
    club.run_until(lambda: all(club.expires(name) > club.today + timedelta(days=1900) for name in club.names))
    club.run(3.0)
    for name in club.names:
        program = club.programs[name]
        assert program.transport.reloads == 1
        assert program.expires == club.expires(name).isoformat()
        assert not program.failure
        assert [event for event in club.events(name) if event["event"] == "certificate"]
        kept = {path.name for path in (club.root / name / "announcements").iterdir()}
        assert kept == {"certificate-ann", "certificate-bob", "certificate-cat"}
        assert not program.node.errors["expiry"]
    mode = (club.root / "ann/announcements/certificate-bob").stat().st_mode & 0o777
    assert mode == 0o600


def test_who_was_away_finds_its_certificate_when_it_comes_back(club):
    club.start("ann", "bob").run(3.0)
    club.pass_days(SOON)
    renew(club.group, now=club.today)
    said("peer", "update", club.root / "ann", club.group / "announcements/certificate-cat")
    club.run(5.0)
    club.stop("bob").start("bob").run(3.0)  # bob has it on disk
    club.stop("ann")
    before = club.expires("cat")
    club.start("cat")
    club.run_until(lambda: club.expires("cat") > before)


def test_an_error_from_thirty_days_before_and_an_end_when_it_expires(club):
    club.start().run(3.0)
    program = club.programs["ann"]
    assert not program.node.errors["expiry"]
    club.pass_days(825 - 31)
    club.run(3.0)
    assert not program.node.errors["expiry"]
    club.pass_days(2)
    club.run(3.0)
    assert program.node.errors["expiry"] == 1
    assert "the certificate expires on" in program.node.errors.last
    assert "coterie peer update" in program.node.errors.last
    assert sum(event["event"] == "expiry" for event in club.events("ann")) == 1
    assert not program._stopping
    club.pass_days(29)
    club.run(3.0)
    assert program._stopping
    assert "the certificate expired on" in program.failure
    assert "this machine's clock" in program.failure


def test_a_peer_without_a_certificate_has_nothing_to_expire(club):
    program = club.start("ann").programs["ann"]
    (club.root / "ann/tls.crt").unlink()
    club.run(2.0)
    assert not program.node.errors.total()


def test_a_renewed_invitation_is_taken_over_by_a_running_peer(club):
    club.start("ann").run(2.0)
    groups.join(club.root / "ann", groups.invite(club.group, groups.request(club.root / "ann"), days=2000))
    club.run(2.0)
    assert club.programs["ann"].transport.reloads == 1


def test_a_certificate_that_is_not_mine_is_an_error_and_no_more(club):
    club.start().run(2.0)
    bob = certificate_der(read_certificate((club.root / "bob/tls.crt").read_bytes()))
    loaded, before = groups.load_group(club.group), (club.root / "ann/tls.crt").read_bytes()
    bobs = read_certificate((club.root / "bob/tls.crt").read_bytes())
    longer = sign_csr(bobs, loaded.ca_key, loaded.ca, name="ann", endpoint=None, days=2000)
    assert bob != certificate_der(longer)
    program = club.programs["ann"]
    program.node.take_announcements(club.now, [posted(club, "ann", certificate_der(longer))])
    club.run(5.0)
    assert (club.root / "ann/tls.crt").read_bytes() == before
    assert program.node.errors["certificate"] == 1
    assert "another TLS key" in program.node.errors.last
    assert not program._stopping


def test_what_nobody_needs_any_more_is_deleted(club):
    club.start("ann")
    program = club.programs["ann"]
    program.node.take_announcements(club.now, [posted(club, "bob")])
    club.run(2.0)
    assert (club.root / "ann/announcements/certificate-bob").exists()
    program.node.group.board.forget(club.today + timedelta(days=901))
    club.run(2.0)
    assert not (club.root / "ann/announcements/certificate-bob").exists()


# -- the admin's chores ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_group_with_the_admin_beside_a_peer_never_expires(club):
    """Nobody types anything for six years."""
    club.start("ann", admin=club.group)
    club.start("bob", "cat").run(5.0)
    for cycle in range(3):
        club.pass_days(800)  # 25 are left
        club.run(65.0)
        for name in club.names:
            assert club.expires(name) > club.today + timedelta(days=800)
            assert not club.programs[name].node.errors["expiry"]
            assert not club.programs[name]._stopping
            assert club.programs[name].transport.reloads == cycle + 1
    assert club.days > 6 * 365


def test_lists_and_announcements_of_the_admin_go_out_by_themselves(club, tmp_path):
    club.start("ann", admin=club.group)
    club.start("bob", "cat").run(2.0)
    eve = groups.enroll(club.group, tmp_path / "eve", "eve", edges={"cat": 1.0})
    renew(club.group, 900, 900)
    club.run_until(
        lambda: all(p.node.group.roster.version == eve.roster.version for p in club.programs.values()), 180.0
    )
    club.run_until(lambda: all(len(p.node.group.board.held) == 4 for p in club.programs.values()), 60.0)
    assert not any(p.node.errors["admin"] for p in club.programs.values())


def test_an_admin_folder_that_cannot_be_read_is_an_error_and_no_more(club, tmp_path):
    groups.create(tmp_path / "another", features=["a"], target="b")
    for k, (name, folder) in enumerate((("ann", tmp_path / "none"), ("bob", tmp_path / "another"))):
        club.start(name, admin=folder)
        club.run(65.0)
        assert club.programs[name].node.errors["admin"] == 2, k
        assert not club.programs[name]._stopping
    said_it = [event for event in club.events("bob") if "the folder of another group" in event.get("what", "")]
    assert len(said_it) == 1


# -- relays ------------------------------------------------------------------------------------------------------------


def test_a_relay_is_brought_its_certificate(club, tmp_path):
    Identity.make(tmp_path / "hub", "hub", "127.0.0.1:7000")
    groups.join(tmp_path / "hub", groups.invite(club.group, groups.request(tmp_path / "hub"), relay=True))
    club.start("ann", admin=club.group)
    published = []
    club.programs["ann"].transport.publish_roster = lambda data, to=None: published.append(data)
    club.run(3.0)
    club.pass_days(SOON)
    club.now += 600.0  # relays are not told more often
    club.run_until(lambda: any(data.startswith(PACKAGE_PREFIX) for data in published))
    package = next(data for data in published if data.startswith(PACKAGE_PREFIX))
    relay = type("Relay", (), {"reloads": 0, "reload": lambda self: setattr(self, "reloads", self.reloads + 1)})()
    with pytest.raises(IdentityError):
        update_announcements(tmp_path / "none", [])
    maintenance = RelayMaintenance(tmp_path / "hub", relay, Log())
    signed = (club.group / "announcements/certificate-hub").read_bytes()
    assert signed in package
    assert not maintenance.look()
    assert maintenance.take(package) == b""
    today = {"now": None, "version": int(time.time()) + 10**9}
    fresh = posted(club, "hub", endpoint="127.0.0.1:7000", days=2000, **today)
    assert maintenance.take(announcements.packaged(b"a list", [fresh, posted(club, "ann")])) == b"a list"
    assert not maintenance.look()
    assert relay.reloads == 1
    assert [path.name for path in (tmp_path / "hub/announcements").iterdir()] == ["certificate-hub"]

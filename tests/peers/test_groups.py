"""Creating a group, asking, inviting, joining: what honest people do works, and what others do is refused."""

import base64
import contextlib
import errno
import json
import os
import random
import re
import stat
import threading
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from club import snapshot
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from mutations import mutations

from coterie import errors
from coterie.errors import DataError, FileError, IdentityError, ParameterError, RemovedError, SignatureError
from coterie.peers.group import groups, identity, roster
from coterie.peers.group.admins import accept_delegation, appoint, ask_as_admin, hand_over
from coterie.peers.group.charter import charter_json
from coterie.peers.group.groups import create, invite, join, load_group, membership, refresh, remove, request, update
from coterie.peers.group.groups import enroll as enroll_one
from coterie.peers.group.identity import Identity, certificate_pem, make_ca, make_csr, new_signing_key, public_bytes
from coterie.peers.group.records import encoded, to_json
from coterie.peers.group.roster import Relay, Roster, compared, described, lists_in, read_roster, sign_roster

FIELDS = {"title": "test", "features": ["x"], "target": "y", "labels": ["no", "yes"], "objective": "personalized"}


@pytest.fixture
def group(tmp_path):
    create(tmp_path / "group", **FIELDS)
    return tmp_path / "group"


def asked(folder, name, listen="127.0.0.1:7447"):
    """The request of a new peer."""
    return request(Identity.make(folder, name, listen).folder)


def enroll(group, folder, name, listen=None, edges=None):
    """All steps by way of files, as between two machines."""
    return join(folder, invite(group, asked(folder, name, listen), edges))


def resealed(path, way, signer, **changes):
    """A request or an invitation with something else in it, and signed again."""
    thing = msgspec.structs.replace(msgspec.json.decode(path.read_bytes(), type=way.kind), **changes)
    path.write_bytes(to_json(way.sign(thing, signer)))
    return path


# -- honest people ---------------------------------------------------------------------------------------------------


def test_three_members_and_a_relay(tmp_path, group):
    ann = join(tmp_path / "ann", invite(group, asked(tmp_path / "ann", "ann")))
    bob = join(tmp_path / "bob", invite(group, asked(tmp_path / "bob", "bob", None), {"ann": 0.5}))
    hub = join(tmp_path / "hub", invite(group, asked(tmp_path / "hub", "hub", "192.0.2.1:7447"), relay=True))
    eve = enroll(group, tmp_path / "eve", "eve", "[::1]:7447", {"ann": 2, "bob": 1.0})
    assert [one.me.address for one in (ann, bob, eve)] == [0, 1, 2]
    assert hub.me == Relay("hub", "192.0.2.1:7447")
    assert [one.roster.version for one in (ann, bob, hub, eve)] == [2, 3, 4, 5]
    assert eve.roster.edges == [(0, 1, 0.5), (0, 2, 2.0), (1, 2, 1.0)]
    assert eve.me.key == Identity.load(tmp_path / "eve").public
    assert len({one.charter.run for one in (ann, bob, hub, eve)}) == 1
    assert 820 < (ann.expires - datetime.now(UTC)).days < 826
    assert refresh(tmp_path / "ann", group / "roster") == eve.roster
    assert refresh(tmp_path / "hub", tmp_path / "ann/roster") == eve.roster
    assert membership(tmp_path / "ann").roster == load_group(group).roster


def test_many_join_at_once_on_one_machine(tmp_path, group):
    """As one invitation after the other, with one version of the roster."""
    enroll(group, tmp_path / "ann", "ann")
    new = [
        groups.Newcomer(tmp_path / "bob", "bob", "127.0.0.1:7448", {"ann": 0.5}),
        groups.Newcomer(tmp_path / "eve", "eve", None, {"bob": 2.0, "ann": 1.0}),
    ]
    bob, eve = groups.enroll_all(group, new, durable=False)
    assert [one.me.address for one in (bob, eve)] == [1, 2]
    assert bob.roster == eve.roster == load_group(group).roster == refresh(tmp_path / "ann", group / "roster")
    assert (eve.roster.version, eve.roster.edges) == (3, [(0, 1, 0.5), (0, 2, 1.0), (1, 2, 2.0)])
    assert (bob.me.endpoint, eve.me.endpoint) == ("127.0.0.1:7448", None)
    assert membership(tmp_path / "eve").me.key == Identity.load(tmp_path / "eve").public
    assert enroll_one(group, tmp_path / "dan", "dan", edges={"eve": 1.0}).me.address == 3
    before = snapshot(group)
    for bad in (
        groups.Newcomer(tmp_path / "bob2", "bob"),
        groups.Newcomer(tmp_path / "joe", "joe", edges={"nobody": 1.0}),
    ):
        with pytest.raises(DataError):
            groups.enroll_all(group, [bad])
    assert snapshot(group) == before


def test_a_charter_that_cannot_be_run_is_not_joined(tmp_path, group):
    """The admin signs what it likes; a peer makes every part of it before it agrees."""
    path, loaded = asked(tmp_path / "ann", "ann"), load_group(group)
    for changes in ({"method": "sgd"}, {"loss": "logit"}, {"privacy": {"epsilon": -1.0}}, {"learned": {"kapa": 1}}):
        (group / "roster").write_bytes(b"")
        charter = msgspec.structs.replace(loaded.charter, **changes)
        (group / "charter.json").write_bytes(to_json(charter))
        (group / "roster").write_bytes(sign_roster(Roster(charter.run, 1), loaded.admin))
        with pytest.raises(DataError, match=r"the charter in the invitation .* cannot be used"):
            join(tmp_path / "ann", invite(group, path))
        assert not (tmp_path / "ann/roster").exists()


def test_the_files_of_the_contract(tmp_path, group):
    enroll(group, tmp_path / "ann", "ann")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in group.iterdir()}
    public = dict.fromkeys(("ca.crt", "charter.json", "group.json", "roster"), 0o644)
    assert modes == public | {"ca.key": 0o600, "admin.key": 0o600}
    assert {path.name for path in (tmp_path / "ann").iterdir()} == {
        *("identity.json", "sign.key", "tls.key", "tls.crt", "ca.crt", "charter.json", "roster"),
        *("ann.request", "ann.invitation"),
    }
    assert stat.S_IMODE(group.stat().st_mode) == 0o700


def raw_secrets(folder):
    """The numbers that are secret: the rest of an EC key's file is its public part."""
    for path in folder.glob("*.key"):
        key = load_pem_private_key(path.read_bytes(), None)
        signing = hasattr(key, "private_bytes_raw")
        yield key.private_bytes_raw() if signing else key.private_numbers().private_value.to_bytes(32, "big")


def everything_in(path):
    """The bytes of a file, and what is in it as base64."""
    content = path.read_bytes()
    yield content
    for text in re.findall(rb"[A-Za-z0-9+/]{24,}", content.replace(b"\\n", b"").replace(b"\n", b"")):
        for start in range(4):
            part = text[start:]
            yield base64.b64decode(part[:-1] if len(part) % 4 == 1 else part + b"==")


def test_nothing_secret_leaves_its_folder(tmp_path, group):
    enroll(group, tmp_path / "ann", "ann")
    secrets = [*raw_secrets(group), *raw_secrets(tmp_path / "ann")]
    assert [len(secret) for secret in secrets] == [32] * 4
    public = Identity.load(tmp_path / "ann").public
    for path in (tmp_path / "ann/ann.request", tmp_path / "ann/ann.invitation", group / "roster", group / "group.json"):
        found = list(everything_in(path))
        assert any(public in part for part in found) == (path.name != "group.json")
        assert not any(secret in part for part in found for secret in secrets)


def test_inviting_again_renews(tmp_path, group):
    ann = enroll(group, tmp_path / "ann", "ann", "127.0.0.1:7447")
    enroll(group, tmp_path / "bob", "bob", edges={"ann": 1.0})
    before = (tmp_path / "ann/tls.crt").read_bytes()
    ann.identity.move("192.0.2.7:7447")
    with pytest.raises(DataError, match="not good for 192"):
        membership(tmp_path / "ann")
    again = join(tmp_path / "ann", invite(group, request(tmp_path / "ann"), days=10))
    assert (again.me.address, again.me.endpoint, again.me.key) == (0, "192.0.2.7:7447", ann.me.key)
    assert (again.roster.version, again.roster.neighbours(0)) == (4, {1: 1.0})
    assert (tmp_path / "ann/tls.crt").read_bytes() != before
    assert again.expires < datetime.now(UTC) + timedelta(days=11)
    assert load_group(group).register.addresses == 2


def test_a_lost_key_means_a_new_address(tmp_path, group):
    enroll(group, tmp_path / "ann", "ann")
    enroll(group, tmp_path / "bob", "bob", edges={"ann": 0.5})
    new = asked(tmp_path / "ann2", "ann")
    before = snapshot(group)
    with pytest.raises(DataError, match=r"taken.*--replace"):
        invite(group, new)
    assert snapshot(group) == before
    again = join(tmp_path / "ann2", invite(group, new, replace=True))
    assert (again.me.address, again.roster.neighbours(2), again.roster.version) == (2, {1: 0.5}, 4)
    assert [one.address for one in again.roster.members] == [1, 2]
    with pytest.raises(RemovedError, match="another signing key"):
        refresh(tmp_path / "ann", group / "roster")


def test_addresses_are_never_used_again(tmp_path, group):
    enroll(group, tmp_path / "ann", "ann")
    enroll(group, tmp_path / "bob", "bob", edges={"ann": 1.0})
    left = remove(group, "bob")
    assert (left.version, [one.name for one in left.members], left.edges) == (4, ["ann"], [])
    assert enroll(group, tmp_path / "eve", "eve").me.address == 2
    # Also for one that comes back.
    assert join(tmp_path / "bob", invite(group, request(tmp_path / "bob"))).me.address == 3
    # And if the count of them is lost.
    (group / "group.json").write_text("{}")
    assert enroll(group, tmp_path / "dan", "dan").me.address == 4


def test_one_that_is_removed_learns_of_it(tmp_path, group):
    enroll(group, tmp_path / "ann", "ann")
    remove(group, "ann")
    with pytest.raises(RemovedError, match="leaves 'ann' out"):
        refresh(tmp_path / "ann", group / "roster")
    for _ in range(2):  # and is told again at every start: the roster is kept
        with pytest.raises(RemovedError, match=r"leaves 'ann' out.*version 3.*invited again"):
            membership(tmp_path / "ann")
    with pytest.raises(DataError, match="'ann' is not a member"):
        remove(group, "ann")
    assert join(tmp_path / "ann", invite(group, request(tmp_path / "ann"))).me.address == 1


def test_edges(tmp_path, group):
    for name in ("ann", "bob"):
        enroll(group, tmp_path / name, name)
    assert groups.edge(group, "bob", "ann", 0.25).edges == [(0, 1, 0.25)]
    assert load_group(group).roster.edges == [(0, 1, 0.25)]
    assert groups.edge(group, "bob", "ann", 0).edges == []
    for wrong in (-1.0, float("nan"), float("inf"), "much"):
        with pytest.raises(ParameterError, match="weight"):
            groups.edge(group, "ann", "bob", wrong)
    for wrong in ({"nobody": 1.0}, {"ann": -1.0}, {"eve": 1.0}):
        with pytest.raises((DataError, ParameterError)):
            enroll(group, tmp_path / f"eve{random.random()}", "eve", edges=wrong)
    assert len(load_group(group).roster.members) == 2


def test_relays(tmp_path, group):
    hub = asked(tmp_path / "hub", "hub", "192.0.2.1:7447")
    invite(group, hub, relay=True)
    with pytest.raises(DataError, match="is a relay"):
        invite(group, hub)
    with pytest.raises(DataError, match="taken"):
        invite(group, asked(tmp_path / "hub2", "hub", "192.0.2.2:7447"), relay=True)
    invite(group, tmp_path / "hub2/hub.request", relay=True, replace=True)
    assert load_group(group).roster.relays == [Relay("hub", "192.0.2.2:7447")]
    with pytest.raises(DataError, match="no endpoint to listen at"):
        invite(group, asked(tmp_path / "shy", "shy", None), relay=True)
    with pytest.raises(ParameterError, match="a relay has no neighbours"):
        invite(group, hub, {"ann": 1.0}, relay=True)
    enroll(group, tmp_path / "ann", "ann", "127.0.0.1:7447")
    with pytest.raises(DataError, match="is a member"):
        invite(group, tmp_path / "ann/ann.request", relay=True)
    assert remove(group, "hub").relays == []


def test_an_authority_that_exists(tmp_path):
    key, certificate = make_ca("house authority")
    (tmp_path / "house.key").touch(0o600)
    (tmp_path / "house.key").write_bytes(identity.private_pem(key))
    (tmp_path / "house.crt").write_bytes(certificate_pem(certificate))
    create(tmp_path / "group", ca=(tmp_path / "house.key", tmp_path / "house.crt"), **FIELDS)
    assert not (tmp_path / "group/ca.key").exists()
    enroll(tmp_path / "group", tmp_path / "ann", "ann")
    issued = identity.read_certificate((tmp_path / "ann/tls.crt").read_bytes())
    assert issued.issuer == certificate.subject
    (tmp_path / "house.key").chmod(0o644)
    with pytest.raises(IdentityError, match="chmod 600"):
        load_group(tmp_path / "group")
    (tmp_path / "house.key").chmod(0o600)
    (tmp_path / "house.crt").write_bytes(certificate_pem(make_ca("house authority")[1]))
    with pytest.raises(DataError, match="another key"):
        create(tmp_path / "group2", ca=(tmp_path / "house.key", tmp_path / "house.crt"), **FIELDS)
    (tmp_path / "house.crt").write_bytes(certificate_pem(issued))
    with pytest.raises(DataError, match="may sign certificates"):
        create(tmp_path / "group2", ca=(tmp_path / "house.key", tmp_path / "house.crt"), **FIELDS)
    assert not (tmp_path / "group2").exists()


def test_a_group_is_never_overwritten(tmp_path, group):
    before = snapshot(group)
    with pytest.raises(IdentityError, match="never overwritten"):
        create(group, **FIELDS)
    assert snapshot(group) == before
    with pytest.raises(ParameterError, match="surprise"):
        create(tmp_path / "other", **FIELDS, surprise=1)
    with pytest.raises(ParameterError, match="features"):
        create(tmp_path / "other")
    with pytest.raises(ParameterError, match="coupling"):
        create(tmp_path / "other", **FIELDS, coupling=-1.0)
    assert not (tmp_path / "other").exists()


# -- others ----------------------------------------------------------------------------------------------------------


def test_requests_that_pass_for_another_are_refused(tmp_path, group):
    path = asked(tmp_path / "ann", "ann")
    ann, eve = Identity.load(tmp_path / "ann"), Identity.make(tmp_path / "eve", "eve", "127.0.0.1:7448")
    good, before = path.read_bytes(), snapshot(group)

    in_anns_name = make_csr(eve.tls, "ann", eve.public).decode()
    for error, words, signer, changes in (
        (SignatureError, "not signed with the key", eve, {}),
        (DataError, "not made with this", eve, {"key": eve.public}),  # ann's TLS key
        (DataError, "not made with this", ann, {"csr": in_anns_name}),  # eve's
        # A certificate in the name of another member.
        (DataError, "for another name", eve, {"name": "eve", "key": eve.public}),
        (DataError, "for another name", eve, {"name": "eve", "key": eve.public, "csr": in_anns_name}),
    ):
        path.write_bytes(good)
        with pytest.raises(error, match=words):
            invite(group, resealed(path, groups.REQUESTS, signer.signing_key, **changes))
    # Any change to what is signed.
    fields = json.loads(good)
    for name, value in (("endpoint", "192.0.2.66:1"), ("endpoint", None), ("name", "bob"), ("signature", "AAAA")):
        path.write_text(json.dumps({**fields, name: value}))
        with pytest.raises(SignatureError):
            invite(group, path)
    assert snapshot(group) == before


def test_one_key_one_name(tmp_path, group):
    ann = enroll(group, tmp_path / "ann", "ann").identity
    csr = make_csr(ann.tls, "bob", ann.public).decode()
    path = resealed(tmp_path / "ann/ann.request", groups.REQUESTS, ann.signing_key, name="bob", csr=csr)
    with pytest.raises(DataError, match="signed with the key of 'ann'"):
        invite(group, path)


@pytest.fixture
def invited(tmp_path, group):
    """Ann has asked, been invited, and not joined: her identity, the invitation, the admin's key."""
    path = invite(group, asked(tmp_path / "ann", "ann"))
    return Identity.load(tmp_path / "ann"), path, load_group(group)


def refuses(ann, path, error, words):
    before = snapshot(ann.folder)
    with pytest.raises(error, match=words):
        join(ann.folder, path)
    assert {**snapshot(ann.folder), path.name: b""} == {**before, path.name: b""}


def issue(loaded, tls, public, name="ann", endpoint="127.0.0.1:7447", ca=None):
    key, certificate = (loaded.ca_key, loaded.ca) if ca is None else ca
    csr = identity.read_csr(make_csr(tls, name, public), name, public)
    return certificate_pem(identity.sign_csr(csr, key, certificate, name=name, endpoint=endpoint)).decode()


def test_swapped_certificates_and_keys_are_refused(invited):
    ann, path, loaded = invited
    good = path.read_bytes()
    other_ca = make_ca("coterie test")
    other = msgspec.structs.replace(loaded.roster.members[0], key=public_bytes(new_signing_key()))
    for error, words, changes in (
        (DataError, "another TLS key", {"certificate": issue(loaded, identity.new_tls_key(), ann.public)}),
        (DataError, "another name", {"certificate": issue(loaded, ann.tls, ann.public, name="bob")}),
        (DataError, "not good for", {"certificate": issue(loaded, ann.tls, ann.public, endpoint="192.0.2.7:1")}),
        (SignatureError, "authority", {"certificate": issue(loaded, ann.tls, ann.public, ca=other_ca)}),
        (SignatureError, "authority", {"ca": certificate_pem(other_ca[1]).decode()}),
        (DataError, "may sign", {"ca": issue(loaded, ann.tls, ann.public)}),
        (DataError, "cannot be read", {"ca": "none"}),
        (DataError, "for 'bob'", {"name": "bob"}),
        (SignatureError, "admin", {"roster": sign_roster(loaded.roster, new_signing_key())}),
        (DataError, "another signing key", {"roster": sign_roster(loaded.roster.with_member(other), loaded.admin)}),
        (DataError, "leaves 'ann' out", {"roster": sign_roster(loaded.roster.without("ann"), loaded.admin)}),
    ):
        path.write_bytes(good)
        refuses(ann, resealed(path, groups.INVITATIONS, loaded.admin, **changes), error, words)
    path.write_bytes(good)
    join(ann.folder, path)


def test_an_invitation_that_somebody_else_puts_together_is_refused(invited):
    """Of true parts, with another authority: its owner could listen in on every link."""
    ann, path, loaded = invited
    key, ca = make_ca("coterie test")
    parts = {"ca": certificate_pem(ca).decode(), "certificate": issue(loaded, ann.tls, ann.public, ca=(key, ca))}
    refuses(ann, resealed(path, groups.INVITATIONS, new_signing_key(), **parts), SignatureError, "not signed")


def test_swapped_keys_in_the_folder_are_refused(tmp_path, invited):
    ann, path, _ = invited
    for name, error in (("tls.key", "another TLS key"), ("sign.key", "another signing key")):
        good = (ann.folder / name).read_bytes()
        key = identity.new_tls_key() if name == "tls.key" else new_signing_key()
        (ann.folder / name).write_bytes(identity.private_pem(key))
        refuses(ann, path, DataError, error)
        (ann.folder / name).write_bytes(good)
    join(ann.folder, path)
    (ann.folder / "tls.crt").write_bytes((ann.folder / "ca.crt").read_bytes())
    with pytest.raises(DataError, match="the certificate of ann"):
        membership(ann.folder)


def test_one_folder_one_run(tmp_path, group):
    enroll(group, tmp_path / "ann", "ann")
    create(tmp_path / "other", **{**FIELDS, "title": "other"})
    path = invite(tmp_path / "other", tmp_path / "ann/ann.request", to=tmp_path / "second")
    before = snapshot(tmp_path / "ann")
    with pytest.raises(DataError, match="one run only"):
        join(tmp_path / "ann", path)
    assert snapshot(tmp_path / "ann") == before


def test_the_run_can_be_asked_for(invited):
    ann, path, loaded = invited
    with pytest.raises(DataError, match="and not to"):
        join(ann.folder, path, run="0" * 32)
    join(ann.folder, path, run=loaded.charter.run)


def test_a_changed_charter_is_another_run(invited):
    ann, path, loaded = invited
    changed = msgspec.structs.replace(loaded.charter, radius=1e9)
    refuses(ann, resealed(path, groups.INVITATIONS, loaded.admin, charter=changed), DataError, "is of run")
    (ann.folder / "charter.json").write_bytes(charter_json(changed))
    (ann.folder / "roster").write_bytes(sign_roster(loaded.roster, loaded.admin))
    with pytest.raises(DataError, match="is of run"):
        membership(ann.folder)


def test_old_rosters_are_refused(tmp_path, group):
    enroll(group, tmp_path / "ann", "ann")
    old = tmp_path / "old"
    old.write_bytes((group / "roster").read_bytes())
    with pytest.raises(DataError, match="has version 2 already"):
        refresh(tmp_path / "ann", old)
    enroll(group, tmp_path / "bob", "bob")
    refresh(tmp_path / "ann", group / "roster")
    with pytest.raises(DataError, match="is version 2; ann has version 3"):
        refresh(tmp_path / "ann", old)
    # Nor does an old invitation bring it back.
    with pytest.raises(DataError, match="is old"):
        join(tmp_path / "ann", tmp_path / "ann/ann.invitation")
    assert membership(tmp_path / "ann").roster.version == 3
    # Bob's is the newest: once more is no harm.
    assert join(tmp_path / "bob", tmp_path / "bob/bob.invitation").roster.version == 3


def test_two_rosters_of_one_version_are_refused(tmp_path, group):
    ann = enroll(group, tmp_path / "ann", "ann")
    loaded = load_group(group)
    twin = sign_roster(msgspec.structs.replace(ann.roster, relays=[Relay("hub", "192.0.2.1:1")]), loaded.admin)
    path = resealed(tmp_path / "ann/ann.invitation", groups.INVITATIONS, loaded.admin, roster=twin)
    with pytest.raises(DataError, match="has forked"):
        join(tmp_path / "ann", path)


def test_a_renewed_certificate_does_not_bring_back_an_old_roster(tmp_path, group):
    enroll(group, tmp_path / "ann", "ann")
    loaded = load_group(group)
    ann = Identity.load(tmp_path / "ann")
    path = invite(group, tmp_path / "ann/ann.request")
    # As if it had been written half an hour later.
    csr = identity.read_csr(make_csr(ann.tls, "ann", ann.public), "ann", ann.public)
    later = datetime.now(UTC) + timedelta(minutes=30)
    renewed = certificate_pem(
        identity.sign_csr(csr, loaded.ca_key, loaded.ca, name="ann", endpoint=None, now=later)
    ).decode()
    resealed(path, groups.INVITATIONS, loaded.admin, certificate=renewed)
    enroll(group, tmp_path / "bob", "bob")
    refresh(tmp_path / "ann", group / "roster")
    again = join(tmp_path / "ann", path)
    assert again.roster.version == 4
    assert (tmp_path / "ann/tls.crt").read_text() == renewed


def test_damaged_files_of_a_group_are_named(tmp_path, group):
    enroll(group, tmp_path / "ann", "ann")
    for name in ("charter.json", "roster", "ca.crt", "ca.key", "admin.key", "group.json"):
        good = (group / name).read_bytes()
        for bad in (b"", good[: len(good) // 2], b"\xff" + good[1:]):
            (group / name).write_bytes(bad)
            with pytest.raises(errors.CoterieError, match=name.replace(".", r"\.")):
                load_group(group)
        (group / name).write_bytes(good)
    (group / "admin.key").write_bytes(identity.private_pem(new_signing_key()))
    with pytest.raises(IdentityError, match="not the one of the charter"):
        load_group(group)


def test_hostile_files_raise_our_own_errors_and_nothing_else(invited):
    ann, path, _ = invited
    for good, reader in (
        ((ann.folder / "ann.request").read_bytes(), groups.read_request),
        (path.read_bytes(), lambda content: groups.INVITATIONS.read(content, "it")),
    ):
        for bad in mutations(good, 1500, seed=0):
            if bad.split() != good.split():
                with contextlib.suppress(DataError):
                    reader(bad)
    with pytest.raises(DataError):
        groups.read_request(b"[" * 1_000_000)


# -- accidents -------------------------------------------------------------------------------------------------------


class Disk:
    """A disk that fails at one of its writes."""

    def __init__(self, monkeypatch, fails_at):
        self.left, self.fsync = fails_at, os.fsync
        monkeypatch.setattr(os, "fsync", self)

    def __call__(self, fd):
        self.left -= 1
        if self.left == -1:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.fsync(fd)


def failures(act, least):
    """Do something on a disk that fails at its first write, then at its second, until it succeeds."""
    for write in range(20):
        with pytest.MonkeyPatch.context() as patch:
            Disk(patch, write)
            try:
                act()
                assert write >= least
                return
            except FileError as error:
                assert "No space left on device" in str(error)  # noqa: PT017 - it may also succeed
        yield


def test_a_disk_that_fails_leaves_an_old_or_a_new_group(tmp_path, group):
    enroll(group, tmp_path / "ann", "ann")
    wanted, old = asked(tmp_path / "bob", "bob"), load_group(group)
    for _ in failures(lambda: invite(group, wanted), 4):
        new = load_group(group)
        assert new.roster.version - old.roster.version in (0, 1)
        assert new.register.addresses > max(one.address for one in new.roster.members)
        if (tmp_path / "bob/bob.invitation").exists():
            found = groups.INVITATIONS.read((tmp_path / "bob/bob.invitation").read_bytes(), "it")
            assert read_roster(found.roster, new.charter) == new.roster
        assert not [path for path in (*group.iterdir(), *wanted.parent.iterdir()) if path.name.startswith(".")]
        old = new
    assert join(tmp_path / "bob", tmp_path / "bob/bob.invitation").me.name == "bob"


@pytest.mark.parametrize("make", [lambda where: create(where, **FIELDS), lambda where: Identity.make(where, "ann")])
def test_a_disk_that_fails_leaves_no_half_of_a_new_folder(tmp_path, make):
    for _ in failures(lambda: make(tmp_path / "folder"), 6):
        assert os.listdir(tmp_path / "folder") == []


def test_a_disk_that_fails_while_joining(invited):
    ann, path, _ = invited
    for _ in failures(lambda: join(ann.folder, path), 8):
        with contextlib.suppress(IdentityError):
            assert membership(ann.folder).roster.version == 2
    assert membership(ann.folder).me.name == "ann"


def test_where_nothing_can_be_written_nothing_changes(tmp_path, group):
    wanted = asked(tmp_path / "ann", "ann")
    before = snapshot(group)
    with pytest.raises(FileError, match="cannot be written"):
        invite(group, wanted, to=tmp_path / "no/such/folder/ann.invitation")
    with pytest.raises(ParameterError, match="is a folder"):
        invite(group, wanted, to=tmp_path)
    with pytest.raises(ParameterError, match="days="):
        invite(group, wanted, days=0)
    assert snapshot(group) == before
    for bad in (tmp_path / "none", tmp_path):
        with pytest.raises(IdentityError, match="holds no group"):
            invite(bad, wanted)


def test_two_invitations_at_once(tmp_path, group):
    wanted = [asked(tmp_path / f"m{i}", f"m{i}") for i in range(6)]
    threads = [threading.Thread(target=invite, args=(group, path)) for path in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    loaded = load_group(group)
    assert loaded.roster.version == 7
    assert [one.address for one in loaded.roster.members] == list(range(6))
    versions = {join(path.parent, path.with_suffix(".invitation")).roster.version for path in wanted}
    assert versions == set(range(2, 8))
    assert read_roster((group / "roster").read_bytes(), loaded.charter) == loaded.roster


# -- forks -----------------------------------------------------------------------------------------------------------


def test_a_admin_that_goes_on_from_an_old_backup_is_healed(tmp_path, group):
    """A fork is named by whoever sees both lists, decided by the admin, and taken over on both branches."""
    enroll(group, tmp_path / "ann", "ann")
    backup = snapshot(group)
    enroll(group, tmp_path / "bob", "bob", edges={"ann": 1.0})
    enroll(group, tmp_path / "eve", "eve")
    remove(group, "eve")
    refresh(tmp_path / "ann", group / "roster")
    right = (group / "roster").read_bytes()
    for name, content in backup.items():
        (group / name).write_bytes(content)
    dan = enroll(group, tmp_path / "dan", "dan", edges={"ann": 1.0})
    assert dan.me.address == 1  # bob's

    charter = dan.charter
    with pytest.raises(DataError, match=r"has forked: version 5 .* kept; version 3 .* version 2.* differ in bob, dan"):
        refresh(tmp_path / "ann", group / "roster")
    words = compared((tmp_path / "ann/roster").read_bytes(), (group / "roster").read_bytes(), charter)
    assert "has forked" in words
    assert public_bytes(load_group(group).admin)[:4].hex() in words

    healed, was_fork, lost = update(group, tmp_path / "ann/roster")
    assert (healed.version, was_fork, lost) == (6, True, ["dan"])
    assert [one.name for one in healed.members] == ["ann", "bob"]
    assert refresh(tmp_path / "ann", group / "roster") == healed
    with pytest.raises(RemovedError):  # it was on the void branch, and has to be invited again
        refresh(tmp_path / "dan", group / "roster")
    again = join(tmp_path / "dan", invite(group, request(tmp_path / "dan"), {"ann": 1.0}))
    assert again.me.address == 3  # never one that bob or eve had
    assert refresh(tmp_path / "ann", group / "roster") == again.roster
    fork = roster.Fork(right, dan_list := sign_roster(dan.roster, load_group(group).admin))
    assert lists_in(encoded(fork)) == [right, dan_list]
    assert lists_in(right) == [right]
    assert "forked" in described(fork, charter)


def test_a_admin_restored_in_time_goes_on(tmp_path, group):
    enroll(group, tmp_path / "ann", "ann")
    backup = snapshot(group)
    enroll(group, tmp_path / "bob", "bob")
    remove(group, "bob")
    refresh(tmp_path / "ann", group / "roster")
    newest = snapshot(group)
    for name, content in backup.items():
        (group / name).write_bytes(content)
    updated = update(group, tmp_path / "ann/roster")
    assert (updated.roster.version, updated.healed, updated.lost) == (4, False, [])
    assert (group / "roster").read_bytes() == newest["roster"]
    with pytest.raises(DataError, match="nothing to update"):
        update(group, tmp_path / "ann/roster")
    assert enroll(group, tmp_path / "eve", "eve").me.address == 2  # one is bob's for ever
    with pytest.raises(DataError, match="nothing to update"):
        update(group, tmp_path / "ann/roster")
    (tmp_path / "bad").write_bytes(
        sign_roster(load_group(group).roster.with_relay(Relay("x", "h:1")), new_signing_key())
    )
    with pytest.raises(SignatureError):
        update(group, tmp_path / "bad")


# -- revocation ------------------------------------------------------------------------------------------------------


def serial_in(folder):
    return identity.serial_of(identity.read_certificate((folder / "tls.crt").read_bytes()))


def test_a_lost_tls_key_is_revoked(tmp_path, group):
    for name in ("ann", "bob"):
        enroll(group, tmp_path / name, name)
    lost = serial_in(tmp_path / "ann")
    assert re.fullmatch("[1-9a-f][0-9a-f]*", lost)
    revoked = groups.revoke(group, "ann")
    assert set(revoked.revoked) == {lost}
    assert [one.name for one in revoked.members] == ["ann", "bob"]
    refresh(tmp_path / "ann", group / "roster")
    with pytest.raises(IdentityError, match=r"revoked this peer's certificate.*ann --new-tls-key"):
        membership(tmp_path / "ann")
    before = (tmp_path / "ann/tls.key").read_bytes()
    again = join(tmp_path / "ann", invite(group, request(tmp_path / "ann", new_tls_key=True)))
    assert (again.me.address, set(again.roster.revoked)) == (0, {lost})
    assert (tmp_path / "ann/tls.key").read_bytes() != before
    assert stat.S_IMODE((tmp_path / "ann/tls.key").stat().st_mode) == 0o600
    assert serial_in(tmp_path / "ann") != lost
    with pytest.raises(DataError, match="no certificate of 'joe'"):
        groups.revoke(group, "joe")
    assert "ab12" in groups.revoke(group, "joe", serial="00:AB:12").revoked
    with pytest.raises(ParameterError):
        groups.revoke(group, "joe", serial="nothing")


def test_a_name_in_other_hands_is_of_its_new_certificate_alone(tmp_path, group):
    enroll(group, tmp_path / "ann", "ann")
    enroll(group, tmp_path / "bob", "bob")
    lost = serial_in(tmp_path / "ann")
    again = join(tmp_path / "ann2", invite(group, asked(tmp_path / "ann2", "ann"), replace=True))
    assert set(again.roster.revoked) == {lost}
    assert again.roster.version == 4  # one change, one version
    # Who is removed is let in to be told; until somebody else gets the name.
    assert set(remove(group, "bob").revoked) == {lost}
    bob = serial_in(tmp_path / "bob")
    other = join(tmp_path / "bob2", invite(group, asked(tmp_path / "bob2", "bob")))
    assert set(other.roster.revoked) == {lost, bob}
    assert set(remove(group, "bob", revoked=True).revoked) == {lost, bob, serial_in(tmp_path / "bob2")}
    hub = asked(tmp_path / "hub", "hub", "192.0.2.1:7447")
    invite(group, hub, relay=True)
    assert len(load_group(group).roster.revoked) == 3
    invite(group, asked(tmp_path / "hub2", "hub", "192.0.2.2:7447"), relay=True, replace=True)
    assert len(load_group(group).roster.revoked) == 4


# -- admins --------------------------------------------------------------------------------------------------------


def second_admin(tmp_path, group, **more):
    wanted = ask_as_admin(tmp_path / "second")
    accept_delegation(
        tmp_path / "second", appoint(group, wanted, **more), run=load_group(group, signing=False).charter.run
    )
    return tmp_path / "second"


def test_a_second_admin(tmp_path, group):
    ann = enroll(group, tmp_path / "ann", "ann")
    second = second_admin(tmp_path, group)
    assert stat.S_IMODE((second / "admin.key").stat().st_mode) == 0o600
    bob = enroll(second, tmp_path / "bob", "bob", edges={"ann": 1.0})
    assert (bob.me.address, bob.roster.version) == (1, 4)
    # Both authorities are trusted by both, and every certificate is checked against its own.
    refresh(tmp_path / "ann", second / "roster")
    assert (tmp_path / "ann/ca.crt").read_bytes() == (tmp_path / "bob/ca.crt").read_bytes()
    assert len(identity.read_authorities(tmp_path / "bob/ca.crt")) == 2
    assert membership(tmp_path / "ann").roster == membership(tmp_path / "bob").roster
    # They take turns.
    update(group, second / "roster")
    assert enroll(group, tmp_path / "eve", "eve").me.address == 2
    assert update(second, group / "roster").roster.version == 5
    # If they do not, that is a fork, and healed like any other.
    groups.edge(group, "ann", "eve")
    remove(second, "eve")
    assert update(second, group / "roster").healed
    refresh(tmp_path / "bob", second / "roster")
    assert load_group(second).roster.version == 7
    assert ann.charter.run == bob.charter.run
    secrets = [*raw_secrets(group), *raw_secrets(second)]
    for path in (second / "admin.request", second / "admin.delegation", second / "roster"):
        assert not any(secret in part for part in everything_in(path) for secret in secrets)


def test_a_admin_hands_over(tmp_path, group):
    enroll(group, tmp_path / "ann", "ann")
    backup = snapshot(group)
    second = second_admin(tmp_path, group, retire=True)
    refresh(tmp_path / "ann", second / "roster")
    with pytest.raises(IdentityError, match="handed over"):
        enroll(group, tmp_path / "joe", "joe")
    bob = enroll(second, tmp_path / "bob", "bob")
    assert roster.signers(bob.charter, bob.roster) == {public_bytes(load_group(second).admin)}
    refresh(tmp_path / "ann", second / "roster")
    assert membership(tmp_path / "ann").roster == bob.roster
    # Its old key and its old files are worth nothing to who knows: neither a roster nor an invitation.
    for name, content in backup.items():
        (group / name).write_bytes(content)
    for _ in range(5):
        invite(group, tmp_path / "ann/ann.request", to=tmp_path / "old")
    with pytest.raises(SignatureError, match="handed over"):
        refresh(tmp_path / "ann", group / "roster")
    with pytest.raises(SignatureError, match="handed over"):
        join(tmp_path / "ann", tmp_path / "old")
    # It can still look at what is going on.
    with pytest.raises(IdentityError, match="handed over"):
        update(group, second / "roster")
    assert load_group(group).roster.version == 7


def test_handing_over_to_who_is_a_admin_already(tmp_path, group):
    second = second_admin(tmp_path, group)
    key = public_bytes(load_group(second).admin).hex()
    for wrong in ("", "zz", public_bytes(load_group(group).admin).hex()):
        if wrong:
            with pytest.raises(DataError, match="not the key of one other admin"):
                hand_over(group, wrong)
    assert hand_over(group, key[:8]).delegations[-1].retires
    with pytest.raises(IdentityError, match="handed over"):
        enroll(group, tmp_path / "joe", "joe")
    update(second, group / "roster")
    enroll(second, tmp_path / "ann", "ann")
    with pytest.raises(DataError, match="there are none"):
        hand_over(second, key[:8])


def test_nobody_becomes_a_admin_by_itself(tmp_path, group):
    wanted = ask_as_admin(tmp_path / "second")
    ask_as_admin(tmp_path / "third")
    with pytest.raises(IdentityError, match="never overwritten"):
        ask_as_admin(tmp_path / "second")
    good = json.loads(wanted.read_text())
    other = json.loads((tmp_path / "third/admin.request").read_text())
    for name in ("key", "ca", "signature"):
        wanted.write_text(json.dumps({**good, name: other[name]}))
        with pytest.raises(SignatureError):
            appoint(group, wanted)
    wanted.write_text(json.dumps(good))
    path = appoint(group, wanted)
    with pytest.raises(DataError, match="may sign already"):
        appoint(group, wanted)
    with pytest.raises(DataError, match="not for the admin"):
        accept_delegation(tmp_path / "third", path)
    with pytest.raises(DataError, match="and not for"):
        accept_delegation(tmp_path / "second", path, run="0" * 32)
    with pytest.raises(IdentityError, match="no key of an admin"):
        accept_delegation(tmp_path, path)
    answer = json.loads(path.read_text())
    (tmp_path / "forged").write_text(json.dumps({**answer, "relays": {"hub": answer["charter"]["admin"]}}))
    with pytest.raises(SignatureError):
        accept_delegation(tmp_path / "second", tmp_path / "forged")
    accept_delegation(tmp_path / "second", path)
    with pytest.raises(IdentityError, match="already"):
        accept_delegation(tmp_path / "second", path)

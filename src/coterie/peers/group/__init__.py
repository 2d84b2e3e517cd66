"""Membership of a group, and its signed records: charter, roster, amendments and announcements."""

from importlib import import_module

from ...errors import MissingExtra

for _module, _package in (("msgspec", "msgspec"), ("cryptography", "cryptography"), ("nacl", "pynacl")):
    try:
        import_module(_module)
    except ImportError as error:
        raise MissingExtra(f'peers on a network need {_package}: pip install "coterie[network]"') from error

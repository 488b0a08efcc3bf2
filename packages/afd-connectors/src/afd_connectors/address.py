"""Where FFN ranks listen."""

from __future__ import annotations

from ipaddress import ip_address

from afd_connectors.errors import one_line
from afd_connectors.settings import Settings

Address = tuple[str, int]
OPTION = "ffn_addresses"
STANDBY = "standby_addresses"


def shown(address: object) -> str:
    """host:port of a socket address, with brackets around IPv6."""
    if not isinstance(address, tuple) or len(address) < 2:
        return one_line(str(address))
    host, port = one_line(str(address[0])), address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def fault(error: OSError | UnicodeError) -> str:
    """Why an address cannot be used; UnicodeError is what a host that is no possible name raises."""
    if isinstance(error, UnicodeError):
        return "its host is not a possible host name"
    return error.strerror or str(error)


def ffn_address(settings: Settings, rank: int, num_ffn: int) -> Address:
    """Host and port of FFN rank `rank`: its entry of the option, or settings.host and port + rank."""
    listed = settings.extra.get(OPTION)
    if listed is None:
        port = settings.port + rank
        if port > 65535:
            raise ValueError(f"FFN rank {rank} would listen on port {port}; choose a port of at most {65535 - rank}.")
        return settings.host, port
    addresses = parse(listed)
    if len(addresses) != num_ffn:
        raise ValueError(f"{OPTION} must list {num_ffn} addresses, one per FFN rank, found {len(addresses)}.")
    return addresses[rank]


def one_host(settings: Settings) -> bool:
    """Whether every address in the settings is this host's own loopback, so that both roles must be here."""
    listed = [settings.extra[option] for option in (OPTION, STANDBY) if option in settings.extra]
    hosts = [host for entry in listed for host, _ in parse(entry)]
    return all(is_loopback(host) for host in (settings.host, *hosts))


def is_loopback(host: str) -> bool:
    """Whether a host name or address can only mean the host that asks."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def ffn_choices(settings: Settings, rank: int, num_ffn: int) -> tuple[Address, ...]:
    """Where an attention rank looks for FFN rank `rank`, in this order: its address, then every standby's."""
    standby = settings.extra.get(STANDBY)
    return (ffn_address(settings, rank, num_ffn), *(() if standby is None else parse(standby, STANDBY)))


def parse(listed: object, option: str = OPTION) -> tuple[Address, ...]:
    """The addresses of a list of "host:port" strings; ValueError for anything else, with the option's name."""
    if not isinstance(listed, list | tuple) or not listed:
        raise ValueError(f'{option} must be a list of "host:port" strings, found {listed!r}.')
    return tuple(_parse_one(entry, option) for entry in listed)


def _parse_one(entry: object, option: str) -> Address:
    host, _, port = entry.rpartition(":") if isinstance(entry, str) else ("", "", "")
    host = host.removeprefix("[").removesuffix("]")
    strange = any(sign == "\0" or "\ud800" <= sign <= "\udfff" for sign in host)  # no resolver takes these
    if not host or strange or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise ValueError(f'{option} must hold "host:port" strings with a port in 1..65535, found {entry!r}.')
    return host, int(port)

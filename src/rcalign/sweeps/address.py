"""Whether a Ray cluster answers at an address. Does not import ray, so that a wrong address is said soon."""

from __future__ import annotations

import socket
import subprocess
import sys

from rcalign.errors import InputError

CONNECT_WITHIN = 3.0  # seconds for the connection
ANSWER_WITHIN = 8.0  # seconds for the cluster, the start of the process that asks it included: it takes one or two


def check_address(address: str) -> None:
    """Raises unless a Ray cluster answers soon. First a plain connection, which needs no ray; then ray is asked in a
    process of its own: it tries for minutes, and may abort the process, when nobody answers."""
    hint = "check it with 'ray status' on that cluster, start one with 'ray start --head', or leave --ray out."
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_WITHIN).close()
        except (OSError, OverflowError) as error:
            raise InputError(f"nobody answers at the Ray address '{address}' ({error}): {hint}") from None
    code = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='error')"
    command = [sys.executable, "-c", code, address]
    try:
        done = subprocess.run(command, capture_output=True, timeout=ANSWER_WITHIN, check=False)
    except subprocess.TimeoutExpired as error:
        why = f"no Ray cluster answers at '{address}' within {ANSWER_WITHIN:g} seconds"
        said = (error.stderr or b"").decode(errors="replace")
    else:
        if done.returncode == 0:
            return
        said = done.stderr.decode(errors="replace")
        why = f"the Ray cluster at '{address}' cannot be used ({last_line(said)})"
    if "Unauthenticated" in said or "AuthToken" in said:
        raise InputError(
            f"the Ray cluster at '{address}' asks for a token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to what "
            "'ray get-auth-token' prints on its head node."
        )
    raise InputError(f"{why}: {hint}")


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[-1]

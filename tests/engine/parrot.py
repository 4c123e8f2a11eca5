"""A server written from `docs/engine.md` alone, with nothing of Strop and no model: `python parrot.py WAY FOLDER DESCRIPTOR`.

It answers a prompt with the prompt, cut at the cap. The way says how it misbehaves: `well` not at all.
"""

import json
import os
import signal
import socket
import struct
import sys
import time
from typing import Any, BinaryIO


def receive(stream: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    length = stream.read(4)
    if len(length) < 4:
        return None
    body = stream.read(struct.unpack(">I", length)[0])
    header, _, data = body.partition(b"\n")
    return json.loads(header), data


def frame(kind: str, number: int, fields: dict[str, Any], arrays: list[Any] | None = None, data: bytes = b"") -> bytes:
    header = json.dumps({"kind": kind, "number": number, "fields": fields, "arrays": arrays or []}).encode()
    return struct.pack(">I", len(header) + 1 + len(data)) + header + b"\n" + data


def completion(header: dict[str, Any], prompt: bytes, version: int) -> bytes:
    n = min(header["fields"]["max_tokens"], len(prompt) // 4)
    arrays = [["tokens", "int32", n], ["logprobs", "float32", n], ["versions", "int32", n]]
    data = prompt[: 4 * n] + struct.pack(f"<{n}f", *[-0.5] * n) + struct.pack(f"<{n}i", *[version] * n)
    return frame("completion", header["number"], {"stop": "length"}, arrays, data)


def main() -> None:
    way, _, descriptor = sys.argv[1:]
    link = socket.socket(fileno=int(descriptor))
    version = 0
    with link.makefile("rb") as stream:
        while message := receive(stream):
            header, data = message
            kind, number, fields = header["kind"], header["number"], header["fields"]
            if kind == "hello":
                facts = {name: fields[name] for name in ("protocol", "vocabulary", "window", "stop_ids")}
                if way == "newer":
                    facts["protocol"] += 1
                if way == "deaf":
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
                if way == "mute":
                    continue
                link.sendall(frame("hello", number, facts))
            elif kind == "sample" and way == "crash":
                print("the roof is on fire", file=sys.stderr, flush=True)
                os._exit(3)
            elif kind == "sample" and way == "noise":
                link.sendall(b"\x00\x00\x00\x05hello")
            elif kind == "sample" and way == "cut":
                link.sendall(completion(header, data, version)[:-3])
                os._exit(0)
            elif kind == "sample" and way != "slow":
                link.sendall(completion(header, data, version))
            elif kind == "load":
                version = fields["version"]
                size = os.path.getsize(fields["path"])  # there, and whole
                assert size > 1000
                link.sendall(frame("loaded", number, {"version": version}))
            elif kind == "stop":
                if way == "deaf":
                    time.sleep(60)
                return


if __name__ == "__main__":
    main()

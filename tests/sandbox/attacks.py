"""Hostile programs as data. Each defines `attack(told)`, which returns plain values that say what it got.

They are run by test_attacks.py inside the sandbox alone; only those of `HARMLESS` are also run outside, as its control.
"""

PRELUDE = """
import ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)

def tried(work, *args):
    try:
        return ["did", work(*args)]
    except BaseException as error:
        return type(error).__name__

def called(name, *args):
    result = getattr(libc, name)(*[a.encode() if isinstance(a, str) else a for a in args])
    return "did" if result >= 0 else os.strerror(ctypes.get_errno())

def read(path):
    with open(path, "rb") as file:
        return file.read(100_000)

def write(path):
    with open(path, "w") as file:
        file.write("x")
    return True
"""

# What an attack reaches for, and what it must come back with.
DENIED: dict[str, tuple[str, object]] = {
    "read the host's files": (
        "return [tried(read, path) for path in ('/etc/shadow', told['file'], told['project'], '/proc/1/environ')]",
        ["FileNotFoundError", "FileNotFoundError", "FileNotFoundError", "PermissionError"],
    ),
    "list the host's folders": (
        "return [tried(os.listdir, path) for path in (told['folder'], told['venv'], '/var', '/run', '/sys', '/mnt')]",
        ["FileNotFoundError"] * 6,
    ),
    "write to the system": (
        "return sorted({tried(write, path + '/planted') for path in ('/', '/usr', '/usr/bin', '/etc', '/dev', '/sandbox',"
        " '/sandbox/library/strop/sandbox', '/proc', '/proc/sys/kernel', os.path.dirname(os.__file__))}"
        " - {'PermissionError', 'FileNotFoundError', 'OSError'})",
        [],
    ),
    "mount, chroot and enter namespaces": (
        "return [called('unshare', flag) for flag in (0x10000000, 0x20000, 0x20000000, 0x40000000, 0x4000000)]"
        " + [called('mount', 'none', '/tmp', 'tmpfs', 0, 0), called('umount2', '/tmp', 2), called('chroot', '/tmp'),"
        " called('setns', 0, 0), called('pivot_root', '/tmp', '/tmp') if hasattr(libc, 'pivot_root') else"
        " called('mount', 'none', '/', 0, 4096, 0)]",
        ["Operation not permitted"] * 10,
    ),
    "make a namespace by clone": (
        "return [called('syscall', 56 if os.uname().machine == 'x86_64' else 220, ctypes.c_ulong(flag | 17), 0, 0, 0, 0)"
        " for flag in (0x10000000, 0x20000, 0x20000000)]",
        ["Operation not permitted"] * 3,
    ),
    "trace the supervisor": (
        "return [called('ptrace', 16, 1, 0, 0), called('ptrace', 0x4206, 1, 0, 0), tried(read, '/proc/1/mem'),"
        " tried(os.listdir, '/proc/1/fd'), tried(read, '/proc/1/maps'), tried(os.readlink, '/proc/1/cwd')]",
        ["Operation not permitted"] * 2 + ["PermissionError"] * 4,
    ),
    "write to the supervisor's memory": (
        "return [called('process_vm_writev', 1, 0, 0, 0, 0, 0), tried(write, '/proc/1/oom_score_adj'),"
        " tried(write, '/proc/1/clear_refs')]",
        ["Operation not permitted", "PermissionError", "PermissionError"],
    ),
    "limit the supervisor": (
        "import resource\n    limits = (resource.RLIMIT_CPU, resource.RLIMIT_AS)\n"
        "    return [tried(resource.prlimit, 1, limit, (0, 0)) for limit in limits]",
        ["PermissionError"] * 2,
    ),
    "kill the supervisor": (
        "import signal\n    return [tried(os.kill, 1, n) for n in (9, 15, 19, 2, 11, 14, 34, 64)] + [os.getppid()]",
        [["did", None]] * 8 + [1],
    ),
    "kill everything": ("return [tried(os.kill, -1, 9), tried(os.kill, 0, 0)]", ["ProcessLookupError", ["did", None]]),
    "become root": (
        "return [tried(os.setuid, 0), tried(os.setgid, 0), tried(os.setgroups, [0]), os.getuid() == 0, os.geteuid() == 0]",
        ["OSError", "OSError", "PermissionError", False, False],  # there is no user 0 inside
    ),
    "gain by a set-uid program": (
        "import subprocess\n    su = subprocess.run(['su', '-c', 'id -u'], capture_output=True, stdin=subprocess.DEVNULL)\n"
        "    assert b'0\\n' not in su.stdout and su.returncode\n"
        "    show = 'id -u; grep -E \"Cap(Prm|Eff|Amb)|NoNew|Seccomp:\" /proc/self/status'\n"
        "    return subprocess.run(['/bin/sh', '-c', show], capture_output=True, text=True).stdout.split()",
        ["1000", "CapPrm:", "0" * 16, "CapEff:", "0" * 16, "CapAmb:", "0" * 16, "NoNewPrivs:", "1", "Seccomp:", "2"],
    ),
    "read the keyring": (
        "calls = {'x86_64': (248, 249, 250)}.get(os.uname().machine, (217, 218, 219))\n"
        "    return [called('syscall', n, ctypes.c_long(11), ctypes.c_long(-3), 0, 0) for n in calls]",
        ["Operation not permitted"] * 3,
    ),
    "reach for what the kernel has": (
        "calls = {'x86_64': (321, 298, 323, 425, 319, 29, 304)}.get(os.uname().machine, (280, 241, 282, 425, 279, 194, 265))\n"
        "    return [called('syscall', n, 0, 0, 0, 0) for n in calls]",
        ["Operation not permitted"] * 7,
    ),
    "connect to the trainer's port": (
        "def reach(where):\n        with socket.create_connection(where, 1):\n            return True\n"
        "    return tried(reach, ('127.0.0.1', told['port']))",
        "ConnectionRefusedError",
    ),
    "connect to an abstract socket of the host": (
        "def reach(name):\n        with socket.socket(socket.AF_UNIX) as s:\n            s.connect('\\0' + name)\n"
        "            return True\n"
        "    return tried(reach, told['abstract'])",
        "ConnectionRefusedError",
    ),
    "look names up": ("return tried(socket.getaddrinfo, 'example.org', 80)", "gaierror"),
    "reach the internet": (
        "def reach(kind):\n        with socket.socket(socket.AF_INET, kind) as s:\n            s.connect(('192.0.2.1', 53))\n"
        "    return [tried(reach, socket.SOCK_STREAM), tried(reach, socket.SOCK_DGRAM), [n for _, n in socket.if_nameindex()]]",
        ["OSError", "OSError", ["lo"]],
    ),
    "see processes": (
        "seen = sorted(int(p) for p in os.listdir('/proc') if p.isdigit())\n    return seen == [1, os.getpid()]",
        True,
    ),
    "find a descriptor that was left open": (
        "seen = []\n    for n in range(256):\n        try:\n            os.fstat(n)\n            seen.append(n)\n"
        "        except OSError:\n            pass\n    return [n for n in seen if n > 3]",
        [],
    ),
    "find packages of the host": (
        "import glob\n    return [p for p in glob.glob(sys.base_prefix + '/lib/python*/*-packages/*')"
        " + glob.glob('/usr/lib/python3/dist-packages/*')]",
        [],
    ),
}

# These probes do no harm, so that a control can see that they would notice.
HARMLESS = (
    "read the host's files",
    "list the host's folders",
    "connect to the trainer's port",
    "connect to an abstract socket of the host",
    "see processes",
)

SECRETS = """
    found = [repr(dict(os.environ)).encode()]
    for pid in [p for p in os.listdir('/proc') if p.isdigit()] + ['self', 'thread-self']:
        for name in ('environ', 'cmdline', 'maps', 'mountinfo'):
            got = tried(read, f'/proc/{pid}/{name}')
            found.append(got[1][:4000] if got[0] == 'did' else b'')
    return b''.join(found)
"""


def program(body: str) -> str:
    """The text of a module `main` with the attack."""
    return f"{PRELUDE}\ndef attack(told):\n    {body}\n"

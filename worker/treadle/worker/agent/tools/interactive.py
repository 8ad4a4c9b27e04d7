"""Recognises shell commands that would wait for a person at a terminal. A heuristic, pure.

What it misses runs into the timeout, with its input closed; what it wrongly refuses can be written
differently. So it knows common programs only, and lets through what is fed from a pipe or a file.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from os.path import basename

_SEPARATORS = frozenset({";", "&", "&&", "||", "|", "|&", "(", ")", "{", "}", "\n"})
_WRAPPERS = frozenset({"command", "env", "exec", "nice", "nohup", "setsid", "stdbuf", "time"})
_KEYWORDS = frozenset({"do", "else", "if", "then", "until", "while", "!"})
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1([^\n]*)\n.*?^\t*\2$", re.DOTALL | re.MULTILINE)

_EDITORS = frozenset(
    {"ed", "emacs", "hx", "joe", "kak", "mcedit", "micro", "nano", "nvim", "pico", "vi", "vim"}
)
_SCREENS = frozenset(
    {"btop", "gdb", "htop", "info", "mc", "nmon", "screen", "tig", "tmux"}
    | {"top", "visudo", "watch", "passwd", "su", "telnet", "ftp"}
)
_PAGERS = frozenset({"less", "man", "more", "most"})
_REPLS = frozenset(
    {"bash", "sh", "zsh", "fish", "python", "python3", "ipython", "node", "irb", "ghci", "lua"}
    | {"mysql", "psql", "sqlite3", "redis-cli", "mongosh", "bc"}
)
# Options with which a full-screen program does its work and ends.
_BATCH = {
    "emacs": ("--batch", "-batch"),
    "vim": ("-es", "-Es"),
    "nvim": ("--headless", "-es", "-Es"),
    "top": ("-b", "-bn1", "-l"),
    "tmux": ("-d", "kill-server", "kill-session", "ls", "list-sessions", "send-keys"),
    "screen": ("-dm", "-dmS", "-ls", "-list"),
    "gdb": ("-batch", "--batch"),
    "man": ("-k", "-f", "-w"),
}
# Options with which an interpreter has its program; any plain argument is one, too.
_CLIENTS = {
    "mysql": ("-e", "--execute"),
    "psql": ("-c", "--command", "-f", "--file", "-l", "--list"),
    "sqlite3": (),
}
_SSH_VALUES = frozenset("BbcDEeFIiJLlmOopQRSWw")


def why_interactive(command: str) -> str:
    """Return why the command would wait for a person, or ''."""
    for words, is_fed in _commands(command):
        if words and (why := _why(words, is_fed)):
            return why
    return ""


def _commands(command: str) -> Iterator[tuple[list[str], bool]]:
    """Yield the simple commands, each with whether its input comes from a pipe or a file."""
    lexer = shlex.shlex(
        _HEREDOC.sub(r"< heredoc \3\n", command), posix=True, punctuation_chars=";&|()<>\n"
    )
    lexer.whitespace = " \t\r"
    lexer.whitespace_split = True
    lexer.commenters = ""
    words: list[str] = []
    is_fed = False
    try:
        for token in lexer:
            mark = token.strip("\n") or "\n"
            if mark in _SEPARATORS:
                # Full-screen programs write plain text into a pipe.
                yield ([] if mark in ("|", "|&") and _is_pager(words) else words), is_fed
                words, is_fed = [], mark in ("|", "|&")
            elif token.startswith("<"):
                is_fed = True
            elif not token.startswith(">"):
                words.append(token)
    except ValueError:
        return  # Unbalanced quotes: the shell will say so.
    yield words, is_fed


def _is_pager(words: list[str]) -> bool:
    return bool(words) and basename(words[0]) in _PAGERS


def _why(words: list[str], is_fed: bool) -> str:
    words = _unwrapped(words)
    if not words:
        return ""
    program, options = basename(words[0]), words[1:]
    if program == "sudo":
        if not any(option in ("-n", "--non-interactive") for option in options):
            return "sudo may ask for a password; use `sudo -n`, which fails instead"
        rest = [word for word in options if not word.startswith("-")]
        return _why(rest, is_fed)
    if program in _EDITORS or program in _SCREENS or (program in _PAGERS and not is_fed):
        if any(option in _BATCH.get(program, ()) for option in options) or "--version" in options:
            return ""
        use = "edit files with other commands" if program in _EDITORS else "use a plain command"
        return f"{program} needs a terminal; {use}"
    if program in _REPLS:
        return "" if is_fed else _why_repl(program, options)
    if program == "ssh":
        return _why_ssh(options, is_fed)
    if program == "git":
        return _why_git(options)
    if program in ("docker", "podman", "kubectl") and _has_terminal_flag(options):
        return f"{program} with -it needs a terminal; leave out -t and -i"
    if program == "crontab" and "-e" in options:
        return "crontab -e opens an editor; pipe the new table into `crontab -`"
    return ""


def _unwrapped(words: list[str]) -> list[str]:
    """Leave out assignments, keywords and programs that only start another one."""
    while words:
        word = basename(words[0])
        if _ASSIGNMENT.match(words[0]) or word in _KEYWORDS or words[0] in ("{", "}"):
            words = words[1:]
        elif word in _WRAPPERS:
            words = words[1:]
            while words and words[0].startswith("-"):
                words = words[1:]
        elif word == "timeout" and len(words) > 2:
            words = [w for w in words[1:] if not w.startswith("-")][1:]
        else:
            break
    return words


def _why_repl(program: str, options: list[str]) -> str:
    plain = [option for option in options if not option.startswith("-")]
    if program in _CLIENTS:
        given = any(option.startswith(flag) for option in options for flag in _CLIENTS[program])
        # sqlite3 takes the database, then the statement.
        if given or (program == "sqlite3" and len(plain) > 1) or "--version" in options:
            return ""
        return f"{program} without a statement waits for input; pass the statement"
    if program in ("python", "python3", "node", "bash", "sh") and "-i" in options:
        return f"{program} -i waits for input; pass a script or -c"
    if options:
        return ""
    return f"{program} without arguments waits for input; pass a script, -c or a file"


def _why_ssh(options: list[str], is_fed: bool) -> str:
    plain = 0
    skip = False
    for option in options:
        if skip:
            skip = False
        elif option.startswith("-") and not plain:
            skip = len(option) == 2 and option[1] in _SSH_VALUES
            if option in ("-N", "-V", "-G", "-Q"):
                return ""
        else:
            plain += 1
    if plain > 1 or is_fed:
        return ""
    return "ssh without a command opens a session; pass the command to run there"


def _why_git(options: list[str]) -> str:
    while options[:1] and options[0] in ("-C", "-c"):
        options = options[2:]
    if not options:
        return ""
    verb, rest = options[0], options[1:]
    if verb in ("rebase", "add", "clean") and any(o in ("-i", "--interactive") for o in rest):
        return f"git {verb} -i needs a terminal; say what to do by arguments"
    if verb in ("add", "checkout", "reset", "stash") and any(o in ("-p", "--patch") for o in rest):
        return f"git {verb} -p needs a terminal; name the files instead"
    if verb == "commit" and not any(_gives_message(option) for option in rest):
        return "git commit without -m opens an editor; pass -m, -F or --no-edit"
    return ""


def _gives_message(option: str) -> bool:
    long = ("--message", "--file", "--no-edit", "--fixup", "--reuse-message", "--dry-run", "--help")
    if option.startswith("--"):
        return option.startswith(long)
    return option.startswith("-") and any(letter in option for letter in "mFC")


def _has_terminal_flag(options: list[str]) -> bool:
    if not options or options[0] not in ("run", "exec", "attach"):
        return False
    for option in options[1:]:
        if option in ("-it", "-ti", "-t", "--tty"):
            return True
        if not option.startswith("-"):
            return False
    return False

"""A second implementation of SOPS files (YAML, age), to check the one in crates/secrets.

Written from the behaviour of the real tool, not from our Rust code. It models the Go YAML
reader and the emitter of sops (indent 4, comments in front of their entry).

    sops_ref.py encrypt FILE --recipient AGE1.. [--group AGE1..,AGE1.. --threshold N]
                [--rule FIELD=TEXT] [--mac-only-encrypted] [--now TIME]   > sealed
    sops_ref.py decrypt FILE --keys KEYS     > one line per value; fails when the MAC does not fit
"""

import argparse
import base64
import hashlib
import json
import os
import re
import sys
from decimal import Decimal

import pyrage
import yaml
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

ENC = re.compile(r"^ENC\[AES256_GCM,data:(.+),iv:(.+),tag:(.+),type:(.+)\]$")
FLOAT = re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")
RULES = (
    "unencrypted_suffix",
    "encrypted_suffix",
    "unencrypted_regex",
    "encrypted_regex",
    "unencrypted_comment_regex",
    "encrypted_comment_regex",
)


class Comment(str):
    pass


def resolve(text):
    """A plain scalar as go-yaml v3 reads it into an interface{}."""
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text in ("true", "True", "TRUE"):
        return True
    if text in ("false", "False", "FALSE"):
        return False
    if text[0] in "+-0123456789":
        bare = text.replace("_", "")
        body, sign = (bare[1:], bare[0]) if bare[0] in "+-" else (bare, "")
        for prefix, base in (("0x", 16), ("0b", 2), ("0o", 8)):
            if body.lower().startswith(prefix):
                return int(sign + body[2:], base)
        if re.fullmatch(r"0[0-7]+", body):
            return int(sign + body, 8)
        if re.fullmatch(r"0|[1-9][0-9]*", body) and -(2**63) <= int(bare) < 2**63:
            return int(bare)
        if FLOAT.match(bare):
            return float(bare)
    elif text[0] == "." and FLOAT.match(text):
        return float(text)
    return text


def to_bytes(value):
    """Bytes for the cipher and for the MAC."""
    if isinstance(value, bool):
        return b"True" if value else b"False"
    if isinstance(value, int):
        return str(value).encode()
    if isinstance(value, float):
        text = format(Decimal(repr(value)), "f")
        return (text.rstrip("0").rstrip(".") if "." in text else text).encode()
    return value.encode()


def kind_of(value):
    if isinstance(value, Comment):
        return "comment"
    return {bool: "bool", int: "int", float: "float", str: "str"}[type(value)]


def encrypt_value(key, value, aad):
    if isinstance(value, str) and value == "":
        return ""
    iv = os.urandom(32)
    out = AESGCM(key).encrypt(iv, to_bytes(value), aad.encode())
    data, tag = out[:-16], out[-16:]
    b64 = lambda raw: base64.b64encode(raw).decode()
    return f"ENC[AES256_GCM,data:{b64(data)},iv:{b64(iv)},tag:{b64(tag)},type:{kind_of(value)}]"


def decrypt_value(key, text, aad):
    if text == "":
        return ""
    match = ENC.match(text)
    if not match:
        raise ValueError("not an encrypted value: " + text[:20])
    data, iv, tag = (base64.b64decode(part, validate=True) for part in match.groups()[:3])
    plain = AESGCM(key).decrypt(iv, data + tag, aad.encode()).decode()
    return {
        "str": str,
        "int": int,
        "float": float,
        "bool": lambda word: {"True": True, "False": False}[word],
        "comment": Comment,
        "time": str,
    }[match.group(4)](plain)


# --- Documents: a branch is a list of [key, value]; a comment is [Comment, None] in a branch
# --- and a bare Comment in a list.


def load(text):
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    comments = find_comments(text, root)
    branch = convert(root, comments)
    return branch + [[comment[2], None] for comment in comments]


def find_comments(text, root):
    """(line, column, Comment, behind something) of every comment, in order."""
    covered = []

    def cover(node):
        if isinstance(node, yaml.ScalarNode):
            covered.append((node.start_mark.index, node.end_mark.index))
        elif isinstance(node, yaml.SequenceNode):
            for item in node.value:
                cover(item)
        else:
            for key, value in node.value:
                cover(key)
                cover(value)

    cover(root)
    found, at = [], 0
    for number, line in enumerate(text.splitlines(keepends=True)):
        for column, char in enumerate(line):
            index = at + column
            free = column == 0 or line[column - 1] in " \t"
            if char == "#" and free and not any(a <= index < b for a, b in covered):
                behind = line[:column].strip() not in ("", "-")
                found.append((number, column, Comment(line[column + 1 :].rstrip("\n")), behind))
                break
        at += len(line)
    return found


def take(comments, node, last_line):
    """Comments above an entry, and the one at the end of its line."""
    taken = []
    while comments:
        line, _, comment, behind = comments[0]
        above = line < node.start_mark.line
        at_end = behind and line == last_line
        if not above and not at_end:
            break
        taken.append(comment)
        comments.pop(0)
    return taken


def last_line(node):
    """The line for a comment after the value; blocks and collections have none."""
    if isinstance(node, yaml.ScalarNode):
        return node.end_mark.line if node.style not in ("|", ">") else -1
    return node.end_mark.line if node.flow_style else -1


def closing(node, comments):
    """Comments below the last entry, as deep as it, before something less deep."""
    taken = []
    end, column = node.end_mark, node.start_mark.column
    if not node.flow_style:
        while comments and comments[0][1] >= column > end.column and comments[0][0] < end.line:
            taken.append(comments.pop(0)[2])
    return taken


def convert(node, comments):
    if isinstance(node, yaml.ScalarNode):
        return resolve(node.value) if node.style is None else node.value
    out = []
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            out += take(comments, item, last_line(item))
            out.append(convert(item, comments))
        return out + closing(node, comments)
    for key, value in node.value:
        out += [[comment, None] for comment in take(comments, key, last_line(value))]
        out.append([key.value, convert(value, comments)])
    return out + [[comment, None] for comment in closing(node, comments)]


def encrypts(rule, path, stack, is_comment):
    field, text = rule
    if field == "unencrypted_suffix":
        return not any(key.endswith(text) for key in path)
    if field == "encrypted_suffix":
        return any(key.endswith(text) for key in path)
    if field == "unencrypted_regex":
        return not any(re.search(text, key) for key in path)
    if field == "encrypted_regex":
        return any(re.search(text, key) for key in path)
    lines = [line for level in stack for line in level]
    if field == "unencrypted_comment_regex":
        return not any(re.search(text, line) for line in lines)
    return any(re.search(text, line) for line in (lines[:-1] if is_comment else lines))


def walk(branch, path, stack, visit):
    stack = stack + [[]]
    for item in branch:
        if isinstance(item[0], Comment):
            stack[-1].append(item[0])
            item[0] = Comment(visit(item[0], path, stack))
            continue
        item[1] = walk_value(item[1], path + [item[0]], stack, visit)
        stack[-1].clear()
    return branch


class Listing(list):
    kind = "list"


def mark_lists(node, value):
    """Distinguishes lists from branches, which have the same shape."""
    if isinstance(node, yaml.SequenceNode):
        out = Listing(value)
        items = [at for at, item in enumerate(out) if not isinstance(item, Comment)]
        for at, child in zip(items, node.value):
            out[at] = mark_lists(child, out[at])
        return out
    if isinstance(node, yaml.MappingNode):
        entries = [entry for entry in value if not isinstance(entry[0], Comment)]
        for entry, (_, child) in zip(entries, node.value):
            entry[1] = mark_lists(child, entry[1])
    return value


def walk_value(value, path, stack, visit):
    if value is None:
        return None
    if isinstance(value, Listing):
        stack = stack + [[]]
        for at, item in enumerate(value):
            if isinstance(item, Comment):
                stack[-1].append(item)
                value[at] = Comment(visit(item, path, stack))
                continue
            value[at] = walk_value(item, path, stack, visit)
            stack[-1].clear()
        return value
    if isinstance(value, list):
        return walk(value, path, stack, visit)
    return visit(value, path, stack)


def read(text):
    return mark_lists(yaml.compose(text, Loader=yaml.SafeLoader), load(text))


def new_hash(mac_only_encrypted):
    start = hashlib.sha256(b"sops").digest() if mac_only_encrypted else b""
    return hashlib.sha512(start)


# --- Shamir over GF(2^8), as sops splits the data key over key groups.


def gf_mul(a, b):
    out = 0
    while b:
        out ^= a if b & 1 else 0
        a = (a << 1) ^ (0x11B if a & 0x80 else 0)
        b >>= 1
    return out


def split(secret, parts, threshold):
    xs = list(range(1, 256))
    xs = [xs.pop(int.from_bytes(os.urandom(4), "big") % len(xs)) for _ in range(parts)]
    shares = [bytearray() for _ in xs]
    for byte in secret:
        coefficients = [byte] + list(os.urandom(threshold - 1))
        for x, share in zip(xs, shares):
            y = 0
            for coefficient in reversed(coefficients):
                y = gf_mul(y, x) ^ coefficient
            share.append(y)
    return [bytes(share) + bytes([x]) for x, share in zip(xs, shares)]


# --- Emitting as sops does.


def spell(value):
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return to_bytes(value).decode()
    if ENC.match(value):
        return value
    if re.fullmatch(r"[A-Za-z/_][A-Za-z0-9_./-]*", value) and isinstance(resolve(value), str):
        if value.lower() not in ("y", "n", "yes", "no", "on", "off"):
            return value
    return json.dumps(value, ensure_ascii=False)


def emit(value, indent, out):
    pad = " " * indent
    if isinstance(value, Listing):
        for item in value:
            if isinstance(item, Comment):
                out.append(f"{pad}#{item}")
            elif isinstance(item, list) and item:
                inner = []
                emit(item, indent + 2, inner)
                first = next(at for at, line in enumerate(inner) if not line.lstrip().startswith("#"))
                head = [line[2:] for line in inner[:first]]
                out += [f"{pad}{line.strip()}" for line in head]
                out.append(f"{pad}- {inner[first][indent + 2:]}")
                out += inner[first + 1 :]
            else:
                out.append(f"{pad}- " + ("[]" if isinstance(item, Listing) else "{}" if item == [] else spell(item)))
        return
    for key, item in value:
        if isinstance(key, Comment):
            out.append(f"{pad}#{key}")
        elif isinstance(item, list) and item:
            out.append(f"{pad}{spell(key)}:")
            emit(item, indent + 4, out)
        else:
            out.append(f"{pad}{spell(key)}: " + ("[]" if isinstance(item, Listing) else "{}" if item == [] else spell(item)))


def wrap(secret, recipient):
    key = pyrage.x25519.Recipient.from_str(recipient)
    return pyrage.encrypt(secret, [key], armored=True).decode()


def age_lines(secret, recipients, pad):
    out = []
    for recipient in recipients:
        out.append(f"{pad}- recipient: {recipient}")
        out.append(f"{pad}  enc: |")
        out += [f"{pad}    {line}" for line in wrap(secret, recipient).strip().splitlines()]
    return out


def encrypt(options):
    branch = read(open(options.file, encoding="utf-8").read())
    key = os.urandom(32)
    digest = new_hash(options.mac_only_encrypted)
    rule = tuple(options.rule.split("=", 1))

    def visit(value, path, stack):
        comment = isinstance(value, Comment)
        hidden = encrypts(rule, path, stack, comment)
        if not comment and (hidden or not options.mac_only_encrypted):
            digest.update(to_bytes(value))
        return encrypt_value(key, value, ":".join(path) + ":") if hidden else value

    walk(branch, [], [], visit)
    out = []
    emit(branch, 0, out)
    out.append("sops:")
    if options.group:
        out.append(f"    shamir_threshold: {options.threshold}")
        out.append("    key_groups:")
        for share, group in zip(split(key, len(options.group), options.threshold), options.group):
            out.append("        - hc_vault: []")
            out.append("          age:")
            out += age_lines(share, group.split(","), " " * 12)
        out += ["    kms: []", "    gcp_kms: []", "    azure_kv: []", "    hc_vault: []", "    age: []"]
    else:
        out += ["    kms: []", "    gcp_kms: []", "    azure_kv: []", "    hc_vault: []", "    age:"]
        out += age_lines(key, options.recipient, " " * 8)
    mac = encrypt_value(key, digest.hexdigest().upper(), options.now)
    out += [f'    lastmodified: "{options.now}"', f"    mac: {mac}", "    pgp: []"]
    out.append(f"    {rule[0]}: {json.dumps(rule[1])}")
    if options.mac_only_encrypted:
        out.append("    mac_only_encrypted: true")
    out.append("    version: 3.9.4")
    print("\n".join(out))


def leaves(value, path):
    if isinstance(value, Listing):
        items = [item for item in value if not isinstance(item, Comment)]
        for at, item in enumerate(items):
            yield from leaves(item, path + [str(at)])
    elif isinstance(value, list):
        for key, item in value:
            if not isinstance(key, Comment):
                yield from leaves(item, path + [key])
    elif value is None:
        yield f"{'/'.join(path)} null"
    elif isinstance(value, str):
        yield f"{'/'.join(path)} str {json.dumps(value, ensure_ascii=False)}"
    else:
        yield f"{'/'.join(path)} {kind_of(value)} {to_bytes(value).decode()}"


def decrypt(options):
    text = open(options.file, encoding="utf-8").read()
    block = yaml.load(text, Loader=yaml.BaseLoader)["sops"]
    lines = open(options.keys, encoding="utf-8").read().split()
    keys = [pyrage.x25519.Identity.from_str(line) for line in lines if line.startswith("AGE-SECRET")]
    key = None
    for entry in block["age"]:
        try:
            key = pyrage.decrypt(entry["enc"].encode(), keys)
            break
        except pyrage.DecryptError:
            pass
    if key is None:
        sys.exit("no key fits")
    rule = next(((f, block[f]) for f in RULES if block.get(f)), (RULES[0], "_unencrypted"))
    only = block.get("mac_only_encrypted") == "true"
    digest = new_hash(only)
    comments = []
    branch = [entry for entry in read(text) if entry[0] != "sops"]

    def visit(value, path, stack):
        hidden = encrypts(rule, path, stack, isinstance(value, Comment))
        if isinstance(value, Comment):
            if hidden:
                value = decrypt_value(key, value, ":".join(path) + ":")
            comments.append(value)
            return value
        if hidden:
            value = decrypt_value(key, value, ":".join(path) + ":")
        if hidden or not only:
            digest.update(to_bytes(value))
        return value

    walk(branch, [], [], visit)
    if decrypt_value(key, block["mac"], block["lastmodified"]) != digest.hexdigest().upper():
        sys.exit("MAC mismatch")
    for line in leaves(branch, []):
        print(line)
    for comment in comments:
        print("# " + json.dumps(str(comment), ensure_ascii=False))


def main():
    parser = argparse.ArgumentParser()
    verbs = parser.add_subparsers(required=True)
    sealing = verbs.add_parser("encrypt")
    sealing.add_argument("file")
    sealing.add_argument("--recipient", action="append", default=[])
    sealing.add_argument("--group", action="append", default=[])
    sealing.add_argument("--threshold", type=int, default=2)
    sealing.add_argument("--rule", default="unencrypted_suffix=_unencrypted")
    sealing.add_argument("--mac-only-encrypted", action="store_true")
    sealing.add_argument("--now", default="2026-01-31T12:00:00Z")
    sealing.set_defaults(run=encrypt)
    opening = verbs.add_parser("decrypt")
    opening.add_argument("file")
    opening.add_argument("--keys", required=True)
    opening.set_defaults(run=decrypt)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()

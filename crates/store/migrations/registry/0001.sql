-- What a server records of its nodes. Times are seconds since 1970.
CREATE TABLE node (
    uuid         TEXT PRIMARY KEY,
    name         TEXT NOT NULL,
    manifest     TEXT NOT NULL,
    host         TEXT NOT NULL,
    -- SHA-256 of the client certificate that counts; none before the node enrolled.
    fingerprint  TEXT UNIQUE,
    not_before   INTEGER,
    not_after    INTEGER,
    -- SHA-256 of the node's public key: with the same key, enrolling again is allowed.
    public_key   TEXT,
    -- SHA-256 of the certificate that this one replaced, until the node has used the new one. It may
    -- still renew: the answer with the new one may have been lost.
    replaced     TEXT UNIQUE,
    -- 1 once a certificate was renewed after it had expired: that is allowed once.
    renewed_late INTEGER NOT NULL DEFAULT 0,
    enrolled     INTEGER,
    revoked      INTEGER,
    reason       TEXT,
    address      TEXT,
    agent        TEXT,
    last_contact INTEGER
) STRICT;
CREATE INDEX node_by_name ON node (name);

-- Provisioning tokens by their id; never the tokens themselves.
CREATE TABLE token (
    id      TEXT PRIMARY KEY,
    uuid    TEXT NOT NULL,
    node    TEXT NOT NULL,
    issued  INTEGER NOT NULL,
    expires INTEGER,
    used    INTEGER,
    revoked INTEGER
) STRICT;

-- The last reports of every node.
CREATE TABLE report (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    uuid     TEXT NOT NULL REFERENCES node (uuid) ON DELETE CASCADE,
    received INTEGER NOT NULL,
    body     TEXT NOT NULL
) STRICT;
CREATE INDEX report_by_node ON report (uuid, id);

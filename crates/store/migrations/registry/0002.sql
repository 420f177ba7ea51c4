-- Jobs of nodes. Times are seconds since 1970.
CREATE TABLE job (
    -- Higher numbers were added later.
    number     INTEGER PRIMARY KEY AUTOINCREMENT,
    id         TEXT NOT NULL UNIQUE,
    uuid       TEXT NOT NULL REFERENCES node (uuid) ON DELETE CASCADE,
    -- The node's name when the job was added.
    node       TEXT NOT NULL,
    kind       TEXT NOT NULL,
    -- Who or what started it.
    origin     TEXT NOT NULL,
    issued     INTEGER NOT NULL,
    expires    INTEGER NOT NULL,
    time_limit INTEGER NOT NULL,
    taken      INTEGER,
    cancelled  INTEGER,
    -- When its outcome arrived.
    ended      INTEGER,
    -- When the node last reported about it.
    reported   INTEGER,
    -- The state of its outcome.
    outcome    TEXT,
    message    TEXT,
    -- How many bytes of output the node has sent, by its own account.
    sent       INTEGER NOT NULL DEFAULT 0,
    -- How many of them are kept.
    kept       INTEGER NOT NULL DEFAULT 0,
    -- 1 once output was dropped because there was too much.
    truncated  INTEGER NOT NULL DEFAULT 0,
    -- The signed job; none when a trigger started it.
    statement  TEXT,
    -- What it found or did, as JSON. The last column: lists do not read it.
    result     TEXT
) STRICT;
CREATE INDEX job_by_node ON job (uuid, number);
CREATE INDEX job_not_taken ON job (uuid, number) WHERE taken IS NULL AND cancelled IS NULL;

-- The output of jobs in parts; `start` is the byte at which a part begins.
CREATE TABLE job_output (
    job   INTEGER NOT NULL REFERENCES job (number) ON DELETE CASCADE,
    start INTEGER NOT NULL,
    body  TEXT NOT NULL,
    PRIMARY KEY (job, start)
) STRICT, WITHOUT ROWID;

-- Ids of jobs that were deleted before they expired: they are never used again.
CREATE TABLE used_job (
    id      TEXT PRIMARY KEY,
    expires INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX used_job_by_expiry ON used_job (expires);

-- Texts that name things are JSON where they have structure; times are nanoseconds since 1970.

CREATE TABLE runs (
    -- AUTOINCREMENT: a number is never used again.
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    manifest TEXT NOT NULL,
    hosts TEXT NOT NULL,
    verb TEXT NOT NULL,
    started INTEGER NOT NULL,
    ended INTEGER,
    ending TEXT,
    CHECK ((ended IS NULL) = (ending IS NULL))
) STRICT;

CREATE INDEX runs_of_manifest ON runs (manifest);

-- Beside `runs`, so that ending a run does not write its plan again.
CREATE TABLE plans (
    run INTEGER PRIMARY KEY REFERENCES runs (id),
    plan TEXT NOT NULL
) STRICT;

CREATE TABLE entries (
    -- The order in which everything happened, over all runs.
    id INTEGER PRIMARY KEY,
    run INTEGER NOT NULL REFERENCES runs (id),
    step INTEGER NOT NULL,
    -- 0 intent, 1 done before, 2 done, 3 failed, 4 intent to undo, 5 nothing to undo, 6 undone,
    -- 7 undo failed, 8 settled.
    what INTEGER NOT NULL,
    at INTEGER NOT NULL,
    trouble TEXT,
    -- The whole record; or, with a base, what differs from the record of that entry.
    base INTEGER,
    record TEXT
) STRICT;

CREATE INDEX entries_of_run ON entries (run);

-- What a person asked to forget, and after which entry: without it, the entries alone would
-- bring it back.
CREATE TABLE forgotten (
    id INTEGER PRIMARY KEY,
    after INTEGER NOT NULL,
    manifest TEXT NOT NULL,
    host TEXT NOT NULL,
    node TEXT NOT NULL
) STRICT;

-- The newest record of each node that is not destroyed. It follows from `entries` and `forgotten`.
CREATE TABLE nodes (
    manifest TEXT NOT NULL,
    host TEXT NOT NULL,
    name TEXT NOT NULL,
    record TEXT NOT NULL,
    PRIMARY KEY (manifest, host, name)
) STRICT, WITHOUT ROWID;

-- How long the newest steps of each kind took.
CREATE TABLE paces (
    kind TEXT NOT NULL,
    number INTEGER NOT NULL,
    seconds REAL NOT NULL,
    PRIMARY KEY (kind, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE leases (
    manifest TEXT NOT NULL,
    host TEXT NOT NULL,
    -- Who holds it: machine, boot of it, space of process numbers, process, and its start.
    machine TEXT NOT NULL,
    boot TEXT NOT NULL,
    space TEXT NOT NULL,
    pid INTEGER NOT NULL,
    start INTEGER NOT NULL,
    -- Which of the process's leases it is.
    mark INTEGER NOT NULL,
    since INTEGER NOT NULL,
    PRIMARY KEY (manifest, host)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER entries_are_not_changed BEFORE UPDATE ON entries
BEGIN
    SELECT RAISE(ABORT, 'an entry is never changed');
END;

CREATE TRIGGER entries_are_not_deleted BEFORE DELETE ON entries
BEGIN
    SELECT RAISE(ABORT, 'an entry is never deleted');
END;

CREATE TRIGGER plans_are_not_changed BEFORE UPDATE ON plans
BEGIN
    SELECT RAISE(ABORT, 'a plan is never changed');
END;

CREATE TRIGGER plans_are_not_deleted BEFORE DELETE ON plans
BEGIN
    SELECT RAISE(ABORT, 'a plan is never deleted');
END;

CREATE TRIGGER runs_only_end BEFORE UPDATE OF id, manifest, hosts, verb, started ON runs
BEGIN
    SELECT RAISE(ABORT, 'a run only ends');
END;

CREATE TRIGGER runs_are_not_deleted BEFORE DELETE ON runs
BEGIN
    SELECT RAISE(ABORT, 'a run is never deleted');
END;

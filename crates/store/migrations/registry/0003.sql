-- What starts runs of nodes: requests of webhooks, and repositories. Times are seconds since 1970.

-- Requests that were accepted: none is accepted twice.
CREATE TABLE hook_request (
    hook     TEXT NOT NULL,
    id       TEXT NOT NULL,
    received INTEGER NOT NULL,
    PRIMARY KEY (hook, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX hook_request_by_time ON hook_request (hook, received);

-- Branches that are checked.
CREATE TABLE repository (
    repo     TEXT NOT NULL,
    -- Empty for the default branch.
    branch   TEXT NOT NULL,
    -- Identifies who must have signed a commit; empty if nobody must.
    signers  TEXT NOT NULL,
    -- The newest commit that started runs, or that was there at the first check.
    accepted TEXT,
    -- When it was first seen.
    changed  INTEGER,
    -- A newer commit whose signature was refused, and why.
    refused  TEXT,
    reason   TEXT,
    -- When it was last checked, and why that failed.
    checked  INTEGER NOT NULL,
    error    TEXT,
    PRIMARY KEY (repo, branch, signers)
) STRICT, WITHOUT ROWID;

-- Plans contain their steps, and entries refer to steps by id. `step_migration.rs` copies the rows from
-- the tables that are renamed here to the new ones, and drops the renamed tables.

DROP TRIGGER plans_are_not_changed;
DROP TRIGGER plans_are_not_deleted;
ALTER TABLE plans RENAME TO plans_without_steps;
CREATE TABLE plans (
    run INTEGER PRIMARY KEY REFERENCES runs (id),
    plan TEXT NOT NULL
) STRICT;

DROP TRIGGER entries_are_not_changed;
DROP TRIGGER entries_are_not_deleted;
ALTER TABLE entries RENAME TO entries_by_number;
CREATE TABLE entries (
    -- The order in which everything happened, over all runs.
    id INTEGER PRIMARY KEY,
    run INTEGER NOT NULL REFERENCES runs (id),
    -- The name of a step of the plan; none when something was recorded that no step did.
    step TEXT,
    -- 0 intent, 1 done before, 2 done, 3 failed, 4 intent to undo, 5 nothing to undo, 6 undone,
    -- 7 undo failed, 8 settled.
    what INTEGER NOT NULL,
    at INTEGER NOT NULL,
    trouble TEXT,
    -- The whole record; or, with a base, what differs from the record of that entry.
    base INTEGER,
    record TEXT
) STRICT;

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

-- The form of the plan; 0 when it cannot be read.
ALTER TABLE runs ADD COLUMN form INTEGER NOT NULL DEFAULT 0;

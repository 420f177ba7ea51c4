-- A lease has a number that grows each time its scope is taken and never falls, so its row stays
-- when it is freed; and a heartbeat, for holders that cannot be asked.

-- Tells this journal from others: each counts for itself.
CREATE TABLE journal (
    id TEXT NOT NULL
) STRICT;
INSERT INTO journal VALUES (lower(hex(randomblob(16))));

CREATE TABLE numbered_leases (
    site TEXT NOT NULL,
    manifest TEXT NOT NULL,
    host TEXT NOT NULL,
    number INTEGER NOT NULL,
    -- Who holds it, as JSON; NULL when nobody does.
    holder TEXT,
    -- Which of the holder's leases it is: a random number.
    mark INTEGER NOT NULL,
    since INTEGER NOT NULL,
    heartbeat INTEGER NOT NULL,
    PRIMARY KEY (site, manifest, host)
) STRICT, WITHOUT ROWID;
-- Whoever holds a lease while the form changes keeps it.
INSERT INTO numbered_leases
    SELECT site, manifest, host, 1,
        json_object('machine', '', 'name', machine, 'boot', boot, 'space', space, 'pid', pid, 'start', start),
        mark, since, since
    FROM leases;
DROP TABLE leases;
ALTER TABLE numbered_leases RENAME TO leases;

-- Sites have an id, and guests carry the mark of the run that created them. Rows without a site are
-- of the first form: they belong to whichever site has the manifest, until it writes its own.

ALTER TABLE runs ADD COLUMN site TEXT;
ALTER TABLE runs ADD COLUMN mark TEXT;

ALTER TABLE forgotten ADD COLUMN site TEXT;

CREATE TABLE nodes_of_sites (
    -- Empty for the first form: a key has no NULL.
    site TEXT NOT NULL,
    manifest TEXT NOT NULL,
    host TEXT NOT NULL,
    name TEXT NOT NULL,
    record TEXT NOT NULL,
    PRIMARY KEY (site, manifest, host, name)
) STRICT, WITHOUT ROWID;
INSERT INTO nodes_of_sites SELECT '', manifest, host, name, record FROM nodes;
DROP TABLE nodes;
ALTER TABLE nodes_of_sites RENAME TO nodes;

-- Whoever holds a lease while the form changes keeps it for every site.
CREATE TABLE leases_of_sites (
    site TEXT NOT NULL,
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
    PRIMARY KEY (site, manifest, host)
) STRICT, WITHOUT ROWID;
INSERT INTO leases_of_sites
    SELECT '', manifest, host, machine, boot, space, pid, start, mark, since FROM leases;
DROP TABLE leases;
ALTER TABLE leases_of_sites RENAME TO leases;

DROP TRIGGER runs_only_end;
CREATE TRIGGER runs_only_end BEFORE UPDATE OF id, site, mark, manifest, hosts, verb, started ON runs
BEGIN
    SELECT RAISE(ABORT, 'a run only ends');
END;

PRAGMA application_id = 1752132965;
PRAGMA user_version = 4;
PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
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
INSERT INTO "entries" VALUES(1,1,'create:father/node-0',0,1700000000123456789,NULL,NULL,'{"name":"node-0","host":"father","place":{"host":"father"},"site":"kq7f2mzx4vbt3npw","guest":{"uuid":"6f1d2a3b-4c5d-4e6f-8a9b-000000000006","kind":"vm","vmid":null,"host":"father"},"status":"creating","source":"debian-12-custom"}');
INSERT INTO "entries" VALUES(2,1,'create:father/node-0',2,1700000012123456789,NULL,1,'{"guest":{"vmid":99011},"status":"made"}');
INSERT INTO "entries" VALUES(3,1,'start:father/node-0',0,1700000001123456789,NULL,NULL,'{"name":"gone","host":"father","place":{"host":"father"},"site":"kq7f2mzx4vbt3npw","guest":{"uuid":"6f1d2a3b-4c5d-4e6f-8a9b-000000000004","kind":"vm","vmid":99011,"host":"father"},"status":"made","source":"debian-12-custom"}');
INSERT INTO "entries" VALUES(4,1,'start:father/node-0',3,1700000001123456789,'{"class":"refused","message":"create guest 99011 on father: storage `local-zfs` is \"full\"\n💀","log":["line 1","","TASK ERROR"],"hint":"free space"}',NULL,NULL);
CREATE TABLE forgotten (
    id INTEGER PRIMARY KEY,
    after INTEGER NOT NULL,
    manifest TEXT NOT NULL,
    host TEXT NOT NULL,
    node TEXT NOT NULL
, site TEXT) STRICT;
INSERT INTO "forgotten" VALUES(1,4,'edge','father','gone','kq7f2mzx4vbt3npw');
CREATE TABLE journal (
    id TEXT NOT NULL
) STRICT;
INSERT INTO "journal" VALUES('bdbfd660c975462e9bbee1342b78bfeb');
CREATE TABLE "leases" (
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
CREATE TABLE "nodes" (
    -- Empty for the first form: a key has no NULL.
    site TEXT NOT NULL,
    manifest TEXT NOT NULL,
    host TEXT NOT NULL,
    name TEXT NOT NULL,
    record TEXT NOT NULL,
    PRIMARY KEY (site, manifest, host, name)
) STRICT, WITHOUT ROWID;
INSERT INTO "nodes" VALUES('kq7f2mzx4vbt3npw','edge','father','node-0','{"name":"node-0","host":"father","place":{"host":"father"},"site":"kq7f2mzx4vbt3npw","guest":{"uuid":"6f1d2a3b-4c5d-4e6f-8a9b-000000000006","kind":"vm","vmid":99011,"host":"father"},"status":"made","source":"debian-12-custom"}');
CREATE TABLE paces (
    kind TEXT NOT NULL,
    number INTEGER NOT NULL,
    seconds REAL NOT NULL,
    PRIMARY KEY (kind, number)
) STRICT, WITHOUT ROWID;
INSERT INTO "paces" VALUES('create',1,12.0);
CREATE TABLE plans (
    run INTEGER PRIMARY KEY REFERENCES runs (id),
    plan TEXT NOT NULL
) STRICT;
INSERT INTO "plans" VALUES(1,'{"form":3,"verb":"apply","site":"kq7f2mzx4vbt3npw","manifest":"edge","hosts":["father"],"on_error":"stop","parallelism":8,"verify_ssh":true,"timeout_buffer":60,"nodes":[{"name":"node-0","host":"father","place":{"host":"father"},"depth":0,"action":"create","reasons":[{"text":"it is not there","source":"manifests/n1-basic.yaml:12:5"}],"wanted":{"uuid":"6f1d2a3b-4c5d-4e6f-8a9b-000000000000","kind":"vm","host":"father","vmid":null,"cores":2,"memory":2048,"disk":20,"storage":"local-zfs","image_storage":"local","source":"debian-12-custom","image":null,"mac":"bc:24:11:00:00:01","bridge":"vmbr0","vlan":null,"address":["10.0.0.7",24],"gateway":"10.0.0.1","dns":["10.0.0.1"],"unprivileged":false,"hosts_guests":false,"user":"homestak","packages":["qemu-guest-agent"]}}],"images":[],"steps":[{"id":"create:father/node-0","kind":"create","node":0},{"id":"start:father/node-0","kind":"start","node":0,"after":["create:father/node-0"]},{"id":"ready:father/node-0","kind":"ready","node":0,"after":["start:father/node-0"]},{"id":"discard:father/node-0","kind":"discard","node":0,"after":["ready:father/node-0"]}],"foreign":[],"refusals":[],"estimate":61.5,"measured":false}');
INSERT INTO "plans" VALUES(2,'{"form":3,"verb":"apply","site":"kq7f2mzx4vbt3npw","manifest":"edge","hosts":["father"],"on_error":"stop","parallelism":8,"verify_ssh":true,"timeout_buffer":60,"nodes":[{"name":"node-0","host":"father","place":{"host":"father"},"depth":0,"action":"create","reasons":[{"text":"it is not there","source":"manifests/n1-basic.yaml:12:5"}],"wanted":{"uuid":"6f1d2a3b-4c5d-4e6f-8a9b-000000000000","kind":"vm","host":"father","vmid":null,"cores":2,"memory":2048,"disk":20,"storage":"local-zfs","image_storage":"local","source":"debian-12-custom","image":null,"mac":"bc:24:11:00:00:01","bridge":"vmbr0","vlan":null,"address":["10.0.0.7",24],"gateway":"10.0.0.1","dns":["10.0.0.1"],"unprivileged":false,"hosts_guests":false,"user":"homestak","packages":["qemu-guest-agent"]}}],"images":[],"steps":[{"id":"create:father/node-0","kind":"create","node":0},{"id":"start:father/node-0","kind":"start","node":0,"after":["create:father/node-0"]},{"id":"ready:father/node-0","kind":"ready","node":0,"after":["start:father/node-0"]},{"id":"discard:father/node-0","kind":"discard","node":0,"after":["ready:father/node-0"]}],"foreign":[],"refusals":[],"estimate":61.5,"measured":false}');
CREATE TABLE runs (
    -- AUTOINCREMENT: a number is never used again.
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    manifest TEXT NOT NULL,
    hosts TEXT NOT NULL,
    verb TEXT NOT NULL,
    started INTEGER NOT NULL,
    ended INTEGER,
    ending TEXT, site TEXT, mark TEXT, form INTEGER NOT NULL DEFAULT 0,
    CHECK ((ended IS NULL) = (ending IS NULL))
) STRICT;
INSERT INTO "runs" VALUES(1,'edge','["father"]','apply',1700000000123456789,1700000020123456789,'superseded','kq7f2mzx4vbt3npw','run',3);
INSERT INTO "runs" VALUES(2,'edge','["father"]','destroy',1700000030123456789,NULL,NULL,'kq7f2mzx4vbt3npw','run',3);
CREATE INDEX runs_of_manifest ON runs (manifest);
CREATE TRIGGER runs_are_not_deleted BEFORE DELETE ON runs
BEGIN
    SELECT RAISE(ABORT, 'a run is never deleted');
END;
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
CREATE INDEX entries_of_run ON entries (run);
CREATE TRIGGER runs_only_end
    BEFORE UPDATE OF id, site, mark, form, manifest, hosts, verb, started ON runs
    BEGIN
        SELECT RAISE(ABORT, 'a run only ends');
    END;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('runs',2);
COMMIT;

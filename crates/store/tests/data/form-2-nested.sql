PRAGMA application_id = 1752132965;
PRAGMA user_version = 2;
PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE runs (
    -- AUTOINCREMENT: a number is never used again.
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    manifest TEXT NOT NULL,
    hosts TEXT NOT NULL,
    verb TEXT NOT NULL,
    started INTEGER NOT NULL,
    ended INTEGER,
    ending TEXT, site TEXT, mark TEXT,
    CHECK ((ended IS NULL) = (ending IS NULL))
) STRICT;
INSERT INTO runs VALUES(1,'n2-tiered','["sim"]','apply',1794940428976179214,1794940431799092774,'done','e7pyeho7mteecl3q','05b1a519f09a450896914379d1b88105');
INSERT INTO runs VALUES(2,'n2-tiered','["sim"]','destroy',1794940431903740152,NULL,NULL,'e7pyeho7mteecl3q','1fd12146dcab440f8e3e6f4b7c20d825');
CREATE TABLE plans (
    run INTEGER PRIMARY KEY REFERENCES runs (id),
    plan TEXT NOT NULL
) STRICT;
INSERT INTO plans VALUES(1,'{"form":2,"verb":"apply","site":"e7pyeho7mteecl3q","manifest":"n2-tiered","hosts":["sim"],"on_error":"stop","parallelism":4,"verify_ssh":true,"timeout_buffer":60,"nodes":[{"name":"root-pve","host":"sim","place":{"host":"sim"},"depth":0,"action":"create","reasons":[{"text":"the manifest names it, and it is not there","source":"site/manifests/n2-tiered.yaml:6:11"}],"wanted":{"uuid":"f3aaceab-aa99-80a9-8a1e-39014c8d40e6","kind":"vm","host":"pve1","vmid":99011,"cores":4,"memory":8192,"disk":64,"storage":"local","image_storage":"local","source":"pve-9","image":0,"mac":"02:04:f7:45:d4:ba","bridge":"vmbr0","vlan":null,"address":null,"gateway":null,"dns":[],"unprivileged":true,"hosts_guests":true,"user":"homestak","packages":["qemu-guest-agent"]}},{"name":"edge","host":"sim","place":{"inside":"root-pve"},"depth":1,"action":"create","reasons":[{"text":"the manifest names it, and the node it runs on is made","source":"site/manifests/n2-tiered.yaml:13:11"}],"wanted":{"uuid":"460ef367-7ed9-8a10-bc8e-aad33111a058","kind":"vm","host":"root-pve","vmid":99021,"cores":2,"memory":2048,"disk":10,"storage":"local","image_storage":"local","source":"debian-12","image":1,"mac":"02:b6:1d:de:57:9a","bridge":"vmbr0","vlan":null,"address":null,"gateway":null,"dns":[],"unprivileged":true,"hosts_guests":false,"user":"homestak","packages":["qemu-guest-agent"]}}],"images":[{"name":"pve-9","place":{"host":"sim"},"site_host":"sim","host":"pve1","storage":"local","kind":"vm","file":"pve-9.qcow2","url":null,"checksum":null},{"name":"debian-12","place":{"inside":"root-pve"},"site_host":"sim","host":"root-pve","storage":"local","kind":"vm","file":"debian-12.qcow2","url":"https://cloud.debian.org/images/cloud/bookworm/latest/debian-12-genericcloud-amd64.qcow2","checksum":null}],"foreign":[],"refusals":[],"estimate":null,"measured":false}');
INSERT INTO plans VALUES(2,'{"form":2,"verb":"destroy","site":"e7pyeho7mteecl3q","manifest":"n2-tiered","hosts":["sim"],"on_error":"stop","parallelism":4,"verify_ssh":true,"timeout_buffer":60,"nodes":[{"name":"root-pve","host":"sim","place":{"host":"sim"},"depth":0,"action":"destroy","reasons":[{"text":"guest 99011 on pve1"}],"found":{"guest":{"uuid":"f3aaceab-aa99-80a9-8a1e-39014c8d40e6","kind":"vm","vmid":99011,"host":"pve1"},"first_form":false,"power":"Running","made":true,"ready":true,"cores":4,"memory":8192,"disk":64,"address":"10.77.146.13","hosts_guests":true}},{"name":"edge","host":"sim","place":{"inside":"root-pve"},"depth":1,"action":"destroy","reasons":[{"text":"guest 99021 on root-pve"}],"found":{"guest":{"uuid":"460ef367-7ed9-8a10-bc8e-aad33111a058","kind":"vm","vmid":99021,"host":"root-pve"},"first_form":false,"power":"Running","made":true,"ready":true,"cores":2,"memory":2048,"disk":10,"address":"10.78.146.23","hosts_guests":false}}],"images":[],"foreign":[],"refusals":[],"estimate":null,"measured":false}');
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
INSERT INTO entries VALUES(1,1,0,0,1794940429061405931,NULL,NULL,NULL);
INSERT INTO entries VALUES(2,1,0,1,1794940429086114066,NULL,NULL,NULL);
INSERT INTO entries VALUES(3,1,1,0,1794940429088002829,NULL,NULL,'{"name":"root-pve","host":"sim","place":{"host":"sim"},"site":"e7pyeho7mteecl3q","guest":{"uuid":"f3aaceab-aa99-80a9-8a1e-39014c8d40e6","kind":"vm","vmid":99011,"host":"pve1"},"status":"creating","source":"pve-9","user":"homestak","hosts_guests":true}');
INSERT INTO entries VALUES(4,1,1,2,1794940429535386740,NULL,3,'{"status":"made"}');
INSERT INTO entries VALUES(5,1,2,0,1794940429537458124,NULL,NULL,NULL);
INSERT INTO entries VALUES(6,1,2,2,1794940429659457092,NULL,NULL,NULL);
INSERT INTO entries VALUES(7,1,3,0,1794940429662432212,NULL,NULL,NULL);
INSERT INTO entries VALUES(8,1,3,1,1794940430288885833,NULL,4,'{"address":"10.77.146.13"}');
INSERT INTO entries VALUES(9,1,5,0,1794940430290344926,NULL,NULL,NULL);
INSERT INTO entries VALUES(10,1,4,0,1794940430290355732,NULL,NULL,NULL);
INSERT INTO entries VALUES(11,1,5,1,1794940430312857031,NULL,NULL,NULL);
INSERT INTO entries VALUES(12,1,6,0,1794940430316988784,NULL,NULL,'{"name":"edge","host":"sim","place":{"inside":"root-pve"},"site":"e7pyeho7mteecl3q","guest":{"uuid":"460ef367-7ed9-8a10-bc8e-aad33111a058","kind":"vm","vmid":99021,"host":"root-pve"},"status":"creating","source":"debian-12","user":"homestak","hosts_guests":false}');
INSERT INTO entries VALUES(13,1,4,2,1794940430665417078,NULL,8,'{"status":"ready"}');
INSERT INTO entries VALUES(14,1,6,2,1794940430763078763,NULL,12,'{"status":"made"}');
INSERT INTO entries VALUES(15,1,7,0,1794940430766066362,NULL,NULL,NULL);
INSERT INTO entries VALUES(16,1,7,2,1794940430896059108,NULL,NULL,NULL);
INSERT INTO entries VALUES(17,1,8,0,1794940430899109350,NULL,NULL,NULL);
INSERT INTO entries VALUES(18,1,8,1,1794940431437241781,NULL,14,'{"address":"10.78.146.23"}');
INSERT INTO entries VALUES(19,1,9,0,1794940431438390983,NULL,NULL,NULL);
INSERT INTO entries VALUES(20,1,9,2,1794940431794457341,NULL,18,'{"status":"ready"}');
INSERT INTO entries VALUES(21,2,0,0,1794940431905720882,NULL,NULL,NULL);
INSERT INTO entries VALUES(22,2,0,2,1794940432036911697,NULL,NULL,NULL);
INSERT INTO entries VALUES(23,2,1,0,1794940432039638528,NULL,NULL,'{"name":"edge","host":"sim","place":{"inside":"root-pve"},"site":"e7pyeho7mteecl3q","guest":{"uuid":"460ef367-7ed9-8a10-bc8e-aad33111a058","kind":"vm","vmid":99021,"host":"root-pve"},"status":"destroying","hosts_guests":false}');
INSERT INTO entries VALUES(24,2,1,2,1794940432246674810,NULL,23,'{"status":"destroyed"}');
INSERT INTO entries VALUES(25,2,2,0,1794940432255060779,NULL,NULL,NULL);
INSERT INTO entries VALUES(26,2,2,2,1794940432415641651,NULL,NULL,NULL);
INSERT INTO entries VALUES(27,2,3,0,1794940432423669215,NULL,NULL,'{"name":"root-pve","host":"sim","place":{"host":"sim"},"site":"e7pyeho7mteecl3q","guest":{"uuid":"f3aaceab-aa99-80a9-8a1e-39014c8d40e6","kind":"vm","vmid":99011,"host":"pve1"},"status":"destroying","hosts_guests":true}');
CREATE TABLE forgotten (
    id INTEGER PRIMARY KEY,
    after INTEGER NOT NULL,
    manifest TEXT NOT NULL,
    host TEXT NOT NULL,
    node TEXT NOT NULL
, site TEXT) STRICT;
CREATE TABLE paces (
    kind TEXT NOT NULL,
    number INTEGER NOT NULL,
    seconds REAL NOT NULL,
    PRIMARY KEY (kind, number)
) STRICT, WITHOUT ROWID;
INSERT INTO paces VALUES('create',1,0.44738391100000002298);
INSERT INTO paces VALUES('create',2,0.44608997900000002534);
INSERT INTO paces VALUES('destroy',1,0.20703628199999998815);
INSERT INTO paces VALUES('discard',1,0.37506134600000001766);
INSERT INTO paces VALUES('discard',2,0.35606635800000002722);
INSERT INTO paces VALUES('start',1,0.1219989679999999993);
INSERT INTO paces VALUES('start',2,0.12999274599999999235);
INSERT INTO paces VALUES('stop',1,0.13119081499999998841);
INSERT INTO paces VALUES('stop',2,0.16058087200000001337);
CREATE TABLE IF NOT EXISTS "nodes" (
    -- Empty for the first form: a key has no NULL.
    site TEXT NOT NULL,
    manifest TEXT NOT NULL,
    host TEXT NOT NULL,
    name TEXT NOT NULL,
    record TEXT NOT NULL,
    PRIMARY KEY (site, manifest, host, name)
) STRICT, WITHOUT ROWID;
INSERT INTO nodes VALUES('e7pyeho7mteecl3q','n2-tiered','sim','root-pve','{"name":"root-pve","host":"sim","place":{"host":"sim"},"site":"e7pyeho7mteecl3q","guest":{"uuid":"f3aaceab-aa99-80a9-8a1e-39014c8d40e6","kind":"vm","vmid":99011,"host":"pve1"},"status":"destroying","hosts_guests":true}');
CREATE TABLE IF NOT EXISTS "leases" (
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
DELETE FROM sqlite_sequence;
INSERT INTO sqlite_sequence VALUES('runs',2);
CREATE INDEX runs_of_manifest ON runs (manifest);
CREATE INDEX entries_of_run ON entries (run);
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
CREATE TRIGGER runs_are_not_deleted BEFORE DELETE ON runs
BEGIN
    SELECT RAISE(ABORT, 'a run is never deleted');
END;
CREATE TRIGGER runs_only_end BEFORE UPDATE OF id, site, mark, manifest, hosts, verb, started ON runs
BEGIN
    SELECT RAISE(ABORT, 'a run only ends');
END;
COMMIT;

-- What layout 2 has beyond layout 1.

-- Holds that are over. Written by whichever statement takes a lock from its owner: a release, or the next grant.
--   ended   how, in the words of the history; why: in more words
CREATE TABLE runs (
    namespace TEXT    NOT NULL,
    key       TEXT    NOT NULL,
    fence     INTEGER NOT NULL,
    since_ms  INTEGER,
    ended_ms  INTEGER,
    ended     TEXT    NOT NULL,
    why       TEXT,
    metadata  TEXT,
    PRIMARY KEY (namespace, key, fence)
) WITHOUT ROWID;

-- Hosts that found a lock taken, and did without.
CREATE TABLE skips (
    namespace TEXT    NOT NULL,
    key       TEXT    NOT NULL,
    host      TEXT    NOT NULL,
    count     INTEGER NOT NULL,
    since_ms  INTEGER NOT NULL,
    last_ms   INTEGER NOT NULL,
    reason    TEXT    NOT NULL,
    PRIMARY KEY (namespace, key, host)
) WITHOUT ROWID;

-- Who told of a hold's loss himself knows better than the next grant does. Now and then all but the last hundred go, and
-- all but the last hundred of those that ended badly.
CREATE TRIGGER remember AFTER UPDATE OF owner ON locks
WHEN OLD.owner IS NOT NULL AND NEW.owner IS NOT OLD.owner AND NEW.ended IS NOT ''
BEGIN
    INSERT INTO runs (namespace, key, fence, since_ms, ended_ms, ended, why, metadata)
    SELECT OLD.namespace, OLD.key, OLD.fence, OLD.since_ms, iif(NEW.ended IS NULL, min(OLD.expires_ms, now_ms), now_ms),
           coalesce(NEW.ended, iif(OLD.mark IS NULL, 'expired', 'broken')), iif(NEW.ended IS NULL, OLD.broken, NEW.why), OLD.metadata
      FROM (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS now_ms)
     WHERE NOT EXISTS (SELECT 1 FROM runs WHERE namespace = OLD.namespace AND key = OLD.key AND fence = OLD.fence);
    DELETE FROM runs
     WHERE OLD.since_ms % 4 = 0 AND namespace = OLD.namespace AND key = OLD.key
       AND fence < (SELECT fence FROM runs AS r WHERE r.namespace = OLD.namespace AND r.key = OLD.key
                     ORDER BY fence DESC LIMIT 1 OFFSET 99)
       AND (ended IN ('ok', 'released')
            OR fence < (SELECT fence FROM runs AS r WHERE r.namespace = OLD.namespace AND r.key = OLD.key
                           AND ended NOT IN ('ok', 'released') ORDER BY fence DESC LIMIT 1 OFFSET 99));
END;

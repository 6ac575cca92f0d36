-- Counts a skipped run of a host. A new host is added only below the limit.
INSERT INTO :skips (name, print, host, times, since, last, reason)
SELECT :name, SHA2(:host, 256), :host, 1, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), :reason FROM DUAL
 WHERE EXISTS (SELECT 1 FROM :skips AS k WHERE k.name = :name AND k.print = SHA2(:host, 256))
    OR (SELECT COUNT(*) FROM :skips AS k WHERE k.name = :name) < :most
    ON DUPLICATE KEY UPDATE times = times + 1, last = UTC_TIMESTAMP(6), reason = :reason;

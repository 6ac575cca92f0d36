-- As remember_hold.sql, for a reader.
INSERT IGNORE INTO :runs (name, fence, since, ended, how, why, metadata)
SELECT name, fence, since, UTC_TIMESTAMP(6), :how, :why, metadata FROM :readers
 WHERE name = :name AND session = :session AND root = :root AND :ours;

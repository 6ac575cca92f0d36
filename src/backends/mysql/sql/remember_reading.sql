-- As remember_hold.sql, for a reader.
INSERT IGNORE INTO :runs (name, fence, since, ended, how, outcome, metadata)
SELECT name, fence, since, UTC_TIMESTAMP(6), :how, :outcome, metadata FROM :readers
 WHERE name = :name AND session = :session AND root = :root AND :ours;

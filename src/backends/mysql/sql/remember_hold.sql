-- Writes the history entry of the session's hold, in the transaction that removes the hold.
INSERT IGNORE INTO :runs (name, fence, since, ended, how, outcome, metadata)
SELECT name, fence, since, UTC_TIMESTAMP(6), :how, :outcome, metadata FROM :sessions
 WHERE name = :name AND session = :session AND root = :root AND :ours;

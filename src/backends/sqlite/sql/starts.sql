
-- What layout 3 has beyond layout 2.

-- The start that is kept from others for a while, as JSON.
ALTER TABLE locks ADD COLUMN paced TEXT;

-- What else is kept of the runs of a lock beyond their holds.
--   record        the start that is to be the only one for some time, as JSON; NULL: none
--   warned_fence  the hold that was last warned about, and up to which level
CREATE TABLE starts (
    namespace    TEXT    NOT NULL,
    key          TEXT    NOT NULL,
    record       TEXT,
    warned_fence INTEGER NOT NULL DEFAULT 0,
    warned_level INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (namespace, key)
) WITHOUT ROWID;

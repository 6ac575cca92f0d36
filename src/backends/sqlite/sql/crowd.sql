
-- What layout 4 has beyond layout 3. A dlock that knows no shares must not grant the lock beside them, nor go past who waits in order:
-- its grant asks for its own layout in the statement itself, so that the new number alone stops it, also one that has been waiting.

-- Who shares the lock, and who waits while anybody does or asks for fair order, as JSON; NULL: nobody. The lock file to which
-- those of them belong that processes stand behind.
ALTER TABLE locks ADD COLUMN crowd TEXT;
ALTER TABLE locks ADD COLUMN crowd_file INTEGER;

-- Whose place it is: with it, it is known in the crowd.
ALTER TABLE waiters ADD COLUMN hold TEXT;

-- "dlck", and the layout's number.
PRAGMA application_id = 1684824939;
PRAGMA user_version = 4;

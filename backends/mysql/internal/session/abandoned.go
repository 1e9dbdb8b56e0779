package session

import (
	"context"
	"errors"
	"fmt"
)

// killTries is how often a session is interrupted, and then given a second to end, before it
// is killed.
const killTries = 2

// Kill ends the session that holds the named lock, if one does. Its client is gone. If the server has no such locks, the name is empty
// and Kill does nothing. The session then ends by itself, at the latest after idleEnds.
//
// The session gets KILL QUERY, and ends by itself when it finds its client gone. KILL is for a
// session that idles because a cut cable hides that from it. MySQL (seen on 9.7.4, not on
// MariaDB) closes the killed session's socket in the thread that runs KILL. A session that is
// about to write its answer then writes it to the next connection that gets the same file
// descriptor: that one reads another session's answer, or finds its commands out of sync.
func (c *Conn) Kill(ctx context.Context, name string) error {
	for try := 0; name != ""; try++ {
		id, err := c.Number(ctx, "SELECT IS_USED_LOCK(?)", name)
		if err != nil || id == 0 {
			return err
		}
		if try == killTries {
			return unlessEnded(c.Exec(ctx, fmt.Sprintf("KILL %d", id)))
		}
		if err := unlessEnded(c.Exec(ctx, fmt.Sprintf("KILL QUERY %d", id))); err != nil {
			return err
		}
		if ended, err := c.Number(ctx, "SELECT GET_LOCK(?, 1)", name); err != nil {
			return err
		} else if ended == 1 {
			return c.Exec(ctx, "DO RELEASE_LOCK(?)", name)
		}
	}
	return nil
}

// errCommitting means that a session is in its COMMIT.
var errCommitting = errors.New("the session still commits")

// KillUnlessCommitting is Kill, but returns errCommitting if the session is in its COMMIT. On MariaDB it can wait there for a
// semi-synchronous replica, and KILL QUERY ends that wait: the transaction would be committed, although no replica has it. MySQL goes on
// waiting.
func (c *Conn) KillUnlessCommitting(ctx context.Context, name string, maria bool) error {
	if maria && name != "" {
		n, err := c.Number(ctx, "SELECT COUNT(*) FROM information_schema.processlist WHERE id = IS_USED_LOCK(?) AND info = 'COMMIT'", name)
		if err != nil {
			return err
		}
		if n > 0 {
			return errCommitting
		}
	}
	return c.Kill(ctx, name)
}

// unlessEnded returns the error of a KILL, or nil if the session had ended before.
func unlessEnded(err error) error {
	if IsCode(err, codeNoSuchThread) {
		return nil
	}
	return err
}

// Number returns the number that a query returns; NULL is 0.
func (c *Conn) Number(ctx context.Context, sql string, args ...any) (n int64, err error) {
	err = c.Each(ctx, func(r *Result) { n = r.Int(0) }, sql, args...)
	return n, err
}

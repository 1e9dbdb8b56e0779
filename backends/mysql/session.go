package mysql

import (
	"context"
	"fmt"
)

// take returns a connection that is ready for a transaction, and its line.
func (s *Store) take(ctx context.Context, p *pool) (*conn, *line, error) {
	c, l, err := p.get(ctx, &s.Meter)
	if err != nil || c != nil {
		return c, l, err
	}
	if c, err = s.open(ctx, l); err != nil {
		p.put(nil, l)
		return nil, nil, err
	}
	return c, l, nil
}

// open opens a connection for a line. If a session can still be at work for the line, open ends it first,
// because its locks would be in the way.
func (s *Store) open(ctx context.Context, l *line) (*conn, error) {
	c, err := s.dial(ctx, l)
	if err != nil {
		return nil, err
	}
	if l.stray != "" {
		if err = c.kill(ctx, l.stray); err == nil {
			l.stray = ""
		}
	}
	if err == nil {
		err = c.exec(ctx, "DO GET_LOCK(?, 0)", c.name)
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// killTries is how often a session is interrupted, and then given a second to end, before it
// is killed.
const killTries = 2

// kill ends the session that holds the named lock, if one does. Its client is gone.
//
// The session gets KILL QUERY, and ends by itself when it finds its client gone. KILL is for a
// session that idles because a cut cable hides that from it. MySQL (seen on 9.7.4, not on
// MariaDB) closes the killed session's socket in the thread that runs KILL. A session that is
// about to write its answer then writes it to the next connection that gets the same file
// descriptor: that one reads another session's answer, or finds its commands out of sync.
func (c *conn) kill(ctx context.Context, name string) error {
	for try := 0; ; try++ {
		id, err := c.number(ctx, "SELECT IS_USED_LOCK(?)", name)
		if err != nil || id == 0 {
			return err
		}
		if try == killTries {
			return unlessEnded(c.exec(ctx, fmt.Sprintf("KILL %d", id)))
		}
		if err := unlessEnded(c.exec(ctx, fmt.Sprintf("KILL QUERY %d", id))); err != nil {
			return err
		}
		if ended, err := c.number(ctx, "SELECT GET_LOCK(?, 1)", name); err != nil {
			return err
		} else if ended == 1 {
			return c.exec(ctx, "DO RELEASE_LOCK(?)", name)
		}
	}
}

// unlessEnded returns the error of a KILL, or nil if the session had ended before.
func unlessEnded(err error) error {
	if isCode(err, 1094) {
		return nil
	}
	return err
}

// number returns the number that a query returns; NULL is 0.
func (c *conn) number(ctx context.Context, sql string, args ...any) (n int64, err error) {
	err = c.query(ctx, sql, args, []func(r *result) error{func(r *result) error {
		if ok, err := r.next(); err != nil || !ok {
			return err
		}
		n = r.int(0)
		return nil
	}})
	return n, err
}

package testserver

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// RunScript runs a file of SQL as `psql -v ON_ERROR_STOP=1 -f` does: each statement
// by itself, so that what may be in no transaction is in none.
func RunScript(ctx context.Context, url, script string) (err error) {
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close(context.WithoutCancel(ctx))) }()
	for _, sql := range statementsOf(script) {
		if _, err := c.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// statementsOf splits at the semicolons that end statements: not those in
// comments, texts and $$ bodies $$. That is as much of SQL as migrations use.
func statementsOf(script string) (all []string) {
	from := 0
	for i := 0; i < len(script); {
		rest := script[i:]
		switch {
		case strings.HasPrefix(rest, "--"):
			i += until(rest, "\n", 2)
		case strings.HasPrefix(rest, "$$"):
			i += until(rest, "$$", 2)
		case rest[0] == '\'' || rest[0] == '"':
			i += until(rest, rest[:1], 1)
		case rest[0] == ';':
			all = append(all, script[from:i])
			i++
			from = i
		default:
			i++
		}
	}
	return all
}

// until is where the first end from `after` on is over.
func until(s, end string, after int) int {
	if n := strings.Index(s[after:], end); n >= 0 {
		return after + n + len(end)
	}
	return len(s)
}

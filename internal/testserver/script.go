package testserver

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// RunScript runs a file of SQL like `psql -v ON_ERROR_STOP=1 -f`: each statement by itself, so that
// statements which can't run in a transaction are not in one.
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

// statementsOf splits SQL at the semicolons that end statements, but not in comments, texts and $$
// bodies $$. It supports only the SQL that migrations use.
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

// until returns the position after the first end at or behind `after`.
func until(s, end string, after int) int {
	if n := strings.Index(s[after:], end); n >= 0 {
		return after + n + len(end)
	}
	return len(s)
}

package adopt

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends/adopted"
	"github.com/qsidecar/qsidecar/backends/adopted/guess"
	"github.com/qsidecar/qsidecar/internal/config"
	"github.com/qsidecar/qsidecar/internal/databases"
	"github.com/qsidecar/qsidecar/internal/engines"
)

// timeout is how long the database may take to answer all that it is asked.
const timeout = time.Minute

// Request says what is proposed.
type Request struct {
	URL   string // of the database
	Table config.TableName
	Queue string // empty: a name like the table's
	Log   *slog.Logger
}

// Propose asks the database, and returns a config.
func Propose(ctx context.Context, r Request) (text string, err error) {
	c := config.Default("", r.URL)
	if _, err := engines.ParseURL(r.URL); err != nil {
		return "", config.Errorf("the database: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("it took longer than %v", timeout))
	defer cancel()
	engine, err := databases.OpenEngine(ctx, &c, "main", true, r.Log)
	if err != nil {
		return "", err
	}
	defer func() { // it was looked at: what is printed holds without it
		if e := engine.Close(); e != nil && err == nil {
			err = fmt.Errorf("closing the database: %w", e)
		}
	}()
	p, err := guess.Table(ctx, engine, r.Table.Schema, r.Table.Name)
	if err != nil {
		return "", err
	}
	queue := cmp.Or(r.Queue, queueNamed(r.Table.Name))
	store, wrong, err := adopted.Look(ctx, engine, map[string]adopted.Table{queue: p.Table})
	if err != nil {
		return "", err
	}
	w := &proposal{Proposal: p}
	w.write(r.URL, databases.Describe(engine.Info()), queue)
	w.verdict(wrong, store.Advice())
	return w.String(), nil
}

// queueNamed makes a queue's name out of a table's.
func queueNamed(table string) string {
	name := strings.Map(func(r rune) rune {
		if r < 128 && (r == '_' || r == '-' || r == '.' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z') {
			return r
		}
		return '-'
	}, table)
	return cmp.Or(strings.TrimLeft(name[:min(len(name), 128)], ".-"), "queue")
}

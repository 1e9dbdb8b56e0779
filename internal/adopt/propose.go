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
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
	"github.com/qsidecar/qsidecar/internal/config"
	"github.com/qsidecar/qsidecar/internal/databases"
)

// timeout limits all queries of Propose.
const timeout = time.Minute

// Request describes the config to propose.
type Request struct {
	Config   config.Config
	Database string // a name in Config
	Table    config.TableName
	Queue    string // empty: derived from the table's name
	Log      *slog.Logger
}

// Propose queries the database and returns the text of a config.
func Propose(ctx context.Context, r Request) (text string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("it took longer than %v", timeout))
	defer cancel()
	engine, err := databases.OpenEngine(ctx, &r.Config, r.Database, true, r.Log)
	if err != nil {
		return "", err
	}
	defer func() { // the config is valid even if this fails
		if e := engine.Close(); e != nil && err == nil {
			err = fmt.Errorf("closing the database: %w", e)
		}
	}()
	p, err := guess.Table(ctx, engine, r.Table.Schema, r.Table.Name)
	if err != nil {
		return "", err
	}
	queue := cmp.Or(r.Queue, queueNamed(r.Table.Name))
	store, wrong, err := adopted.Check(ctx, engine, map[string]mapping.Table{queue: p.Table})
	if err != nil {
		return "", err
	}
	tried, err := store.Try(ctx)
	if err != nil {
		return "", err
	}
	w := &proposal{Proposal: p}
	w.write(r.Config.Databases[r.Database], databases.Describe(engine.Info()), queue)
	w.verdict(wrong, append(store.Advice(), tried...))
	return w.String(), nil
}

// queueNamed returns a valid queue name for a table's name.
func queueNamed(table string) string {
	name := strings.Map(func(r rune) rune {
		if r < 128 && (r == '_' || r == '-' || r == '.' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z') {
			return r
		}
		return '-'
	}, table)
	return cmp.Or(strings.TrimLeft(name[:min(len(name), 128)], ".-"), "queue")
}

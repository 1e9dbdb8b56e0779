package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
	"github.com/qsidecar/qsidecar/backends/adopted/guess"
)

func (a *app) adoptCommand() *cobra.Command {
	var database, queue string
	cmd := &cobra.Command{
		Use:   "adopt TABLE",
		Short: "Propose a config for a queue in a table that is there",
		Long: `Look at a table that other programs use as a queue, and print a config to start from:
which column means what, by their names, types and keys, and by a thousand rows at most.
Nothing is changed, neither now nor in the table later on.

A line with "# guessed" is one that nothing proves, and "# TODO" is for you to decide. Read
it through, and ask ` + "`qsidecar check --config FILE`" + ` whether it fits. The password is not in it.

TABLE is NAME or SCHEMA.NAME, as the database has it; a name with a dot or a quote in it
stands between double quotes.

Exit codes: 0 printed, 1 no queue can live in that table, or the database could not be
asked, 2 wrong arguments.`,
		Example: `  qsidecar adopt --database @/run/secrets/url my_queue > qsidecar.yaml
  QSIDECAR_DATABASE=mysql://app@db/shop qsidecar adopt things`,
		Args: takes(1, 1, "one table"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if database == "" && a.getenv("QSIDECAR_DATABASE") == "" {
				return usagef("which database? Name it with --database URL, --database @FILE or QSIDECAR_DATABASE")
			}
			at, err := a.database(database, readOnce)
			if err != nil {
				return err
			}
			var table tableName
			if err := table.parse(args[0]); err != nil {
				return usagef("TABLE: %w", err)
			}
			ctx, _, stop := a.interruptible(cmd.Context())
			defer stop()
			text, err := a.propose(ctx, at, table, queue)
			if err != nil {
				return err
			}
			_, err = io.WriteString(a.out, text)
			return err
		},
	}
	cmd.Flags().StringVar(&database, "database", "", "sqlite:PATH or a server's `URL`, or @FILE that holds it")
	cmd.Flags().StringVar(&queue, "queue", "", "the queue's `NAME` (default: the table's)")
	return cmd
}

// propose asks the database, and writes the config.
func (a *app) propose(ctx context.Context, at string, name tableName, queue string) (text string, err error) {
	c := defaultConfig()
	c.fill(a.sockets()[0], at)
	if _, err := parseDatabaseURL(at); err != nil {
		return "", usagef("the database: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, checkTimeout, fmt.Errorf("it took longer than %v", checkTimeout))
	defer cancel()
	b, err := openDatabase(ctx, &c, "main", true, a.newLog(c.Log))
	if err != nil {
		return "", err
	}
	defer func() { // it was looked at: what is printed holds without it
		if e := b.Close(); e != nil && err == nil {
			err = fmt.Errorf("closing the database: %w", e)
		}
	}()
	engine, ok := b.(backends.Adopter)
	if !ok {
		return "", usagef("this build adopts no tables of %s", b.Info().Engine)
	}
	p, err := guess.Table(ctx, engine, name.schema, name.name)
	if err != nil {
		return "", err
	}
	queue = cmp.Or(queue, queueNamed(name.name))
	store, wrong, err := adopted.Check(ctx, engine, map[string]adopted.Table{queue: p.Table})
	if err != nil {
		return "", err
	}
	w := &proposal{Proposal: p}
	w.write(at, placeText(b.Info()), queue)
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

// withoutPassword is a URL as it may stand in a file. had: it had one.
func withoutPassword(at string) (clean string, had bool) {
	if !hasPassword(at) {
		return at, false
	}
	scheme, rest, _ := strings.Cut(at, "://")
	authority, tail := rest, ""
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		authority, tail = rest[:i], rest[i:]
	}
	if i := strings.LastIndex(authority, "@"); i >= 0 {
		user, _, _ := strings.Cut(authority[:i], ":")
		authority = user + authority[i:]
	}
	path, query, _ := strings.Cut(tail, "?")
	pieces := slices.DeleteFunc(strings.Split(query, "&"), func(piece string) bool {
		key, _, _ := strings.Cut(piece, "=")
		key, err := url.QueryUnescape(key)
		return err != nil || isSecret(key)
	})
	if query = strings.Join(pieces, "&"); query != "" {
		query = "?" + query
	}
	return scheme + "://" + authority + path + query, true
}

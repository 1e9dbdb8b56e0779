package main

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/config"
	"github.com/qsidecar/qsidecar/internal/databases"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// slowOpener opens the database "slow" only when its context ends, and every other one at once.
// It sends to begun for each attempt on the slow one.
func slowOpener(begun chan<- struct{}) databases.Opener {
	return func(ctx context.Context, c *config.Config, name string, log *slog.Logger) (backends.Backend, error) {
		if name != "slow" {
			return databases.Open(ctx, c, name, log)
		}
		begun <- struct{}{}
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
}

// withSlow returns a config with a database that never opens.
func withSlow(dir string) string {
	return "queues: {one: {database: main}}\ndatabases: {main: {url: 'sqlite:" + filepath.Join(dir, "main.db") + "'}, slow: {url: 'postgres://app@nowhere/app'}}\n"
}

// TestNewerConfigEndsAReload checks that a newer config is loaded while a reload still opens
// a database, by the watch of the files and on request.
func TestNewerConfigEndsAReload(t *testing.T) {
	begun := make(chan struct{}, 100)
	h := newHost(t)
	h.poll, h.noEvents, h.open = time.Hour, true, slowOpener(begun)
	x := &reloading{host: h, file: h.file("c.yaml", one)}
	x.r = h.serve("--config", x.file)
	x.write(x.file, withSlow(x.dir))
	first, second := make(chan result, 1), make(chan result, 1)
	go func() { first <- x.run("reload") }()
	testwait.Receive(t, "the first reload", begun)
	go func() { second <- x.run("reload") }() // for the same files it waits for the first one
	x.write(x.file, three)
	x.must(0, "reload")
	x.must(0, "stats", "three")
	if r := testwait.Receive(t, "the answer to the first", first); r.code == 0 || !strings.Contains(r.err, "the files changed while their databases were being opened") {
		t.Errorf("the first reload was answered %+v", r)
	}
	testwait.Receive(t, "the answer to the second", second) // with the result of the newer files
	if st := x.status(); st.ConfigError != "" || st.Generation != 2 {
		t.Errorf("status: %+v", st)
	}
}

// TestWatchDuringAReload checks that the watch loads a newer config, and notices the old one
// again, while a reload opens a database.
func TestWatchDuringAReload(t *testing.T) {
	begun := make(chan struct{}, 100)
	h := newHost(t)
	h.poll, h.noEvents, h.open = 20*time.Millisecond, true, slowOpener(begun)
	x := &reloading{host: h, file: h.file("c.yaml", one)}
	x.r = h.serve("--config", x.file)
	x.write(x.file, withSlow(x.dir))
	testwait.Receive(t, "the reload", begun)
	x.write(x.file, three)
	x.waitForQueue("three", true)
	x.write(x.file, withSlow(x.dir))
	testwait.Receive(t, "the next reload", begun)
	x.write(x.file, three) // the running config
	x.write(x.file+".new", two)
	testwait.Until(t, "the reload is given up", func() bool { return strings.Contains(x.must(0, "reload"), "nothing changed") })
	x.move(x.file+".new", x.file)
	x.waitForQueue("two", true)
}

// TestDatabaseComesBackDuringAReload checks that a pending database is used once it is
// reachable, while a reload opens another one.
func TestDatabaseComesBackDuringAReload(t *testing.T) {
	begun, exists := make(chan struct{}, 100), make(chan struct{})
	h := newHost(t)
	slow := slowOpener(begun)
	h.open = func(ctx context.Context, c *config.Config, name string, log *slog.Logger) (backends.Backend, error) {
		if name != "late" {
			return slow(ctx, c, name, log)
		}
		select {
		case <-exists:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		local := &config.Config{Databases: map[string]config.Database{name: c.Databases["main"]}}
		d := local.Databases[name]
		d.URL = "sqlite:" + filepath.Join(h.dir, "late.db")
		local.Databases[name] = d
		return databases.Open(ctx, local, name, log)
	}
	h.poll, h.noEvents, h.openTimeout = 20*time.Millisecond, true, time.Millisecond
	config := "databases: {main: {url: 'sqlite:" + filepath.Join(h.dir, "main.db") + "'}, late: {url: 'postgres://app@nowhere/app'}%s}\nqueues: {one: {database: main}, two: {database: late}}\n"
	x := &reloading{host: h, file: h.file("c.yaml", strings.Replace(config, "%s", "", 1))}
	x.r = h.serve("--config", x.file)
	x.must(exitUnavailable, "enqueue", "two", "x")
	x.write(x.file, strings.Replace(config, "%s", ", slow: {url: 'postgres://app@nowhere/other'}", 1))
	testwait.Receive(t, "the reload", begun)
	close(exists)
	testwait.Until(t, "the database is used", func() bool { return x.run("stats", "two").code == 0 })
	x.must(0, "enqueue", "two", "x")
	if st := x.status(); st.Generation != 1 {
		t.Errorf("status: %+v", st)
	}
}

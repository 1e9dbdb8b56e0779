package main

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// quiet is how long the files must have been left alone before they are read: whoever
	// writes in place does so in several steps.
	quiet = 200 * time.Millisecond
	// pollEvery is for file systems that tell of no changes, and for what a watch missed.
	pollEvery = 5 * time.Second
)

// watcher reloads a process when its files change.
type watcher struct {
	p      *instance
	log    *slog.Logger
	events *fsnotify.Watcher // nil: this system has none to give
	poll   time.Duration
	told   map[string]bool // the folders of which it was said that they cannot be watched

	settled *time.Timer // runs while waits is set
	waits   bool
	seen    sources // what the files had when they were looked at last
	again   bool    // what was refused is tried again

	reloads  sync.WaitGroup
	reloaded chan struct{} // 1: one ended, so that other folders may count
}

// hangUps gives each SIGHUP, or one for several, until stop. Nobody need listen: while serve
// starts one waits until it is there, and while it stops none ends it.
func (a *app) hangUps() (hangUps <-chan os.Signal, stop func()) {
	all := make(chan os.Signal, 1)
	if !a.terminal(a.in) { // at a terminal it says that the terminal is gone
		signal.Notify(all, syscall.SIGHUP)
	}
	return all, func() { signal.Stop(all) }
}

// watch reloads p whenever its files change, and at each of hangUps, until ctx is done.
func (a *app) watch(ctx context.Context, p *instance, hangUps <-chan os.Signal) {
	w := &watcher{p: p, log: p.log, poll: cmp.Or(a.poll, pollEvery), told: map[string]bool{}, reloaded: make(chan struct{}, 1)}
	if !a.deaf {
		defer w.listen()()
	}
	w.run(ctx, hangUps)
}

// listen has the system tell of changes.
func (w *watcher) listen() (stop func()) {
	events, err := fsnotify.NewWatcher()
	if err != nil {
		w.log.Warn("changes of the config are found by looking every few seconds: the system gives no watch of files", "error", err)
		return func() {}
	}
	w.events = events
	return func() { events.Close() }
}

func (w *watcher) run(ctx context.Context, hangUps <-chan os.Signal) {
	poll := time.NewTicker(w.poll)
	defer poll.Stop()
	w.settled = time.NewTimer(quiet)
	w.settled.Stop()
	defer w.reloads.Wait()
	for event := false; ; {
		if !event && w.follow() {
			w.look(false) // what changed before the watch began
		}
		event = false
		select {
		case <-ctx.Done():
			return
		case <-w.changes():
			event = true // of which there may be thousands in a second
			w.changed()
		case err := <-w.failures():
			w.log.Warn("the watch of the config's files; they are looked at every few seconds too", "error", err)
		case <-poll.C:
			w.look(true)
		case <-w.settled.C:
			w.act(ctx)
		case <-w.reloaded:
		case <-hangUps:
			w.reload(ctx)
		}
	}
}

// changed begins to wait until the files are left alone. What else changes in their folders (a
// log, a database) may never be left alone, so events that come meanwhile are not asked about.
func (w *watcher) changed() {
	if w.waits {
		return
	}
	w.seen, _ = w.p.differ()
	w.settle()
}

// look begins to wait if the files are not what runs. again: what was refused is tried again,
// as the cause may be somewhere else.
func (w *watcher) look(again bool) {
	now, differ := w.p.differ()
	if !differ {
		return
	}
	w.again = w.again || again
	if !w.waits {
		w.seen = now
		w.settle()
	}
}

func (w *watcher) settle() {
	w.waits = true
	w.settled.Reset(quiet)
}

// act reloads if the files were left alone since they were looked at, and waits on if not.
func (w *watcher) act(ctx context.Context) {
	now, differ := w.p.differ()
	if !now.same(w.seen) {
		w.seen = now
		w.settle()
		return
	}
	w.waits = false
	if !differ || w.p.takes(now) || !w.again && w.p.refuses(now) {
		return
	}
	w.again = false
	w.reload(ctx)
}

// changes tells of each event in a folder that is watched. Which file it is about is not
// asked: a Kubernetes ConfigMap swaps a link beside it.
func (w *watcher) changes() <-chan fsnotify.Event {
	if w.events == nil {
		return nil
	}
	return w.events.Events
}

func (w *watcher) failures() <-chan error {
	if w.events == nil {
		return nil
	}
	return w.events.Errors
}

// reload begins one, which may take minutes: files that change meanwhile are seen. It has no
// answer to give: what went wrong is in the log, and status tells it.
func (w *watcher) reload(ctx context.Context) {
	w.reloads.Go(func() {
		_, _, _ = w.p.Reload(ctx)
		select {
		case w.reloaded <- struct{}{}:
		default:
		}
	})
}

// differ looks whether the files say something else than what runs, or is being loaded, or than
// what was refused.
func (p *instance) differ() (now sources, differ bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, err := readSources(p.setup, &p.config)
	_, failed, _ := p.Config()
	return now, err != nil || !now.same(p.sources) || failed != nil || p.under != nil && !now.same(p.under.found)
}

// refuses reports whether the files are as they were when they were not taken.
func (p *instance) refuses(now sources) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, failed, _ := p.Config()
	return failed != nil && now.same(p.refused)
}

// follow watches the folders of the files, and of what they are links to. more: one was
// not watched before.
func (w *watcher) follow() (more bool) {
	if w.events == nil {
		return false
	}
	dirs, watched := w.p.folders(), w.events.WatchList()
	for _, dir := range watched {
		if !slices.Contains(dirs, dir) {
			_ = w.events.Remove(dir) // it may be gone
		}
	}
	for _, dir := range dirs {
		if slices.Contains(watched, dir) {
			continue
		}
		err := w.events.Add(dir)
		more = more || err == nil
		if err != nil && !w.told[dir] {
			w.told[dir] = true
			w.log.Warn("changes in a folder are found by looking every few seconds: it cannot be watched", "folder", dir, "error", err)
		}
	}
	return more
}

// folders are those in which a change may change the config.
func (p *instance) folders() (dirs []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, file := range p.sources.files {
		dirs = append(dirs, filepath.Dir(file))
		if target, err := filepath.EvalSymlinks(file); err == nil {
			dirs = append(dirs, filepath.Dir(target))
		}
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

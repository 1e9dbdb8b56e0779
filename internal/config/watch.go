package config

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// quiet is how long the files must have been left alone before they are read: whoever
	// writes in place does so in several steps.
	quietPeriod = 200 * time.Millisecond
	// pollEvery is for file systems that tell of no changes, and for what a watch missed.
	pollEvery = 5 * time.Second
)

// Reloader is what runs by a config's files.
type Reloader interface {
	// Reload loads the files. It logs and keeps what goes wrong.
	Reload(ctx context.Context)
	// Differ reads the files. It reports whether they say something else than what runs, or is
	// being loaded, or than what was refused.
	Changed() (now Snapshot, differ bool)
	// Loads reports whether files with that content are being loaded.
	IsLoading(now Snapshot) bool
	// Refuses reports whether files with that content were refused last.
	WasRejected(now Snapshot) bool
	// Files are the paths of the files.
	Files() []string
}

// WatchOptions change how files are watched; tests set them.
type WatchOptions struct {
	Poll     time.Duration // between two looks at the files; 0: 5 s
	NoEvents bool          // the file system tells of no changes
}

// Watch reloads r whenever its files change, and at each of hangUps, until ctx is done.
func Watch(ctx context.Context, r Reloader, hangUps <-chan os.Signal, o WatchOptions, log *slog.Logger) {
	w := &watcher{r: r, log: log, poll: cmp.Or(o.Poll, pollEvery), warned: map[string]bool{}, reloaded: make(chan struct{}, 1)}
	if !o.NoEvents {
		defer w.listen()()
	}
	w.run(ctx, hangUps)
}

// watcher reloads a process when its files change.
type watcher struct {
	r      Reloader
	log    *slog.Logger
	events *fsnotify.Watcher // nil: this system has none to give
	poll   time.Duration
	warned map[string]bool // the folders of which it was said that they cannot be watched

	quietTimer *time.Timer // runs while waits is set
	waiting    bool
	lastSeen   Snapshot // what the files had when they were looked at last
	retry      bool     // what was refused is tried again

	reloads  sync.WaitGroup
	reloaded chan struct{} // 1: one ended, so that other folders may count
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
	w.quietTimer = time.NewTimer(quietPeriod)
	w.quietTimer.Stop()
	defer w.reloads.Wait()
	for event := false; ; {
		if !event && w.updateWatches() {
			w.checkFiles(false) // what changed before the watch began
		}
		event = false
		select {
		case <-ctx.Done():
			return
		case <-w.fileEvents():
			event = true // of which there may be thousands in a second
			w.changed()
		case err := <-w.watchErrors():
			w.log.Warn("the watch of the config's files; they are looked at every few seconds too", "error", err)
		case <-poll.C:
			w.checkFiles(true)
		case <-w.quietTimer.C:
			w.reloadIfQuiet(ctx)
		case <-w.reloaded:
		case <-hangUps:
			w.reload(ctx)
		}
	}
}

// changed begins to wait until the files are left alone. What else changes in their folders (a
// log, a database) may never be left alone, so events that come meanwhile are not asked about.
func (w *watcher) changed() {
	if w.waiting {
		return
	}
	w.lastSeen, _ = w.r.Changed()
	w.startQuietPeriod()
}

// look begins to wait if the files are not what runs. again: what was refused is tried again,
// as the cause may be somewhere else.
func (w *watcher) checkFiles(again bool) {
	now, differ := w.r.Changed()
	if !differ {
		return
	}
	w.retry = w.retry || again
	if !w.waiting {
		w.lastSeen = now
		w.startQuietPeriod()
	}
}

func (w *watcher) startQuietPeriod() {
	w.waiting = true
	w.quietTimer.Reset(quietPeriod)
}

// act reloads if the files were left alone since they were looked at, and waits on if not.
func (w *watcher) reloadIfQuiet(ctx context.Context) {
	now, differ := w.r.Changed()
	if !now.Same(w.lastSeen) {
		w.lastSeen = now
		w.startQuietPeriod()
		return
	}
	w.waiting = false
	if !differ || w.r.IsLoading(now) || !w.retry && w.r.WasRejected(now) {
		return
	}
	w.retry = false
	w.reload(ctx)
}

// changes tells of each event in a folder that is watched. Which file it is about is not
// asked: a Kubernetes ConfigMap swaps a link beside it.
func (w *watcher) fileEvents() <-chan fsnotify.Event {
	if w.events == nil {
		return nil
	}
	return w.events.Events
}

func (w *watcher) watchErrors() <-chan error {
	if w.events == nil {
		return nil
	}
	return w.events.Errors
}

// reload begins one, which may take minutes: files that change meanwhile are seen. It has no
// answer to give: what went wrong is in the log, and status tells it.
func (w *watcher) reload(ctx context.Context) {
	w.reloads.Go(func() {
		w.r.Reload(ctx)
		select {
		case w.reloaded <- struct{}{}:
		default:
		}
	})
}

// follow watches the folders of the files, and of what they are links to. more: one was
// not watched before.
func (w *watcher) updateWatches() (more bool) {
	if w.events == nil {
		return false
	}
	dirs, watched := folders(w.r.Files()), w.events.WatchList()
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
		if err != nil && !w.warned[dir] {
			w.warned[dir] = true
			w.log.Warn("changes in a folder are found by looking every few seconds: it cannot be watched", "folder", dir, "error", err)
		}
	}
	return more
}

// folders are those in which a change may change the files.
func folders(files []string) (dirs []string) {
	for _, file := range files {
		dirs = append(dirs, filepath.Dir(file))
		if target, err := filepath.EvalSymlinks(file); err == nil {
			dirs = append(dirs, filepath.Dir(target))
		}
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

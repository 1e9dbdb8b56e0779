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
	// quietPeriod is how long the files must not change before they are read, because a
	// program that writes in place does so in several steps.
	quietPeriod = 200 * time.Millisecond
	// pollEvery is for file systems without change events, and for missed events.
	pollEvery = 5 * time.Second
)

// Reloader runs by the files of a config.
type Reloader interface {
	// Reload loads the files. It logs and remembers errors.
	Reload(ctx context.Context)
	// Changed reads the files. It reports whether they differ from the running config, from
	// the config that is being loaded, and from the rejected one.
	Changed() (now Snapshot, differ bool)
	// IsLoading reports whether files with these contents are being loaded.
	IsLoading(now Snapshot) bool
	// WasRejected reports whether files with these contents were rejected last.
	WasRejected(now Snapshot) bool
	// Files returns the paths of the files.
	Files() []string
}

// WatchOptions are hooks for tests.
type WatchOptions struct {
	Poll     time.Duration // interval at which the files are read; 0: 5 s
	NoEvents bool          // don't use events of the file system
}

// Watch reloads r when its files change, and on each of hangUps, until ctx ends.
func Watch(ctx context.Context, r Reloader, hangUps <-chan os.Signal, o WatchOptions, log *slog.Logger) {
	w := &watcher{r: r, log: log, poll: cmp.Or(o.Poll, pollEvery), warned: map[string]bool{}, reloaded: make(chan struct{}, 1)}
	if !o.NoEvents {
		defer w.listen()()
	}
	w.run(ctx, hangUps)
}

// watcher reloads a Reloader when its files change.
type watcher struct {
	r      Reloader
	log    *slog.Logger
	events *fsnotify.Watcher // nil: the system provides none
	poll   time.Duration
	warned map[string]bool // folders with a logged error

	quietTimer *time.Timer // runs while waiting is set
	waiting    bool
	lastSeen   Snapshot // contents at the last read
	retry      bool     // load rejected contents again

	reloads  sync.WaitGroup
	reloaded chan struct{} // capacity 1: a reload ended, so the folders can differ
}

// listen subscribes to events of the file system.
func (w *watcher) listen() (stop func()) {
	events, err := fsnotify.NewWatcher()
	if err != nil {
		w.log.Warn("can't watch files, polling them", "event", "config_watch_unavailable", "error", err)
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
			w.checkFiles(false) // a change can have happened before the watch began
		}
		event = false
		select {
		case <-ctx.Done():
			return
		case <-w.fileEvents():
			event = true // there can be thousands in a second
			w.changed()
		case err := <-w.watchErrors():
			w.log.Warn("watch of the config files failed, polling them", "event", "config_watch_failed", "error", err)
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

// changed starts the quiet period. It ignores further events during the period: other files
// in the folder, such as a log, can change all the time.
func (w *watcher) changed() {
	if w.waiting {
		return
	}
	w.lastSeen, _ = w.r.Changed()
	w.startQuietPeriod()
}

// checkFiles starts the quiet period if the files differ from the running config. If again
// is set, rejected contents are loaded again, because the cause can be outside the files.
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

// reloadIfQuiet reloads if the files didn't change during the quiet period, and otherwise
// starts another one.
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

// fileEvents returns the events of all watched folders. The file of an event doesn't matter:
// a Kubernetes ConfigMap swaps a link beside the file.
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

// reload starts a reload in the background. It can take minutes, and changes during that
// time are detected.
func (w *watcher) reload(ctx context.Context) {
	w.reloads.Go(func() {
		w.r.Reload(ctx)
		select {
		case w.reloaded <- struct{}{}:
		default:
		}
	})
}

// updateWatches watches the folders of the files and of the targets of links. more reports
// whether it added a folder.
func (w *watcher) updateWatches() (more bool) {
	if w.events == nil {
		return false
	}
	dirs, watched := folders(w.r.Files()), w.events.WatchList()
	for _, dir := range watched {
		if !slices.Contains(dirs, dir) {
			_ = w.events.Remove(dir) // the folder possibly no longer exists
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
			w.log.Warn("can't watch a folder, polling it", "event", "config_folder_not_watched", "folder", dir, "error", err)
		}
	}
	return more
}

// folders returns the folders in which a change can change the files.
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

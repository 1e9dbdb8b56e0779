package adopt

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/child"
)

// The kinds of workers of an adopted table. Their names begin with it.
const (
	Own     = "own"     // the table's own consumer
	Through = "through" // uses a sidecar
)

// worker describes a worker process.
type worker struct {
	Name, Queue string // an own consumer is the one that OwnConsumers has for the queue
	Database    string // the URL, for an own consumer
	Socket      string // the sidecar's, for another worker
	Sheet       string // the file of the worksheet
	Most        int    // how many jobs it claims at once
	KeepsJob    bool   // it keeps its first job until it is killed
}

// workerModes are the modes of worker processes, by kind.
var workerModes = map[string]child.Mode[worker]{
	Own:     child.NewMode(Own, runOwnConsumer),
	Through: child.NewMode(Through, runThrough),
}

// worksheet is a file to which each worker appends a line for each processed job.
type worksheet struct {
	*os.File
	who   string
	holds <-chan struct{} // if not nil, the first job is not finished before it is closed
}

func openWorksheet(task worker, stop <-chan struct{}) (*worksheet, error) {
	f, err := os.OpenFile(task.Sheet, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o644)
	w := &worksheet{File: f, who: task.Name}
	if task.KeepsJob {
		w.holds = stop
	}
	return w, err
}

func (w *worksheet) work(item string) error {
	_, err := fmt.Fprintf(w, "%s %s\n", w.who, item)
	if w.holds != nil {
		<-w.holds
	}
	kit.Pace() // so that both kinds of consumers get jobs
	return err
}

// sheetLine is a line of the sheet.
type sheetLine struct{ who, item string }

func readWorksheet(path string) (all []sheetLine, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	for line := range strings.Lines(string(text)) {
		if who, item, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " "); ok {
			all = append(all, sheetLine{who, item})
		}
	}
	return all, err
}

// runThrough works through the sidecar until stop is closed. It reconnects if the sidecar is
// killed.
func runThrough(task worker, stop <-chan struct{}) error {
	sheet, err := openWorksheet(task, stop)
	if err != nil {
		return err
	}
	defer sheet.Close()
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		w, err := kit.DialWire(task.Socket)
		if err == nil {
			err = workThrough(w, task, sheet, stop)
			_ = w.Close()
		}
		if refused := (*kit.Error)(nil); errors.As(err, &refused) {
			return err
		}
		kit.Pace()
	}
}

func workThrough(w *kit.Wire, task worker, sheet *worksheet, stop <-chan struct{}) error {
	if _, err := w.Call(kit.Msg{"op": "hello", "worker": task.Name}); err != nil {
		return err
	}
	most := task.Most
	if sheet.holds != nil {
		most = 1
	}
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		r, err := w.Call(kit.Msg{"op": "claim", "queue": task.Queue, "max": most, "wait_ms": 200})
		if err == nil && r.Error != nil && !r.Error.Transient() {
			return r.Error
		}
		if err != nil || r.Error != nil {
			return err
		}
		for _, job := range r.Jobs {
			if err := sheet.work(job.ID); err != nil {
				return err
			}
			if err := ackThrough(w, job.Lease); err != nil {
				return err
			}
		}
	}
}

// ackThrough repeats an ack after transient errors, for example if another program has locked the
// row.
func ackThrough(w *kit.Wire, lease string) error {
	for {
		r, err := w.Call(kit.Msg{"op": "ack", "lease": lease})
		switch {
		case err != nil:
			return err
		case r.Error == nil:
			return nil
		case !r.Error.Transient():
			return r.Error
		}
	}
}

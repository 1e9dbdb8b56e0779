package kit

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// The modes of workers of an adopted table. ModeOwn runs the table's own consumer, whose name is
// the task's queue, on the database whose URL is the task's socket. ModeThrough uses a sidecar.
const (
	ModeOwn     = "own"
	ModeThrough = "through"
)

// worksheet is a file to which each worker appends a line for each processed job.
type worksheet struct {
	*os.File
	who   string
	holds <-chan struct{} // if not nil, the first job is not finished before it is closed
}

// keepsJob as a task's sidecar makes the worker keep its first job until it is killed.
const keepsJob = "keepsJob"

func openWorksheet(task WorkerTask, stop <-chan struct{}) (*worksheet, error) {
	f, err := os.OpenFile(task.History, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o644)
	w := &worksheet{File: f, who: task.Name}
	if task.Sidecar == keepsJob {
		w.holds = stop
	}
	return w, err
}

func (w *worksheet) work(item string) error {
	_, err := fmt.Fprintf(w, "%s %s\n", w.who, item)
	if w.holds != nil {
		<-w.holds
	}
	Pace() // so that both kinds of consumers get jobs
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
func runThrough(task WorkerTask, stop <-chan struct{}) error {
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
		w, err := DialWire(task.Socket)
		if err == nil {
			err = workThrough(w, task, sheet, stop)
			_ = w.Close()
		}
		if refused := (*Error)(nil); errors.As(err, &refused) {
			return err
		}
		Pace()
	}
}

func workThrough(w *Wire, task WorkerTask, sheet *worksheet, stop <-chan struct{}) error {
	if _, err := w.Call(Msg{"op": "hello", "worker": task.Name}); err != nil {
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
		r, err := w.Call(Msg{"op": "claim", "queue": task.Queue, "max": most, "wait_ms": 200})
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
func ackThrough(w *Wire, lease string) error {
	for {
		r, err := w.Call(Msg{"op": "ack", "lease": lease})
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

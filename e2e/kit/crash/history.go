package crash

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/qsidecar/qsidecar/e2e/kit"
)

// eventKind is the kind of a record.
type eventKind string

// The kinds of records.
const (
	claimed eventKind = "claimed" // the claim's reply was received
	sending eventKind = "sending" // the ack will be sent next
	acked   eventKind = "acked"   // the ack succeeded
	lost    eventKind = "lost"    // an ack or extend got lease_lost, which ends the holding
	failed  eventKind = "failed"  // an ack or extend got another error and will be repeated
	bound   eventKind = "bound"   // the lease was bound to a new connection

	enqueued eventKind = "enqueued" // the enqueue's reply was received
	refused  eventKind = "refused"  // a claim or an enqueue got an error
	nothing  eventKind = "nothing"  // a claim returned no job
	// Serves is the killer's: after the failover `Who`, a database server accepts writes.
	Serves eventKind = "serves"
	// Killed is the killer's.
	Killed eventKind = "killed" // by the killer: `Who` was killed, suspended or disconnected, from At until Until
)

// everything in a kill's Who means all workers and sidecars: a database server was killed.
const everything = "*"

// Connections in a kill's Who means a sidecar's connection to the database. It explains an unknown
// outcome, but not a second delivery.
const Connections = "-"

// Failover in a kill's Who means a failover that can lose all commits from At until Until.
const Failover = "failover"

// Record is one line of the history. Times are from Monotonic.
type Record struct {
	At      int64     `json:"at"`
	Asked   int64     `json:"asked,omitempty"` // claimed, nothing, enqueued: when the request was sent
	Until   int64     `json:"until,omitempty"` // killed: when the kill ended
	Who     string    `json:"who"`             // one run of a worker; for kills also a sidecar or everything
	Via     string    `json:"via,omitempty"`   // the sidecar; not of refused, serves and killed
	What    eventKind `json:"what"`
	Job     string    `json:"job,omitempty"`
	Payload string    `json:"payload,omitempty"` // claimed, enqueued
	Fence   int64     `json:"fence,omitempty"`
	Attempt int       `json:"attempt,omitempty"` // claimed
	Code    string    `json:"code,omitempty"`    // failed, refused
}

// history is one process's file of records. A record is one write, so that a kill leaves complete
// lines, and written records survive the process.
type history struct{ file *os.File }

func openHistory(dir, name string) (*history, error) {
	f, err := os.OpenFile(filepath.Join(dir, name+".history"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	return &history{file: f}, err
}

func (h *history) Add(r Record) error {
	if r.At == 0 {
		r.At = kit.Monotonic()
	}
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = h.file.Write(append(line, '\n'))
	return err
}

// readHistories merges all files of a directory by time.
func readHistories(dir string) ([]Record, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.history"))
	if err != nil {
		return nil, err
	}
	var all []Record
	for _, name := range files {
		if all, err = appendHistory(all, name); err != nil {
			return nil, err
		}
	}
	sortRecords(all)
	return all, nil
}

func sortRecords(all []Record) {
	slices.SortStableFunc(all, func(a, b Record) int { return cmp.Compare(a.At, b.At) })
}

func appendHistory(to []Record, name string) ([]Record, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var r Record
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("%s: %q: %w", name, lines.Text(), err)
		}
		to = append(to, r)
	}
	return to, lines.Err()
}

package kit

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// deed is what a record says was done.
type deed string

// The deeds that a history records.
const (
	claimed deed = "claimed" // the claim's answer was received
	sending deed = "sending" // the ack is about to be sent
	acked   deed = "acked"   // the ack was answered ok
	lost    deed = "lost"    // an ack or extend was answered lease_lost: holding ends
	failed  deed = "failed"  // an ack or extend was answered with another error and will be tried again
	bound   deed = "bound"   // the lease was bound to a new connection
	// Killed is the killer's.
	Killed deed = "killed" // by the killer: Who was killed, suspended or cut off, from At until Until
)

// everything stands for all workers and sidecars in a kill's Who: a database server.
const everything = "*"

// Connections stands for a sidecar's connection to the database in a kill's Who.
// It explains an unknown outcome, and no second delivery.
const Connections = "-"

// Record is one line of the history. The instants are of monotonic.
type Record struct {
	At      int64  `json:"at"`
	Asked   int64  `json:"asked,omitempty"` // claimed: when the claim was sent
	Until   int64  `json:"until,omitempty"` // killed: when it was over
	Who     string `json:"who"`             // one run of a worker or, for kills, also a sidecar or everything
	Via     string `json:"via,omitempty"`   // claimed: the sidecar
	What    deed   `json:"what"`
	Job     string `json:"job,omitempty"`
	Payload string `json:"payload,omitempty"` // claimed
	Fence   int64  `json:"fence,omitempty"`
	Attempt int    `json:"attempt,omitempty"` // claimed
	Code    string `json:"code,omitempty"`    // failed
}

// history is one process's file of records. A record is one write, so that a
// kill leaves whole lines, and what was written survives the process.
type history struct{ file *os.File }

func openHistory(dir, name string) (*history, error) {
	f, err := os.OpenFile(filepath.Join(dir, name+".history"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	return &history{file: f}, err
}

func (h *history) Add(r Record) error {
	if r.At == 0 {
		r.At = Monotonic()
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
	slices.SortStableFunc(all, func(a, b Record) int { return int(a.At - b.At) })
	return all, nil
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

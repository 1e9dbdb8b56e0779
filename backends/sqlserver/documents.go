package sqlserver

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// Lists go to the server as JSON documents that OPENJSON reads with the types that each statement names. A missing
// field is NULL there. Documents hold no bytes: all bytes of a list are one varbinary(max) argument, and the document
// has offsets and sizes. So nothing has to be encoded and decoded.

// maxRows is the maximum number of rows in a document.
const maxRows = 1000

// document returns a list as an argument. It holds only numbers and texts, for which json.Marshal cannot fail.
func document[T any](rows []T) mssql.NVarCharMax {
	if rows == nil {
		return "[]"
	}
	b, err := json.Marshal(rows)
	if err != nil {
		panic(err)
	}
	return mssql.NVarCharMax(b)
}

// chunks calls f with parts of rows that fit one statement.
func chunks[T any](rows []T, f func(from int, rows []T)) {
	for from := 0; from < len(rows); from += maxRows {
		f(from, rows[from:min(from+maxRows, len(rows))])
	}
}

// blob collects bytes.
type blob []byte

// add appends bytes and returns their offset and size.
func (b *blob) add(bytes []byte) (start, size int64) {
	start = int64(len(*b))
	*b = append(*b, bytes...)
	return start, int64(len(bytes))
}

// bytes returns the blob as an argument: never nil, which would be NULL.
func (b blob) bytes() []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// longest is the longest span that is sent: the server cannot add longer ones to an instant.
const longest = 50 * 365 * 24 * time.Hour

// ms returns d in milliseconds, and 0 if d is negative.
func ms(d time.Duration) int64 { return max(core.MS(min(d, longest)), 0) }

// some returns n, or NULL if it is not positive.
func some(n int64) *int64 {
	if n <= 0 {
		return nil
	}
	return &n
}

// instant formats a time as a datetime2(6), in UTC and for any language of the session. It rounds up, so that nothing
// is due before its time.
func instant(t time.Time) string {
	if u := t.Truncate(time.Microsecond); u.Before(t) {
		t = u.Add(time.Microsecond)
	}
	t = t.UTC()
	switch {
	case t.Year() > 9999:
		return "9999-12-31T23:59:59.999999"
	case t.Year() < 1:
		return "0001-01-01T00:00:00.000000"
	}
	return t.Format("2006-01-02T15:04:05.000000")
}

// text returns s, or NULL if it is empty.
func text(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

type leaseRow struct {
	N       int   `json:"n"`
	ID      int64 `json:"id"`
	Sidecar int64 `json:"sidecar"`
	Number  int64 `json:"number"`
}

type ackRow struct {
	leaseRow
	Start *int64 `json:"start,omitempty"`
	Size  *int64 `json:"size,omitempty"`
}

type deliverRow struct {
	leaseRow
	Worker *string `json:"worker,omitempty"`
	Ago    int64   `json:"ago_ms"`
}

type renewalRow struct {
	leaseRow
	Attempts  int     `json:"attempts"`
	Ago       int64   `json:"ago_ms"`
	Lease     *int64  `json:"lease_ms,omitempty"`
	Owner     int64   `json:"owner"`
	NewDue    int     `json:"new_due"`
	SetWorker int     `json:"set_worker"`
	Worker    *string `json:"worker,omitempty"`
}

type endingRow struct {
	leaseRow
	Queue      string  `json:"queue"`
	Keyed      int     `json:"keyed"`
	Dead       int     `json:"dead"`
	Wait       *int64  `json:"wait_ms,omitempty"`
	Fresh      int     `json:"fresh"`
	Back       int     `json:"back"`
	Attempts   int     `json:"attempts"`
	Losses     int     `json:"losses"`
	Unrecorded int     `json:"prefetch_losses"`
	Fence      int64   `json:"fence"`
	Cause      *string `json:"cause,omitempty"`
	Message    *string `json:"message,omitempty"`
}

type jobRow struct {
	N        int     `json:"n"`
	Queue    string  `json:"queue"`
	Priority int16   `json:"priority"`
	Delay    *int64  `json:"delay_ms,omitempty"`
	RunAt    *string `json:"run_at,omitempty"`
	Max      *int64  `json:"max_attempts,omitempty"`
	Timeout  *int64  `json:"timeout_ms,omitempty"`
	Headers  *string `json:"headers,omitempty"`
	Start    int64   `json:"start"`
	Size     int64   `json:"size"`

	// of those that expire
	StartBefore *string `json:"start_before,omitempty"`
	Within      *int64  `json:"within_ms,omitempty"`
	OnExpiry    *string `json:"on_expiry,omitempty"`
	KeepDead    *int64  `json:"dead_ms,omitempty"`

	Retain *int64 `json:"retain_ms,omitempty"` // of those with a retention of their own

	Group *string `json:"group_name,omitempty"`

	// of those with a key
	Key      *string `json:"key,omitempty"`
	TTL      *int64  `json:"ttl_ms,omitempty"`
	KeyState *string `json:"key_state,omitempty"`
}

// newJobRow returns a job as a row of a document, and adds its payload to the blob.
func newJobRow(n int, j *core.NewJob, payloads *blob) (jobRow, error) {
	r := jobRow{N: n, Queue: j.Queue, Priority: j.Priority, Delay: some(ms(j.Delay)), Max: some(int64(j.MaxAttempts)), Timeout: some(ms(j.Timeout))}
	if j.Delay <= 0 && !j.RunAt.IsZero() {
		at := instant(j.RunAt)
		r.RunAt = &at
	}
	if e := &j.Expiry; e.Some() {
		if r.Within = some(ms(e.StartWithin)); r.Within == nil {
			at := instant(e.StartBefore)
			r.StartBefore = &at
		}
		if e.Remove {
			r.OnExpiry = text("delete")
		}
		r.KeepDead = some(ms(e.RetainDead))
	}
	r.Retain = some(ms(j.Retain))
	if j.Group != "" {
		if err := checkGroup(j.Group); err != nil {
			return r, err
		}
		r.Group = text(storedGroup(j.Group))
	}
	if len(j.Headers) > 0 {
		b, err := json.Marshal(j.Headers)
		if err != nil {
			return r, fmt.Errorf("headers: %w", err)
		}
		headers := string(b)
		r.Headers = &headers
	}
	if j.Key != "" {
		// A document would turn other bytes into U+FFFD, which can be another job's key.
		if !utf8.ValidString(j.Key) || strings.ContainsRune(j.Key, 0) {
			return r, backends.Refused(fmt.Errorf("the key %q is not valid UTF-8, or has a NUL", j.Key))
		}
		ttl := min(j.KeyMillis(), ms(longest))
		r.Key, r.TTL, r.KeyState = &j.Key, &ttl, text(j.KeyState())
	}
	r.Start, r.Size = payloads.add(j.Payload)
	return r, nil
}

type segmentRow struct {
	N       int    `json:"n"`
	Queue   string `json:"queue"`
	Policy  int    `json:"policy"`
	Highest int16  `json:"highest"`
	Lowest  int16  `json:"lowest"`
	Low     int64  `json:"low"`
	High    int64  `json:"high"`
}

type policyRow struct {
	Policy     int    `json:"policy"`
	Max        int    `json:"max_attempts"`
	Timeout    *int64 `json:"timeout_ms,omitempty"`
	Backoff    int64  `json:"backoff_ms"`
	BackoffMax int64  `json:"backoff_max_ms"`
	Keep       *int64 `json:"retention_done_ms,omitempty"`
	KeepDead   *int64 `json:"retention_dead_ms,omitempty"`
}

type slotRow struct {
	Slot    int     `json:"slot"`
	Sidecar int64   `json:"sidecar"`
	Number  int64   `json:"number"`
	Lease   *int64  `json:"lease_ms,omitempty"`
	Worker  *string `json:"worker,omitempty"`
	Ahead   int     `json:"prefetched"`
}

type buryRow struct {
	ID       int64  `json:"id"`
	Max      int    `json:"claim_max"`
	KeepDead *int64 `json:"retention_dead_ms,omitempty"`
	Message  string `json:"message"`
}

type expireRow struct {
	ID       int64  `json:"id"`
	KeepDead *int64 `json:"dead_ms,omitempty"`
}

type pieceRow struct {
	N        int   `json:"n"`
	Priority int16 `json:"priority"`
	Low      int64 `json:"low"`
	High     int64 `json:"high"`
}

type queueRow struct {
	N     int    `json:"n"`
	Queue string `json:"queue"`
}

type idRow struct {
	N  int   `json:"n"`
	ID int64 `json:"id"`
}

// idRows returns ids with their indexes in the list.
func idRows(ids []int64) []idRow {
	rows := make([]idRow, len(ids))
	for i, id := range ids {
		rows[i] = idRow{i, id}
	}
	return rows
}

type sidecarRow struct {
	Sidecar int64 `json:"sidecar"`
	Beats   int64 `json:"heartbeats"`
	Lease   int64 `json:"lease_ms"`
}

// onlyRow is a job of a list.
type onlyRow struct {
	ID int64 `json:"id"`
}

func onlyRows(ids []int64) []onlyRow {
	rows := make([]onlyRow, len(ids))
	for i, id := range ids {
		rows[i] = onlyRow{id}
	}
	return rows
}

type keyRow struct {
	ID    int64  `json:"id"`
	Queue string `json:"queue"`
	Key   string `json:"key"`
}

type claimRow struct {
	Owner   int64 `json:"owner"`
	Sidecar int64 `json:"token_sidecar"`
	Number  int64 `json:"token_number"`
}

type ownerRow struct {
	Owner int64 `json:"owner"`
}

// listOf returns a document of queues. Names that are not ASCII belong to no queue.
func listOf(queues []string) mssql.NVarCharMax {
	rows := make([]queueRow, len(queues))
	for i, q := range queues {
		rows[i] = queueRow{i, q}
	}
	return document(rows)
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

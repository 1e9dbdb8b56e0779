// Package pending keeps the pending jobs of idempotency keys (see backends.OnConflict) in one table, once for all SQL engines.
//
// qsidecar_pending has at most one row for a claimed job: the content that waits for the end of its claim. The key_state of that
// job's row shows it, so whatever ends another claim reads nothing. Each transaction that reads or writes a row here has
// locked the row of its job before: the enqueue that finds the job claimed, and the one that ends the claim. So of the two the
// second one sees what the first one did, and no content is lost.
package pending

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

const (
	table = "qsidecar_pending"
	jobs  = "qsidecar_jobs"
	keys  = "qsidecar_keys"

	primary = "PRIMARY"        // the index of MySQL by which it finds rows: it would wait for locks on others
	byIndex = " AND since > 0" // all rows: MySQL scans a small table for a DELETE that reads only the key
)

var (
	idColumn      = backends.Column{Name: "id", Type: "bigint", Kind: backends.NumberColumn}
	jobColumn     = backends.Column{Name: "job", Type: "bigint", Kind: backends.NumberColumn}
	headersColumn = backends.Column{Name: "headers", Type: "jsonb", Kind: backends.TextColumn}
	payloadColumn = backends.Column{Name: "payload", Type: "bytea", Kind: backends.BytesColumn}
)

// SQL is a transaction.
type SQL interface {
	backends.SQL
	Clock(ctx context.Context) (time.Time, error)
}

// keyDialect is a Dialect of an engine whose qsidecar_keys has the keys in another form than their texts.
type keyDialect interface {
	// KeyIs is the condition that a row has the queue and the key that are two arguments, texts.
	KeyIs(queue, key int) string
}

// Table is the pending jobs of a database.
type Table struct{ Dialect backends.Dialect }

// options are a pending job without its queue, its key and its payload.
type options struct {
	RunAt         int64             `json:"run_at,omitempty"`
	Priority      int16             `json:"priority,omitempty"`
	Headers       map[string]string `json:"headers,omitempty"`
	Group         string            `json:"group,omitempty"`
	MaxAttempts   int               `json:"max_attempts,omitempty"`
	TimeoutMS     int64             `json:"timeout_ms,omitempty"`
	KeyTTLMS      int64             `json:"key_ttl_ms,omitempty"`
	KeyUntilStart bool              `json:"key_until_start,omitempty"`
	StartBefore   int64             `json:"start_before,omitempty"`
	StartWithinMS int64             `json:"start_within_ms,omitempty"`
	Delete        bool              `json:"delete,omitempty"`
	RetainDeadMS  int64             `json:"retain_dead_ms,omitempty"`
	RetainMS      int64             `json:"retain_ms,omitempty"`
}

func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func instant(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

func duration(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

func (o *options) job(payload []byte) backends.NewJob {
	return backends.NewJob{
		Payload: payload, RunAt: instant(o.RunAt), Priority: o.Priority, Headers: o.Headers, Group: o.Group, MaxAttempts: o.MaxAttempts, Timeout: duration(o.TimeoutMS),
		KeyTTL: duration(o.KeyTTLMS), KeyUntilStart: o.KeyUntilStart, Retain: duration(o.RetainMS),
		Expiry: backends.Expiry{StartBefore: instant(o.StartBefore), StartWithin: duration(o.StartWithinMS), Remove: o.Delete, RetainDead: duration(o.RetainDeadMS)},
	}
}

func optionsOf(j *backends.NewJob, runAt time.Time) *options {
	return &options{
		RunAt: millis(runAt), Priority: j.Priority, Headers: j.Headers, Group: j.Group, MaxAttempts: j.MaxAttempts, TimeoutMS: j.Timeout.Milliseconds(),
		KeyTTLMS: j.KeyTTL.Milliseconds(), KeyUntilStart: j.KeyUntilStart, RetainMS: j.Retain.Milliseconds(),
		StartBefore: millis(j.Expiry.StartBefore), StartWithinMS: j.Expiry.StartWithin.Milliseconds(), Delete: j.Expiry.Remove, RetainDeadMS: j.Expiry.RetainDead.Milliseconds(),
	}
}

// RunAt returns when a pending job is ready; zero: at once. since is when the first pending job was stored that it replaces, or now.
func RunAt(j *backends.NewJob, now, since time.Time) time.Time {
	if j.Delay <= 0 {
		return j.RunAt
	}
	at := now.Add(j.Delay)
	if last := since.Add(j.DebounceMax); j.OnConflict == backends.ConflictDebounce && j.DebounceMax > 0 && at.After(last) {
		return last
	}
	return at
}

// Put stores a job as the pending one of a claimed job, whose row the transaction has locked. It returns false if the claim has freed the
// key.
func (t *Table) Put(ctx context.Context, sql SQL, job int64, j *backends.NewJob) (bool, error) {
	d := t.Dialect
	now, err := sql.Clock(ctx)
	if err != nil {
		return false, err
	}
	since := now
	mark := &backends.Statement{
		Text: d.UpdateByKey(d.SidecarTable(jobs), primary, "key_state = 'pending'", "id = "+d.IntArg(1)+" AND (key_state IS NULL OR key_state = 'pending')"), Args: []any{job},
	}
	first := &backends.Statement{
		Text: d.SelectByKey(d.ToText("since")+" AS qsidecar_1", d.SidecarTable(table), primary, "job = "+d.IntArg(1), "", false), Args: []any{job},
		Row: func(cells [][]byte) error {
			ms, err := strconv.ParseInt(string(cells[0]), 10, 64)
			since = instant(ms)
			return err
		},
	}
	if err := sql.Do(ctx, mark, first); err != nil || mark.Matched != 1 {
		return false, err
	}
	text, _ := json.Marshal(optionsOf(j, RunAt(j, now, since))) // of texts and numbers
	return true, sql.Do(ctx,
		&backends.Statement{Text: d.DeleteByKey(d.SidecarTable(table), primary, "job = "+d.IntArg(1)+byIndex), Args: []any{job}},
		&backends.Statement{
			Text: "INSERT INTO " + d.SidecarTable(table) + " (job, since, options, payload) VALUES (" + d.IntArg(1) + ", " + d.IntArg(2) + ", " + d.TextArg(3) + ", " + d.Arg(4, payloadColumn) + ")",
			Args: []any{job, millis(since), string(text), bytes(j.Payload)},
		})
}

// bytes is a payload that is never NULL.
func bytes(payload []byte) []byte {
	if payload == nil {
		return []byte{}
	}
	return payload
}

// Take returns the pending jobs of claims that end, by the ids of their jobs, and removes them. The transaction has locked the rows of these.
func (t *Table) Take(ctx context.Context, sql backends.SQL, of []int64) (map[int64]backends.NewJob, error) {
	d := t.Dialect
	all := map[int64]backends.NewJob{}
	ids := texts(of)
	err := sql.Do(ctx,
		&backends.Statement{
			Text: d.SelectByKey(d.ToText("job")+" AS qsidecar_1, options AS qsidecar_2, payload AS qsidecar_3", d.SidecarTable(table), primary, d.AnyOf(1, jobColumn), "", false), Args: []any{ids},
			Row: func(cells [][]byte) error {
				var o options
				id, err := strconv.ParseInt(string(cells[0]), 10, 64)
				if err == nil {
					err = json.Unmarshal(cells[1], &o)
				}
				if err != nil {
					return fmt.Errorf("%s, job %s: %w", table, cells[0], err)
				}
				all[id] = o.job(slices.Clone(cells[2]))
				return nil
			},
		},
		&backends.Statement{Text: d.DeleteByKey(d.SidecarTable(table), primary, d.AnyOf(1, jobColumn)+byIndex), Args: []any{ids}},
		&backends.Statement{Text: d.UpdateByKey(d.SidecarTable(jobs), primary, "key_state = NULL", d.AnyOf(1, idColumn)), Args: []any{ids}})
	return all, err
}

func texts(ids []int64) []string {
	all := make([]string, len(ids))
	for i, id := range ids {
		all[i] = strconv.FormatInt(id, 10)
	}
	return all
}

// Replace writes the payload and the headers of a new job into the row of another one, which the transaction has locked. A fence above 0
// frees rows from a CHECK that is younger than they are.
func (t *Table) Replace(ctx context.Context, sql backends.SQL, job int64, j *backends.NewJob) (bool, error) {
	d := t.Dialect
	var headers any
	if len(j.Headers) > 0 {
		text, _ := json.Marshal(j.Headers) // a map of texts can't fail
		headers = string(text)
	}
	s := &backends.Statement{
		Text: d.UpdateByKey(d.SidecarTable(jobs), primary, "payload = "+d.Arg(1, payloadColumn)+", headers = "+d.Arg(2, headersColumn)+", fence = CASE WHEN fence = 0 THEN 1 ELSE fence END", "id = "+d.IntArg(3)),
		Args: []any{bytes(j.Payload), headers, job},
	}
	err := sql.Do(ctx, s)
	return s.Matched == 1, err
}

// FreeKey removes the key of a job, if it still is that of the job.
func (t *Table) FreeKey(ctx context.Context, sql backends.SQL, queue, key string, job int64) error {
	d := t.Dialect
	is := "queue = " + d.TextArg(1) + " AND " + d.Name("key") + " = " + d.TextArg(2)
	if k, ok := d.(keyDialect); ok {
		is = k.KeyIs(1, 2)
	}
	return sql.Do(ctx, &backends.Statement{
		Text: d.DeleteByKey(d.SidecarTable(keys), primary, is+" AND job = "+d.IntArg(3)), Args: []any{queue, key, job},
	})
}

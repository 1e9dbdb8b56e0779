package statement

import (
	"crypto/rand"
	"fmt"
	"maps"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/condition"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// row is a row to insert.
type row struct {
	*condition.Builder
	queue       *Queue
	names       []string
	expressions []string
	texts       map[string]string // of columns whose value is known before the INSERT

	refused error // a text that its column cannot hold
}

func (q *Queue) newRow() *row {
	return &row{Builder: &condition.Builder{Table: q.Table}, queue: q, texts: map[string]string{}}
}

func (r *row) put(c backends.Column, expression string) {
	r.names, r.expressions = append(r.names, c.Name), append(r.expressions, expression)
}

// putText stores a text, all of it or nothing.
func (r *row) putText(c backends.Column, text string) {
	if r.refused == nil {
		r.refused = mapping.CheckLength(c, text)
	}
	r.texts[c.Name] = text
	r.put(c, r.ExactValue(c, text))
}

// putConstant stores a constant of the config.
func (r *row) putConstant(c backends.Column, v mapping.Value) {
	if !v.Null {
		r.texts[c.Name] = v.Text
	}
	r.put(c, r.Constant(c.Name, v))
}

func (r *row) has(name string) bool { return slices.Contains(r.names, name) }

// Insert stores a job. Its id goes to stored.
func (q *Queue) Insert(j backends.NewJob, stored *string) (*backends.Statement, error) {
	if q.enqueueErr != nil {
		return nil, q.enqueueErr
	}
	if j.Group != "" {
		return nil, q.unsupported("", "a job cannot have a group, because no other state of a row can be added to its table")
	}
	if j.Batch != "" {
		return nil, q.unsupported("", "a job cannot be in a batch, because the end of the job could not be noted with its row")
	}
	if j.Expiry.Some() {
		return nil, q.unsupported("", backends.NoExpiry+": no time until which a job has to start can be added to its table")
	}
	if j.Retain > 0 {
		return nil, q.unsupported("", backends.NoRetain+": on_ack decides what becomes of a done row")
	}
	if j.KeyUntilStart || j.OnConflict != backends.ConflictKeep {
		return nil, q.unsupported("", backends.NoReplace+": nothing in its table shows which content is pending, or whether a job has started")
	}
	if err := q.checkRequirements(j); err != nil {
		return nil, err
	}
	r := q.newRow()
	r.fixed()
	if err := r.contents(j); err != nil {
		return nil, err
	}
	if r.refused != nil {
		return nil, r.refused
	}
	if c, has := q.Column(mapping.Priority); has && j.Priority != 0 {
		r.put(c, r.Value(c, fmt.Sprint(j.Priority)))
	}
	r.runAt(j)
	r.ownLimit(j)
	if err := r.missing(); err != nil {
		return nil, err
	}
	for _, c := range mapping.Stamped(q.Info.Columns) {
		if !r.has(c.Name) {
			r.put(c, q.Now(c))
		}
	}
	return r.statement(stored)
}

// statement inserts the row and puts the job's id together: from the values that are known, and
// the one that the database gives.
func (r *row) statement(stored *string) (*backends.Statement, error) {
	q := r.queue
	id, err := r.returned()
	if err != nil {
		return nil, err
	}
	names := make([]string, len(r.names))
	for i, name := range r.names {
		names[i] = q.Dialect.Name(name)
	}
	return &backends.Statement{
		Text: q.Dialect.Insert(q.SQLName, names, r.expressions, id), Args: r.Args,
		Row: func(cells [][]byte) error {
			texts := make([][]byte, len(q.Key))
			for i, c := range q.Key {
				if texts[i] = []byte(r.texts[c.Name]); c.Name == id.Name {
					texts[i] = cells[0]
				}
			}
			if *stored = q.Item(texts); len(*stored) > condition.MaxID {
				return backends.Refused(fmt.Errorf("the id of a job of the queue %s would be longer than %d bytes: %.40q…", q.Queue, condition.MaxID, *stored))
			}
			return nil
		},
	}, nil
}

// returned is the column of the key that the INSERT returns: the one whose value the database
// gives, or else the last.
func (r *row) returned() (id backends.Column, err error) {
	unknown := 0
	for _, c := range r.Key {
		if _, known := r.texts[c.Name]; !known {
			id = c
			unknown++
		}
	}
	switch unknown {
	case 0:
		return r.Key[len(r.Key)-1], nil
	case 1:
		return id, nil
	}
	return id, r.queue.unsupported(mapping.ID, "a job cannot be enqueued: the database gives more than one column of its key a value")
}

// fixed are the values that every new row has.
func (r *row) fixed() {
	for _, name := range slices.Sorted(maps.Keys(r.Where)) {
		c, _ := r.Info.Column(name)
		r.putConstant(c, r.Where[name])
	}
	if c, has := r.Column(mapping.State); has && !r.has(c.Name) {
		r.putConstant(c, r.States[backends.StateReady])
	}
	if c, has := r.Column(mapping.Attempts); has && !c.Nullable && !c.Default {
		r.put(c, "0")
	}
	if c, has := r.Column(mapping.CreatedAt); has && !c.Default && !c.Generated {
		r.put(c, r.Now(c))
	}
	for _, c := range r.Key {
		if c.Kind == backends.UUIDColumn && !c.Default && !r.has(c.Name) {
			r.putText(c, newUUID())
		}
	}
}

// runAt stores when the job can be claimed.
func (r *row) runAt(j backends.NewJob) {
	c, has := r.Column(mapping.RunAt)
	switch {
	case !has:
	case j.Delay > 0:
		r.put(c, r.NowPlus(c, r.Arg(core.MS(j.Delay))))
	case !j.RunAt.IsZero():
		r.put(c, r.FromMillis(c, r.Arg(j.RunAt.UnixMilli())))
	case !c.Default: // the table's own consumers can skip NULL
		r.put(c, r.Now(c))
	}
}

// ownLimit stores the job's limit of attempts. A row that needs one gets the queue's.
func (r *row) ownLimit(j backends.NewJob) {
	c, has := r.Column(mapping.OwnLimit)
	switch {
	case !has:
	case j.MaxAttempts > 0:
		r.put(c, r.Value(c, fmt.Sprint(j.MaxAttempts)))
	case !c.Nullable && !c.Default:
		r.put(c, r.Value(c, fmt.Sprint(max(r.MaxAttempts, 1))))
	}
}

// missing finds a column that needs a value and gets none.
func (r *row) missing() error {
	for _, c := range r.Info.Columns {
		if !c.Nullable && !c.Default && !c.Generated && !r.has(c.Name) {
			return r.queue.unsupported("", fmt.Sprintf("a job cannot be enqueued: the column %s needs a value: give it a default in the table, a value in `where`, or a role in `columns`", c.Name))
		}
	}
	return nil
}

// checkInsert returns why no jobs can be enqueued; nil: they can. It tries a row with everything that
// a job can have.
func (q *Queue) checkInsert() error {
	no := func(format string, args ...any) error {
		return q.unsupported("", "a job cannot be enqueued: "+fmt.Sprintf(format, args...))
	}
	if slices.Contains(q.Info.Denied, "INSERT") {
		return no("this login lacks INSERT on %s: %s", q.SQLName, q.Info.Grant("INSERT ON "+q.SQLName))
	}
	r := q.newRow()
	r.fixed()
	r.runAt(backends.NewJob{})
	r.ownLimit(backends.NewJob{})
	for _, c := range slices.Concat(q.Payload, q.Headers) {
		r.putText(c, "")
	}
	for _, c := range q.Info.Columns {
		switch {
		case !r.has(c.Name) && c.Lacks != "":
			return no("this login lacks %s, which gives the column %s its values: %s", c.Lacks, c.Name, q.Info.Grant(c.Lacks))
		case !r.has(c.Name):
		case c.Generated:
			return no("the column %s is generated, so nothing can be stored in it", c.Name)
		case slices.Contains(c.Denied, "INSERT"):
			return no("this login lacks INSERT on the column %s: %s", c.Name, q.Info.Grant(fmt.Sprintf("INSERT (%s) ON %s", q.Quote(c), q.SQLName)))
		}
	}
	if err := r.missing(); err != nil {
		return err
	}
	_, err := r.returned()
	return err
}

// newUUID is a random one, in its usual form.
func newUUID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

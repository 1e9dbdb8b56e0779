package adopted

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
)

// storing are the jobs of one write that go into adopted tables.
type storing struct {
	n       int   // the write
	managed int   // the engine's write whose lease must be valid; < 0: none
	at      []int // where the jobs stand in the write's list
	jobs    []backends.NewJob
}

// store inserts the jobs. Those that come with an ack whose lease was lost are not.
func (k *commitment) store(ctx context.Context, sql backends.SQL, r *backends.Results) error {
	var all []*backends.Statement
	for _, st := range k.stores {
		res := &k.res.Writes[st.n]
		if len(res.Lost) > 0 || st.managed >= 0 && len(r.Writes[st.managed].Lost) > 0 {
			continue
		}
		if res.Stored == nil {
			res.Stored = make([]backends.Stored, len(batch.JobsOf(k.batch.Writes[st.n])))
		}
		for i, j := range st.jobs {
			insert, err := k.s.tables[j.Queue].insert(j, &res.Stored[st.at[i]].ID)
			if err != nil {
				return err
			}
			all = append(all, insert)
			if j.Delay <= 0 && j.RunAt.IsZero() {
				batch.Free(res, j.Queue)
			}
		}
	}
	if len(all) == 0 {
		return nil
	}
	if err := sql.Do(ctx, all...); err != nil {
		return err
	}
	for _, insert := range all {
		if insert.Matched != 1 {
			return backends.Refused(fmt.Errorf("%s stored no row: a trigger or a rule of the table keeps it from that", strings.SplitN(insert.Text, " (", 2)[0]))
		}
	}
	return nil
}

// row is a row to be inserted.
type row struct {
	writing
	names []string
	exprs []string
	known map[string]string // the texts of columns that are given one

	refused error // a text that its column cannot hold
}

func (r *row) put(c backends.Column, expression string) {
	r.names, r.exprs = append(r.names, c.Name), append(r.exprs, expression)
}

// give puts a text into a column.
func (r *row) give(c backends.Column, text string) {
	if r.refused == nil {
		r.refused = tooLong(c, text)
	}
	r.known[c.Name] = text
	r.put(c, r.exactly(c, text))
}

func (r *row) has(name string) bool { return slices.Contains(r.names, name) }

// unsupported says which role a new job lacks; what names it.
func (t *table) unsupported(role Role, what string) error {
	return &backends.UnsupportedError{Queue: t.queue, Role: string(role), What: what}
}

// wish is what a new job may ask for, beyond being stored.
type wish struct {
	role  Role   // that it needs; empty: no mapping can do it
	what  string // is said where the table has nothing for it
	asked func(backends.NewJob) bool
}

var wishes = []wish{
	{Payload, "a job's payload cannot be stored", func(j backends.NewJob) bool { return len(j.Payload) > 0 }},
	{Priority, "a job's priority cannot be stored", func(j backends.NewJob) bool { return j.Priority != 0 }},
	{RunAt, "a job cannot be scheduled", func(j backends.NewJob) bool { return j.Delay > 0 || !j.RunAt.IsZero() }},
	{Headers, "a job's headers cannot be stored", func(j backends.NewJob) bool { return len(j.Headers) > 0 }},
	{"", "a job cannot have a key", func(j backends.NewJob) bool { return j.Key != "" }},
	{OwnLimit, "a job cannot have a max_attempts of its own", func(j backends.NewJob) bool { return j.MaxAttempts != 0 }},
	{"", "a job cannot have a timeout_ms of its own", func(j backends.NewJob) bool { return j.Timeout != 0 }},
}

// grants says whether the table has something for the wish.
func (t *table) grants(w wish) bool { return w.role != "" && len(t.Columns[w.role]) > 0 }

// lacks finds what a new job asks for and the table has nothing for.
func (t *table) lacks(j backends.NewJob) error {
	for _, w := range wishes {
		if w.asked(j) && !t.grants(w) {
			return t.unsupported(w.role, w.what)
		}
	}
	return nil
}

// noResult is said of an ack with a result where there is no column for it.
const noResult = "the result of an ack cannot be kept"

// cannot is all that is answered `unsupported`, in the words of that answer.
func (t *table) cannot() (all []error) {
	if t.noEnqueue != nil {
		all = append(all, t.noEnqueue)
	}
	for _, w := range wishes {
		if t.noEnqueue == nil && !t.grants(w) {
			all = append(all, t.unsupported(w.role, w.what))
		}
	}
	if len(t.Columns[Result]) == 0 {
		all = append(all, t.unsupported(Result, noResult))
	}
	if t.Hold {
		for _, what := range []string{backends.NoTimedLease, backends.NoExtend, backends.NotElsewhere} {
			all = append(all, &backends.UnsupportedError{Queue: t.queue, What: what, InTx: true})
		}
	}
	return all
}

// insert is the statement that stores a job. Its id goes to stored.
func (t *table) insert(j backends.NewJob, stored *string) (*backends.Statement, error) {
	if t.noEnqueue != nil {
		return nil, t.noEnqueue
	}
	if err := t.lacks(j); err != nil {
		return nil, err
	}
	r := t.newRow()
	r.fixed()
	if err := r.contents(j); err != nil {
		return nil, err
	}
	if r.refused != nil {
		return nil, r.refused
	}
	if c, has := t.one[Priority]; has && j.Priority != 0 {
		r.put(c, r.value(c, fmt.Sprint(j.Priority)))
	}
	r.due(j)
	r.limit(j)
	if err := r.missing(); err != nil {
		return nil, err
	}
	for _, c := range t.stamped(t.info.Columns) {
		if !r.has(c.Name) {
			r.put(c, t.clock(c))
		}
	}
	names := make([]string, len(r.names))
	for i, name := range r.names {
		names[i] = t.g.Name(name)
	}
	id, err := r.answer()
	if err != nil {
		return nil, err
	}
	return &backends.Statement{
		Text: t.g.Insert(t.name, names, r.exprs, id), Args: r.args,
		Row: func(cells [][]byte) error {
			texts := make([][]byte, len(t.key))
			for i, c := range t.key {
				if texts[i] = []byte(r.known[c.Name]); c.Name == id.Name {
					texts[i] = cells[0]
				}
			}
			if *stored = t.item(texts); len(*stored) > maxID {
				return backends.Refused(fmt.Errorf("the id of a job of the queue %s would be longer than %d bytes: %.40q…", t.queue, maxID, *stored))
			}
			return nil
		},
	}, nil
}

// stamped are the columns to which an INSERT must give the owner's time: by themselves
// they would have that of the sidecar's session.
func (t *table) stamped(all []backends.Column) []backends.Column {
	return slices.DeleteFunc(slices.Clone(all), func(c backends.Column) bool { return !c.Stamped || slices.Contains(c.Denied, "INSERT") })
}

func (t *table) newRow() *row { return &row{writing: writing{t: t}, known: map[string]string{}} }

// answer is the column of the key whose value the database gives, and is asked
// for; where none is, the last.
func (r *row) answer() (id backends.Column, err error) {
	given := 0
	for _, c := range r.t.key {
		if _, known := r.known[c.Name]; known {
			given++
		} else {
			id = c
		}
	}
	switch n := len(r.t.key); {
	case n-given > 1:
		return id, &backends.UnsupportedError{Queue: r.t.queue, Role: string(ID), What: "a job cannot be enqueued: the database gives more than one column of its key a value"}
	case given == n:
		return r.t.key[n-1], nil
	}
	return id, nil
}

// fixed are the values that every new row has.
func (r *row) fixed() {
	t := r.t
	constant := func(c backends.Column, v Value) {
		if !v.Null {
			r.known[c.Name] = v.Text
		}
		r.put(c, t.constant(c.Name, v))
	}
	for _, name := range slices.Sorted(maps.Keys(t.Where)) {
		c, _ := t.info.Column(name)
		constant(c, t.Where[name])
	}
	if c, has := t.one[State]; has && !r.has(c.Name) {
		constant(c, t.States[backends.StateReady])
	}
	if c, has := t.one[Attempts]; has && !c.Nullable && !c.Default {
		r.put(c, "0")
	}
	if c, has := t.one[CreatedAt]; has && !c.Default && !c.Generated {
		r.put(c, t.clock(c))
	}
	for _, c := range t.key {
		if c.Kind == backends.UUIDColumn && !c.Default && !r.has(c.Name) {
			r.give(c, newUUID())
		}
	}
}

// due is when the job may be claimed.
func (r *row) due(j backends.NewJob) {
	c, has := r.t.one[RunAt]
	switch {
	case !has:
	case j.Delay > 0:
		r.args = append(r.args, batch.MS(j.Delay))
		r.put(c, r.t.later(c, len(r.args)))
	case !j.RunAt.IsZero():
		r.args = append(r.args, j.RunAt.UnixMilli())
		r.put(c, r.t.instant(c, len(r.args)))
	case !c.Default: // its own consumers may pass over NULL
		r.put(c, r.t.clock(c))
	}
}

// limit is how many attempts the job may have. A row that needs a limit gets the queue's.
func (r *row) limit(j backends.NewJob) {
	c, has := r.t.one[OwnLimit]
	switch {
	case !has:
	case j.MaxAttempts > 0:
		r.put(c, r.value(c, fmt.Sprint(j.MaxAttempts)))
	case !c.Nullable && !c.Default:
		r.put(c, r.value(c, fmt.Sprint(max(r.t.MaxAttempts, 1))))
	}
}

// contents are the payload and the headers.
func (r *row) contents(j backends.NewJob) error {
	t := r.t
	if len(t.payload) == 1 && (j.Payload != nil || !t.payload[0].Nullable) {
		r.give(t.payload[0], string(j.Payload))
	}
	if len(t.payload) > 1 && len(j.Payload) > 0 {
		if err := r.parts(j.Payload); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(j.Headers)) { // the texts of statements are few
		i := slices.IndexFunc(t.headers, func(c backends.Column) bool { return c.Name == name })
		if i < 0 {
			return t.unsupported(Headers, fmt.Sprintf("the header %q cannot be stored", name))
		}
		r.give(t.headers[i], j.Headers[name])
	}
	return nil
}

// parts are a payload's of several columns: the JSON text of a map.
func (r *row) parts(payload []byte) error {
	var m map[string]json.RawMessage
	if err := json.Unmarshal(payload, &m); err != nil {
		return backends.Refused(fmt.Errorf("the payload of a job of the queue %s is the JSON text of a map, with the columns as its keys: %w", r.t.queue, err))
	}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		i := slices.IndexFunc(r.t.payload, func(c backends.Column) bool { return c.Name == name })
		if i < 0 {
			return backends.Refused(fmt.Errorf("the payload has the key %q, which is no column of it in the queue %s", name, r.t.queue))
		}
		c, text := r.t.payload[i], string(m[name])
		var word string
		switch {
		case text == "null":
			r.put(c, "NULL")
			continue
		case c.Kind == backends.JSONColumn:
		case json.Unmarshal(m[name], &word) == nil:
			text = word
		}
		if c.Kind == backends.BytesColumn {
			raw, err := base64.StdEncoding.DecodeString(text)
			if err != nil {
				return backends.Refused(fmt.Errorf("the payload's key %q holds bytes, in base64: %w", name, err))
			}
			text = string(raw)
		}
		r.give(c, text)
	}
	return nil
}

// missing: a column that has to have a value and gets none.
func (r *row) missing() error {
	for _, c := range r.t.info.Columns {
		if !c.Nullable && !c.Default && !c.Generated && !r.has(c.Name) {
			return &backends.UnsupportedError{Queue: r.t.queue, Role: "where", What: fmt.Sprintf("a job cannot be enqueued: the column %s needs a value", c.Name)}
		}
	}
	return nil
}

// inserts says why nothing can be enqueued; nil: it can.
func (t *table) inserts() error {
	no := func(format string, args ...any) error {
		return &backends.UnsupportedError{Queue: t.queue, What: "a job cannot be enqueued: " + fmt.Sprintf(format, args...)}
	}
	if slices.Contains(t.info.Denied, "INSERT") {
		return no("this login lacks INSERT on %s", t.name)
	}
	r := t.newRow()
	r.fixed()
	r.due(backends.NewJob{})
	r.limit(backends.NewJob{})
	for _, c := range slices.Concat(t.payload, t.headers) {
		r.give(c, "")
	}
	for _, c := range t.info.Columns {
		switch {
		case !r.has(c.Name):
		case c.Generated:
			return no("the column %s is generated, and nobody can write it", c.Name)
		case slices.Contains(c.Denied, "INSERT"):
			return no("this login lacks INSERT on the column %s", c.Name)
		}
	}
	if err := r.missing(); err != nil {
		return err
	}
	_, err := r.answer()
	return err
}

// newUUID is a random one, in its usual form.
func newUUID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	var s bytes.Buffer
	for i, from := range []int{0, 4, 6, 8, 10} {
		to := []int{4, 6, 8, 10, 16}[i]
		if i > 0 {
			s.WriteByte('-')
		}
		fmt.Fprintf(&s, "%x", b[from:to])
	}
	return s.String()
}

package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// adoptedQueue holds the keys of a queue in a table that another application owns. It has no
// defaults, because each queue has its own table.
type adoptedQueue struct {
	Table      TableName              `yaml:"table"`
	Columns    map[string]stringList  `yaml:"columns"`
	States     map[string]columnValue `yaml:"states"`
	Where      map[string]columnValue `yaml:"where"`
	Counts     counts                 `yaml:"counts"`
	Token      *tokenConfig           `yaml:"token"`
	Times      times                  `yaml:"times"`
	OnAck      onAckConfig            `yaml:"on_ack"`
	StuckAfter duration               `yaml:"stuck_after"`
	Notify     channel                `yaml:"notify"`
	ClaimMode  claimMode              `yaml:"claim_mode"`
}

// tokenConfig has a value or a range.
type tokenConfig struct {
	Column string       `yaml:"column"`
	Value  *columnValue `yaml:"value"`
	Range  numberRange  `yaml:"range"`
}

// onAckConfig is a keyword or a map.
type onAckConfig struct {
	word    string
	Archive TableName `yaml:"archive"`
}

type (
	counts    string
	times     string
	channel   string
	claimMode string
)

func (c *counts) parse(s string) error { return oneOf((*string)(c), s, "failures", "deliveries") }
func (t *times) parse(s string) error {
	return oneOf((*string)(t), s, "server", "utc", "seconds", "milliseconds")
}
func (c *claimMode) parse(s string) error { return oneOf((*string)(c), s, "update", "transaction") }
func (c *channel) parse(s string) error {
	if slices.Contains([]string{"", "on", "off", "true", "false"}, s) {
		return fmt.Errorf("%q is not a channel: name the one in which the table's own programs notify, or leave it out", s)
	}
	*c = channel(s)
	return nil
}
func (o *onAckConfig) parse(s string) error {
	if err := oneOf(&o.word, s, "update", "delete"); err != nil {
		return fmt.Errorf("%w, {archive: TABLE}", err)
	}
	return nil
}

// columnValue is a constant in a column. A YAML null is NULL.
type columnValue mapping.Value

func (c *columnValue) parse(s string) error {
	*c = columnValue{Text: s}
	return nil
}

// String returns the constant so that different ones have different texts.
func (c columnValue) String() string {
	switch {
	case c.Null:
		return "null"
	case c.Text == "" || c.Text == "null" || c.Text[0] == '"':
		return strconv.Quote(c.Text)
	}
	return c.Text
}

// TableName is NAME or SCHEMA.NAME. A name that contains a dot or a quote is written between
// double quotes.
type TableName struct{ Schema, Name string }

// ParseTableName reads NAME or SCHEMA.NAME.
func ParseTableName(s string) (n TableName, err error) {
	err = n.parse(s)
	return n, err
}

func (t *TableName) parse(s string) error {
	*t = TableName{Name: s} // also with an error: the keys beside it are those of an adopted table
	var parts []string
	for rest := s; ; {
		var part string
		if strings.HasPrefix(rest, `"`) {
			i := 1
			for i < len(rest) && (rest[i] != '"' || strings.HasPrefix(rest[i+1:], `"`)) {
				if rest[i] == '"' {
					i++
				}
				i++
			}
			if i >= len(rest) {
				return fmt.Errorf("%s: a quote is not closed", s)
			}
			part, rest = strings.ReplaceAll(rest[1:i], `""`, `"`), rest[i+1:]
			if rest != "" && rest[0] != '.' {
				return fmt.Errorf("%s: after a name in quotes comes a dot, or nothing", s)
			}
		} else {
			end := strings.IndexByte(rest, '.')
			if end < 0 {
				end = len(rest)
			}
			part, rest = rest[:end], rest[end:]
		}
		if parts = append(parts, part); part == "" || len(parts) > 2 {
			return fmt.Errorf("%q is not a table: write NAME or SCHEMA.NAME", s)
		}
		if rest == "" {
			break
		}
		rest = rest[1:]
	}
	*t = TableName{Name: parts[len(parts)-1]}
	if len(parts) == 2 {
		t.Schema = parts[0]
	}
	return nil
}

// stringList is one string or a list.
type stringList []string

func (n *stringList) parse(s string) error    { return n.list([]string{s}) }
func (n *stringList) list(all []string) error { *n = all; return nil }

// queueOrder is fifo or lifo, or the columns of an adopted table.
type queueOrder struct {
	order
	columns []mapping.Ordering
}

func (q *queueOrder) list(all []string) error {
	for _, text := range all {
		column, descending := strings.CutSuffix(text, " desc")
		if name, long := strings.CutSuffix(text, " descending"); long {
			return fmt.Errorf("%q: write %q for the largest first", text, name+" desc")
		}
		q.columns = append(q.columns, mapping.Ordering{Column: strings.TrimSuffix(column, " asc"), Descending: descending})
	}
	return nil
}

// numberRange is [FROM, TO].
type numberRange struct{ from, to int64 }

func (n *numberRange) parse(s string) error {
	return fmt.Errorf("%q is not a range: write [FROM, TO]", s)
}
func (n *numberRange) list(all []string) (err error) {
	if len(all) != 2 {
		return fmt.Errorf("a range has two numbers, and here are %d", len(all))
	}
	for i, to := range []*int64{&n.from, &n.to} {
		if *to, err = strconv.ParseInt(all[i], 10, 64); err != nil {
			return fmt.Errorf("%q is not a whole number", all[i])
		}
	}
	if n.from > n.to {
		return errors.New("it ends before it begins")
	}
	return nil
}

// adopts reports whether the queue is in an adopted table.
func (a adoptedQueue) adopts() bool { return a.Table.Name != "" }

// check reports the problems that are visible without the database.
func (a adoptedQueue) check(path string, order *queueOrder, bad func(path, format string, args ...any)) {
	if !a.adopts() {
		for key, set := range map[string]bool{
			"columns": len(a.Columns) > 0, "states": len(a.States) > 0, "where": len(a.Where) > 0, "counts": a.Counts != "", "token": a.Token != nil,
			"times": a.Times != "", "on_ack": a.OnAck != onAckConfig{}, "stuck_after": a.StuckAfter > 0,
			"notify": a.Notify != "", "claim_mode": a.ClaimMode != "",
		} {
			if set {
				bad(path+"."+key, "it goes with an adopted table: name it in `table`")
			}
		}
		if order != nil && len(order.columns) > 0 {
			bad(path+".order", "columns go with an adopted table: name it in `table`, or write fifo or lifo")
		}
		return
	}
	if path == "queues.*" {
		bad(path+".table", "a table is one queue's: \"*\" stands for many")
	}
	for role, columns := range a.Columns {
		switch {
		case slices.Contains(mapping.Roles, mapping.Role(role)):
		case len(columns) == 1 && slices.Contains(mapping.Roles, mapping.Role(columns[0])):
			bad(path+".columns."+role, "there is no such role: a role comes first, as in %s: %s", columns[0], role)
		default:
			bad(path+".columns."+role, "there is no such role; known here: %s", listed(mapping.Roles))
		}
	}
	states := []string{"ready", "claimed", "done", "dead"}
	for state, v := range a.States {
		switch {
		case slices.Contains(states, state):
		case slices.Contains(states, v.Text):
			bad(path+".states."+state, "there is no such state: a state comes first, as in %s: %s", v.Text, state)
		default:
			bad(path+".states."+state, "there is no such state; known here: %s", strings.Join(states, ", "))
		}
	}
	if t := a.Token; t != nil && (t.Column == "" || (t.Value == nil) == (t.Range == numberRange{})) {
		bad(path+".token", "it needs a column, and a value or a range that its own consumers never use")
	}
}

func listed[T ~string](all []T) string {
	var names []string
	for _, w := range all {
		names = append(names, string(w))
	}
	return strings.Join(names, ", ")
}

// table returns the mapping for backends/adopted.
func (a adoptedQueue) table(o *queueOrder) mapping.Table {
	t := mapping.Table{
		Schema: a.Table.Schema, Name: a.Table.Name, Columns: map[mapping.Role][]string{}, States: map[backends.State]mapping.Value{},
		Where: map[string]mapping.Value{}, Deliveries: a.Counts == "deliveries", UTC: a.Times == "utc", StuckAfter: time.Duration(a.StuckAfter),
		Notify:        string(a.Notify),
		ClaimInTx:     a.ClaimMode == "transaction",
		ArchiveSchema: a.OnAck.Archive.Schema, Archive: a.OnAck.Archive.Name,
	}
	switch a.Times {
	case "seconds":
		t.Unit = mapping.Seconds
	case "milliseconds":
		t.Unit = mapping.Milliseconds
	}
	for role, columns := range a.Columns {
		t.Columns[mapping.Role(role)] = columns
	}
	for state, v := range a.States {
		t.States[backends.State(state)] = mapping.Value(v)
	}
	for column, v := range a.Where {
		t.Where[column] = mapping.Value(v)
	}
	switch {
	case t.Archive != "":
		t.OnAck = mapping.Archive
	case a.OnAck.word == "delete":
		t.OnAck = mapping.Delete
	}
	if o != nil {
		t.Order, t.LIFO = o.columns, o.order == "lifo"
	}
	if a.Token != nil {
		t.Token = &mapping.Token{Column: a.Token.Column, From: a.Token.Range.from, To: a.Token.Range.to}
		if a.Token.Value != nil {
			t.Token.Text = a.Token.Value.Text
		}
	}
	return t
}

// AdoptedTables returns the mappings of the queues in adopted tables of a database, by
// queue.
func (c *Config) AdoptedTables(database string) map[string]mapping.Table {
	tables := map[string]mapping.Table{}
	for name, q := range c.Queues {
		if q.adopts() && c.databaseOf(q) == database {
			t := q.table(q.Order)
			t.MaxAttempts = q.withDefaults(c.Defaults).MaxAttempts
			// Retention of the defaults is for the sidecar's own tables. From an adopted
			// table it deletes only what the queue itself configures.
			if r := q.Retention; r != nil && r.Done != nil {
				t.RetainDone = time.Duration(*r.Done)
			}
			if r := q.Retention; r != nil && r.Dead != nil && *r.Dead != forever {
				t.RetainDead = time.Duration(*r.Dead)
			}
			tables[name] = t
		}
	}
	return tables
}

// databaseOf returns the name of a queue's database.
func (c *Config) databaseOf(q queueConfig) string {
	name := q.withDefaults(c.Defaults).Database
	if name == "" && len(c.Databases) == 1 {
		return slices.Collect(maps.Keys(c.Databases))[0]
	}
	return name
}

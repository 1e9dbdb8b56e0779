package adopt

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/guess"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
	"github.com/qsidecar/qsidecar/internal/config"
	"github.com/qsidecar/qsidecar/internal/engines"
)

// proposal writes a guess.Proposal as a config, with comments.
type proposal struct {
	*guess.Proposal
	strings.Builder
}

func (p *proposal) line(format string, args ...any) {
	p.WriteString(strings.TrimRight(fmt.Sprintf(format, args...), " ") + "\n")
}

// remark returns the comment of a key, or "".
func (p *proposal) remark(key string) string {
	n, has := p.Notes[key]
	switch {
	case !has:
		return ""
	case n.Guessed:
		return "  # guessed: " + oneLine(n.Text)
	}
	return "  # " + oneLine(n.Text)
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// todo writes the hints for keys, where those keys would be.
func (p *proposal) todo(indent string, is func(key string) bool) {
	for _, h := range p.Hints {
		if !is(h.Key) {
			continue
		}
		name := h.Key[strings.LastIndexByte(h.Key, '.')+1:]
		switch {
		case h.Key == "columns" || h.Key == "states":
			p.line("%s# %s", indent, oneLine(h.Text))
		case h.YAML == "":
			p.line("%s# TODO %s: %s", indent, name, oneLine(h.Text))
		default:
			p.line("%s# TODO %s: %s  # %s", indent, name, h.YAML, oneLine(h.Text))
		}
	}
}

func under(key string) func(string) bool {
	return func(k string) bool { return k == key || strings.HasPrefix(k, key+".") }
}

// write writes the whole config.
func (p *proposal) write(at config.Database, place, queue string) {
	p.line("# A first config for the table %s. `qsidecar adopt` read the table's definition", tableText(p.Table.Schema, p.Table.Name))
	p.line("# and %s. Most roles follow from the names of the columns.", p.Sampled)
	p.line("# Confirm each line that is marked as guessed, and decide each TODO. Its own consumers are")
	p.line("# the programs that already process its jobs. Then run `qsidecar check --config FILE`.")
	p.line("")
	clean, had := engines.WithoutPassword(at.URL)
	p.line("databases:")
	p.line("  main:  # %s", place)
	p.line("    url: %s", yamlText(clean))
	switch {
	case at.PasswordFile != "":
		p.line("    password_file: %s", yamlText(at.PasswordFile))
	case had:
		p.line("    password_file: /run/secrets/qsidecar-database  # TODO: store the password in this file, or write USER:${NAME}@ in the url and set NAME in the environment")
	}
	p.line("")
	p.line("queues:")
	p.line("  %s:", yamlKey(queue))
	p.line("    table: %s", yamlText(tableText(p.Table.Schema, p.Table.Name)))
	p.columns()
	p.states()
	p.where()
	p.options()
}

func (p *proposal) columns() {
	p.line("    columns:")
	for _, role := range mapping.Roles {
		names := p.Table.Columns[role]
		switch len(names) {
		case 0:
			continue
		case 1:
			p.line("      %s: %s%s", role, yamlText(names[0]), p.remark("columns."+string(role)))
		default:
			p.line("      %s: [%s]%s", role, yamlTexts(names), p.remark("columns."+string(role)))
		}
	}
	p.todo("      ", under("columns"))
}

func (p *proposal) states() {
	if len(p.Table.States) > 0 {
		p.line("    states:")
	}
	for _, s := range []backends.State{backends.StateReady, backends.StateClaimed, backends.StateDone, backends.StateDead} {
		if v, known := p.Table.States[s]; known {
			p.line("      %s: %s%s", s, yamlValue(v), p.remark("states."+string(s)))
		}
	}
	p.todo("      ", under("states"))
}

func (p *proposal) where() {
	if len(p.Table.Where) > 0 {
		p.line("    where:")
	}
	for _, column := range slices.Sorted(maps.Keys(p.Table.Where)) {
		p.line("      %s: %s%s", yamlKey(column), yamlValue(p.Table.Where[column]), p.remark("where."+column))
	}
	for _, h := range p.Hints {
		if column, is := strings.CutPrefix(h.Key, "where."); is {
			p.line("    # TODO where: {%s: %s}  # %s", yamlKey(column), h.YAML, oneLine(h.Text))
		}
	}
}

// options writes the remaining keys: order, token, the effect of an ack.
func (p *proposal) options() {
	if len(p.Table.Order) > 0 {
		var all []string
		for _, o := range p.Table.Order {
			switch {
			case o.Descending:
				all = append(all, o.Column+" desc")
			case strings.HasSuffix(o.Column, " desc") || strings.HasSuffix(o.Column, " asc"):
				all = append(all, o.Column+" asc")
			default:
				all = append(all, o.Column)
			}
		}
		p.line("    order: [%s]%s", yamlTexts(all), p.remark("order"))
	}
	if len(p.Table.Columns[mapping.Attempts]) > 0 {
		counts := "failures"
		if p.Table.Deliveries {
			counts = "deliveries"
		}
		p.line("    counts: %s%s", counts, p.remark("counts"))
	}
	if p.Table.MaxAttempts > 0 {
		p.line("    max_attempts: %d%s", p.Table.MaxAttempts, p.remark("max_attempts"))
	}
	if t := p.Table.Token; t != nil {
		p.line("    token:")
		p.line("      column: %s%s", yamlText(t.Column), p.remark("token.column"))
		p.line("      range: [%d, %d]%s", t.From, t.To, p.remark("token.range"))
	}
	switch {
	case p.Table.Unit == mapping.Seconds:
		p.line("    times: seconds%s", p.remark("times"))
	case p.Table.Unit == mapping.Milliseconds:
		p.line("    times: milliseconds%s", p.remark("times"))
	case p.Table.UTC:
		p.line("    times: utc%s", p.remark("times"))
	}
	if p.Table.Notify != "" {
		p.line("    notify: %s%s", yamlText(p.Table.Notify), p.remark("notify"))
	}
	switch p.Table.OnAck {
	case mapping.Delete:
		p.line("    on_ack: delete%s", p.remark("on_ack"))
	case mapping.Archive:
		p.line("    on_ack:")
		p.line("      archive: %s%s", yamlText(tableText(p.Table.ArchiveSchema, p.Table.Archive)), p.remark("on_ack.archive"))
	}
	p.todo("    ", func(key string) bool {
		return !under("columns")(key) && !under("states")(key) && !strings.HasPrefix(key, "where.")
	})
}

// verdict writes what check would report about the mapping.
func (p *proposal) verdict(wrong []*mapping.Misfit, advice []backends.Finding) {
	for _, m := range wrong {
		p.line("    # TODO not complete yet: %s", oneLine(m.Error()))
	}
	for _, f := range advice {
		if f.Severity > backends.SeverityInfo {
			p.line("    # %s: %s → %s", f.Severity, oneLine(f.Text), oneLine(f.Fix))
		}
	}
}

// tableText returns the table in the form of the config.
func tableText(schema, name string) string {
	part := func(name string) string {
		if strings.ContainsAny(name, `."`) {
			return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
		}
		return name
	}
	if schema == "" {
		return part(name)
	}
	return part(schema) + "." + part(name)
}

var (
	plainYAML  = regexp.MustCompile(`^[A-Za-z_/][A-Za-z0-9_./@:-]*( (asc|desc))?$`)
	numberYAML = regexp.MustCompile(`^(0|-?[1-9][0-9]{0,17})$`)
)

// yamlText returns a text as a YAML scalar. It escapes dollars, because the config expands
// environment variables in values, but not in keys.
func yamlText(text string) string { return yamlKey(strings.ReplaceAll(text, "$", "$$")) }

func yamlKey(text string) string {
	switch strings.ToLower(text) {
	case "null", "true", "false", "yes", "no", "on", "off", "y", "n":
		if text != "N" && text != "Y" {
			return strconv.Quote(text)
		}
	}
	if plainYAML.MatchString(text) && !strings.HasSuffix(text, ":") || numberYAML.MatchString(text) {
		return text
	}
	var b strings.Builder
	e := json.NewEncoder(&b) // JSON text is valid YAML
	e.SetEscapeHTML(false)
	if err := e.Encode(text); err != nil {
		panic(err) // any string can be encoded
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func yamlTexts(all []string) string {
	quoted := make([]string, len(all))
	for i, text := range all {
		quoted[i] = yamlText(text)
	}
	return strings.Join(quoted, ", ")
}

func yamlValue(v mapping.Value) string {
	switch {
	case v.Null:
		return "null"
	case v.Text == "true" || v.Text == "false":
		return v.Text
	}
	return yamlText(v.Text)
}

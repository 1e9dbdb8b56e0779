package config

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/qsidecar/qsidecar/internal/textfmt"
)

// yamlDecoder decodes a YAML file strictly into a struct. It collects all problems with
// their positions; the library's decoder stops at the first one.
type yamlDecoder struct {
	name      string
	src       string
	env       func(string) (string, bool) // nil: the file has no variables
	root      reflect.Type                // of the file
	keyTokens map[string]*token.Token     // position of each path
	unread    map[string]bool             // paths whose value was invalid and is reported
	problems  []problem
	expanded  map[string]string // environment variables that the file uses
}

type problem struct {
	line, column int // 0: unknown
	text         string
	unknownKey   bool
}

// scalarParser is a scalar that parses its text. If it is a struct with keys, it can also be
// written as a map.
type scalarParser interface{ parse(text string) error }

// listParser is a value that can also be written as a list of scalars.
type listParser interface{ list(texts []string) error }

func (y *yamlDecoder) decode(into any) {
	y.root = reflect.TypeOf(into).Elem()
	y.keyTokens, y.unread = make(map[string]*token.Token), make(map[string]bool)
	if tooManyMarks(y.src) {
		y.add(nil, "the file has more than %d brackets, keys, values and comments: remove some, or run several sidecars", maxMarks)
		return
	}
	if strings.HasPrefix(y.src, "\xff\xfe") || strings.HasPrefix(y.src, "\xfe\xff") {
		y.add(nil, "the file is UTF-16: save it as UTF-8") // its lines are unreadable
		return
	}
	if strings.Contains(y.src, "\x00") {
		y.add(nil, "the file isn't text: name a YAML file")
		return
	}
	if line := longLine(y.src); line > 0 {
		y.problems = append(y.problems, problem{line: line, column: 1, text: fmt.Sprintf("this line has more than %d bytes: break it", maxLine)})
		return
	}
	tokens := lexer.Tokenize(y.src)
	if at, reason := new(nesting).check(tokens); at != nil {
		y.add(at, "%s", reason)
		return
	}
	// mapping reports duplicate keys, together with all other problems.
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		y.syntax(err)
		return
	}
	for i, doc := range file.Docs {
		if i > 0 && doc.Body != nil {
			y.add(doc.Start, "this --- begins a second document, and the file must be one: remove the line")
		}
	}
	if len(file.Docs) > 0 && file.Docs[0].Body != nil {
		y.value(file.Docs[0].Body, reflect.ValueOf(into).Elem(), "")
	}
}

// syntax reports an error of the YAML library at its position.
func (y *yamlDecoder) syntax(err error) {
	var placed interface {
		GetMessage() string
		GetToken() *token.Token
	}
	if !errors.As(err, &placed) {
		y.add(nil, "%v", err)
		return
	}
	at := placed.GetToken()
	y.add(at, "%s", placed.GetMessage())
	p := &y.problems[len(y.problems)-1]
	p.text = cmp.Or(unclosed[p.text], p.text)
	if p.line == 0 {
		return
	}
	switch line := strings.Split(y.src, "\n")[p.line-1]; {
	case strings.Contains(line[:len(line)-len(strings.TrimLeft(line, " \t"))], "\t"):
		p.text = "a tab is in the indentation: indent with spaces"
	case bareStar.MatchString(line):
		at := bareStar.FindStringIndex(line)[0]
		p.column = at + strings.Index(line[at:], "*") + 1
		p.text = `what begins with * needs quotes, such as "*"`
		if strings.Contains(line, "cron") {
			p.text = `what begins with * needs quotes, such as cron: "*/5 * * * *"`
		}
	case p.text == "non-map value is specified" && colonInKey.MatchString(line):
		p.text = spaceAfterColon
	case strings.HasPrefix(p.text, "value is not allowed in this context"):
		p.text = "this line doesn't continue the ones above: indent it as much as its siblings, and write KEY: VALUE"
	case p.text == "unexpected key name":
		p.text = "a colon is missing: write KEY: VALUE"
	case bareVariable.MatchString(line):
		p.text += `: quote a ${NAME} between { and }, for example {url: "${DB_URL}"}`
	}
}

// unclosed are messages of the YAML library about text that doesn't end.
var unclosed = map[string]string{ //nolint:gosec // tokens of YAML
	"could not find flow mapping end token '}'":          "this { has no }: add it",
	"could not find flow mapping end character '}'":      "this { has no }: add it",
	"could not find flow sequence end token ']'":         "this [ has no ]: add it",
	"sequence end token ']' not found":                   "this [ has no ]: add it",
	"could not find end character of double-quoted text": `this " has no closing one: add it`,
	"could not find end character of single-quoted text": "this ' has no closing one: add it",
}

// bareStar matches a key or a value that begins with * and has no quotes. YAML reads an alias.
var bareStar = regexp.MustCompile(`(^|[:,\[{-])\s*\*([\s:,}\]]|$)`)

// colonInKey matches a line whose colon has no space behind it.
var colonInKey = regexp.MustCompile(`^\s*\w+:\S`)

const spaceAfterColon = "write a space after the colon: KEY: VALUE"

// bareVariable matches a variable without quotes in a map or list in brackets, where YAML reads its braces.
var bareVariable = regexp.MustCompile(`[{\[].*[:,\[]\s*\$\{`)

func (y *yamlDecoder) add(at *token.Token, format string, args ...any) {
	p := problem{text: fmt.Sprintf(format, args...)}
	if at != nil && at.Position != nil {
		p.line, p.column = at.Position.Line, at.Position.Column
	}
	y.problems = append(y.problems, p)
}

// reportAt reports a problem with the value at a path. If the file doesn't contain the path,
// the position is that of its nearest parent.
func (y *yamlDecoder) reportAt(path, format string, args ...any) {
	for p := path; p != ""; p = parent(p) {
		if y.unread[p] {
			return // the value is a default, not the file's
		}
	}
	text := path + ": " + fmt.Sprintf(format, args...)
	for where := path; where != ""; where = parent(where) {
		if tk := y.keyTokens[where]; tk != nil {
			y.add(tk, "%s", text)
			return
		}
	}
	y.add(nil, "%s", text)
}

func parent(path string) string {
	return path[:max(strings.LastIndexAny(path, ".["), 0)]
}

// value decodes node into v, which contains the default. A section without keys keeps its defaults. Any other key needs a
// value: where the file seems to set something, the sidecar must not run with a default.
func (y *yamlDecoder) value(node ast.Node, v reflect.Value, path string) {
	switch node.(type) {
	case *ast.NullNode:
		y.noValue(node, v.Type(), path)
		return
	case *ast.AliasNode:
		y.unread[path] = true
		y.add(node.GetToken(), "%s: a value that begins with * needs quotes (aliases are not used in this file)", path)
		return
	case *ast.AnchorNode, *ast.TagNode:
		y.add(node.GetToken(), "%s: anchors, aliases and tags are not used in this file: put common settings of queues under defaults", path)
		return
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	if l, ok := reflect.TypeAssert[listParser](v.Addr()); ok && y.list(node, l, path) {
		return
	}
	_, isMap := node.(ast.MapNode)
	if _, ok := reflect.TypeAssert[scalarParser](v.Addr()); ok && !(isMap && v.Kind() == reflect.Struct && len(keysOf(v.Type())) > 0) {
		y.scalar(node, v, path)
		return
	}
	switch v.Kind() {
	case reflect.Interface: // any value
		if err := yaml.NodeToValue(node, v.Addr().Interface()); err != nil {
			y.unread[path] = true
			y.add(node.GetToken(), "%s: %v", path, err)
		}
	case reflect.Struct:
		y.mapping(node, v.Type(), path, func(key string, at *token.Token, value ast.Node) {
			field, ok := fieldOf(v, key)
			if !ok {
				y.unknownKey(v.Type(), key, at)
				return
			}
			y.value(value, field, join(path, key))
		})
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		y.mapping(node, v.Type(), path, func(key string, at *token.Token, value ast.Node) {
			e := newElement(v.Type().Elem())
			if _, single := scalarText(value); single && slices.Contains(sectionKeys(e.Type()), key) {
				y.unread[path] = true // the entry above lacks this key
				y.add(at, "%s: it is a key of an entry: indent it below a name, as in {NAME: {%s: …}}", join(path, key), key)
				return
			}
			y.value(value, e, join(path, key))
			v.SetMapIndex(reflect.ValueOf(key), e)
		})
	case reflect.Slice:
		y.sequence(node, v, path)
	default:
		y.scalar(node, v, path)
	}
}

// noValue reports a key without a value, if it isn't a section. An empty list of queues is the usual config: their names are free.
func (y *yamlDecoder) noValue(node ast.Node, t reflect.Type, path string) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == reflect.TypeFor[columnValue]() || path == "" || path == "queues" || t.Kind() == reflect.Struct && len(keysOf(t)) > 0 {
		return
	}
	y.unread[path] = true
	at := y.keyTokens[path]
	if at == nil {
		at = node.GetToken()
	}
	y.add(at, "%s has no value: write one, or remove the key", path)
}

// unknownKey reports a key that the section doesn't have.
func (y *yamlDecoder) unknownKey(section reflect.Type, key string, at *token.Token) {
	known := keysOf(section)
	if hint := elsewhere[key]; hint != "" && y.root == reflect.TypeFor[Config]() {
		y.add(at, "unknown key %s; %s", keyText(key), hint)
	} else if owners := sectionsWith(key, y.root, ""); len(owners) > 0 {
		y.add(at, "unknown key %s here: it is a key of %s", keyText(key), strings.Join(owners, " and "))
	} else if near := nearKey(key, known); near != "" && keyPattern.MatchString(key) {
		y.add(at, "unknown key %s: did you mean %s?", keyText(key), near)
	} else {
		y.add(at, "unknown key %s; known here: %s", keyText(key), strings.Join(known, ", "))
	}
	y.problems[len(y.problems)-1].unknownKey = true
}

// nearKey returns the one of the known keys that key is called in other programs, or probably a typing error of.
func nearKey(key string, known []string) string {
	for _, k := range known {
		if slices.Contains(otherKeys[k], key) {
			return k
		}
	}
	return textfmt.Nearest(key, known)
}

// otherKeys are the names that other programs have for keys of these files.
var otherKeys = map[string][]string{
	"socket":          {"path", "file"},
	"listen":          {"port", "bind", "address"},
	"url":             {"dsn", "uri", "address"},
	"max_connections": {"pool", "pool_size", "max_conns"},
	"tz":              {"timezone", "time_zone"},
	"payload":         {"args", "body", "data", "message"},
	"max_claimed":     {"concurrency", "max_concurrency"},
	"queues":          {"limits"}, // in a file of limits
}

// elsewhere are keys that people look for, and where their settings are. Queue limits of all hosts can't be in the config of one.
var elsewhere = map[string]string{
	"max_claimed":      limitsHint,
	"rate":             limitsHint,
	"burst":            limitsHint,
	"group_limit":      limitsHint,
	"group_on_failure": limitsHint,
	"group_ready":      limitsHint,
	"concurrency":      "how many jobs run at once is set at the worker, such as `qsidecar work -j 8`, or for all hosts with `qsidecar limit QUEUE --max-claimed 8`",
	"retries":          "did you mean max_attempts? It counts the first attempt too",
	"max_retries":      "did you mean max_attempts? It counts the first attempt too",
	"schedules":        "schedules are in the database: declare them with `qsidecar schedule apply FILE`",
	"password":         "the password goes into a file: name that in password_file",
}

const limitsHint = "limits hold over all hosts, so they are in the database: set them with `qsidecar limit`, or `qsidecar limit apply FILE`"

// sectionsWith returns the sections of the config that have a key, as paths below the type t.
func sectionsWith(key string, t reflect.Type, path string) (all []string) {
	switch t.Kind() {
	case reflect.Pointer:
		return sectionsWith(key, t.Elem(), path)
	case reflect.Slice:
		return sectionsWith(key, t.Elem(), path+"[…]")
	case reflect.Map:
		return sectionsWith(key, t.Elem(), path+".NAME")
	case reflect.Struct:
		for field := range t.Fields() {
			switch name := field.Tag.Get("yaml"); {
			case name == "" && field.Anonymous:
				all = append(all, sectionsWith(key, field.Type, path)...)
			case name == key && path != "":
				all = append(all, path)
			case name != "":
				all = append(all, sectionsWith(key, field.Type, join(path, name))...)
			}
		}
	}
	return all
}

// exampleOf shows how a section of a type is written, with its first key.
func exampleOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return exampleOf(t.Elem())
	case reflect.Slice:
		return "[" + exampleOf(t.Elem()) + "]"
	case reflect.Map:
		return "{NAME: " + exampleOf(t.Elem()) + "}"
	case reflect.Struct:
		if keys := keysOf(t); len(keys) > 0 {
			return "{" + keys[0] + ": …}"
		}
	}
	return "…"
}

// formOf shows how the value of a path is written.
func formOf(t reflect.Type, path string) string {
	if t.Kind() == reflect.Map {
		switch path[strings.LastIndex(path, ".")+1:] {
		case "queues":
			if t.Elem() == reflect.TypeFor[queueConfig]() {
				return "{NAME: {timeout: 5m}}"
			}
		case "where":
			return "{COLUMN: VALUE}"
		case "columns":
			return "{ROLE: COLUMN}"
		case "states":
			return "{STATE: VALUE}"
		case "users":
			return "{NAME: FILE}"
		}
	}
	return exampleOf(t)
}

// keyPattern matches a plausible key. Any other text can be the rest of a password without
// quotes.
var keyPattern = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

func keyText(key string) string {
	if keyPattern.MatchString(key) {
		return strconv.Quote(key)
	}
	return "(invalid key)"
}

// newElement returns an element of a list or map with its defaults.
func newElement(t reflect.Type) reflect.Value {
	e := reflect.New(t).Elem()
	switch p := e.Addr().Interface().(type) {
	case *listenConfig:
		*p = newListen()
	case *Database:
		*p = newDatabase()
	case *columnValue:
		p.Null = true // unless the file has a value
	}
	return e
}

func (y *yamlDecoder) mapping(node ast.Node, t reflect.Type, path string, each func(key string, at *token.Token, value ast.Node)) {
	m, ok := node.(ast.MapNode)
	if !ok {
		y.unread[path] = true
		if text, single := scalarText(node); single && path == "" && colonInKey.MatchString(text) {
			y.add(node.GetToken(), "%s", spaceAfterColon)
			return
		}
		y.add(node.GetToken(), "%s: this should be a map (key: value), as in %s, and is %s", cmp.Or(path, "the file"), formOf(t, path), kindText(node))
		return
	}
	if !m.MapRange().Next() && t.Kind() == reflect.Map {
		y.empty(path)
	}
	lines := make(map[string]int)
	for it := m.MapRange(); it.Next(); {
		kv := it.KeyValue()
		at := kv.Key.GetToken()
		if kv.Key.IsMergeKey() {
			y.add(at, "merge keys (<<) are not used in this file: put common settings of queues under defaults")
			continue
		}
		if line, twice := lines[at.Value]; twice {
			y.add(at, "the key %s is here twice, first in line %d", keyText(at.Value), line)
		}
		lines[at.Value] = at.Position.Line
		if i := strings.IndexAny(at.Value, "{["); i > 0 && at.Value[i-1] == ':' {
			y.add(at, "write a space after the colon of the key %s", keyText(at.Value[:i-1]))
			continue
		}
		y.keyTokens[join(path, at.Value)] = at
		each(at.Value, at, kv.Value)
	}
}

// empty reports an empty list of the file's own sections: the sidecar must not run with the default of a missing one.
func (y *yamlDecoder) empty(path string) {
	if parent(path) != "" || path == "schedules" { // a source can have none any more
		return
	}
	y.unread[path] = true
	y.add(y.keyTokens[path], "%s is empty: write an entry, or remove the key", path)
}

func (y *yamlDecoder) sequence(node ast.Node, v reflect.Value, path string) {
	seq, ok := node.(*ast.SequenceNode)
	if !ok {
		y.unread[path] = true
		y.add(node.GetToken(), "%s: this should be a list (- …), as in %s, and is %s", path, exampleOf(v.Type()), kindText(node))
		return
	}
	if len(seq.Values) == 0 {
		y.empty(path)
	}
	v.Set(reflect.MakeSlice(v.Type(), 0, len(seq.Values))) // an empty list differs from a missing one
	for i, n := range seq.Values {
		p := fmt.Sprintf("%s[%d]", path, i)
		y.keyTokens[p] = n.GetToken()
		e := newElement(v.Type().Elem())
		y.value(n, e, p)
		v.Set(reflect.Append(v, e))
	}
}

// list decodes a list of scalars. It returns false if node isn't a list.
func (y *yamlDecoder) list(node ast.Node, to listParser, path string) bool {
	seq, ok := node.(*ast.SequenceNode)
	if !ok {
		return false
	}
	texts := make([]string, len(seq.Values))
	for i, n := range seq.Values {
		y.scalar(n, reflect.ValueOf(&texts[i]).Elem(), fmt.Sprintf("%s[%d]", path, i))
	}
	if err := to.list(texts); err != nil {
		y.add(node.GetToken(), "%s: %v", path, err)
	}
	return true
}

func (y *yamlDecoder) scalar(node ast.Node, v reflect.Value, path string) {
	text, ok := scalarText(node)
	if !ok {
		y.add(node.GetToken(), "%s: this should be a single value, and is %s", path, kindText(node))
		return
	}
	written := text
	var err error
	if y.env != nil {
		text, err = expand(text, y.variable)
	}
	if err == nil && text == "" && written != "" {
		err = fmt.Errorf("%s is empty", written)
	}
	if err == nil {
		err = setScalar(v, text)
	}
	if err != nil {
		y.unread[path] = true
		y.add(node.GetToken(), "%s: %v", path, err)
	}
}

// variable looks up an environment variable, and records it for unexpand.
func (y *yamlDecoder) variable(name string) (value string, ok bool) {
	if value, ok = y.env(name); ok {
		if y.expanded == nil {
			y.expanded = make(map[string]string)
		}
		y.expanded[name] = value
	}
	return value, ok
}

func setScalar(v reflect.Value, text string) (err error) {
	if l, ok := reflect.TypeAssert[scalarParser](v.Addr()); ok {
		return l.parse(text)
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Int:
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("%q is not a whole number", text)
		}
		v.SetInt(int64(n))
	default:
		panic("config: no way to read a " + v.Type().String())
	}
	return nil
}

func scalarText(node ast.Node) (string, bool) {
	switch n := node.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return node.GetToken().Value, true // as written: 0660 stays 0660
	}
	return "", false
}

func kindText(node ast.Node) string {
	switch node.(type) {
	case ast.MapNode:
		return "a map"
	case *ast.SequenceNode:
		return "a list"
	}
	return "a single value"
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func fieldOf(v reflect.Value, key string) (reflect.Value, bool) {
	for i := range v.NumField() {
		if v.Type().Field(i).Anonymous {
			if f, ok := fieldOf(v.Field(i), key); ok {
				return f, true
			}
		} else if v.Type().Field(i).Tag.Get("yaml") == key {
			return v.Field(i), true
		}
	}
	return reflect.Value{}, false
}

// sectionKeys returns the keys of a section. Another type has none.
func sectionKeys(t reflect.Type) []string {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	return keysOf(t)
}

func keysOf(t reflect.Type) (keys []string) {
	for field := range t.Fields() {
		switch key := field.Tag.Get("yaml"); {
		case key != "":
			keys = append(keys, key)
		case field.Anonymous && field.Type.Kind() == reflect.Struct:
			keys = append(keys, keysOf(field.Type)...)
		}
	}
	return keys
}

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

var variable = regexp.MustCompile(`\$\$|\$\{[^}]*\}?`)

// expand replaces ${NAME} by the environment variable. $$ becomes a dollar, and any other
// dollar stays.
func expand(text string, env func(string) (string, bool)) (string, error) {
	var err error
	out := variable.ReplaceAllStringFunc(text, func(m string) string {
		if m == "$$" {
			return "$"
		}
		name, closed := strings.CutSuffix(m[2:], "}")
		v, ok := env(name)
		switch {
		case closed && name != "" && !variableName.MatchString(name):
			err = errors.Join(err, fmt.Errorf("%s is not ${NAME}: a name has letters, digits and _, and there are no defaults", m))
		case !closed || name == "":
			err = errors.Join(err, fmt.Errorf("%s is not ${NAME}; a plain dollar before { is written $${", m))
		case !ok:
			err = errors.Join(err, fmt.Errorf("the environment variable %s is not set: set it for the process that reads this file", name))
		}
		return v
	})
	return out, err
}

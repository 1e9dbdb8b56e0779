package testrules

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// logMethods are the methods of slog.Logger, with the position of the message.
var logMethods = map[string]int{
	"Debug": 0, "Info": 0, "Warn": 0, "Error": 0,
	"DebugContext": 1, "InfoContext": 1, "WarnContext": 1, "ErrorContext": 1,
	"Log": 2, "LogAttrs": 2,
}

// The forms of an event and of a message, which is a short phrase.
var (
	eventName   = regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)
	messageForm = regexp.MustCompile(`^[^.:;]{3,50}$`)
)

// logRow finds the rows of deploy/logs.md: level, event, message, meaning.
var logRow = regexp.MustCompile("(?m)^\\| (\\w+) \\| `([^`]+)` \\| `([^`]+)` \\| (?:.+) \\|$")

// logLine is one kind of log line.
type logLine struct{ level, message string }

// TestLogEvents checks that each log line of the program has a constant message and a constant
// event, that an event has one message and one level, and that deploy/logs.md lists the events
// of the program and no others.
func TestLogEvents(t *testing.T) {
	events, messages := map[string]logLine{}, map[string]string{}
	walkRepository(t, func(path, rel string) error {
		top, _, _ := strings.Cut(rel, "/")
		if !slices.Contains([]string{"backends", "bridge", "cmd", "internal"}, top) || !strings.HasSuffix(rel, ".go") || isTestCode(rel) {
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return findLogLines(rel, source, func(where, event string, line logLine, err error) {
			first, known := events[event]
			switch {
			case err != nil:
				t.Errorf("%s: %v", where, err)
			case known && first != line:
				t.Errorf("%s: the event %s is %v here, and %v elsewhere", where, event, line, first)
			case messages[line.message] != "" && messages[line.message] != event:
				t.Errorf("%s: the message %q has the event %s here, and %s elsewhere", where, line.message, event, messages[line.message])
			default:
				events[event], messages[line.message] = line, event
			}
		})
	})
	page, err := os.ReadFile(filepath.Join("..", "..", "deploy", "logs.md"))
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, m := range logRow.FindAllStringSubmatch(string(page), -1) {
		level, event, message := m[1], m[2], m[3]
		if listed[event] {
			t.Errorf("deploy/logs.md lists %s twice", event)
		}
		listed[event] = true
		if line, ok := events[event]; !ok {
			t.Errorf("deploy/logs.md has %s, which the program does not log", event)
		} else if row := (logLine{level, message}); row != line {
			t.Errorf("deploy/logs.md has %v for %s, and the program logs %v", row, event, line)
		}
	}
	for event := range events {
		if !listed[event] {
			t.Errorf("deploy/logs.md does not have %s", event)
		}
	}
	if len(events) < 50 {
		t.Errorf("only %d events were found", len(events))
	}
}

// findLogLines calls found for each call of a logger in a Go file. The error describes the fault
// with the call.
func findLogLines(name string, source []byte, found func(where, event string, line logLine, err error)) error {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, source, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		where := fmt.Sprintf("%s:%d", name, files.Position(call.Pos()).Line)
		at, isLog := logMethods[method.Sel.Name]
		switch {
		case selector(call.Fun) == "slog.NewLogLogger", selector(call.Fun) == "slog.NewRecord":
			found(where, "", logLine{}, fmt.Errorf("%s adds no event: call a slog.Logger", selector(call.Fun)))
		case isLog && len(call.Args) > at:
			event, line, err := logLineOf(method.Sel.Name, call.Args[at:])
			found(where, event, line, err)
		}
		return true
	})
	return nil
}

// logLineOf reads the arguments of a logger from its message on.
func logLineOf(method string, args []ast.Expr) (event string, line logLine, err error) {
	text := func(i int) string {
		if i >= len(args) {
			return ""
		}
		lit, ok := args[i].(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return ""
		}
		s, _ := strconv.Unquote(lit.Value) // the parser has read the literal
		return s
	}
	line = logLine{level: strings.ToLower(strings.TrimSuffix(method, "Context")), message: text(0)}
	if line.level == "log" {
		line.level = "any"
	}
	event = text(2)
	switch {
	case line.message == "":
		err = errors.New("the message of a log line must be a literal, with details in keys")
	case text(1) != "event" || event == "":
		err = fmt.Errorf(`the log line %q needs "event" and a literal name directly after its message`, line.message)
	case !messageForm.MatchString(line.message):
		err = fmt.Errorf("the message %q must be a short phrase without punctuation: the page explains it", line.message)
	case !eventName.MatchString(event):
		err = fmt.Errorf("the event %q must be lower-case words with underscores", event)
	}
	return event, line, err
}

// TestFindLogLines checks that calls of a logger without an event are found.
func TestFindLogLines(t *testing.T) {
	for call, want := range map[string]string{
		`log.Info("a b", "event", "a_b", "key", 1)`:       "info a_b",
		`x.y.Log.WarnContext(ctx, "a b", "event", "a_b")`: "warn a_b",
		`log().Log(ctx, level, "a b", "event", "a_b")`:    "any a_b",
		`err.Error()`:     "",
		`log.Info("a b")`: "wrong",
		`log.Info("a b", "key", 1, "event", "a_b")`:                    "wrong",
		`log.Info("a b", "event", name)`:                               "wrong",
		`log.Info("a: b", "event", "a_b")`:                             "wrong",
		`log.Info("a b", "event", "aB")`:                               "wrong",
		`log.Error("a " + name, "event", "a_b")`:                       "wrong",
		`log.Debug(text, "event", "a_b")`:                              "wrong",
		`log.LogAttrs(ctx, level, "a b", slog.String("event", "a_b"))`: "wrong",
		`slog.NewLogLogger(log.Handler(), slog.LevelDebug)`:            "wrong",
	} {
		got := ""
		err := findLogLines("a.go", []byte("package a\nfunc f() { "+call+" }\n"), func(_, event string, line logLine, err error) {
			if got = line.level + " " + event; err != nil {
				got = "wrong"
			}
		})
		if err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", call, got, err, want)
		}
	}
}

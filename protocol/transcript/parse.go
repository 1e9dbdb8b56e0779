// Package transcript reads the conversations in protocol/testdata/transcripts and replays them
// against a server, in either codec. The README.md in that directory describes the format, also for
// clients in other languages.
//
// Start with Load (parse.go) and Run (run.go). match.go compares replies with patterns, and
// convert.go converts between JSON and msgpack without package protocol's codecs. Only tests and
// the conformance kit use this package.
package transcript

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/qsidecar/qsidecar/protocol"
)

// Transcript is one conversation.
type Transcript struct {
	Name  string   // the file's name without its extension
	Needs []string // setup that the server under test needs; see the README
	Steps []Step

	codec protocol.Codec // 0: both
}

// Codecs returns the codecs in which the transcript can be replayed: both, unless it contains raw
// bytes of one.
func (t *Transcript) Codecs() []protocol.Codec {
	if t.codec != 0 {
		return []protocol.Codec{t.codec}
	}
	return []protocol.Codec{protocol.Msgpack, protocol.JSON}
}

// Kind is what a step does.
type Kind int

// The kinds of steps.
const (
	Send        Kind = iota // the client sends Message
	SendRaw                 // the client sends Raw as it is
	Shutdown                // the client shuts down writing and continues to read
	HangUp                  // the client closes
	Receive                 // the server sends what Message matches
	ServerClose             // the server sends nothing more and closes
)

// Step is one line.
type Step struct {
	Line    int // in the file, from 1
	Conn    int // which connection, from 1
	Kind    Kind
	Text    string // the message as the file has it
	Message map[string]any
	Raw     []byte
}

// Load parses all *.txt files of a directory. It returns an error if there are none.
func Load(dir string) ([]*Transcript, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s holds no transcripts (*.txt)", dir)
	}
	var all []*Transcript
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		tr, err := Parse(strings.TrimSuffix(filepath.Base(file), ".txt"), bytes.NewReader(b))
		if err != nil {
			return nil, err
		}
		all = append(all, tr)
	}
	return all, nil
}

// Parse reads one transcript. Its errors contain the name and the line.
func Parse(name string, r io.Reader) (*Transcript, error) {
	tr := &Transcript{Name: name}
	in := bufio.NewScanner(r)
	in.Buffer(nil, 1<<20)
	for n := 1; in.Scan(); n++ {
		line := strings.TrimSpace(in.Text())
		var err error
		switch {
		case line == "" || line[0] == '#':
		case line[0] == '!':
			err = tr.directive(strings.Fields(line[1:]))
		default:
			var s Step
			s, err = parseStep(line)
			s.Line = n
			tr.Steps = append(tr.Steps, s)
		}
		if err != nil {
			return nil, fmt.Errorf("%s.txt:%d: %w", name, n, err)
		}
	}
	if err := in.Err(); err != nil {
		return nil, fmt.Errorf("%s.txt: %w", name, err)
	}
	if len(tr.Steps) == 0 {
		return nil, fmt.Errorf("%s.txt: it has no steps", name)
	}
	return tr, nil
}

func (t *Transcript) directive(fields []string) error {
	switch {
	case len(fields) > 1 && fields[0] == "need":
		t.Needs = append(t.Needs, fields[1:]...)
	case len(fields) == 2 && fields[0] == "codec" && fields[1] == "json":
		t.codec = protocol.JSON
	case len(fields) == 2 && fields[0] == "codec" && fields[1] == "msgpack":
		t.codec = protocol.Msgpack
	default:
		return fmt.Errorf("! %s: want ! need NAME… or ! codec json|msgpack", strings.Join(fields, " "))
	}
	return nil
}

var stepForm = regexp.MustCompile(`^([CS])(\d*)(?:: ?(.*)| (raw): ?(.*)| (shutdown|close))$`)

func parseStep(line string) (Step, error) {
	m := stepForm.FindStringSubmatch(line)
	if m == nil {
		return Step{}, fmt.Errorf("not a step: %s", line)
	}
	s := Step{Conn: 1, Text: m[3]}
	if m[2] != "" {
		n, err := strconv.Atoi(m[2])
		if err != nil || n < 1 {
			return Step{}, fmt.Errorf("not a connection: %s", m[2])
		}
		s.Conn = n
	}
	client := m[1] == "C"
	var err error
	switch {
	case m[4] == "raw" && client:
		s.Kind = SendRaw
		s.Raw, err = parseRaw(m[5])
	case m[6] == "shutdown" && client:
		s.Kind = Shutdown
	case m[6] == "close" && client:
		s.Kind = HangUp
	case m[6] == "close":
		s.Kind = ServerClose
	case m[4] != "" || m[6] != "":
		return Step{}, fmt.Errorf("not a step of a server: %s", line)
	case client:
		s.Kind = Send
		s.Message, err = parseMessage(s.Text)
	default:
		s.Kind = Receive
		s.Message, err = parseMessage(s.Text)
	}
	return s, err
}

var repeated = regexp.MustCompile(`^(\d+) \* (.*)$`)

// parseRaw parses bytes: [COUNT *] followed by hexadecimal digits or a JSON string.
func parseRaw(text string) ([]byte, error) {
	count := 1
	if m := repeated.FindStringSubmatch(text); m != nil {
		n, err := strconv.Atoi(m[1])
		if err != nil || n < 1 || n > 256<<20 {
			return nil, fmt.Errorf("not a count: %s", m[1])
		}
		count, text = n, m[2]
	}
	if strings.HasPrefix(text, `"`) {
		var s string
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			return nil, fmt.Errorf("raw bytes: %w", err)
		}
		return bytes.Repeat([]byte(s), count), nil
	}
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		return nil, fmt.Errorf("raw bytes are hexadecimal or a JSON string: %w", err)
	}
	return bytes.Repeat(b, count), nil
}

// parseMessage parses one JSON object and keeps numbers as they are written.
func parseMessage(text string) (map[string]any, error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var m map[string]any
	if err := d.Decode(&m); err != nil {
		return nil, fmt.Errorf("not a JSON object: %w: %s", err, text)
	}
	if d.More() {
		return nil, fmt.Errorf("something follows the JSON object: %s", text)
	}
	return m, nil
}

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

const configIntro = `# Config reference

This page comes from [deploy/qsidecar.example.yaml](../../deploy/qsidecar.example.yaml), which has every key at its default.

`

// configPage returns the page of the config's keys.
func configPage(root string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, "deploy", "qsidecar.example.yaml"))
	if err != nil {
		return "", err
	}
	return configIntro + renderConfig(string(text)), nil
}

var (
	// keyLine is a line with a key, its value and its comment.
	keyLine = regexp.MustCompile(`^( *)(- )?("\*"|[a-z_]+):(?: ([^#]*?))?(?: *#(.*))?$`)
	// exampleText is a commented line of YAML.
	exampleText = regexp.MustCompile(`^(- \{|[a-z_]+: |[a-z_]+:$|\{.*\},?$|  +\S)`)
)

// configRenderer turns the example config into Markdown, line by line.
type configRenderer struct {
	out     strings.Builder
	prose   []string // lines of the comment being read
	example []string // commented lines of YAML being read
	inTable bool
	row     *configRow
	column  int      // of the last row's comment; 0: it has none
	path    []string // keys of the current line, by depth
	indents []int
}

type configRow struct{ key, value, text string }

func renderConfig(text string) string {
	var r configRenderer
	for line := range strings.Lines(text) {
		r.line(strings.TrimRight(line, "\n"))
	}
	r.flush()
	return strings.TrimRight(r.out.String(), "\n") + "\n"
}

func (r *configRenderer) line(line string) {
	trimmed := strings.TrimLeft(line, " ")
	indent := len(line) - len(trimmed)
	comment, isComment := strings.CutPrefix(trimmed, "#")
	switch {
	case trimmed == "":
		r.flush()
	case isComment && r.row != nil && r.column > 0 && indent == r.column:
		r.row.text += " " + strings.TrimSpace(comment)
	case isComment:
		r.comment(comment)
	default:
		r.key(line)
	}
}

// comment handles a line that is only a comment: prose, or an example.
func (r *configRenderer) comment(text string) {
	r.endRow()
	text = strings.TrimPrefix(text, " ")
	if exampleText.MatchString(text) {
		if len(r.prose) > 0 {
			r.endProse()
		}
		r.example = append(r.example, text)
		return
	}
	r.endExample()
	r.prose = append(r.prose, text)
}

// key handles a line with a key.
func (r *configRenderer) key(line string) {
	m := keyLine.FindStringSubmatchIndex(line)
	if m == nil {
		return
	}
	group := func(i int) string {
		if m[2*i] < 0 {
			return ""
		}
		return line[m[2*i]:m[2*i+1]]
	}
	r.endRow()
	r.endExample()
	indent, name, value := len(group(1)+group(2)), strings.Trim(group(3), `"`), group(4)
	for len(r.indents) > 0 && r.indents[len(r.indents)-1] >= indent {
		r.indents, r.path = r.indents[:len(r.indents)-1], r.path[:len(r.path)-1]
	}
	r.indents, r.path = append(r.indents, indent), append(r.path, name)
	if indent == 0 {
		prose := r.prose
		r.prose = nil
		r.endTable()
		fmt.Fprintf(&r.out, "## `%s`\n\n", name)
		r.prose = prose
	}
	r.endProse()
	text := strings.TrimSpace(group(5))
	if value == "" && text == "" {
		return
	}
	path := strings.Join(r.path[min(1, len(r.path)-1):], ".")
	r.row, r.column = &configRow{path, value, text}, 0
	if m[10] >= 0 {
		r.column = m[10] - 1
	}
}

func (r *configRenderer) endRow() {
	if r.row == nil {
		return
	}
	if !r.inTable {
		r.out.WriteString("| key | default | meaning |\n| --- | --- | --- |\n")
		r.inTable = true
	}
	value := r.row.value
	if value != "" {
		value = "`" + value + "`"
	}
	fmt.Fprintf(&r.out, "| `%s` | %s | %s |\n", r.row.key, value, strings.ReplaceAll(r.row.text, "|", "\\|"))
	r.row = nil
}

func (r *configRenderer) endTable() {
	r.endRow()
	if r.inTable {
		r.out.WriteString("\n")
		r.inTable = false
	}
}

func (r *configRenderer) endProse() {
	if len(r.prose) == 0 {
		return
	}
	r.endTable()
	r.out.WriteString(strings.Join(r.prose, "\n") + "\n\n")
	r.prose = nil
}

func (r *configRenderer) endExample() {
	if len(r.example) == 0 {
		return
	}
	r.endTable()
	r.out.WriteString("```yaml\n" + strings.Join(r.example, "\n") + "\n```\n\n")
	r.example = nil
}

func (r *configRenderer) flush() {
	r.endTable()
	r.endProse()
	r.endExample()
}

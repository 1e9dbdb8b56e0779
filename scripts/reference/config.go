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

func (c *configRenderer) line(line string) {
	trimmed := strings.TrimLeft(line, " ")
	indent := len(line) - len(trimmed)
	comment, isComment := strings.CutPrefix(trimmed, "#")
	switch {
	case trimmed == "":
		c.flush()
	case isComment && c.row != nil && c.column > 0 && indent == c.column:
		c.row.text += " " + strings.TrimSpace(comment)
	case isComment:
		c.comment(comment)
	default:
		c.key(line)
	}
}

// comment handles a line that is only a comment: prose, or an example.
func (c *configRenderer) comment(text string) {
	c.endRow()
	text = strings.TrimPrefix(text, " ")
	if exampleText.MatchString(text) {
		if len(c.prose) > 0 {
			c.endProse()
		}
		c.example = append(c.example, text)
		return
	}
	c.endExample()
	c.prose = append(c.prose, text)
}

// key handles a line with a key.
func (c *configRenderer) key(line string) {
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
	c.endRow()
	c.endExample()
	indent, name, value := len(group(1)+group(2)), strings.Trim(group(3), `"`), group(4)
	for len(c.indents) > 0 && c.indents[len(c.indents)-1] >= indent {
		c.indents, c.path = c.indents[:len(c.indents)-1], c.path[:len(c.path)-1]
	}
	c.indents, c.path = append(c.indents, indent), append(c.path, name)
	if indent == 0 {
		prose := c.prose
		c.prose = nil
		c.endTable()
		fmt.Fprintf(&c.out, "## `%s`\n\n", name)
		c.prose = prose
	}
	c.endProse()
	text := strings.TrimSpace(group(5))
	if value == "" && text == "" {
		return
	}
	path := strings.Join(c.path[min(1, len(c.path)-1):], ".")
	c.row, c.column = &configRow{path, value, text}, 0
	if m[10] >= 0 {
		c.column = m[10] - 1
	}
}

func (c *configRenderer) endRow() {
	if c.row == nil {
		return
	}
	if !c.inTable {
		c.out.WriteString("| key | default | meaning |\n| --- | --- | --- |\n")
		c.inTable = true
	}
	value := c.row.value
	if value != "" {
		value = "`" + value + "`"
	}
	fmt.Fprintf(&c.out, "| `%s` | %s | %s |\n", c.row.key, value, strings.ReplaceAll(c.row.text, "|", "\\|"))
	c.row = nil
}

func (c *configRenderer) endTable() {
	c.endRow()
	if c.inTable {
		c.out.WriteString("\n")
		c.inTable = false
	}
}

func (c *configRenderer) endProse() {
	if len(c.prose) == 0 {
		return
	}
	c.endTable()
	c.out.WriteString(strings.Join(c.prose, "\n") + "\n\n")
	c.prose = nil
}

func (c *configRenderer) endExample() {
	if len(c.example) == 0 {
		return
	}
	c.endTable()
	c.out.WriteString("```yaml\n" + strings.Join(c.example, "\n") + "\n```\n\n")
	c.example = nil
}

func (c *configRenderer) flush() {
	c.endTable()
	c.endProse()
	c.endExample()
}

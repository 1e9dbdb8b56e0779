package top

import (
	"slices"
	"strings"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"
)

// column describes a column of a table. A width of 0 shares what the others leave.
type column struct {
	title string
	width int
	right bool // aligned to the right
}

// cell is a text and its style.
type cell struct {
	text  string
	style lipgloss.Style
}

// row is a row with the key that identifies it, so that the cursor stays on it when rows move.
type row struct {
	key   string
	cells []cell
}

// table is a list of rows with a cursor. The table of package bubbles doesn't keep a moved cursor in
// view, and renders no styles in cells.
type table struct {
	columns []column
	rows    []row
	cursor  int
	offset  int // the first visible row
	height  int // visible rows
	sorted  int // the column that the rows are sorted by; -1: none
}

// setRows replaces the rows. The cursor stays on its row if that still exists.
func (t *table) setRows(rows []row) {
	key := t.selected()
	t.rows = rows
	if i := slices.IndexFunc(rows, func(r row) bool { return r.key == key }); i >= 0 && key != "" {
		t.offset += i - t.cursor // it also stays on its line of the screen
		t.cursor = i
	}
	t.move(0)
}

// selected returns the key of the row at the cursor, or "".
func (t *table) selected() string {
	if t.cursor < len(t.rows) {
		return t.rows[t.cursor].key
	}
	return ""
}

// move moves the cursor by n rows and keeps it in view.
func (t *table) move(n int) {
	t.cursor = max(0, min(t.cursor+n, len(t.rows)-1))
	t.offset = max(0, min(t.offset, t.cursor, len(t.rows)-t.height))
	t.offset = max(t.offset, t.cursor-t.height+1)
}

// widths divides width between the columns, which have a space between them.
func (t *table) widths(width int) []int {
	all := make([]int, len(t.columns))
	rest, flexible := width-max(0, len(t.columns)-1), 0
	for i, c := range t.columns {
		all[i] = c.width
		rest -= c.width
		if c.width == 0 {
			flexible++
		}
	}
	for i, c := range t.columns {
		if c.width == 0 {
			all[i] = max(4, rest/flexible)
			rest, flexible = rest-all[i], flexible-1
		}
	}
	return all
}

// view returns the head and the visible rows, as height+1 lines.
func (t *table) view(width int) []string {
	widths := t.widths(width)
	head := make([]string, len(t.columns))
	for i, c := range t.columns {
		title := c.title
		if i == t.sorted {
			title = ansi.Truncate(title, max(0, widths[i]-1), "") + "*"
		}
		head[i] = fit(title, widths[i], c.right)
	}
	lines := []string{headStyle.Render(fit(strings.Join(head, " "), width, false))}
	for i := t.offset; i < min(t.offset+t.height, len(t.rows)); i++ {
		texts := make([]string, len(t.columns))
		for j, c := range t.rows[i].cells {
			texts[j] = fit(c.text, widths[j], t.columns[j].right)
			if i != t.cursor {
				texts[j] = c.style.Render(texts[j])
			}
		}
		line := fit(strings.Join(texts, " "), width, false)
		if i == t.cursor {
			line = selectedStyle.Render(line)
		}
		lines = append(lines, line)
	}
	for len(lines) < t.height+1 {
		lines = append(lines, "")
	}
	return lines
}

// fit cuts or fills a text to a width in cells of the screen.
func fit(text string, width int, right bool) string {
	text = ansi.Truncate(text, width, "…")
	fill := strings.Repeat(" ", max(0, width-ansi.StringWidth(text)))
	if right {
		return fill + text
	}
	return text + fill
}

// plain returns a cell without a style.
func plain(text string) cell { return cell{text: text} }

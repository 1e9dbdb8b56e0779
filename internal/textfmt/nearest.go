package textfmt

import (
	"slices"
	"strings"
)

// Nearest returns the one of the known names that a name is probably a typing error of, or "".
func Nearest(name string, known []string) (near string) {
	least := max(1, (len(name)+1)/3) + 1
	for _, other := range known {
		if d := distance(strings.ToLower(name), strings.ToLower(other)); d < least {
			near, least = other, d
		}
	}
	return near
}

// distance is the number of letters to add, remove or change to turn a into b. A text that
// begins or ends with the other one has the distance 1, and so has one with two letters in exchanged order.
func distance(a, b string) int {
	short, long := a, b
	if len(short) > len(long) {
		short, long = long, short
	}
	if len(short) >= 3 && (strings.HasPrefix(long, short) || strings.HasSuffix(long, short)) {
		return 1
	}
	x, y := []rune(a), []rune(b)
	if i := 0; len(x) == len(y) {
		for i < len(x) && x[i] == y[i] {
			i++
		}
		if i+1 < len(x) && x[i] == y[i+1] && x[i+1] == y[i] && slices.Equal(x[i+2:], y[i+2:]) {
			return 1
		}
	}
	row := make([]int, len(y)+1)
	for j := range row {
		row[j] = j
	}
	for i, r := range x {
		last := row[0]
		row[0] = i + 1
		for j, s := range y {
			changed := last
			if r != s {
				changed++
			}
			last = row[j+1]
			row[j+1] = min(changed, row[j]+1, last+1)
		}
	}
	return row[len(y)]
}

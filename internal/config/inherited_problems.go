package config

import (
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
)

// problemsByKey holds the problems of the section `defaults` by key. A queue that inherits a
// wrong default is not reported again.
type problemsByKey map[string]string

type reportFunc = func(path, format string, args ...any)

// recording returns a report function that also stores the problems of a section.
func (p problemsByKey) recording(section string, bad reportFunc) reportFunc {
	return func(path, format string, args ...any) {
		p[strings.TrimPrefix(path, section+".")] = fmt.Sprintf(format, args...)
		bad(path, format, args...)
	}
}

// withoutInherited returns a report function that skips the problems which the queue
// inherits.
func (p problemsByKey) withoutInherited(section string, q *queueConfig, bad reportFunc) reportFunc {
	return func(path, format string, args ...any) {
		key := strings.TrimPrefix(path, section+".")
		if reported, ok := p[key]; ok && reported == fmt.Sprintf(format, args...) && !q.sets(key) {
			return
		}
		bad(path, format, args...)
	}
}

// sets reports whether the queue itself sets a key of the defaults.
func (q *queueConfig) sets(key string) bool {
	section, _, _ := strings.Cut(key, ".")
	v, ok := fieldOf(reflect.ValueOf(q).Elem(), section)
	return ok && !v.IsZero()
}

// samePath reports whether two paths have the same text after cleaning.
func samePath(a, b string) bool { return filepath.Clean(a) == filepath.Clean(b) }

// spelledAs returns how the other path is written, if it differs.
func spelledAs(path, other string) string {
	if path == other {
		return ""
	}
	return " (as " + other + ")"
}

// checkGroup reports a group that this host doesn't know.
func checkGroup(path, group string, bad reportFunc) {
	if group == "" {
		return
	}
	if _, err := accountID(group, "group", lookupGroup); err != nil {
		bad(path+".group", "%v", err)
	}
}

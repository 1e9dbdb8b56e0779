package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Error is an error in a config, or in the flags and variables that select one.
type Error struct{ Err error }

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Errorf returns an Error.
func Errorf(format string, args ...any) error { return &Error{fmt.Errorf(format, args...)} }

// ErrorIn adds the name of the database to err, if there are several.
func (c *Config) ErrorIn(name string, err error) error {
	if len(c.Databases) == 1 {
		return err
	}
	return fmt.Errorf("databases.%s: %w", name, err)
}

// KeepUsable removes the parts of a config that have errors, so that the other databases and
// adopted tables can be checked.
func (c *Config) KeepUsable(usage error) {
	for name, d := range c.Databases {
		d.check("", func(string, string, ...any) { delete(c.Databases, name) })
	}
	maps.DeleteFunc(c.Queues, func(name string, q queueConfig) bool {
		return !q.adopts() || slices.ContainsFunc(Problems(usage), func(text string) bool {
			return strings.Contains(text, "queues."+name+".") || strings.Contains(text, "queues."+name+":")
		})
	})
	c.Log = defaultConfig().Log
}

// Problems returns the single errors of a config.
func Problems(err error) (texts []string) {
	var file *configError
	switch joined, ok := err.(interface{ Unwrap() []error }); {
	case err == nil:
		return nil
	case ok:
		for _, e := range joined.Unwrap() {
			texts = append(texts, Problems(e)...)
		}
		return texts
	case errors.As(err, &file):
		return file.each
	}
	return []string{err.Error()}
}

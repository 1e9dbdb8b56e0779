package backends

import (
	"errors"
	"fmt"
	"strings"
)

// RightError means that the login lacks a right in the database. Nothing was written. The same call can succeed after the right is
// granted.
type RightError struct{ Err error }

// Error implements error.
func (e *RightError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *RightError) Unwrap() error { return e.Err }

// LacksRight reports whether err is a RightError.
func LacksRight(err error) bool {
	_, lacks := errors.AsType[*RightError](err)
	return lacks
}

// MissingRights are the rights on an object of the sidecar itself that the login lacks.
type MissingRights struct {
	Object string   // its name without a schema, such as qsidecar_jobs
	Rights []string // such as INSERT
	Target string   // the object as a GRANT names it
	Login  string   // the login as a GRANT names it
}

// Grant returns the statement that grants the rights.
func (m *MissingRights) Grant() string {
	return fmt.Sprintf("GRANT %s ON %s TO %s", strings.Join(m.Rights, ", "), m.Target, m.Login)
}

// Err returns the error of a call that needs the rights.
func (m *MissingRights) Err() error {
	return &RightError{fmt.Errorf("this login lacks %s on %s: let the owner run: %s", strings.Join(m.Rights, ", "), m.Target, m.Grant())}
}

package protocol

import "fmt"

// renamedOps has the ops that had another name in early builds, by their old names. They stay
// unknown: the table only improves the error.
var renamedOps = map[Op]Op{
	"release": OpReclaim,
	"cancel":  OpCancelClaim,
}

// renamedFields has the fields of requests that had another name in early builds, with what to
// write instead.
var renamedFields = map[string]string{
	"charge": "charge: false is called snooze: true now",
}

// NewName returns the present name of an op that had the name op in early builds.
func NewName(op Op) (now Op, renamed bool) {
	now, renamed = renamedOps[op]
	return now, renamed
}

// unknownOp returns the error for an op that does not exist.
func unknownOp(op Op) *Error {
	if now, renamed := NewName(op); renamed {
		return BadField("op", "the op %s is called %s now", op, now)
	}
	return &Error{Code: CodeUnknownOp, Field: "op", Message: fmt.Sprintf("there is no op %q", op)}
}

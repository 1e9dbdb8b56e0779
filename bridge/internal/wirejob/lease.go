package wirejob

import (
	"encoding/base64"
	"encoding/binary"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/protocol"
)

// A lease string is `1.DATABASE.TOKEN.JOB`, all of [A-Za-z0-9._-]:
//
//   - 1: the version of this form
//   - DATABASE: the random id that the database keeps
//   - TOKEN: the sidecar's identity and the claim's number, 16 bytes big-endian, as base64url
//   - JOB: the job's id. An id that is not all digits is written as `_` and its base64url
//
// It is self-contained. Any sidecar of the database can settle it, even one that started after the claim.
const leaseVersion = "1"

var b64 = base64.RawURLEncoding.Strict()

// FormatLease returns the lease string of a lease of the database with that id.
func FormatLease(database string, l backends.Lease) string {
	var raw [16]byte
	binary.BigEndian.PutUint64(raw[:8], uint64(l.Token.Sidecar))
	binary.BigEndian.PutUint64(raw[8:], l.Token.Number)
	var short [128]byte // long enough for the ids of most engines
	out := append(short[:0], leaseVersion...)
	out = append(out, '.')
	out = append(out, database...)
	out = append(out, '.')
	out = b64.AppendEncode(out, raw[:])
	out = append(out, '.')
	if allDigits(l.Job) {
		out = append(out, l.Job...)
	} else {
		out = append(out, '_')
		out = b64.AppendEncode(out, []byte(l.Job))
	}
	return string(out)
}

// ParseLease parses a lease string. ok is false for a string that FormatLease never returns: such a lease is lost.
func ParseLease(s string) (database string, l backends.Lease, ok bool) {
	if len(s) > protocol.MaxLease || strings.ContainsAny(s, "\r\n") { // base64 would pass line ends over
		return "", l, false
	}
	version, rest, ok1 := strings.Cut(s, ".")
	database, rest, ok2 := strings.Cut(rest, ".")
	token, job, ok3 := strings.Cut(rest, ".")
	if !ok1 || !ok2 || !ok3 || version != leaseVersion || len(token) != 22 {
		return "", l, false
	}
	var raw [16]byte // of 22 characters
	if _, err := b64.Decode(raw[:], []byte(token)); err != nil {
		return "", l, false
	}
	l.Token.Sidecar = backends.Identity(binary.BigEndian.Uint64(raw[:8]))
	l.Token.Number = binary.BigEndian.Uint64(raw[8:])
	if coded, isCoded := strings.CutPrefix(job, "_"); isCoded {
		id, err := b64.DecodeString(coded)
		if err != nil || len(id) == 0 || allDigits(string(id)) { // FormatLease writes those otherwise
			return "", l, false
		}
		job = string(id)
	} else if !allDigits(job) {
		return "", l, false
	}
	l.Job = job
	return database, l, true
}

func allDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

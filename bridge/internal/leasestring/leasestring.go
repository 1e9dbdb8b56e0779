package leasestring

import (
	"encoding/base64"
	"encoding/binary"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/protocol"
)

const leaseVersion = "1"

var b64 = base64.RawURLEncoding.Strict()

// Format returns the lease string of a lease of the database with that id.
func Format(database string, l backends.Lease) string {
	var raw [16]byte
	binary.BigEndian.PutUint64(raw[:8], uint64(l.Token.Host))
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

// Parse parses a lease string. ok is false for a string that Format never returns: such a lease is lost.
func Parse(s string) (database string, l backends.Lease, ok bool) {
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
	l.Token.Host = backends.Identity(binary.BigEndian.Uint64(raw[:8]))
	l.Token.Number = binary.BigEndian.Uint64(raw[8:])
	if coded, isCoded := strings.CutPrefix(job, "_"); isCoded {
		id, err := b64.DecodeString(coded)
		if err != nil || len(id) == 0 || allDigits(string(id)) { // Format writes those otherwise
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

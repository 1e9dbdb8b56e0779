package protocol

// The headers in which a job carries the trace that it belongs to (W3C Trace Context).
// They travel from enqueue to claim like any other; their names are lower-case letters.
const (
	HeaderTraceParent = "traceparent"
	HeaderTraceState  = "tracestate"
)

// The parts of a traceparent, VERSION-TRACE-PARENT-FLAGS in lower-case hex digits.
const (
	traceBegin, traceEnd   = 3, 35
	parentBegin, parentEnd = 36, 52
	traceParentLen         = 55
)

// TraceID is the trace in a traceparent: 32 lower-case hex digits, which are part of s.
// ok is false where s is none by the letter of W3C Trace Context (level 2): another length,
// a version ff, upper-case digits, an id of zeros. Of a version after 00 only the parts that
// 00 has are looked at, and what follows must be apart from them.
func TraceID(s string) (id string, ok bool) {
	switch {
	case len(s) < traceParentLen, !hex(s[:2]), s[:2] == "ff", s[2] != '-',
		s[:2] == "00" && len(s) != traceParentLen, len(s) > traceParentLen && s[traceParentLen] != '-',
		!someID(s[traceBegin:traceEnd]), s[traceEnd] != '-',
		!someID(s[parentBegin:parentEnd]), s[parentEnd] != '-', !hex(s[parentEnd+1 : traceParentLen]):
		return "", false
	}
	return s[traceBegin:traceEnd], true
}

// someID: hex digits, not all of them zeros.
func someID(s string) bool {
	for i := range len(s) {
		if s[i] != '0' {
			return hex(s)
		}
	}
	return false
}

func hex(s string) bool {
	for i := range len(s) {
		if (s[i] < '0' || s[i] > '9') && (s[i] < 'a' || s[i] > 'f') {
			return false
		}
	}
	return true
}

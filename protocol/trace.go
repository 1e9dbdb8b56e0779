package protocol

// The headers that carry the trace of a job (W3C Trace Context). They pass from enqueue to claim
// like other headers. Their names are lower case.
const (
	HeaderTraceParent = "traceparent"
	HeaderTraceState  = "tracestate"
)

// MaxTraceState is how many bytes of a tracestate must be passed on at least. A longer one can be dropped.
const MaxTraceState = 512

// TraceContext returns the traceparent in a job's headers, and its tracestate unless that is longer than MaxTraceState.
func TraceContext(headers map[string]string) (parent, state string) {
	parent, state = headers[HeaderTraceParent], headers[HeaderTraceState]
	if parent == "" || len(state) > MaxTraceState {
		state = ""
	}
	return parent, state
}

// The parts of a traceparent, VERSION-TRACE-PARENT-FLAGS in lower-case hex digits.
const (
	traceBegin, traceEnd   = 3, 35
	parentBegin, parentEnd = 36, 52
	traceParentLen         = 55
)

// TraceID returns the trace id of a traceparent: 32 lower-case hex digits, a part of s. ok is false
// if s is not valid by W3C Trace Context (level 2): another length, version ff, upper-case digits
// or an id of zeros. Of versions after 00, TraceID checks only the parts that 00 has, and that a
// separator follows them.
func TraceID(s string) (id string, ok bool) {
	switch {
	case len(s) < traceParentLen, !hex(s[:2]), s[:2] == "ff", s[2] != '-',
		s[:2] == "00" && len(s) != traceParentLen, len(s) > traceParentLen && s[traceParentLen] != '-',
		!nonZeroHex(s[traceBegin:traceEnd]), s[traceEnd] != '-',
		!nonZeroHex(s[parentBegin:parentEnd]), s[parentEnd] != '-', !hex(s[parentEnd+1 : traceParentLen]):
		return "", false
	}
	return s[traceBegin:traceEnd], true
}

// nonZeroHex reports whether s is hex digits that are not all zeros.
func nonZeroHex(s string) bool {
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

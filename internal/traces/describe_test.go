package traces

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
)

func hexOf(id []byte) string { return hex.EncodeToString(id) }

// describe returns a span as one line, without its ids.
func describe(s *tracepb.Span) string {
	var attrs []string
	for _, a := range s.GetAttributes() {
		value := a.GetValue().GetStringValue()
		if value == "" {
			value = fmt.Sprint(a.GetValue().GetIntValue())
		}
		attrs = append(attrs, a.GetKey()+"="+value)
	}
	slices.Sort(attrs)
	since := func(at uint64) time.Duration { return time.Duration(int64(at) - int64(s.GetStartTimeUnixNano())) }
	text := fmt.Sprintf("%s %s %v %s", s.GetName(), strings.TrimPrefix(s.GetKind().String(), "SPAN_KIND_"), since(s.GetEndTimeUnixNano()), strings.Join(attrs, " "))
	for _, e := range s.GetEvents() {
		text += fmt.Sprintf(" event %s %v", e.GetName(), since(e.GetTimeUnixNano()))
	}
	if s.GetStatus().GetCode() == tracepb.Status_STATUS_CODE_ERROR {
		text += " error " + s.GetStatus().GetMessage()
	}
	return text
}

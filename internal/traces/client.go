package traces

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

const (
	// requestTimeout bounds one request to the collector. It is the default of the OTLP exporters.
	requestTimeout = 10 * time.Second
	// The wait after a failed request doubles from the first to the second of these.
	minRetry, maxRetry = 500 * time.Millisecond, 5 * time.Second
	// maxReplyText is how much of an error's body is shown.
	maxReplyText = 300
)

// client sends spans to a collector by OTLP over HTTP. It implements otlptrace.Client.
//
// The exporter of the SDK for this, otlptracehttp, links gRPC without a need (opentelemetry-go issue 2579). It would make
// each sidecar's memory 3 MB and the start of each command a fifth larger.
type client struct {
	url    string
	header http.Header
	http   *http.Client
	stop   context.Context    // ends all requests
	result func(failed error) // is called after each request
}

// Start implements otlptrace.Client.
func (*client) Start(context.Context) error { return nil }

// Stop implements otlptrace.Client.
func (c *client) Stop(context.Context) error {
	c.http.CloseIdleConnections()
	return nil
}

// UploadTraces implements otlptrace.Client. It repeats the request until ctx ends if the error can be temporary.
func (c *client) UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.stop, func() { cancel(context.Cause(c.stop)) })()
	body, err := proto.Marshal(&tracepb.TracesData{ResourceSpans: spans}) // encoded like an ExportTraceServiceRequest
	if err != nil {
		return fmt.Errorf("encoding spans: %w", err)
	}
	for wait := minRetry; ; wait = min(2*wait, maxRetry) {
		again, after, err := c.send(ctx, body)
		c.result(err)
		if err == nil || !again {
			return err
		}
		select {
		case <-time.After(max(wait, after)):
		case <-ctx.Done():
			return err
		}
	}
}

// send sends one request. again reports whether a later one can succeed, and after is the time that the collector asked for.
func (c *client) send(ctx context.Context, body []byte) (again bool, after time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return false, 0, err
	}
	r.Header = c.header.Clone()
	r.Header.Set("Content-Type", "application/x-protobuf")
	reply, err := c.http.Do(r)
	if err != nil {
		return true, 0, err
	}
	defer reply.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(reply.Body, maxReplyText)) // only for the message
	switch reply.StatusCode {
	case http.StatusOK, http.StatusAccepted:
		return false, 0, nil
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		again = true
	}
	if seconds, err := strconv.Atoi(reply.Header.Get("Retry-After")); err == nil {
		after = time.Duration(seconds) * time.Second
	}
	return again, after, fmt.Errorf("%s: %s %s", c.url, reply.Status, printable(text))
}

// printable returns the body of an error, which can be binary, as one line of text.
func printable(text []byte) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return ' '
		}
		return r
	}, string(text)))
}

// headers returns the headers of the environment, as the specification of the OTLP exporters defines it.
func headers(env func(string) string) (http.Header, error) {
	const general, own = "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"
	h := http.Header{"User-Agent": {"qsidecar"}}
	for pair := range strings.SplitSeq(cmp.Or(env(own), env(general)), ",") {
		if pair = strings.TrimSpace(pair); pair == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if key = strings.TrimSpace(key); !ok || key == "" || err != nil { // the value can be a secret
			return nil, fmt.Errorf("traces.endpoint: the environment variable %s or %s is not a list of KEY=VALUE with commas between them: correct or unset it", own, general)
		}
		h.Set(key, value)
	}
	return h, nil
}

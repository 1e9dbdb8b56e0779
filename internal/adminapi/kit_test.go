package adminapi

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/bridge"
	"github.com/qsidecar/qsidecar/internal/testwait"
	"github.com/qsidecar/qsidecar/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const token = "a-token-of-a-test-0123"

// writable are rules that permit everything with the token.
var writable = Rules{Write: true, Users: []User{NewUser("", token)}, MaxFrame: protocol.DefaultMaxFrame}

// sidecar is a running bridge with its API.
type sidecar struct {
	*Server
	t   *testing.T
	url string
	log *buffer

	mu     sync.Mutex
	served []served // the sessions of the API

	hold   sync.RWMutex // locked: a purge waits after it was sent and before the sidecar reads it
	purges atomic.Int32 // that were sent
}

// requests are the requests of a session.
type requests struct {
	*sidecar
	in io.Reader
}

func (r requests) Read(p []byte) (int, error) {
	n, err := r.in.Read(p)
	if bytes.Contains(p[:n], []byte(protocol.OpPurge)) {
		r.purges.Add(1)
		r.hold.RLock()
		defer r.hold.RUnlock()
	}
	return n, err
}

// served is a session that the bridge serves, or served.
type served struct {
	cut   context.CancelFunc
	ended chan struct{}
}

type buffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// start runs a sidecar in memory. page is called with the requests that the API doesn't serve; nil: there is no page.
func start(t *testing.T, rules Rules, page http.HandlerFunc) *sidecar {
	t.Helper()
	x := &sidecar{t: t, log: new(buffer)}
	b, err := bridge.New(bridge.Options{
		Databases: map[string]bridge.Database{"main": {Backend: memory.New()}},
		Queues:    map[string]bridge.Queue{"*": {}},
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- b.Run(ctx) }()
	o := Options{Log: slog.New(slog.NewTextHandler(x.log, nil)), Serve: func(ctx context.Context, in io.Reader, out io.Writer) error {
		ctx, cut := context.WithCancel(ctx)
		defer cut()
		s := served{cut, make(chan struct{})}
		defer close(s.ended)
		x.mu.Lock()
		x.served = append(x.served, s)
		x.mu.Unlock()
		return b.ServeStream(ctx, requests{x, in}, out)
	}}
	if page != nil {
		o.Page = func(*Server) http.Handler { return page }
	}
	x.Server = New(o)
	x.Configure(rules)
	server := httptest.NewServer(SecureHeaders(x.Handler()))
	x.url = server.URL
	t.Cleanup(func() {
		x.EndStreams()
		server.Close()
		x.Close()
		stop()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	})
	return x
}

// loseSessions ends the sessions that were served until now, and waits for their end: until then they answer that the bridge drains.
func (x *sidecar) loseSessions() {
	x.t.Helper()
	x.mu.Lock()
	all := x.served
	x.served = nil
	x.mu.Unlock()
	for _, s := range all {
		s.cut()
		testwait.Closed(x.t, "the session has ended", s.ended)
	}
}

// answer is a response with its body.
type answer struct {
	code   int
	body   string
	header http.Header
}

// send sends a request. header has pairs of a name and a value. The name Host sets the Host header.
func (x *sidecar) send(method, path, body string, header ...string) answer {
	x.t.Helper()
	r, err := http.NewRequestWithContext(x.t.Context(), method, x.url+path, strings.NewReader(body))
	if err != nil {
		x.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
		}
		r.Header.Set(header[i], header[i+1])
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(r)
	if err != nil {
		x.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		x.t.Fatal(err)
	}
	return answer{res.StatusCode, string(text), res.Header}
}

// op sends an operation with the token.
func (x *sidecar) op(op, body string) answer {
	x.t.Helper()
	return x.send(http.MethodPost, "/api/v1/"+op, body, "Authorization", "Bearer "+token)
}

// want fails unless the answer has the status code and contains the text.
func (a answer) want(t *testing.T, what string, code int, text string) {
	t.Helper()
	if a.code != code || !strings.Contains(a.body, text) {
		t.Errorf("%s: %d %s; want %d and %q", what, a.code, a.body, code, text)
	}
}

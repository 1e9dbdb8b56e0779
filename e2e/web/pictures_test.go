package web

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"os"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
)

// TestPictures writes the pictures of docs/operations/web.md into the directory that QSIDECAR_SCREENSHOTS names, or else
// into a temporary one:
//
//	QSIDECAR_SCREENSHOTS=$PWD/docs/operations/img go test -run TestPictures ./e2e/web
func TestPictures(t *testing.T) {
	directory := cmp.Or(os.Getenv("QSIDECAR_SCREENSHOTS"), t.TempDir())
	s := kit.NewSite(t)
	sc, base := pageOf(t, s, "a", "write")
	c := sc.Dial()
	for queue, n := range map[string]int{"mail": 42, "invoices": 7, "search-index": 1280, "thumbnails": 310, "video": 3} {
		c.Enqueue(queue, n)
	}
	c.Must(kit.Msg{"op": "enqueue", "queue": "reports", "payload": "monthly", "delay_ms": 3_600_000})
	kill(c, "webhooks", "dial tcp 192.0.2.7:443: connection refused", payloads(12)...)
	id := kill(c, "webhooks", "410 Gone: the subscription 4711 was cancelled", kit.Msg{
		"payload": `{"event":"order.paid","order":4711,"url":"https://shop.example/hooks/orders","amount":{"currency":"EUR","value":"129.90"},"tries":null}`,
		"key":     "order-4711-paid", "headers": map[string]string{"content-type": "application/json", "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
	})[0]
	c.Must(kit.Msg{"op": "pause", "queue": "webhooks"})
	c.Must(kit.Msg{"op": "enqueue", "queue": "video", "payload_b64": base64.StdEncoding.EncodeToString([]byte{0xff, 0xd8, 0xff, 0xe0})})
	for i, queue := range []string{"mail", "thumbnails", "thumbnails"} { // three workers, which keep their jobs
		worker := sc.Dial()
		worker.Must(kit.Msg{"op": "hello", "version": 1, "worker": fmt.Sprintf("worker-%d", i+1)})
		worker.Must(kit.Msg{"op": "claim", "queue": queue, "max": 4})
	}
	browse(t, s, map[string]any{"base": base, "token": token, "jobs": map[string]string{"picture": id}, "directory": directory}, "pictures")
}
